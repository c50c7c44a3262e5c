"""Compiled sources: from consumed messages to calls of the first operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..context.error_handling import ErrorHandling
from ..context.task_context import Process, TaskContext
from ..context.timestamp_extractors import (
    TIMESTAMP_MAX,
    TimestampExtractor,
    as_timestamp,
    fail_on_invalid_timestamp,
    log_and_skip_on_invalid_timestamp,
    use_partition_time_on_invalid_timestamp,
    wallclock_timestamp_extractor,
)
from ..graph.processor_topology import SourceNode
from ..records import Message
from ..serdes.serdes import deserializer_for, resolve_serde
from .fusion import Fusion

_EXTRACTORS: Mapping[str, TimestampExtractor] = {
    "FailOnInvalidTimestamp": fail_on_invalid_timestamp,
    "LogAndSkipOnInvalidTimestamp": log_and_skip_on_invalid_timestamp,
    "UsePartitionTimeOnInvalidTimestamp": use_partition_time_on_invalid_timestamp,
    "WallclockTimestampExtractor": wallclock_timestamp_extractor,
}


class StampedRecord(NamedTuple):
    """A deserialized record with its extracted timestamp (ms), ready to be processed (Kafka Streams: StampedRecord)."""

    message: Message
    timestamp: int
    key: Any
    value: Any


class CompiledSource:
    """One source topic of one task.

    process_batch(messages): deserialize and process each; records that a handler rejects are dropped.
    process(message): the same for one message.
    stamp(message) -> StampedRecord, or None if the record was dropped; used by tasks with several input partitions to
    choose the next record. process_stamped(records): process such records. extracts_timestamps: False if a record's
    timestamp is the message's own, so that stamping is not needed. partition_time_ms: highest timestamp so far of this
    topic's partition, -1 before the first; a restarted task sets it to the committed one. source_text: the text of the
    loop, if it was fused.
    """

    __slots__ = (
        "extracts_timestamps",
        "name",
        "partition_time_ms",
        "process_batch",
        "process_stamped",
        "source_text",
        "stamp",
        "topic",
    )

    process_batch: Callable[[Iterable[Message]], None]
    stamp: Callable[[Message], StampedRecord | None]
    process_stamped: Callable[[Iterable[StampedRecord]], None]

    def __init__(
        self,
        node: SourceNode,
        topic: str,
        task: TaskContext,
        forward: Process,
        errors: ErrorHandling,
        fusion: Fusion | None = None,
    ) -> None:
        self.name = node.name
        self.topic = topic
        self.partition_time_ms = -1
        extractor = _extractor(node, task)
        self.extracts_timestamps = extractor is not fail_on_invalid_timestamp
        where = f"source {node.name} ({topic})"
        key_serde = resolve_serde(node.key_serde, task.config, True, where)
        to_key = deserializer_for(key_serde, topic)
        value_serde = resolve_serde(node.value_serde, task.config, False, where)
        to_value = deserializer_for(value_serde, topic)
        self.stamp = _stamp(self, to_key, to_value, extractor, task, errors)
        self.process_stamped = _process_stamped(task, forward, errors)
        self.source_text = ""
        if self.extracts_timestamps:
            if fusion is not None:
                self.process_stamped, self.source_text = fusion.stamped_loop(node, topic)
            process_stamped = self.process_stamped  # if both are traced later, a batch has one span
            self.process_batch = lambda messages: process_stamped(self.stamped(messages))
        elif fusion is not None:
            serdes = key_serde, value_serde
            self.process_batch, self.source_text = fusion.loop(node, topic, serdes, to_key, to_value)
        else:
            self.process_batch = _process_batch(self.name, to_key, to_value, task, forward, errors)

    def process(self, message: Message) -> None:
        """Process one message."""
        self.process_batch((message,))

    def stamped(self, messages: Iterable[Message]) -> Iterator[StampedRecord]:
        """Stamp messages one by one, and return those that are not dropped."""
        return filter(None, map(self.stamp, messages))


def _extractor(node: SourceNode, task: TaskContext) -> TimestampExtractor:
    found = node.timestamp_extractor or task.config.get("default.timestamp.extractor") or fail_on_invalid_timestamp
    extractor: TimestampExtractor = _EXTRACTORS[found] if isinstance(found, str) else found
    return extractor


def _process_batch(
    name: str,
    to_key: Callable[[bytes | None], Any],
    to_value: Callable[[bytes | None], Any],
    task: TaskContext,
    forward: Process,
    errors: ErrorHandling,
) -> Callable[[Iterable[Message]], None]:
    """Return the loop over a batch whose records have their own timestamps; the specification of a fused loop."""

    def failed(message: Message, key: Any, timestamp: int | None, error: BaseException) -> None:
        if timestamp is None:
            errors.failed_deserialization(name, message, error)
            return
        task.message, task.timestamp, task.headers = message, timestamp, message.headers()
        errors.raise_failure(error, key)

    def process_batch(messages: Iterable[Message]) -> None:
        remaining = iter(messages)
        key = timestamp = None
        while True:
            try:
                for message in remaining:
                    timestamp = None  # until the record is deserialized
                    key = to_key(message.key())
                    value = to_value(message.value())
                    timestamp = message.timestamp()[1]
                    if timestamp > task.stream_time_ms:
                        task.stream_time_ms = timestamp
                    elif timestamp < 0:
                        fail_on_invalid_timestamp(message, key, value, -1)
                    headers = message.headers()
                    task.message = message
                    task.timestamp = timestamp
                    task.headers = headers
                    forward(key, value, timestamp, headers)
                return
            except BaseException as error:  # noqa: BLE001 - failed raises, or the record is dropped
                failed(message, key, timestamp, error)

    return process_batch


def _stamp(
    source: CompiledSource,
    to_key: Callable[[bytes | None], Any],
    to_value: Callable[[bytes | None], Any],
    extractor: TimestampExtractor,
    task: TaskContext,
    errors: ErrorHandling,
) -> Callable[[Message], StampedRecord | None]:
    name = source.name

    def stamp(message: Message) -> StampedRecord | None:
        try:
            key, value = to_key(message.key()), to_value(message.value())
        except BaseException as error:  # noqa: BLE001 - the handler decides, and raises
            errors.failed_deserialization(name, message, error)
            return None
        try:
            timestamp = extractor(message, key, value, source.partition_time_ms)
            if type(timestamp) is not int or timestamp > TIMESTAMP_MAX:
                timestamp = as_timestamp(timestamp)
        except BaseException as error:  # noqa: BLE001 - raised with source and record
            errors.raise_extraction_failure(name, message, error)
        if timestamp < 0:
            task.record_dropped(name, "negative timestamp")
            return None
        if timestamp > source.partition_time_ms:
            source.partition_time_ms = timestamp
        return StampedRecord(message, timestamp, key, value)

    return stamp


def _process_stamped(
    task: TaskContext, forward: Process, errors: ErrorHandling
) -> Callable[[Iterable[StampedRecord]], None]:
    def process_stamped(records: Iterable[StampedRecord]) -> None:
        for message, timestamp, key, value in records:
            headers = message.headers()
            if timestamp > task.stream_time_ms:
                task.stream_time_ms = timestamp
            task.message = message
            task.timestamp = timestamp
            task.headers = headers
            try:
                forward(key, value, timestamp, headers)
            except BaseException as error:  # noqa: BLE001 - raised with operator and record
                errors.raise_failure(error, key)

    return process_stamped
