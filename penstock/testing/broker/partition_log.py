"""The log of one partition: batches, their producers, and open and aborted transactions.

Kafka: UnifiedLog, ProducerStateManager, LeaderEpochFileCache.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from .errors import ApiError, ErrorCode
from .record_batches import MAX_SEQUENCE, NO_PRODUCER, Batch, StoredRecord, marker

#: The number of a producer's latest batches that are kept to detect duplicates.
_REMEMBERED_BATCHES = 5


class Abortion(NamedTuple):
    """An aborted transaction: offsets of its first record and of its marker."""

    producer_id: int
    first: int
    last: int


@dataclass
class _Producer:
    """The state of one producer (Kafka: ProducerStateEntry). open_at: the start offset of its open transaction."""

    epoch: int
    batches: deque[Batch] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_BATCHES))
    open_at: int | None = None
    coordinator_epoch: int = -1


class PartitionLog:
    """Appends, reads, truncates and compacts.

    All records are acknowledged immediately: the high watermark is the end, unless a test holds it back.
    """

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.start = 0
        self.end = 0
        #: The high watermark that a test has set; None: the end.
        self.held_at: int | None = None
        self.aborted: list[Abortion] = []
        #: Each leader epoch and its start offset.
        self.epochs: list[tuple[int, int]] = []
        self._producers: dict[int, _Producer] = {}

    @property
    def high_watermark(self) -> int:
        """The end of the visible records."""
        return self.end if self.held_at is None else min(self.held_at, self.end)

    @property
    def last_stable(self) -> int:
        """The end of the visible records for read_committed: where the first open transaction begins."""
        begins = [p.open_at for p in self._producers.values() if p.open_at is not None]
        return min([self.high_watermark, *begins])

    def readable_end(self, committed_only: bool) -> int:
        """Return the end of the visible records for an isolation level."""
        return self.last_stable if committed_only else self.high_watermark

    def is_open(self, producer_id: int) -> bool:
        """True if a producer has an open transaction here."""
        producer = self._producers.get(producer_id)
        return producer is not None and producer.open_at is not None

    # -- writing

    def append(self, batch: Batch, leader_epoch: int, append_time: int | None = None) -> Batch:
        """Append a producer's batch and return it as stored: an earlier one, if it is a duplicate.

        append_time: of a topic with message.timestamp.type=LogAppendTime. Raises ApiError.
        """
        if batch.control:
            raise ApiError(ErrorCode.INVALID_RECORD, "clients may not write control batches")
        if batch.producer_id != NO_PRODUCER and (earlier := self._sent_before(batch)) is not None:
            return earlier
        placed = self._place(batch, leader_epoch, append_time)
        if batch.producer_id != NO_PRODUCER:
            producer = self._producers[batch.producer_id]
            producer.batches.append(placed)
            if batch.transactional and producer.open_at is None:
                producer.open_at = placed.base
        return placed

    def _place(self, batch: Batch, leader_epoch: int, append_time: int | None = None) -> Batch:
        if not self.epochs or self.epochs[-1][0] < leader_epoch:
            self.epochs.append((leader_epoch, self.end))
        placed = batch.placed(self.end, leader_epoch, append_time)
        self.batches.append(placed)
        self.end = placed.last + 1
        return placed

    def _sent_before(self, batch: Batch) -> Batch | None:
        """Check a producer's epoch and sequence numbers; return the stored batch if this is a duplicate."""
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            self._producers[batch.producer_id] = _Producer(batch.producer_epoch)
            return None
        if batch.producer_epoch < producer.epoch:
            raise ApiError(ErrorCode.INVALID_PRODUCER_EPOCH, None)
        if batch.producer_epoch > producer.epoch:
            if batch.base_sequence != 0 and producer.batches:
                raise ApiError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None)
            producer.epoch = batch.producer_epoch
            producer.batches.clear()
            return None
        for earlier in producer.batches:
            if (earlier.base_sequence, earlier.last_sequence) == (batch.base_sequence, batch.last_sequence):
                return earlier
        if producer.batches:
            expected = producer.batches[-1].last_sequence + 1 & MAX_SEQUENCE
            if batch.base_sequence != expected:
                raise ApiError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None)
        return None

    def end_transaction(
        self, producer_id: int, epoch: int, coordinator_epoch: int, commit: bool, leader_epoch: int, now_ms: int
    ) -> None:
        """Write a transaction's marker."""
        producer = self._producers.setdefault(producer_id, _Producer(epoch))
        if producer.epoch < epoch:
            producer.batches.clear()
        producer.epoch, producer.coordinator_epoch = epoch, coordinator_epoch
        placed = self._place(marker(producer_id, epoch, coordinator_epoch, commit, now_ms), leader_epoch)
        if producer.open_at is not None and not commit:
            self.aborted.append(Abortion(producer_id, producer.open_at, placed.last))
        producer.open_at = None

    # -- reading

    def read(self, offset: int, end: int, max_bytes: int, at_least_one: bool) -> bytes:
        """Return whole batches from an offset on, up to an end and a number of bytes; at_least_one: even if it is
        larger.
        """
        found = bytearray()
        for batch in self._batches_from(offset):
            if batch.base >= end or (len(found) + len(batch.data) > max_bytes and not (at_least_one and not found)):
                break
            found += batch.data
        return bytes(found)

    def _batches_from(self, offset: int) -> Iterator[Batch]:
        at = bisect_left(self.batches, offset, key=lambda batch: batch.last)
        return islice(self.batches, at, None)

    def visible(self, offset: int, committed_only: bool) -> Iterator[StoredRecord]:
        """Yield the records that a reader sees from an offset on."""
        end = self.readable_end(committed_only)
        for batch in self._batches_from(max(offset, self.start)):
            if batch.base >= end:
                return
            if not (batch.control or (committed_only and self._is_aborted(batch))):
                yield from (record for record in batch.records if offset <= record.offset < end)

    def _is_aborted(self, batch: Batch) -> bool:
        return batch.transactional and any(
            one.producer_id == batch.producer_id and one.first <= batch.base < one.last for one in self.aborted
        )

    def abortions(self, begin: int, end: int) -> list[Abortion]:
        """Return the aborted transactions with records in [begin, end)."""
        return [one for one in self.aborted if one.first < end and one.last >= begin]

    def records(self) -> Iterator[StoredRecord]:
        """Yield all records from producers, including those of open and aborted transactions."""
        for batch in self.batches:
            if not batch.control:
                yield from (record for record in batch.records if record.offset >= self.start)

    def first_since(self, timestamp: int, end: int) -> StoredRecord | None:
        """Return the first record before an end with at least this timestamp."""
        for batch in self.batches:
            if batch.max_timestamp >= timestamp and not batch.control:
                for record in batch.records:
                    if record.timestamp >= timestamp and self.start <= record.offset < end:
                        return record
        return None

    def youngest(self, end: int) -> StoredRecord | None:
        """Return the record with the largest timestamp before an end, the first of several."""
        found = [record for record in self.records() if record.offset < end]
        return max(found, key=lambda record: record.timestamp, default=None)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of an offset, -1 if unknown."""
        at = bisect_right(self.epochs, offset, key=lambda entry: entry[1])
        return self.epochs[at - 1][0] if at else -1

    def end_of_epoch(self, epoch: int, current: int) -> tuple[int, int]:
        """Return the largest epoch up to this one and its end (KIP-320), or -1 and -1."""
        if epoch == current:
            return epoch, self.end
        later = [entry for entry in self.epochs if entry[0] > epoch]
        earlier = [entry[0] for entry in self.epochs if entry[0] <= epoch]
        if not later:
            return (epoch, self.end) if earlier and earlier[-1] == epoch else (-1, -1)
        return (earlier[-1] if earlier else epoch, later[0][1])

    # -- operations of tests and settings

    def truncate(self, offset: int) -> None:
        """Drop everything from an offset on, as in an unclean election."""
        self.batches = [batch for batch in self.batches if batch.last < offset]
        self.end = self.batches[-1].last + 1 if self.batches else min(offset, self.end)
        self.epochs = [entry for entry in self.epochs if entry[1] < self.end]
        self.aborted = [one for one in self.aborted if one.last < self.end]
        for producer in self._producers.values():
            producer.batches = deque((b for b in producer.batches if b.last < self.end), _REMEMBERED_BATCHES)
            if producer.open_at is not None and producer.open_at >= self.end:
                producer.open_at = None

    def forget_producers(self) -> bool:
        """Forget all producers without an open transaction, as if they had not written for long. False: there were
        none.

        Kafka: producer.id.expiration.ms.
        """
        forgotten = [id_ for id_, producer in self._producers.items() if producer.open_at is None]
        for id_ in forgotten:
            del self._producers[id_]
        return bool(forgotten)

    def delete_before(self, offset: int) -> None:
        """Delete the records before an offset; raises ApiError if it is beyond the end."""
        if offset > self.high_watermark:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        self.start = max(self.start, offset)
        self.batches = [batch for batch in self.batches if batch.last >= self.start]
        self.aborted = [one for one in self.aborted if one.last >= self.start]

    def delete_older(self, timestamp: int) -> None:
        """Delete batches up to the first one with a record of at least this timestamp (Kafka deletes whole
        segments).
        """
        kept = next((b.base for b in self.batches if b.max_timestamp >= timestamp), self.end)
        self.delete_before(min(kept, self.last_stable))

    def delete_larger(self, size: int) -> None:
        """Delete the oldest batches while the others have at least this many bytes."""
        excess = sum(len(batch.data) for batch in self.batches) - size
        kept = self.start
        for batch in self.batches:
            excess -= len(batch.data)
            if excess < 0:
                break
            kept = batch.last + 1
        self.delete_before(min(kept, self.last_stable))

    def compact(self) -> None:
        """Keep only the last record of each key (Kafka: LogCleaner). Tombstones are kept.

        Records of aborted transactions are removed; those behind the last stable offset are not touched.
        """
        limit = self.last_stable
        newest = {record.key: record.offset for record in self.visible(self.start, committed_only=True)}
        self.batches = [kept for batch in self.batches for kept in self._compacted(batch, limit, newest)]

    def _compacted(self, batch: Batch, limit: int, newest: dict[bytes | None, int]) -> Iterator[Batch]:
        if batch.control or batch.last >= limit:
            yield batch
            return
        kept = [record for record in batch.records if newest.get(record.key) == record.offset]
        if len(kept) == len(batch.records):
            yield batch
        elif kept:
            yield batch.only(kept)
