"""A consumer of assigned partitions: which it reads, from where, how far. The main and the restore consumer are such.

membership.GroupMember decides what is assigned. Offsets are always explicit, because the group's committed offsets are
read through the membership.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException

from penstock.clients.errors import BrokerError, ClientError, ErrorCode, Kind, RetriableError
from penstock.clients.librdkafka.reader import ask_for_leaders
from penstock.clients.log_context import PrefixedLogger, listed
from penstock.clients.reading.reader import Reader, ReaderEvent, Records
from penstock.topology.errors import BrokerUnavailableError, MissingSourceTopicError, StreamsError
from penstock.topology.records import TopicPartition

#: Offsets that stand for "the first" and "behind the last" record (librdkafka's OFFSET_BEGINNING, OFFSET_END).
OFFSET_BEGINNING = -2
OFFSET_END = -1

#: How long the broker may take to name offsets or partitions, in seconds (Kafka: default.api.timeout.ms).
API_TIMEOUT_SECONDS = 60.0


class InvalidOffsetError(StreamsError):
    """The positions of some partitions are not on the broker (Kafka: InvalidOffsetException)."""

    def __init__(self, partitions: Collection[TopicPartition], reason: str) -> None:
        super().__init__(f"No valid position for {', '.join(map(str, sorted(partitions)))}: {reason}")
        self.partitions = frozenset(partitions)


class PartitionConsumer:
    """Which partitions are assigned and paused, and where each of them is, over a Reader.

    The end-of-partition events say when a partition has been read to its end, markers of transactions included; offsets
    alone do not show that.

    reader: brings the records; consumer: a confluent_kafka.Consumer, for questions to the brokers. Both are closed with
    this.
    """

    def __init__(self, reader: Reader, log: PrefixedLogger, consumer: Any) -> None:
        self._reader = reader
        self._consumer = consumer
        self._log = log
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
        self._reader.assign(offsets)
        self._positions |= offsets

    def set_epochs(self, epochs: Mapping[TopicPartition, int]) -> None:
        """Say which leader epochs the records before the positions have, where they are known; see Reader."""
        known = {p: epoch for p, epoch in epochs.items() if epoch >= 0 and p in self._positions}
        if known:
            self._reader.set_epochs(known)

    def epoch_before(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before an offset up to the position, -1 if it is not known."""
        return self._reader.epoch_before(partition, offset) if partition in self._positions else -1

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """Read these partitions no longer; those that are not assigned are ignored."""
        mine = [partition for partition in partitions if partition in self._positions]
        if mine:
            self._reader.unassign(mine)
        for partition in mine:
            del self._positions[partition]
            self._ends.pop(partition, None)
            self._invalid.pop(partition, None)
        self._paused.difference_update(mine)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no more of these partitions."""
        new = [p for p in partitions if p in self._positions and p not in self._paused]
        if new:
            self._reader.pause(new)
            self._paused.update(new)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Go on with these partitions, from behind the last record that poll returned."""
        again = [p for p in partitions if p in self._paused]
        if again:
            self._reader.resume(again)
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
        for message in self._consumer.consume(1, 0):  # it reads no partition: what comes concerns the client
            self._log.warning("Consumer: %s", message.error().str())
        records, events = self._reader.fetch(max_records, timeout_seconds)
        for event in events:
            self._handle(event)
        for partition in records.keys() - self._positions.keys():
            del records[partition]  # fetched before it was unassigned
        for partition, run in records.items():
            self._positions[partition] = run[-1].offset() + 1
        return records

    def read_ahead(self, until: Future[Any]) -> None:
        """See Reader."""
        self._reader.read_ahead(until)

    def _handle(self, event: ReaderEvent) -> None:
        if event.partition is None:
            self._log.warning("Consumer: %s", event.error)  # a broker is away: it is tried again
        elif event.partition not in self._positions:
            return
        elif event.error is None:
            self._ends[event.partition] = event.offset
        else:
            self._handle_error(event.partition, event.error)

    def _handle_error(self, partition: TopicPartition, error: ClientError) -> None:
        if isinstance(error, BrokerError) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._invalid[partition] = error.message
        elif isinstance(error, BrokerError) and error.code.kind is Kind.MISSING:
            raise MissingSourceTopicError(
                f"The topic {partition.topic} does not exist, or has no partition {partition.partition}: {error}. "
                "Create it, or correct its name in the topology, and start again."
            )
        elif isinstance(error, RetriableError):
            self._log.warning("Reading %s: %s; trying again", partition, error)
        else:
            raise StreamsError(f"{partition} cannot be read: {error}")

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
        high = self._reader.high_watermark(partition)
        return None if high is None else max(high - position, 1)

    def end(self, partition: TopicPartition) -> int | None:
        """Return where a partition ended when it was fetched last, None as long as it was not."""
        if partition not in self._positions:
            return None
        return self._reader.high_watermark(partition)

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
        self._reader.close()
        self._consumer.close()


def _one(partition: TopicPartition, timestamp: int) -> confluent_kafka.TopicPartition:
    return confluent_kafka.TopicPartition(partition.topic, partition.partition, timestamp)
