"""The progress of fetching a partition, and its buffered records (Kafka: TopicPartitionState, FetchBuffer)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.kernel.record_batches import (
    CorruptRecordsError,
    LargeRecordError,
    RecordBatches,
    UnknownFormatError,
    origin_of,
)
from penstock.topology.errors import StreamsError
from penstock.topology.records import Message, TopicPartition

from ..errors import BrokerError, ErrorCode
from .reader import ReaderEvent, Records

#: Decompressed bytes that one take() returns; one record may be larger. Without compression responses are the limit.
TAKE_BYTES = 16 << 20


class LeaderEpochs:
    """The leader epochs of a partition's records, from its position on (Kafka: LeaderEpochFileCache)."""

    def __init__(self) -> None:
        self._starts: list[tuple[int, int]] = []  # (first offset, epoch), ascending

    def extend(self, starts: Iterable[tuple[int, int]]) -> None:
        """Add the epochs of newer records."""
        for offset, epoch in starts:
            if not self._starts or self._starts[-1][1] != epoch:
                self._starts.append((offset, epoch))

    def before(self, offset: int) -> int:
        """Return the epoch of the record before an offset, -1 if unknown. Drops earlier epochs."""
        while len(self._starts) > 1 and self._starts[1][0] < offset:
            del self._starts[0]
        return self._starts[0][1] if self._starts and self._starts[0][0] < offset else -1


class PartitionFetch:
    """An assigned partition. next_offset: of the next request."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        self.partition = partition
        self.origin = origin_of(partition.topic, partition.partition)
        self.next_offset = offset
        self.last_epoch = -1  # of the last record that was fetched
        self.epochs = LeaderEpochs()
        self.topic_id: bytes | None = None  # set at the first request
        self.doubted_at: int | None = None  # LeaderTable.responses when a broker did not know the topic
        self.high_watermark: int | None = None
        self.paused = False
        self.is_assigned = True
        self.has_failed = False  # not fetched until it is reassigned
        self.told_end = -1
        self.retry_at_ms = 0
        self.replica: int | None = None  # a broker closer than the leader (KIP-392)
        self.replica_until_ms = 0
        self.waiting = 0  # number of its responses in the buffer
        self.waiting_bytes = 0  # compressed, as received
        self.parked: list[Buffered] = []  # responses that take() skipped while it was paused


@dataclass(slots=True)
class Buffered:
    """Records of a partition and an event after them; either may be missing."""

    fetch: PartitionFetch
    batches: RecordBatches | None
    event: ReaderEvent | None
    size: int = 0  # of the records, in bytes


class FetchBuffer:
    """Fetched responses that were not taken yet. Partitions take turns; paused ones are skipped."""

    def __init__(self) -> None:
        self._buffered: deque[Buffered] = deque()
        #: Whether the last take() finished a response, which makes room for another.
        self.freed = False

    def put(self, buffered: Buffered) -> None:
        """Add a partition's part of a response."""
        buffered.fetch.waiting += 1
        buffered.fetch.waiting_bytes += buffered.size
        self._buffered.append(buffered)

    def resume(self, fetch: PartitionFetch) -> None:
        """Put the parked responses of a resumed partition back, at the front."""
        self._buffered.extendleft(reversed(fetch.parked))
        fetch.parked.clear()

    def take(self, limit: int) -> tuple[Records, list[ReaderEvent]]:
        """Return records in order within each partition, and the events up to there.

        limit: the most records. They end with the one that fills TAKE_BYTES.
        """
        records: Records = {}
        events: list[ReaderEvent] = []
        left, left_bytes, turns = limit, TAKE_BYTES, len(self._buffered)
        self.freed = False
        while left > 0 and left_bytes > 0 and turns > 0:
            turns -= 1
            buffered = self._buffered.popleft()
            fetch = buffered.fetch
            if not fetch.is_assigned:
                continue
            if fetch.paused:
                fetch.parked.append(buffered)
                continue
            if buffered.batches is not None:
                run = records.setdefault(fetch.partition, [])
                taken, taken_bytes = self._take_from(buffered, run, left, left_bytes)
                left, left_bytes = left - taken, left_bytes - taken_bytes
                if buffered.batches is not None and not buffered.batches.finished:
                    self._put_back(buffered)
                    continue
            fetch.waiting -= 1
            fetch.waiting_bytes -= buffered.size
            self.freed = True
            if buffered.event is not None:
                events.append(buffered.event)
        return {partition: run for partition, run in records.items() if run}, events

    def _put_back(self, buffered: Buffered) -> None:
        """Move a response to the end, behind other partitions but before later responses of the same partition."""
        behind = [other for other in self._buffered if other.fetch is buffered.fetch]
        if behind:
            self._buffered = deque(other for other in self._buffered if other.fetch is not buffered.fetch)
        self._buffered.extend((buffered, *behind))

    @staticmethod
    def _take_from(buffered: Buffered, run: list[Message], limit: int, limit_bytes: int) -> tuple[int, int]:
        """Append records to the run; return their number and size."""
        batches, fetch = buffered.batches, buffered.fetch
        assert batches is not None
        try:
            return batches.take(run, limit, limit_bytes), batches.taken_bytes
        except CorruptRecordsError as error:
            failure = BrokerError(ErrorCode.CORRUPT_MESSAGE, str(error))
        except LargeRecordError as error:
            failure = BrokerError(ErrorCode.MESSAGE_TOO_LARGE, f"{error} (penstock.record.max.bytes)")
        except UnknownFormatError as error:
            raise unreadable(fetch.partition, error) from error
        fetch.is_assigned, fetch.has_failed = False, True  # nothing after it can be used
        buffered.batches, buffered.event = None, ReaderEvent(fetch.partition, -1, failure)
        return 0, 0


def unreadable(partition: TopicPartition, error: Exception) -> StreamsError:
    """Return the error of a partition that only librdkafka can read."""
    return StreamsError(f"{partition} has {error}. librdkafka can read them: set penstock.fetcher=librdkafka.")
