"""Transactions by transactional id.

Kafka: TransactionCoordinator, TransactionMetadata, TransactionMarkerChannelManager. From version 5 of EndTxn on each
transaction has its own epoch (KIP-890). EndTxn is answered once the transaction is decided. Until its markers are
written, requests for the next one are refused with CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from .errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from .cluster import Cluster

NO_PRODUCER, NO_EPOCH = -1, -1
#: After this epoch a producer gets a new id (Kafka: Short.MAX_VALUE - 1).
LAST_EPOCH = 32766
#: A topic's name and the number of a partition.
TopicPartition: TypeAlias = tuple[str, int]
#: Calls a function that writes a marker, now or later.
SendMarker: TypeAlias = Callable[[Callable[[], None]], object]


class TransactionState(Enum):
    """Kafka's states. PREPARE: decided, but not all markers are written."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


#: The states of a transaction that commits and of one that aborts, before and after its markers are written.
_PREPARE = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}
_COMPLETE = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}


@dataclass(eq=False)
class Transaction:
    """The state of a transactional id. partitions: those of the open transaction, in the order in which they were
    added; groups: with offsets in it. markers_due: the number of unwritten markers.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: dict[TopicPartition, None] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    began_ms: int = 0
    markers_due: int = 0
    #: The producer id and epoch before the last change: a repeated request has these (KIP-360).
    last_producer_id: int = NO_PRODUCER
    last_epoch: int = NO_EPOCH

    @property
    def is_ending(self) -> bool:
        """True if it is decided but not all its markers are written."""
        return self.state in _PREPARE.values()

    def has_timed_out(self, now_ms: int) -> bool:
        """True if it has been open longer than its timeout."""
        return self.state is TransactionState.ONGOING and self.began_ms + self.timeout_ms <= now_ms


class TransactionCoordinator:
    """All transactional ids of a cluster."""

    def __init__(self, cluster: Cluster, send_marker: SendMarker) -> None:
        self._cluster = cluster
        self._send_marker = send_marker
        self.transactions: dict[str, Transaction] = {}

    def init(self, transactional_id: str, timeout_ms: int, producer_id: int, epoch: int) -> tuple[int, int]:
        """Return a new producer id and epoch, which fences former producers; raises ApiError."""
        if not 0 < timeout_ms <= int(self._cluster.config["transaction.max.timeout.ms"]):
            raise ApiError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        found = self.transactions.get(transactional_id)
        if found is None:
            found = Transaction(self._cluster.new_producer_id(), 0, timeout_ms)
            self.transactions[transactional_id] = found
            return found.producer_id, found.epoch
        is_known = producer_id != NO_PRODUCER
        is_again = is_known and (producer_id, epoch) == (found.last_producer_id, found.last_epoch)
        if is_known and not is_again and (producer_id, epoch) != (found.producer_id, found.epoch):
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        if found.state is TransactionState.ONGOING:
            found.epoch += 1  # fences the former producer
            self._end(found, commit=False)
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)  # as in Kafka, which requires a retry
        self.check_ended(found)
        if is_again:
            return found.producer_id, found.epoch
        found.timeout_ms = timeout_ms
        self._bump(found)
        if not is_known:
            found.last_producer_id = NO_PRODUCER  # another producer, which has no request to repeat
        found.state = TransactionState.EMPTY
        return found.producer_id, found.epoch

    def _bump(self, found: Transaction) -> None:
        found.last_producer_id, found.last_epoch = found.producer_id, found.epoch
        if found.epoch >= LAST_EPOCH:
            found.producer_id, found.epoch = self._cluster.new_producer_id(), 0
        else:
            found.epoch += 1

    def of(self, transactional_id: str, producer_id: int, epoch: int) -> Transaction:
        """Return a producer's transaction; raises ApiError if the producer is not the latest of its transactional
        id.
        """
        found = self.transactions.get(transactional_id)
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if found is None or found.producer_id != producer_id:
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if found.epoch != epoch:
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        return found

    @staticmethod
    def check_ended(found: Transaction) -> None:
        """Raise ApiError while markers of the last transaction are unwritten."""
        if found.is_ending:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)

    def add(self, found: Transaction, partitions: Iterable[TopicPartition], group: str | None = None) -> None:
        """Add partitions, or a group's offsets; begins the transaction if none is open. Raises ApiError."""
        self.check_ended(found)
        if found.state is not TransactionState.ONGOING:
            found.state, found.began_ms = TransactionState.ONGOING, self._cluster.now_ms
        found.partitions |= dict.fromkeys(partitions)
        if group is not None:
            found.groups.add(group)

    def by_producer(self, producer_id: int, epoch: int) -> Transaction | None:
        """Return the open transaction of a producer."""
        return next(
            (
                one
                for one in self.transactions.values()
                if one.producer_id == producer_id and one.epoch == epoch and one.state is TransactionState.ONGOING
            ),
            None,
        )

    def end(self, transactional_id: str, producer_id: int, epoch: int, commit: bool, new: bool) -> tuple[int, int]:
        """End a transaction and return the producer's next id and epoch. new: KIP-890. Raises ApiError."""
        found = self.transactions.get(transactional_id)
        if new and found and (producer_id, epoch) == (found.last_producer_id, found.last_epoch):
            return self._ended_before(found, commit)
        found = self.of(transactional_id, producer_id, epoch)
        if found.is_ending or (not new and found.state is _COMPLETE[commit]):
            return self._ended_before(found, commit)
        if found.state is not TransactionState.ONGOING and (commit or not new):
            raise ApiError(ErrorCode.INVALID_TXN_STATE)
        marked = found.producer_id, found.epoch + new
        if new:
            self._bump(found)
        self._end(found, commit, marked)
        return found.producer_id, found.epoch

    def _ended_before(self, found: Transaction, commit: bool) -> tuple[int, int]:
        """Answer a repeated request; raises ApiError while markers are unwritten, or for another outcome."""
        if found.state not in (_PREPARE[commit], _COMPLETE[commit]):
            raise ApiError(ErrorCode.INVALID_TXN_STATE)
        self.check_ended(found)
        return found.producer_id, found.epoch

    def _end(self, found: Transaction, commit: bool, marked: tuple[int, int] | None = None) -> None:
        """Decide a transaction and send its markers. marked: their producer id and epoch."""
        producer = marked or (found.producer_id, found.epoch)
        targets = [*found.partitions, None]  # None: the groups
        found.partitions.clear()
        found.groups.clear()
        found.state, found.markers_due = _PREPARE[commit], len(targets)
        for target in targets:
            self._send_marker(partial(self._mark, found, target, producer, commit))

    def _mark(self, found: Transaction, target: TopicPartition | None, producer: tuple[int, int], commit: bool) -> None:
        cluster, (producer_id, epoch) = self._cluster, producer
        if target is None:
            cluster.groups.end_transaction(producer_id, commit)
        elif topic := cluster.topics.get(target[0]):
            partition = topic.partitions[target[1]]
            partition.log.end_transaction(producer_id, epoch, 0, commit, partition.leader_epoch, cluster.now_ms)
        found.markers_due -= 1
        if not found.markers_due:
            found.state = _COMPLETE[commit]

    def expire(self) -> None:
        """Abort transactions that have timed out, and fence their producers."""
        for found in self.transactions.values():
            if found.has_timed_out(self._cluster.now_ms):
                marked = found.producer_id, found.epoch + 1
                self._bump(found)
                found.last_producer_id = NO_PRODUCER
                self._end(found, False, marked)

    def deadlines(self) -> Iterator[float]:
        """Yield the times at which expire() is due."""
        for found in self.transactions.values():
            if found.state is TransactionState.ONGOING:
                yield found.began_ms + found.timeout_ms
