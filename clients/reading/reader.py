"""The interface for reading assigned partitions: a Fetcher, or librdkafka's adapter (Kafka: Consumer.assign)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from penstock.topology.records import Message, TopicPartition

from ..errors import ClientError
from ..throttle import Health

#: Messages by partition: the kernel's messages, confluent_kafka.Messages, or RawRecords in a simulation.
Records = dict[TopicPartition, list[Message]]


class ReaderEvent(NamedTuple):
    """An event other than a record. partition: None for an event of the client.

    error: None if the partition's end was reached, at this offset. OFFSET_OUT_OF_RANGE: the position does not exist;
    other codes of kind MISSING: the topic or partition does not exist. RetriableErrors of other kinds are handled
    already. After all other errors the partition is not read until it is reassigned.
    """

    partition: TopicPartition | None
    offset: int
    error: ClientError | None


class Reader(Protocol):
    """Reads assigned partitions, each in order. The caller tracks assignment, pauses and positions."""

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Add partitions to the assignment, from these offsets (0 or more)."""

    def set_epochs(self, epochs: Mapping[TopicPartition, int]) -> None:
        """Set the leader epochs of the records before the positions of newly assigned partitions.

        They serve to detect a log truncated since then (KIP-320).
        """

    def epoch_before(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before an offset, -1 if unknown.

        Offsets must not decrease from call to call.
        """

    def topic_id(self, partition: TopicPartition) -> bytes | None:
        """Return the id of the topic that the position belongs to, None if it is not known (yet)."""

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """Remove partitions from the assignment; after reassignment they are not paused."""

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stop returning records of these partitions."""

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Continue with these partitions after the last returned record."""

    def fetch(self, max_records: int, timeout_seconds: float) -> tuple[Records, list[ReaderEvent]]:
        """Return records and events; blocks only until the first of them.

        Records of unassigned partitions may be included. Raises StreamsError if nothing can be read any more.
        """

    def wake(self) -> None:
        """Make a blocked fetch() return, or the next one not block. Thread-safe."""

    def watch(self, descriptor: int, serve: Callable[[], bool]) -> None:
        """From now on call serve while fetch() waits, when a descriptor is readable.

        serve: takes what is readable; False ends the wait.
        """

    def read_ahead(self, until: Future[Any]) -> None:
        """Receive records into the buffer until a future is done.

        Returns immediately if the client reads on its own thread.
        """

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """Return the high watermark in the last response for an assigned partition, None before the first one."""

    def health(self) -> Health:
        """Return the operations that the client waits for, and its throttle times since the last call. librdkafka
        reports none.
        """
        return Health()

    def throttled_ago_ms(self, partition: TopicPartition) -> float | None:
        """Return the ms since the last throttle of an assigned partition's broker ended.

        Negative during a throttle; None without one, or if the client does not know.
        """
        return None

    def close(self) -> None:
        """Stop reading and release all resources."""
