"""Where a PartitionConsumer's records come from: librdkafka, or Fetch requests of our own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from penstock.topology.records import Message, TopicPartition

#: A batch by partition. A message is a confluent_kafka.Message, one of the kernel's, or in a simulation a RawRecord.
Records = dict[TopicPartition, list[Message]]


class NotFetchableError(Exception):
    """A source cannot read what it finds, but librdkafka can: an old broker, an old format of records, a codec."""


class RecordSource(Protocol):
    """Reads assigned partitions, each in order. Who calls knows which are assigned, paused, and where it is in them."""

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read these partitions too, from these offsets (0 or more)."""

    def set_epochs(self, epochs: Mapping[TopicPartition, int]) -> None:
        """Say which leader epochs the records before the first ones have, of partitions that were just assigned.

        A log that has been truncated since is then noticed (KIP-320).
        """

    def epoch_before(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before an offset, one that was returned last or later; -1 if unknown.

        A lower offset than in the call before is not asked for.
        """

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """Read these partitions no longer; when they are assigned again they are not paused."""

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return nothing more of these partitions."""

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Go on with these partitions, behind the last record that was returned."""

    def fetch(self, max_records: int, timeout_seconds: float) -> tuple[Records, list[Any]]:
        """Return records, and events: messages with an error(); waits for the first of them only.

        A partition's event has its topic and partition, and for _PARTITION_EOF its end as offset; other events, which
        concern the client, have None. Partitions that were unassigned may still be among the records.
        """

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """Return the high watermark of the last answer for an assigned partition, None as long as there was none."""

    def close(self) -> None:
        """Read nothing more."""
