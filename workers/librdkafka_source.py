"""Records of assigned partitions from a confluent_kafka.Consumer, with the kernel's help where it is built."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import groupby
from operator import methodcaller
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException

from penstock.clients.reading.record_source import Records
from penstock.kernel import fetch as compiled
from penstock.topology.records import TopicPartition


class LibrdkafkaSource:
    """A RecordSource over a Consumer that was made with ``enable.partition.eof=true`` and ``auto.offset.reset=error``.

    What librdkafka has fetched ahead of a partition is dropped when it is paused.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._topics: set[str] = set()  # ever assigned: a message of a topic that left may still be on its way
        #: Takes the records past the consumer; None: they come from the consumer itself.
        self._fetcher = None if compiled is None else compiled.fetcher_for(consumer)

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See RecordSource."""
        self._consumer.incremental_assign([_one(partition, offset) for partition, offset in offsets.items()])
        if self._fetcher is not None:
            for topic, partition in offsets:
                self._fetcher.take(topic, partition)
        self._hear_of({partition.topic for partition in offsets})

    def _hear_of(self, topics: Collection[str]) -> None:
        """Have librdkafka ask at once where new topics are; by itself a client that is connected waits up to 1 s."""
        ask_for_leaders(self._consumer, set(topics) - self._topics)
        self._topics.update(topics)

    def set_epochs(self, epochs: Mapping[TopicPartition, int]) -> None:
        """See RecordSource; librdkafka is not told."""

    def epoch_before(self, partition: TopicPartition, offset: int) -> int:
        """See RecordSource; records of librdkafka do not say."""
        return -1

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """See RecordSource."""
        # librdkafka remembers that a partition is paused, and would not fetch it when it is assigned again.
        self._consumer.resume(_plain(partitions))
        self._consumer.incremental_unassign(_plain(partitions))

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """See RecordSource."""
        self._consumer.pause(_plain(partitions))

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """See RecordSource."""
        self._consumer.resume(_plain(partitions))

    def fetch(self, max_records: int, timeout_seconds: float) -> tuple[Records, list[Any]]:
        """See RecordSource. Without a wait for the consumer itself if the records come past it."""
        messages = self._consume(max_records, timeout_seconds if self._fetcher is None else 0)
        if messages:
            # With a fetcher: what concerns the client, and the records that came before it took their partition. Those
            # are older than what it has.
            return self._sorted_out(messages)
        if self._fetcher is None:
            return {}, []
        found, events = self._fetcher.fetch(max_records, int(timeout_seconds * 1000))
        return {TopicPartition(*key): run for key, run in found.items()}, events

    def _sorted_out(self, messages: list[Any]) -> tuple[Records, list[Any]]:
        # The unbound method is four times as fast; messages of a simulation may be of several classes.
        known = type(messages[0]) is confluent_kafka.Message
        error_of = confluent_kafka.Message.error if known else methodcaller("error")
        events: list[Any] = []
        if any(map(error_of, messages)):
            events = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
        return by_partition(messages, self._topics), events

    def _consume(self, max_records: int, timeout_seconds: float) -> list[Any]:
        # consume() waits until it has all records that were asked for, poll() for one: together they do what Kafka's
        # Consumer.poll does, which returns as soon as there is something.
        messages: list[Any] = self._consumer.consume(max_records, 0)
        if messages or timeout_seconds <= 0:
            return messages
        first = self._consumer.poll(timeout_seconds)
        return [] if first is None else [first, *self._consumer.consume(max_records, 0)]

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """See RecordSource."""
        high = int(self._consumer.get_watermark_offsets(_one(partition), cached=True)[1])
        return high if high >= 0 else None

    def close(self) -> None:
        """Give the kernel's queue back; the consumer stays open."""
        if self._fetcher is not None:
            self._fetcher.close()


def ask_for_leaders(consumer: Any, topics: Collection[str]) -> None:
    """Have librdkafka ask a broker where these topics' partitions are, without waiting for the answer."""
    for topic in sorted(topics):
        with suppress(KafkaException):  # the question is asked; the answer, which is not waited for, goes to itself
            consumer.list_topics(topic, 0)


def by_partition(messages: list[Any], topics: Collection[str]) -> Records:
    """Group messages of these topics by partition, each in its order. With one topic that is done at the speed of C."""
    if len(topics) == 1 and messages:
        (topic,) = topics
        partition_of = type(messages[0]).partition
        runs = groupby(sorted(messages, key=partition_of), partition_of)  # a stable sort of long runs is linear
        return {TopicPartition(topic, partition): list(run) for partition, run in runs}
    found: dict[tuple[str, int], list[Any]] = {}
    for message in messages:
        key = (message.topic(), message.partition())
        same = found.get(key)
        if same is None:
            found[key] = [message]
        else:
            same.append(message)
    return {TopicPartition(*key): same for key, same in found.items()}


def _one(partition: TopicPartition, offset: int | None = None) -> confluent_kafka.TopicPartition:
    if offset is None:
        return confluent_kafka.TopicPartition(partition.topic, partition.partition)
    return confluent_kafka.TopicPartition(partition.topic, partition.partition, offset)


def _plain(partitions: Collection[TopicPartition]) -> list[confluent_kafka.TopicPartition]:
    return [_one(partition) for partition in partitions]
