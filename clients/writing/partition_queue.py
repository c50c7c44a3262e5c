"""The queue of batches to write to one partition (Kafka: RecordAccumulator's deques, TxnPartitionEntry)."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from penstock.kernel.record_accumulator import PartitionRecords, ProducerBatch
from penstock.topology.records import TopicPartition

from ..cluster.brokers import ProducerId

#: Sequence numbers are non-negative int32s and wrap around to 0.
_SEQUENCES = 1 << 31


class Stamp(NamedTuple):
    """Identifies a batch, so that brokers detect a duplicate. sequence: of its first record."""

    producer: ProducerId
    sequence: int


class PartitionQueue:
    """Closed batches of a partition, oldest first; only the first may be in flight."""

    def __init__(self, records: PartitionRecords) -> None:
        self.partition = TopicPartition(records.topic, records.index)
        #: Has the open batch.
        self.records = records
        self.batches: deque[ProducerBatch] = deque()
        self.in_flight = False
        #: Whether the batch in flight must not be sent again.
        self.is_last_try = False
        #: Whether the first batch may have been written by a request before the current one.
        self.was_uncertain = False
        self.retry_at_ms = 0
        #: The number of metadata responses when a broker rejected a batch because it does not lead this partition; the
        #: batch waits for a newer response.
        self.moved_after = -1
        self._producer: ProducerId | None = None  # of the last acknowledged batch
        self._next_sequence = 0

    def stamp(self, producer: ProducerId) -> Stamp:
        """Return the stamp to send the first batch with.

        A batch that may have been written keeps its stamp, so that it is not written twice. Any other continues the
        sequence of the last acknowledged batch, or starts at 0 for a new producer id or epoch (KIP-360).
        """
        batch = self.batches[0]
        if batch.stamp is None or not batch.is_uncertain:
            sequence = self._next_sequence if producer == self._producer else 0
            batch.stamp = Stamp(producer, sequence)
        stamp: Stamp = batch.stamp
        return stamp

    def acknowledge(self) -> ProducerBatch:
        """Remove the first batch, which was written, and return it."""
        batch = self.batches.popleft()
        self._producer = batch.stamp.producer
        self._next_sequence = (batch.stamp.sequence + batch.count) % _SEQUENCES
        return batch
