"""Sinks, compiled: from the last operator to serialized records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .error_handling import ErrorHandling
from .errors import StreamsError
from .exception_handlers import ProducerRecord
from .operators.record_context import record_metadata
from .processor_topology import SinkNode
from .records import Headers, RecordMetadata
from .serdes import ToBytes, resolve_serde, serializer_for
from .task_context import Process, TaskContext

#: What a topic function sees of a record that a punctuation has made.
_NO_METADATA = RecordMetadata("", -1, -1)


def static_sink(node: SinkNode, topic: str, task: TaskContext, errors: ErrorHandling) -> Process:
    """Return the closure that writes to one topic."""
    send, name = task.send, node.name
    to_key, to_value = _serializers(node, topic, task)
    if node.partitioner is not None:
        return _partitioned_sink(node, topic, task, errors)

    def sink(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:  # costs nothing unless it fails
            key_bytes, value_bytes = to_key(key), to_value(value)
        except Exception as error:  # noqa: BLE001 - the handler decides, and raises
            errors.failed_serialization(name, ProducerRecord(topic, key, value, timestamp, headers), error)
            return
        send(topic, key_bytes, value_bytes, timestamp, headers)

    return sink


def _partitioned_sink(node: SinkNode, topic: str, task: TaskContext, errors: ErrorHandling) -> Process:
    """Return a sink whose partitioner names a partition, several, none at all, or None: the producer chooses."""
    send, name, partitioner, partition_count = task.send, node.name, node.partitioner, task.partition_count
    to_key, to_value = _serializers(node, topic, task)
    if partitioner is None:
        raise StreamsError(f"Sink {name} has no partitioner")

    def sink(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        chosen: Any = partitioner(topic, key, value, partition_count(topic))
        try:
            key_bytes, value_bytes = to_key(key), to_value(value)
        except Exception as error:  # noqa: BLE001 - the handler decides, and raises
            errors.failed_serialization(name, ProducerRecord(topic, key, value, timestamp, headers), error)
            return
        if chosen is None or isinstance(chosen, int):
            send(topic, key_bytes, value_bytes, timestamp, headers, chosen)
            return
        for partition in chosen:
            send(topic, key_bytes, value_bytes, timestamp, headers, partition)
        if not chosen:
            task.record_dropped(name, "partitioner returned no partition")

    return sink


def dynamic_sink(node: SinkNode, topic_of: Callable[..., str], task: TaskContext, errors: ErrorHandling) -> Process:
    """Return the closure that writes to the topic that a function names (Kafka Streams: TopicNameExtractor)."""
    name = node.name
    sinks: dict[str, Process] = {}

    def sink(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        topic = topic_of(key, value, record_metadata(task) or _NO_METADATA)
        found = sinks.get(topic)
        if found is None:
            if not isinstance(topic, str) or not topic:
                raise StreamsError(f"The topic function of sink {name} must return a topic's name, not {topic!r}")
            found = sinks[topic] = static_sink(node, topic, task, errors)
        found(key, value, timestamp, headers)

    return sink


def _serializers(node: SinkNode, topic: str, task: TaskContext) -> tuple[ToBytes, ToBytes]:
    where = f"sink {node.name} ({topic})"
    return (
        serializer_for(resolve_serde(node.key_serde, task.config, True, where), topic),
        serializer_for(resolve_serde(node.value_serde, task.config, False, where), topic),
    )
