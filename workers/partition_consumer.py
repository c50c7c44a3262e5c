"""A consumer of assigned partitions: which it reads, from where, how far. The main and the restore consumer are such.

confluent-kafka's Consumer with assign() only: membership.GroupMember decides what is assigned. Offsets are always
explicit, because the group's committed offsets are read through the membership.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from penstock.clients.log_context import PrefixedLogger, listed
from penstock.clients.reading.fetcher import Fetcher
from penstock.clients.reading.record_source import NotFetchableError, Records, RecordSource
from penstock.topology.errors import BrokerUnavailableError, MissingSourceTopicError, StreamsError
from penstock.topology.records import TopicPartition

from .librdkafka_source import LibrdkafkaSource, ask_for_leaders

#: Offsets that stand for "the first" and "behind the last" record (librdkafka's OFFSET_BEGINNING, OFFSET_END).
OFFSET_BEGINNING = -2
OFFSET_END = -1

#: How long the broker may take to name offsets or partitions, in seconds (Kafka: default.api.timeout.ms).
API_TIMEOUT_SECONDS = 60.0

UNKNOWN_TOPIC = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
_INVALID_OFFSET = (
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
)
_PARTITION_EOF = KafkaError._PARTITION_EOF


class InvalidOffsetError(StreamsError):
    """The positions of some partitions are not on the broker (Kafka: InvalidOffsetException)."""

    def __init__(self, partitions: Collection[TopicPartition], reason: str) -> None:
        super().__init__(f"No valid position for {', '.join(map(str, sorted(partitions)))}: {reason}")
        self.partitions = frozenset(partitions)


class PartitionConsumer:
    """Which partitions are assigned and paused, and where each of them is, over a consumer and a source of records.

    The end-of-partition events say when a partition has been read to its end, markers of transactions included; offsets
    alone do not show that.

    consumer: a confluent_kafka.Consumer, for questions to the brokers; also for the records, unless there is a fetcher.
    """

    def __init__(self, consumer: Any, log: PrefixedLogger, fetcher: Fetcher | None = None) -> None:
        self._consumer = consumer
        self._log = log
        self._fetcher = fetcher
        self._source: RecordSource = fetcher or LibrdkafkaSource(consumer)
        self._positions: dict[TopicPartition, int] = {}  # offset of the next record
        self._ends: dict[TopicPartition, int] = {}  # offset of the last end-of-partition event
        self._paused: set[TopicPartition] = set()
        self._invalid: dict[TopicPartition, str] = {}

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are being read, paused ones too."""
        return frozenset(self._positions)

    def paused(self) -> frozenset[TopicPartition]:
        """Return the partitions that are assigned but not fetched."""
        return frozenset(self._paused)

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read these partitions too, from these offsets; OFFSET_BEGINNING and OFFSET_END are allowed."""
        if offsets:
            self._assign(self._known(offsets))

    def _known(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        # librdkafka would wait for 500 ms before it asks where the beginning is.
        return {**offsets, **self.offsets_at({p: offset for p, offset in offsets.items() if offset < 0})}

    def _assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._source.assign(offsets)
        self._positions |= offsets

    def set_epochs(self, epochs: Mapping[TopicPartition, int]) -> None:
        """Say which leader epochs the records before the positions have, where they are known; see RecordSource."""
        known = {p: epoch for p, epoch in epochs.items() if epoch >= 0 and p in self._positions}
        if known:
            self._source.set_epochs(known)

    def epoch_before(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before an offset up to the position, -1 if it is not known."""
        return self._source.epoch_before(partition, offset) if partition in self._positions else -1

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """Read these partitions no longer; those that are not assigned are ignored."""
        mine = [partition for partition in partitions if partition in self._positions]
        if mine:
            self._source.unassign(mine)
        for partition in mine:
            del self._positions[partition]
            self._ends.pop(partition, None)
            self._invalid.pop(partition, None)
        self._paused.difference_update(mine)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no more of these partitions."""
        new = [p for p in partitions if p in self._positions and p not in self._paused]
        if new:
            self._source.pause(new)
            self._paused.update(new)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Go on with these partitions, from behind the last record that poll returned."""
        again = [p for p in partitions if p in self._paused]
        if again:
            self._source.resume(again)
            self._paused.difference_update(again)

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Go on from these offsets, as in assign."""
        known = self._known({p: offset for p, offset in offsets.items() if p in self._positions})
        paused = self._paused.intersection(known)
        # Assigned anew, not sought: librdkafka refuses to seek in a partition that is not being fetched.
        self.unassign(known)
        if known:
            self._assign(known)
        self.pause(paused)

    def poll(self, max_records: int, timeout_seconds: float) -> Records:
        """Return what has been fetched, by partition; waits for the first record only.

        Raises InvalidOffsetError for partitions whose position is not on the broker (seek them, then poll again),
        MissingSourceTopicError and StreamsError for what cannot be read at all.
        """
        if self._invalid:
            invalid, self._invalid = self._invalid, {}
            raise InvalidOffsetError(invalid, "; ".join(sorted(set(invalid.values()))))
        records, events = self._fetch(max_records, timeout_seconds)
        for event in events:
            self._handle(event)
        for partition in records.keys() - self._positions.keys():
            del records[partition]  # fetched before it was unassigned
        for partition, run in records.items():
            self._positions[partition] = run[-1].offset() + 1
        return records

    def _fetch(self, max_records: int, timeout_seconds: float) -> tuple[Records, list[Any]]:
        if self._fetcher is None:
            return self._source.fetch(max_records, timeout_seconds)
        for event in self._consumer.consume(1, 0):  # it reads no partition: what comes concerns the client
            self._handle(event)
        try:
            return self._source.fetch(max_records, timeout_seconds)
        except NotFetchableError as error:
            self._read_with_librdkafka(str(error))
            return {}, []

    def read_ahead(self, until: Future[Any]) -> None:
        """Have records come while something else is waited for, and return when that is done, or at once.

        At once where librdkafka reads: it has a thread for that.
        """
        if self._fetcher is not None:
            self._fetcher.read_ahead(until)

    def _read_with_librdkafka(self, reason: str) -> None:
        """Go on where the fetcher is, for good."""
        self._log.info("Reading with librdkafka from now on: %s", reason)
        self._source.close()
        self._fetcher, self._source = None, LibrdkafkaSource(self._consumer)
        if self._positions:
            self._source.assign(self._positions)
        if self._paused:
            self._source.pause(self._paused)

    def _handle(self, event: Any) -> None:
        error = event.error()
        if event.topic() is None or event.partition() is None:
            self._log.warning("Consumer: %s", error.str())  # a broker is away: it is tried again
            return
        partition = TopicPartition(event.topic(), event.partition())
        if partition not in self._positions:
            return
        if error.code() == _PARTITION_EOF:
            self._ends[partition] = event.offset()
        elif error.code() in _INVALID_OFFSET:
            self._invalid[partition] = error.str()
        elif error.code() in UNKNOWN_TOPIC:
            raise MissingSourceTopicError(
                f"The topic {partition.topic} does not exist, or has no partition {partition.partition}: "
                f"{error.str()}. Create it, or correct its name in the topology, and start again."
            )
        elif error.retriable():
            self._log.warning("Reading %s: %s; trying again", partition, error.str())
        else:
            raise StreamsError(f"{partition} cannot be read: {error.str()} ({error.name()})")

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset behind all that was returned or skipped, None if the partition is not assigned."""
        position = self._positions.get(partition)
        return None if position is None else max(position, self._ends.get(partition, position))

    def lag(self, partition: TopicPartition) -> int | None:
        """Return how many records are behind the position, None as long as the broker has not answered."""
        position = self._positions.get(partition)
        if position is None:
            return None
        if position <= self._ends.get(partition, -1):
            return 0
        high = self._source.high_watermark(partition)
        return None if high is None else max(high - position, 1)

    def end(self, partition: TopicPartition) -> int | None:
        """Return where a partition ended when it was fetched last, None as long as it was not."""
        if partition not in self._positions:
            return None
        return self._source.high_watermark(partition)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Ask the broker for the partitions of a topic; raises MissingSourceTopicError if there is no such topic."""
        try:
            metadata = self._consumer.list_topics(topic, API_TIMEOUT_SECONDS).topics.get(topic)
        except KafkaException as exception:
            raise BrokerUnavailableError(f"The partitions of {topic} could not be read: {exception}") from exception
        if metadata is None or metadata.error is not None or not metadata.partitions:
            raise MissingSourceTopicError(f"The topic {topic} does not exist. Create it and start again.")
        return [TopicPartition(topic, partition) for partition in sorted(metadata.partitions)]

    def offsets_at(
        self, timestamps: Mapping[TopicPartition, int], timeout_seconds: float = API_TIMEOUT_SECONDS
    ) -> dict[TopicPartition, int]:
        """Ask the brokers, once for all partitions, for the first offset with a timestamp (ms) or a later one.

        OFFSET_BEGINNING and OFFSET_END are timestamps, too; with read_committed the end is the last stable offset.
        OFFSET_END is the answer where no record is that late.

        Raises BrokerUnavailableError if one of the offsets is not known in time.
        """
        if not timestamps:
            return {}
        try:
            return self._listed_offsets(timestamps, timeout_seconds)
        except BrokerUnavailableError:
            # librdkafka takes "has no leader" for the last word on a topic that it does not read, for minutes.
            ask_for_leaders(self._consumer, {partition.topic for partition in timestamps})
            raise

    def _listed_offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout_seconds: float
    ) -> dict[TopicPartition, int]:
        asked = [_one(partition, timestamp) for partition, timestamp in timestamps.items()]
        try:
            answers = self._consumer.offsets_for_times(asked, timeout=timeout_seconds)
        except KafkaException as exception:
            raise BrokerUnavailableError(
                f"The offsets of {listed(timestamps)} could not be read within {timeout_seconds:.0f} s: {exception}"
            ) from exception
        found = {}
        for answer in answers:
            partition = TopicPartition(answer.topic, answer.partition)
            if answer.error is not None:
                raise BrokerUnavailableError(f"The offsets of {partition} could not be read: {answer.error}")
            if answer.offset < 0 and (answer.offset != OFFSET_END or timestamps[partition] < 0):  # as listed_offset
                raise BrokerUnavailableError(f"The broker of {partition} went away before it had told its offsets.")
            found[partition] = int(answer.offset)
        return found

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Ask the brokers for the end offset of each partition; see offsets_at."""
        return self.offsets_at(dict.fromkeys(partitions, OFFSET_END))

    def close(self) -> None:
        """Close the clients."""
        self._source.close()
        self._consumer.close()


def _one(partition: TopicPartition, timestamp: int) -> confluent_kafka.TopicPartition:
    return confluent_kafka.TopicPartition(partition.topic, partition.partition, timestamp)
