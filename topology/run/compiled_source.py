"""Compiled sources: from consumed messages to calls of the first operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from penstock.kernel.nodes import KeyReader, Node, Source, only_bytes

from ..context.error_handling import ErrorHandling
from ..context.task_context import TaskContext
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
from ..serdes.serdes import deserializer_for, direct, resolve_serde, takes_none

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
    topic's partition, -1 before the first; a restarted task sets it to the committed one.
    """

    __slots__ = (
        "extracts_timestamps",
        "name",
        "partition_time_ms",
        "process_batch",
        "process_stamped",
        "stamp",
        "topic",
    )

    process_batch: Callable[[Iterable[Message]], None]
    stamp: Callable[[Message], StampedRecord | None]
    process_stamped: Callable[[Iterable[StampedRecord]], None]

    def __init__(self, node: SourceNode, topic: str, task: TaskContext, child: Node, errors: ErrorHandling) -> None:
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
        reader: KeyReader | None = None
        read_key: Any = direct(to_key)
        rewrite: Any = key_serde.rewrite
        unread = key_serde.unread
        if self.extracts_timestamps or not only_bytes(child, key_serde):
            rewrite = unread = None
        if rewrite is not None or unread is not None:
            reader = KeyReader(key_serde, to_key)
        if rewrite is not None:
            read_key = rewrite.copy()
            read_key.known = child.known_keys(key_serde)  # reading JSON, say, takes longer than to find a known key
        source = Source(
            task,
            self.name,
            child,
            read_key,
            reader is None and takes_none(to_key),
            direct(to_value),
            takes_none(to_value),
            unread,
            reader,
            value_serde,
            partial(_failed, self.name, errors),
            lambda message, key, value: fail_on_invalid_timestamp(message, key, value, -1),
        )
        self.process_stamped = process_stamped = source.process_stamped
        if self.extracts_timestamps:
            self.process_batch = lambda messages: process_stamped(self.stamped(messages))
        else:
            self.process_batch = source.process_batch

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


def _failed(
    name: str, errors: ErrorHandling, message: Message, key: object, timestamp: int | None, error: BaseException
) -> None:
    """Drop a record that failed, or raise. timestamp: None if it could not be read."""
    if timestamp is None:
        errors.failed_deserialization(name, message, error)
    else:
        errors.raise_failure(error, key)


def _stamp(
    source: CompiledSource,
    to_key: Callable[[bytes | None], object],
    to_value: Callable[[bytes | None], object],
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
