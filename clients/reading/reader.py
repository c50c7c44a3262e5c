"""What reads assigned partitions: a Fetcher, or librdkafka behind ../librdkafka/reader.py (Kafka: Consumer.assign)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from penstock.topology.records import Message, TopicPartition

from ..errors import ClientError

#: A batch by partition. A message is one of the kernel's, a confluent_kafka.Message, or in a simulation a RawRecord.
Records = dict[TopicPartition, list[Message]]


class ReaderEvent(NamedTuple):
    """What a Reader says beside records. partition: None for what concerns the client.

    error: what happened, None where all is read up to the partition's end, which is the offset. OFFSET_OUT_OF_RANGE:
    the position is not there; other codes of kind MISSING: the topic or partition is not. A RetriableError of another
    kind is dealt with already. After all others the partition is read no more until it is assigned again.
    """

    partition: TopicPartition | None
    offset: int
    error: ClientError | None


class Reader(Protocol):
    """Reads assigned partitions, each in order. The caller knows which are assigned and paused, and its positions."""

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
        """Continue with these partitions, behind the last record that was returned."""

    def fetch(self, max_records: int, timeout_seconds: float) -> tuple[Records, list[ReaderEvent]]:
        """Return records, and events; waits for the first of them only.

        Partitions that were unassigned may still be among the records. Raises StreamsError if nothing can be read.
        """

    def wake(self) -> None:
        """Let the fetch() that waits return, or the next one not wait. Any thread may call it."""

    def read_ahead(self, until: Future[Any]) -> None:
        """Have records come while something else is waited for, and return when that is done.

        At once where another thread reads.
        """

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """Return the high watermark of the last answer for an assigned partition, None as long as there was none."""

    def close(self) -> None:
        """Read nothing more."""
