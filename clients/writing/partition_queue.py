"""What waits to be written to one partition (Kafka: RecordAccumulator's deques, TxnPartitionEntry)."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from penstock.topology.records import TopicPartition

from ..cluster.brokers import ProducerId

#: Sequence numbers are positive int32s; the first follows the last.
_SEQUENCES = 1 << 31


class Stamp(NamedTuple):
    """By what brokers know a batch when it comes again. sequence: the number of its first record."""

    producer: ProducerId
    sequence: int


class PartitionQueue:
    """Closed batches of a partition, oldest first; the first may be in flight, and no other."""

    def __init__(self, records: Any) -> None:
        self.partition = TopicPartition(records.topic, records.index)
        #: The kernel's PartitionRecords, whose batch still grows.
        self.records = records
        self.batches: deque[Any] = deque()
        self.in_flight = False
        #: Whether the first batch may have been written by a request before the one that is in flight.
        self.was_uncertain = False
        self.retry_at_ms = 0
        #: How many answers about leaders there were when a broker said that it does not lead this partition: the next
        #: one is waited for.
        self.moved_after = -1
        self._producer: ProducerId | None = None  # whose records were acknowledged last
        self._next_sequence = 0

    def stamp(self, producer: ProducerId) -> Stamp:
        """Return what the first batch is to be sent with.

        One that may have been written is sent as it was: then it is not written twice. Any other follows what was
        acknowledged last, or is the first of a new producer id or epoch (KIP-360).
        """
        batch = self.batches[0]
        if batch.stamp is None or not batch.is_uncertain:
            sequence = self._next_sequence if producer == self._producer else 0
            batch.stamp = Stamp(producer, sequence)
        stamp: Stamp = batch.stamp
        return stamp

    def acknowledge(self) -> Any:
        """Take the first batch out, as it was written, and return it."""
        batch = self.batches.popleft()
        self._producer = batch.stamp.producer
        self._next_sequence = (batch.stamp.sequence + batch.count) % _SEQUENCES
        return batch
