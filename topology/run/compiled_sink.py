"""Compiled sinks: from the last operator to serialized records."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from operator import index
from typing import Any

from penstock.kernel.nodes import Node, PartitionedSink, PythonNode, Sink, WindowedKeySink
from penstock.kernel.sinks import RecordSink, WindowedSink

from ..context.error_handling import ErrorHandling
from ..context.exception_handlers import SINK_PREFIX, ProducerRecord
from ..context.partitioners import StreamPartitioner, WindowedStreamPartitioner
from ..context.task_context import Process, TaskContext
from ..errors import StreamsError
from ..graph.processor_topology import SinkNode
from ..operators.foreign_key_serdes import PrimaryPartitioner
from ..operators.record_context import record_metadata
from ..records import Headers, RecordMetadata
from ..serdes.serdes import Serde, direct, resolve_serde, serializer_for, takes_none
from ..serdes.windowed_serdes import WindowedSerde

#: The metadata that a topic function gets for a record of a punctuation.
_NO_METADATA = RecordMetadata("", -1, -1)


def compile_sink(node: SinkNode, internal_topic: str | None, task: TaskContext, errors: ErrorHandling) -> Node:
    """Return the node that serializes records and passes them to the producer.

    internal_topic: its full name; None if the sink writes to topics of the user, whose names get the prefix of sinks.
    """
    where = f"sink {node.name}"
    key_serde = resolve_serde(node.key_serde, task.config, True, where)
    value_serde = resolve_serde(node.value_serde, task.config, False, where)

    def sink_to(topic: str) -> Node:
        if node.partitioner is None:
            return _sink(node, topic, key_serde, value_serde, task, errors)
        if _windowed(node) is not None:
            return _windowed_sink(node, topic, key_serde, value_serde, task, errors)
        return _partitioned_sink(node, topic, key_serde, value_serde, task, errors)

    if internal_topic is not None:
        return sink_to(internal_topic)
    prefix = task.config[SINK_PREFIX]
    if isinstance(node.topic, str):
        return sink_to(prefix + node.topic)
    return PythonNode(
        task, node.name, _dynamic_sink(node.name, node.topic, lambda topic: sink_to(prefix + topic), task)
    )


def _unsent(node: SinkNode, topic: str, errors: ErrorHandling) -> Callable[[Any, Any, int, Headers, Exception], None]:
    """Return what judges a record that cannot be serialized."""

    def unsent(key: object, value: object, timestamp: int, headers: Headers, error: Exception) -> None:
        errors.failed_serialization(node.name, ProducerRecord(topic, key, value, timestamp, headers), error)

    return unsent


def _functions(key_serde: Serde, value_serde: Serde, topic: str) -> tuple[Any, bool, Any, bool]:
    """Return how the kernel serializes keys and values; see RecordSink in kernel/sinks.pyx."""
    to_key, to_value = serializer_for(key_serde, topic), serializer_for(value_serde, topic)
    return direct(to_key), takes_none(to_key), direct(to_value), takes_none(to_value)


def _sink(
    node: SinkNode, topic: str, key_serde: Serde, value_serde: Serde, task: TaskContext, errors: ErrorHandling
) -> Node:
    sink = RecordSink(task.output, topic, *_functions(key_serde, value_serde, topic))
    return Sink(task, node.name, sink, key_serde, value_serde, _unsent(node, topic, errors))


def _windowed(node: SinkNode) -> WindowedSerde | None:
    """Return the windowed serde of a sink that partitions by the key inside; None for other sinks."""
    found = node.partitioner.serde if isinstance(node.partitioner, WindowedStreamPartitioner) else None
    return None if found is None or found.inner is None else found


def _windowed_sink(
    node: SinkNode, topic: str, key_serde: Serde, value_serde: Serde, task: TaskContext, errors: ErrorHandling
) -> Node:
    """Return a sink of windowed keys, which are partitioned by the key inside."""
    windowed = _windowed(node)
    assert windowed is not None
    functions, count = _functions(key_serde, value_serde, topic), partial(task.partition_count, topic)
    sink = WindowedSink(task.output, topic, *functions, windowed.times_size, count)
    return WindowedKeySink(task, node.name, sink, windowed.inner, value_serde, _unsent(node, topic, errors))


def _partitioned_sink(
    node: SinkNode, topic: str, key_serde: Serde, value_serde: Serde, task: TaskContext, errors: ErrorHandling
) -> Node:
    """Return a sink whose partitioner returns a partition, several, none, or None (producer's choice)."""
    sink = RecordSink(task.output, topic, *_functions(key_serde, value_serde, topic))
    given = node.partitioner
    place = PrimaryPartitioner.POSITION if isinstance(given, PrimaryPartitioner) else None
    with_headers = isinstance(given, StreamPartitioner)
    return PartitionedSink(
        task,
        node.name,
        sink,
        topic,
        key_serde,
        _unsent(node, topic, errors),
        given.partitions if isinstance(given, StreamPartitioner) else given,
        with_headers,
        place,
        partial(task.partition_count, topic),
        _send_to(node.name, topic, key_serde, value_serde, task),
    )


def _send_to(
    name: str, topic: str, key_serde: Serde, value_serde: Serde, task: TaskContext
) -> Callable[..., Exception | None]:
    """Return a function that serializes, and sends to the partitions that a partitioner has chosen.

    It returns the exception if the record cannot be serialized, and raises ValueError if these are no partitions.
    """
    send, to_key, to_value = task.output.send, serializer_for(key_serde, topic), serializer_for(value_serde, topic)

    def send_to(chosen: object, key: object, value: object, timestamp: int, headers: Headers) -> Exception | None:
        partitions = _as_partitions(chosen, topic)
        try:
            key_bytes, value_bytes = to_key(key), to_value(value)
        except Exception as error:  # noqa: BLE001 - the handler decides, and raises
            return error
        for partition in partitions:
            send(topic, key_bytes, value_bytes, timestamp, headers, partition)
        if not partitions:
            task.record_dropped(name, "partitioner returned no partition")
        return None

    return send_to


def _as_partitions(chosen: Any, topic: str) -> list[int]:
    """Return the partitions that a partitioner has chosen, each once; raises ValueError if they are none."""
    several = isinstance(chosen, Collection) and not isinstance(chosen, str | bytes)
    given = chosen if several else (chosen,)
    partitions = dict.fromkeys(index(one) if hasattr(one, "__index__") else -1 for one in given)
    if min(partitions, default=0) < 0:
        raise ValueError(
            f"The partitioner of topic {topic} must return a partition, several, or None for Kafka's default, not "
            f"{chosen!r}"
        )
    return list(partitions)


def _dynamic_sink(
    name: str, topic_of: Callable[..., str], sink_to: Callable[[str], Node], task: TaskContext
) -> Process:
    """Return the function that writes to the topic returned by a function (Kafka Streams: TopicNameExtractor)."""
    sinks: dict[str, Process] = {}

    def sink(key: object, value: object, timestamp: int, headers: Headers) -> None:
        topic = topic_of(key, value, record_metadata(task) or _NO_METADATA)
        found = sinks.get(topic)
        if found is None:
            if not isinstance(topic, str) or not topic:
                raise StreamsError(f"The topic function of sink {name} must return a topic's name, not {topic!r}")
            found = sinks[topic] = sink_to(topic).receive
        found(key, value, timestamp, headers)

    return sink
