"""The interface for writing records: a KafkaProducer, or librdkafka's adapter (Kafka: Producer)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from penstock.kernel.sinks import RecordTaker
from penstock.topology.records import Message, TaskId, TopicPartition

from ..errors import ClientError
from ..protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from ..throttle import Health

#: The partitioner chooses the partition by the key.
BY_KEY = -1


#: The task that wrote a record, and the input record that it processed then.
Source = tuple[TaskId, Message]


class Lost(NamedTuple):
    """A dropped record and the reason.

    source: None if it was not given to the writer. is_refused: the broker refused this record alone (KIP-467). It is
    certain that it was not written, and the others of its batch and its transaction are not affected.
    """

    error: ClientError
    record: Message
    source: Source | None = None
    is_refused: bool = False


class Writer(Protocol):
    """Writes records, in order within each partition. Not thread-safe."""

    #: Accepts most records without a call of produce(): None without the kernel's.
    records: RecordTaker | None

    def produce(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        partition: int,
        timestamp: int | None,
        headers: list[tuple[str, bytes | None]] | None = None,
        source: Source | None = None,
    ) -> None:
        """Accept a record; blocks until the topic is known and the buffer has room.

        partition: its number, or BY_KEY. timestamp: in ms, None for now. headers: (name, bytes or None) pairs. source:
        reported if the record is lost. Raises ClientError if the record cannot be written, UnusableClientError if the
        client has failed permanently.
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

    def health(self) -> Health:
        """Return the operations that the client waits for, and its throttle times since the last call. librdkafka
        reports none.
        """
        return Health()

    def drop(self) -> None:
        """Drop all records, and close connections with requests in flight: another member may own the tasks by now.

        librdkafka instead sends all records.
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

    def restart(self, transactional_id: str) -> bool:
        """Continue as a new writer with this id, which has to be initialized; possible between transactions.

        Returns False if the client cannot, as librdkafka: it has to be replaced.
        """
        return False

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
