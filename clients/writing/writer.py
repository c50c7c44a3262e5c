"""The interface for writing records: a KafkaProducer, or librdkafka's adapter (Kafka: Producer)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from penstock.topology.records import TopicPartition

from ..errors import ClientError
from ..protocol.offset_commits import GroupMetadata, OffsetAndMetadata

#: The partitioner chooses the partition by the key.
BY_KEY = -1


class Lost(NamedTuple):
    """A dropped record and the reason. The record has the methods of a consumed Message."""

    error: ClientError
    record: Any


class Writer(Protocol):
    """Writes records, in order within each partition. Not thread-safe."""

    #: Accepts most records without a call of produce(): the kernel's RecordTaker, None without one.
    records: Any | None

    def produce(
        self, topic: str, key: Any, value: Any, partition: int, timestamp: int | None, headers: Any = None
    ) -> None:
        """Accept a record; blocks until the topic is known and the buffer has room.

        partition: its number, or BY_KEY. timestamp: in ms, None for now. headers: (name, bytes or None) pairs. Raises
        ClientError if the record cannot be written, UnusableClientError if the client has failed permanently.
        """

    def send_due(self) -> None:
        """Send due batches without blocking. Does nothing if another thread sends. Raises as poll() does."""

    def wait_ms(self) -> float:
        """Return the time until send_due() is due, in ms; infinity: not before the next produce()."""

    def poll(self) -> None:
        """Send due batches and handle responses, without blocking.

        Raises ClientError if the client has failed permanently, StreamsError if it cannot write at all.
        """

    def flush(self, seconds: float = math.inf) -> bool:
        """Wait until every record is acknowledged or dropped, or for the timeout. Returns whether they all are.

        Raises as poll() does.
        """

    def take_lost(self) -> list[Lost]:
        """Return the records that were dropped since the last call."""

    def drop(self) -> None:
        """Drop all records, and close connections with requests in flight: another member may own the tasks by now.

        librdkafka sends them all.
        """

    def close(self) -> None:
        """Drop all unacknowledged records and close the connections. No other call is allowed afterwards."""


class TransactionalWriter(Writer, Protocol):
    """A Writer with a transactional id. All of these methods except begin_transaction block.

    They raise TransactionError. After a timeout its cause is an UnreachableError: the outcome of the transaction is
    unknown, and the writer must be replaced.
    """

    def init_transactions(self, seconds: float) -> None:
        """Fence the previous producer with the same id, and wait for the end of its transaction."""

    def begin_transaction(self) -> None:
        """Begin a transaction that includes all records produced from now on."""

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group_metadata: GroupMetadata, seconds: float
    ) -> None:
        """Commit offsets together with the transaction."""

    def commit_transaction(self, seconds: float) -> None:
        """Wait until every record is acknowledged, then commit the transaction."""

    def abort_transaction(self, seconds: float) -> None:
        """Drop records that are not in flight, wait for those that are, and abort the transaction."""
