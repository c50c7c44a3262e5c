"""The newest records of a store's changelog, read once for all of its subscribers on this host.

A tail is a thread with one consumer. It keeps the last batches of committed records, up to a number of bytes, and
subscribers read them at their own pace: one that falls behind the oldest batch has lost its place. The records before
the tail are read by a subscriber itself, see store_changes.py.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import BrokerUnavailableError, StreamsError
from penstock.topology.records import Message, RawRecord, TopicPartition
from penstock.topology.shadowing import NamingShadows

from .store_routing import RETRY_SECONDS, QueryError

if TYPE_CHECKING:
    from penstock.clients.cluster.admin import Admin
    from penstock.workers.tasks.partition_consumer import PartitionConsumer
    from penstock.workers.thread.client_supplier import KafkaClientSupplier

logger = logging.getLogger(__name__)

#: Maximum number of records in a batch.
BATCH_RECORDS = 500
#: How long the thread waits for records, unless it is woken, in seconds.
POLL_SECONDS = 5.0
#: Time limit of requests for the topic and its offsets, in ms.
REQUEST_MS = 5_000
#: What a record takes in memory beside its key and value, about, in bytes.
RECORD_BYTES = 300

Offsets = Mapping[int, int]


@dataclass(slots=True, eq=False)
class Change:
    """A record of a changelog. row: its JSON, once a subscriber has needed it."""

    record: RawRecord
    row: bytes | None = None

    @property
    def partition(self) -> int:
        """The partition."""
        return self.record.partition()

    @property
    def offset(self) -> int:
        """The offset."""
        return self.record.offset()

    @property
    def bytes(self) -> int:
        """The size of key and value."""
        return len(self.record.key() or b"") + len(self.record.value() or b"")


Batch = tuple[Change, ...]


class OvertakenError(Exception):
    """The next batch of a subscriber is not kept any more."""


@dataclass(frozen=True, slots=True)
class ChangelogClients:
    """Makes the clients that read changelogs. Only committed records are read, whatever isolation.level is."""

    config: StreamsConfig
    client_id: str

    def admin(self) -> Admin:
        """Return a new admin client."""
        return self._supplier().get_admin(f"{self.client_id}-changes-admin")

    def consumer(self) -> PartitionConsumer:
        """Return a new consumer without partitions."""
        with NamingShadows():  # Kafka's clients, whose memory a supervisor without subscribers saves
            from penstock.clients.librdkafka import as_reader
            from penstock.clients.log_context import PrefixedLogger
            from penstock.workers.tasks.partition_consumer import PartitionConsumer
        name = f"{self.client_id}-changes-consumer"
        log = PrefixedLogger("penstock.supervisor.changes", f"[{name}] ")
        return PartitionConsumer(as_reader(self._supplier().get_restore_consumer(name)), log)

    def _supplier(self) -> KafkaClientSupplier:
        with NamingShadows():
            from penstock.clients.clock import SystemClock
            from penstock.workers.thread.client_supplier import configured_supplier
        committed = {"restore.consumer.isolation.level": "read_committed"}
        return configured_supplier(self.config.with_overrides(committed), SystemClock())


class ChangelogTail:
    """bytes_max: of the keys and values that it keeps. Any thread may use it."""

    def __init__(self, topic: str, partitions: int, clients: ChangelogClients, bytes_max: int) -> None:
        self.topic = topic
        self.topic_id = UUID(int=0)
        self._partitions = range(partitions)
        self._clients = clients
        self._bytes_max = bytes_max
        self._batches: deque[Batch] = deque()
        self._first = 0  # the number of the first batch
        self._bytes = 0
        #: By partition: the offsets from which on all records are kept, and up to which records were read.
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._failure: QueryError | None = None
        self._admin: Admin | None = None
        self._consumer: PartitionConsumer | None = None
        self._ends_now = False
        self._is_open = threading.Event()
        self._lock = threading.Lock()
        self._wakers: set[Callable[[], None]] = set()
        self._thread = threading.Thread(target=self._run, name=f"penstock-changes-{topic}", daemon=True)
        self._thread.start()

    def open(self) -> None:
        """Wait until it reads. Raises QueryError if it cannot."""
        if not self._is_open.wait(3 * REQUEST_MS / 1000):
            raise _unavailable(f"The changelog {self.topic} cannot be read: no broker answers.")
        self._check()

    def close(self) -> None:
        """End the thread and its clients, without waiting for it."""
        self._ends_now = True
        with self._lock:
            if self._consumer is not None:
                self._consumer.wake()

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call a function after each batch, and after a failure, in the tail's thread."""
        with self._lock:
            self._wakers.add(wake)

    def unsubscribe(self, wake: Callable[[], None]) -> bool:
        """Stop calling a function. Returns whether it was the last one."""
        with self._lock:
            self._wakers.discard(wake)
            return not self._wakers

    @property
    def has_failed(self) -> bool:
        """Whether it reads no more."""
        return self._failure is not None

    def ends(self) -> dict[int, int]:
        """Return the offsets up to which records were read, by partition."""
        with self._lock:
            return dict(self._ends)

    def bounds(self, partitions: Collection[int]) -> dict[int, tuple[int, int]]:
        """Return the first offset and the end of partitions, now. Raises QueryError."""
        assert self._admin is not None
        from penstock.clients.cluster.offsets import EARLIEST, LATEST

        firsts, ends = (self._offsets(self._admin, partitions, at) for at in (EARLIEST, LATEST))
        return {partition: (firsts[partition], ends[partition]) for partition in partitions}

    def place_of(self, positions: Offsets) -> int | None:
        """Return the number of the first batch with a record at or after a subscriber's positions.

        None if the records before the kept ones must be read first.
        """
        with self._lock:
            if any(at < self._starts[partition] for partition, at in positions.items()):
                return None
            for number, batch in enumerate(self._batches, self._first):
                if any(change.offset >= positions.get(change.partition, change.offset + 1) for change in batch):
                    return number
            return self._first + len(self._batches)

    def starts(self) -> dict[int, int]:
        """Return the offsets from which on all records are kept, by partition."""
        with self._lock:
            return dict(self._starts)

    def batch(self, number: int) -> tuple[Batch | None, dict[int, int]]:
        """Return a batch, and the positions after it if it is the last one; None if it has not been read yet.

        Raises OvertakenError if it is not kept any more, QueryError if the changelog cannot be read.
        """
        with self._lock:
            if number < self._first:
                raise OvertakenError
            index = number - self._first
            if index >= len(self._batches):
                self._check()
                return None, dict(self._ends)
            return self._batches[index], {}

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # -- the thread

    def _run(self) -> None:
        try:
            self._admin = self._clients.admin()
            consumer = self._consumer = self._clients.consumer()
            self._begin(self._admin, consumer)
            self._is_open.set()
            while not self._ends_now:
                self._add(consumer.poll(BATCH_RECORDS, POLL_SECONDS), consumer)
        except QueryError as error:
            self._fail(error)
        except StreamsError as error:
            self._fail(self.unreadable(error))
        except Exception as error:  # a bug: subscribers must not wait indefinitely
            logger.exception("Reading the changelog %s for subscribers failed", self.topic)
            self._fail(QueryError(500, "INTERNAL", f"Reading the changelog failed: {type(error).__name__}: {error}"))
        finally:
            with self._lock:
                clients = self._consumer, self._admin
                self._consumer = None
            for client in clients:
                if client is not None:
                    client.close()

    def _begin(self, admin: Admin, consumer: PartitionConsumer) -> None:
        from penstock.clients.cluster.offsets import LATEST

        found = self._id(admin)
        if found is None:
            raise _unavailable(f"The changelog {self.topic} does not exist yet, or was deleted.")
        self.topic_id = found
        ends = self._offsets(admin, self._partitions, LATEST, committed_only=True)
        self._starts, self._ends = dict(ends), dict(ends)
        consumer.assign({TopicPartition(self.topic, partition): at for partition, at in ends.items()})

    def _id(self, admin: Admin) -> UUID | None:
        """Return the topic's id now, None if it does not exist."""
        from penstock.clients.cluster.admin import answered

        with answered(f"The changelog {self.topic} cannot be described"):
            found = admin.topic_ids([self.topic], REQUEST_MS)
        return UUID(bytes=found[self.topic]) if self.topic in found else None

    def unreadable(self, error: StreamsError) -> QueryError:
        """Return the error for a changelog that cannot be read any further."""
        if isinstance(error, BrokerUnavailableError):
            return _unavailable(str(error))
        try:
            is_same = self._admin is None or self._id(self._admin) == self.topic_id
        except StreamsError as second:
            return _unavailable(str(second))
        return position_gone(self.topic, str(error)) if is_same else recreated(self.topic)

    def _offsets(
        self, admin: Admin, partitions: Collection[int], at: int, committed_only: bool = False
    ) -> dict[int, int]:
        from penstock.clients.cluster.admin import answered

        wanted = {TopicPartition(self.topic, partition): at for partition in partitions}
        try:
            with answered(f"The offsets of the changelog {self.topic} cannot be read"):
                asked = admin.offsets(wanted, REQUEST_MS, committed_only)
                return {p.partition: future.result(2 * REQUEST_MS / 1000) for p, future in asked.items()}
        except (StreamsError, TimeoutError) as error:
            raise _unavailable(f"The changelog {self.topic} cannot be read: {error}") from error

    def _add(self, found: Mapping[TopicPartition, Iterable[Message]], consumer: PartitionConsumer) -> None:
        batch = changes_of(found)
        ends = {partition: consumer.position(TopicPartition(self.topic, partition)) for partition in self._partitions}
        with self._lock:
            if batch:
                self._batches.append(batch)
                self._bytes += _size(batch)
            self._ends = {partition: at or 0 for partition, at in ends.items()}
            while self._bytes > self._bytes_max and len(self._batches) > 1:
                self._forget_first()
        self._wake()

    def _forget_first(self) -> None:
        batch = self._batches.popleft()
        self._first += 1
        self._bytes -= _size(batch)
        for change in batch:
            self._starts[change.partition] = change.offset + 1

    def _fail(self, error: QueryError) -> None:
        self._failure = error
        self._is_open.set()
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            wakers = list(self._wakers)
        for wake in wakers:
            wake()


def changes_of(found: Mapping[TopicPartition, Iterable[Message]]) -> Batch:
    """Return records as changes that do not keep the rest of their response in memory."""
    return tuple(Change(_copied(message)) for messages in found.values() for message in messages)


def _copied(message: Message) -> RawRecord:
    where = message.topic(), message.partition(), message.offset(), message.timestamp()[1]
    return RawRecord(*where, message.key(), message.value(), message.headers())


def _size(batch: Batch) -> int:
    return sum(change.bytes + RECORD_BYTES for change in batch)


def position_gone(topic: str, reason: str) -> QueryError:
    """Return the error for a position that the changelog does not have any more."""
    return QueryError(
        410,
        "POSITION_GONE",
        f"The changelog {topic} cannot be read from this position any more: {reason.rstrip('.')}. Subscribe again "
        "without an id, which begins with the rows.",
    )


def recreated(topic: str) -> QueryError:
    """Return the error for the position in a changelog that was deleted since."""
    return QueryError(
        410,
        "CHANGELOG_RECREATED",
        f"The changelog {topic} was deleted or created again, so this position means nothing any more. Subscribe again "
        "without an id, which begins with the rows.",
    )


def _unavailable(message: str) -> QueryError:
    return QueryError(503, "CHANGELOG_UNAVAILABLE", message, RETRY_SECONDS)
