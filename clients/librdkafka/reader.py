"""A Reader over a confluent_kafka.Consumer."""

from __future__ import annotations

import math
import select
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from itertools import groupby
from operator import methodcaller
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from typing_extensions import override

from penstock.topology.records import TopicPartition

from ..reading.reader import Reader, ReaderEvent, Records
from .errors import client_error
from .renewed_files import RenewedFiles

#: Duration of one poll in a reader that may be woken, in seconds; librdkafka's own poll cannot be interrupted.
WAKE_CHECK_SECONDS = 0.005


class LibrdkafkaReader(Reader):
    """A Reader over a Consumer with ``enable.partition.eof=true`` and ``auto.offset.reset=error``.

    librdkafka drops a partition's prefetched records when the partition is paused.
    """

    def __init__(self, consumer: Any, files: RenewedFiles | None = None) -> None:
        self._consumer = consumer
        self._files = files  # that it was created with, None if they are unknown
        self._topics: set[str] = set()  # ever assigned: messages of an unassigned topic may still be in flight
        self._woken = threading.Event()
        self._watched = select.poll()
        self._serve: Callable[[], bool] = lambda: False  # see watch()
        self._poll_seconds = math.inf  # of one poll

    @override
    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._consumer.incremental_assign([_one(partition, offset) for partition, offset in offsets.items()])
        self._hear_of({partition.topic for partition in offsets})

    def _hear_of(self, topics: Collection[str]) -> None:
        """Have librdkafka look up new topics immediately; otherwise a connected client waits up to 1 s."""
        ask_for_leaders(self._consumer, set(topics) - self._topics)
        self._topics.update(topics)

    @override
    def set_epochs(self, epochs: Mapping[TopicPartition, int]) -> None:
        """Do nothing, because librdkafka does not accept epochs."""

    @override
    def epoch_before(self, partition: TopicPartition, offset: int) -> int:
        """Return -1, because librdkafka's records have no leader epoch."""
        return -1

    @override
    def topic_id(self, partition: TopicPartition) -> bytes | None:
        """Return None, because librdkafka does not report it."""
        return None

    @override
    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        # librdkafka keeps a partition paused across assignments, and would not fetch it after reassignment.
        self._consumer.resume(_plain(partitions))
        self._consumer.incremental_unassign(_plain(partitions))

    @override
    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._consumer.pause(_plain(partitions))

    @override
    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._consumer.resume(_plain(partitions))

    @override
    def fetch(self, max_records: int, timeout_seconds: float) -> tuple[Records, list[ReaderEvent]]:
        messages = self._consume(max_records, timeout_seconds)
        if not messages:
            return {}, []
        # The unbound method is four times faster; a client supplier's consumer may return messages of several classes.
        known = type(messages[0]) is confluent_kafka.Message
        error_of = confluent_kafka.Message.error if known else methodcaller("error")
        events: list[ReaderEvent] = []
        if any(map(error_of, messages)):
            events = [_event(message) for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
        return by_partition(messages, self._topics), events

    def _consume(self, max_records: int, timeout_seconds: float) -> list[Any]:
        # consume() waits for all requested records, poll() for one; together they behave like Kafka's Consumer.poll,
        # which returns as soon as there are records.
        messages: list[Any] = self._consumer.consume(max_records, 0)
        while not messages and timeout_seconds > 0 and not self._woken.is_set() and not self._is_called():
            first = self._consumer.poll(min(timeout_seconds, self._poll_seconds))
            timeout_seconds -= self._poll_seconds
            if first is not None:
                messages = [first, *self._consumer.consume(max_records, 0)]
        self._woken.clear()
        return messages

    @override
    def wake(self) -> None:
        """The first call may take effect late."""
        self._poll_seconds = WAKE_CHECK_SECONDS
        self._woken.set()

    @override
    def watch(self, descriptor: int, serve: Callable[[], bool]) -> None:
        """It is first noticed late, as wake() is."""
        self._watched.register(descriptor, select.POLLIN)
        self._serve = serve

    def _is_called(self) -> bool:
        """Serve the watched descriptor, if it is readable. Returns whether that ends the wait."""
        if not self._watched.poll(0):
            return False
        self._poll_seconds = WAKE_CHECK_SECONDS
        return not self._serve()

    @override
    def read_ahead(self, until: Future[Any]) -> None:
        """The threads of librdkafka read."""

    @override
    def high_watermark(self, partition: TopicPartition) -> int | None:
        high = int(self._consumer.get_watermark_offsets(_one(partition), cached=True)[1])
        return high if high >= 0 else None

    def close(self) -> None:
        """Close the consumer."""
        if self._files is not None:
            self._files.close()
        self._consumer.close()


def ask_for_leaders(consumer: Any, topics: Collection[str]) -> None:
    """Have librdkafka request these topics' metadata, without waiting for the response."""
    for topic in sorted(topics):
        with suppress(KafkaException):  # always raised, a timeout of 0; librdkafka handles the response itself
            consumer.list_topics(topic, 0)


def by_partition(messages: list[Any], topics: Collection[str]) -> Records:
    """Group messages of these topics by partition, in order. With a single topic the loops run in C."""
    if len(topics) == 1 and messages:
        (topic,) = topics
        partition_of = type(messages[0]).partition
        runs = groupby(sorted(messages, key=partition_of), partition_of)  # a stable sort of long runs is linear
        return {TopicPartition(topic, partition): list(run) for partition, run in runs}
    found: Records = {}
    for message in messages:
        found.setdefault(TopicPartition(message.topic(), message.partition()), []).append(message)
    return found


def _event(message: Any) -> ReaderEvent:
    error = message.error()
    of_client = message.topic() is None or message.partition() is None
    partition = None if of_client else TopicPartition(message.topic(), message.partition())
    found = None if error.code() == KafkaError._PARTITION_EOF else client_error(error)
    return ReaderEvent(partition, message.offset(), found)


def _one(partition: TopicPartition, offset: int | None = None) -> confluent_kafka.TopicPartition:
    if offset is None:
        return confluent_kafka.TopicPartition(partition.topic, partition.partition)
    return confluent_kafka.TopicPartition(partition.topic, partition.partition, offset)


def _plain(partitions: Collection[TopicPartition]) -> list[confluent_kafka.TopicPartition]:
    return [_one(partition) for partition in partitions]
