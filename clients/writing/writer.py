"""What writes records: a KafkaProducer, or librdkafka behind ../librdkafka/writer.py (Kafka: Producer)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from penstock.topology.records import TopicPartition

from ..errors import ClientError
from ..protocol.offset_commits import GroupMetadata, OffsetAndMetadata

#: The partition is that of the key.
BY_KEY = -1


class Lost(NamedTuple):
    """A record that was dropped, and why. It has the methods of a consumed Message."""

    error: ClientError
    record: Any


class Writer(Protocol):
    """Writes records, each partition's in order. One thread may use it."""

    #: What takes the usual record without a call of produce(): the kernel's RecordTaker, None without one.
    records: Any | None

    def produce(
        self, topic: str, key: Any, value: Any, partition: int, timestamp: int | None, headers: Any = None
    ) -> None:
        """Take a record; waits for the topic to be known, and for room.

        partition: BY_KEY, or the one. timestamp: in ms, None for now. headers: (name, bytes or None) pairs. Raises
        ClientError if it cannot be written, an UnusableClientError if nothing can be any more.
        """

    def send_due(self) -> None:
        """Send what is due; does not wait. Does nothing where another thread sends. Raises as poll() does."""

    def wait_ms(self) -> float:
        """Return how long it is until send_due() may have something to do, in ms; infinity: not before a produce()."""

    def poll(self) -> None:
        """Send what is due and take in what brokers have said; does not wait.

        Raises ClientError if the client has failed for good, StreamsError if nothing can be written with it at all.
        """

    def flush(self, seconds: float = math.inf) -> None:
        """Wait until every record is acknowledged or dropped, for so long at most. Raises as poll() does."""

    def take_lost(self) -> list[Lost]:
        """Return the records that were dropped since the last call."""

    def drop(self) -> None:
        """Forget what is not in flight to a broker: others may write in its place by now. librdkafka sends it."""

    def close(self) -> None:
        """Drop all unacknowledged records, and close the connections. Nothing else may be called afterwards."""


class TransactionalWriter(Writer, Protocol):
    """A Writer with a transactional id. All of these calls but begin_transaction wait.

    They raise TransactionError; its cause is an UnreachableError after a timeout: the outcome of the transaction is
    then unknown, and another writer is needed.
    """

    def init_transactions(self, seconds: float) -> None:
        """Fence the producer before that had the same id, and wait for the end of its transaction."""

    def begin_transaction(self) -> None:
        """Begin a transaction: all that is produced from now on belongs to it."""

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group_metadata: GroupMetadata, seconds: float
    ) -> None:
        """Have offsets committed together with the transaction."""

    def commit_transaction(self, seconds: float) -> None:
        """Wait until every record is acknowledged, then commit them."""

    def abort_transaction(self, seconds: float) -> None:
        """Drop what is not in flight, wait for what is, and abort the transaction."""
