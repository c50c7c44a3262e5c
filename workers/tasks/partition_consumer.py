"""A consumer of assigned partitions and their positions, as the main and the restore consumer.

The group's membership decides what is assigned. Offsets are always explicit, because the group's committed offsets are
read by the membership (group_member.GroupMember).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any

from penstock.clients.errors import BrokerError, ClientError, ErrorCode, Kind, RetriableError
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.reading.reader import Reader, ReaderEvent, Records
from penstock.clients.throttle import Health
from penstock.topology.errors import MissingSourceTopicError, StreamsError
from penstock.topology.records import TopicPartition

from .partition_offsets import PartitionOffsets
from .read_limits import ReadLimits


class InvalidOffsetError(StreamsError):
    """The positions of some partitions are not on the broker (Kafka: InvalidOffsetException)."""

    def __init__(self, partitions: Collection[TopicPartition], reason: str) -> None:
        super().__init__(f"No valid position for {', '.join(map(str, sorted(partitions)))}: {reason}")
        self.partitions = frozenset(partitions)


class PartitionConsumer:
    """Assigned and paused partitions, and their positions, on top of a Reader.

    End-of-partition events show that a partition has been read to its end, transaction markers included; offsets alone
    do not.

    reader: returns the records; close() closes it. offsets: resolves the beginning and end of partitions; None if all
    partitions are assigned with an offset.
    """

    def __init__(self, reader: Reader, log: PrefixedLogger, offsets: PartitionOffsets | None = None) -> None:
        self._reader = reader
        self._offsets = offsets
        self._log = log
        self._positions: dict[TopicPartition, int] = {}  # offset of the next record
        self._ends: dict[TopicPartition, int] = {}  # offset of the last end-of-partition event
        self._paused: set[TopicPartition] = set()
        self._limits = ReadLimits()
        self._invalid: dict[TopicPartition, str] = {}

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are being read, including paused ones."""
        return frozenset(self._positions)

    def paused(self) -> frozenset[TopicPartition]:
        """Return the partitions that are assigned but not fetched, those at their limits included."""
        return frozenset(self._paused.union(self._limits.stopped))

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Also read these partitions, from these offsets; OFFSET_BEGINNING and OFFSET_END are allowed."""
        if offsets:
            self._assign(self._known(offsets))

    def _known(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        named = {partition: offset for partition, offset in offsets.items() if offset < 0}
        if not named:
            return dict(offsets)
        assert self._offsets is not None, "a position by name, without offsets to resolve it"
        return {**offsets, **self._offsets.offsets_at(named)}

    def _assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._reader.assign(offsets)
        self._positions |= offsets

    def set_epochs(self, epochs: Mapping[TopicPartition, int]) -> None:
        """Set the known leader epochs of the records before the positions; see Reader."""
        known = {p: epoch for p, epoch in epochs.items() if epoch >= 0 and p in self._positions}
        if known:
            self._reader.set_epochs(known)

    def epoch_before(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before an offset up to the position, -1 if it is not known."""
        return self._reader.epoch_before(partition, offset) if partition in self._positions else -1

    def topic_id(self, partition: TopicPartition) -> bytes | None:
        """Return the id of the topic that the position belongs to, None if it is not known."""
        return self._reader.topic_id(partition) if partition in self._positions else None

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading these partitions; unassigned ones are ignored."""
        mine = [partition for partition in partitions if partition in self._positions]
        if mine:
            self._reader.unassign(mine)
        for partition in mine:
            del self._positions[partition]
            self._ends.pop(partition, None)
            self._invalid.pop(partition, None)
        self._limits.forget(mine)
        self._paused.difference_update(mine)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stop returning records of these partitions."""
        new = [p for p in partitions if p in self._positions and p not in self._paused]
        if new:
            self._reader.pause(new)
            self._paused.update(new)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Continue with these partitions, after the last record that poll returned."""
        again = [p for p in partitions if p in self._paused]
        if again:
            self._reader.resume([p for p in again if p not in self._limits.stopped])
            self._paused.difference_update(again)

    def limit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Return no records at or after these offsets, until the next call; {} removes all limits.

        Partitions need not be assigned yet. A partition that has already been read beyond its limit stops where it is.
        At its limit a partition has no lag: its task does not wait for more.
        """
        self._limits.set(offsets)

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Continue from these offsets, as in assign."""
        known = self._known({p: offset for p, offset in offsets.items() if p in self._positions})
        paused = self._paused.intersection(known)
        # Reassign instead of seek: librdkafka refuses to seek in a partition that is not being fetched.
        self.unassign(known)
        if known:
            self._assign(known)
        self.pause(paused)

    def poll(self, max_records: int, timeout_seconds: float) -> Records:
        """Return fetched records by partition; blocks only until the first record.

        Raises InvalidOffsetError for partitions whose position is not on the broker (seek them, then poll again),
        MissingSourceTopicError and StreamsError for partitions that cannot be read at all.
        """
        if self._invalid:
            invalid, self._invalid = self._invalid, {}
            raise InvalidOffsetError(invalid, "; ".join(sorted(set(invalid.values()))))
        records = self._take_kept() or self._fetch(max_records, timeout_seconds)
        stopped = self._limits.cut(records, self._positions)
        if stopped:
            self._reader.pause(stopped)
        for partition, run in records.items():
            self._positions[partition] = max(self._positions[partition], run[-1].offset() + 1)
        return records

    def _take_kept(self) -> Records:
        """Return the records that a former limit has kept back."""
        records = self._limits.take(self._paused)
        if records:
            self._reader.resume(records.keys())
        return records

    def _fetch(self, max_records: int, timeout_seconds: float) -> Records:
        records, events = self._reader.fetch(max_records, timeout_seconds)
        for event in events:
            self._handle(event)
        for partition in records.keys() - self._positions.keys():
            del records[partition]  # fetched before it was unassigned
        return records

    def health(self) -> Health:
        """Return what the reader waits for, and its throttle times; see Reader."""
        return self._reader.health()

    def throttled_ago_ms(self, partition: TopicPartition) -> float | None:
        """Return the ms since the last throttle of the partition's broker ended; see Reader."""
        return self._reader.throttled_ago_ms(partition) if partition in self._positions else None

    def wake(self) -> None:
        """Make poll() return; see Reader.wake."""
        self._reader.wake()

    def watch(self, descriptor: int, serve: Callable[[], bool]) -> None:
        """Call serve while poll() waits, when a descriptor is readable; see Reader.watch."""
        self._reader.watch(descriptor, serve)

    def read_ahead(self, until: Future[Any]) -> None:
        """Fetch while another client waits for a response; see Reader.read_ahead."""
        self._reader.read_ahead(until)

    def _handle(self, event: ReaderEvent) -> None:
        if event.partition is None:
            self._log.warning("Consumer: %s", event.error)  # a broker is unavailable; the reader retries
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
        """Return the offset after the last returned or skipped record, None if the partition is not assigned."""
        position = self._positions.get(partition)
        if position is None:
            return None
        return self._limits.bounded(partition, position, max(position, self._end_of(partition)))

    def _end_of(self, partition: TopicPartition) -> int:
        """Return the offset of the last end-of-partition event, -1 if there are kept records before it, or without
        one.
        """
        return -1 if partition in self._limits.stopped else self._ends.get(partition, -1)

    def lag(self, partition: TopicPartition) -> int | None:
        """Return how many records follow the position, None until the broker has answered; 0 at a limit."""
        position = self._positions.get(partition)
        if position is None:
            return None
        if position <= self._end_of(partition):
            return 0
        if self._limits.is_reached(partition, position):
            return 0
        high = self._reader.high_watermark(partition)
        return None if high is None else max(high - position, 1)

    def end(self, partition: TopicPartition) -> int | None:
        """Return the end offset of a partition as of its last fetch, None before the first."""
        if partition not in self._positions:
            return None
        return self._reader.high_watermark(partition)

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()
