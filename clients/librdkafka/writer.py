"""A Writer over a confluent_kafka.Producer; its transactions use the protocol before KIP-890."""

from __future__ import annotations

import math
import operator
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from typing_extensions import override

from penstock.topology.records import Message, RawRecord, TopicPartition

from ..errors import Kind, TransactionError, UnreachableError, UnusableClientError
from ..protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from ..writing.writer import Lost, Source, TransactionalWriter
from .errors import PURGED, client_error
from .group_metadata import encode_group_metadata
from .renewed_files import RenewedFiles

#: How long to wait for room in librdkafka's queue before retrying the record, in seconds.
ROOM_SECONDS = 0.05
#: How much longer than its timeout a call may take, in seconds, before it is abandoned.
GRACE_SECONDS = 2.0
#: librdkafka treats timestamp 0 as "now", which would move a record from 1970 to today; 1 ms is the closest.
NOW, EARLIEST = 0, 1
_FOREVER = -1
#: Codes of a batch with a wrong record. librdkafka does not say which one it is (KIP-467).
_OF_ONE_RECORD = frozenset(
    (KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD, KafkaError._INVALID_DIFFERENT_RECORD)
)


class LibrdkafkaWriter(TransactionalWriter):
    """A Writer over a Producer; transactions need a Producer with a ``transactional.id``.

    Abandons a transactional call that does not return in time: with librdkafka 2.16, ``send_offsets_to_transaction``
    may block forever, whatever its timeout, if the transaction coordinator was unavailable when it was called and has
    come back since. Such a client can be neither used nor closed: it is abandoned together with the blocked thread, and
    fenced by its replacement.
    """

    def __init__(self, producer: Any, files: RenewedFiles | None = None) -> None:
        self._producer = producer
        self._files = files  # that it was created with, None if they are unknown
        self._lost: list[Lost] = []
        #: The records of batches that a broker refused because of one of them.
        self._suspects: list[tuple[RawRecord, Source | None]] = []
        self._in_transactions = False
        self.records = None

    @override
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
        at = NOW if timestamp is None else timestamp or EARLIEST
        self._produce(topic, key, value, partition, at, headers, partial(self._on_delivery, at, headers, source))

    def _produce(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        partition: int,
        at: int,
        headers: list[tuple[str, bytes | None]] | None,
        report: Callable[[KafkaError | None, Message], None],
    ) -> None:
        while True:
            try:
                # callback and on_delivery are aliases; the first one takes precedence.
                self._producer.produce(topic, value, key, partition, report, None, at, headers)
                return
            except BufferError:
                self._serve(self._producer.poll, ROOM_SECONDS)
            except KafkaException as error:
                raise client_error(error.args[0]) from error

    def _on_delivery(
        self,
        at: int,
        headers: list[tuple[str, bytes | None]] | None,
        source: Source | None,
        error: KafkaError | None,
        message: Message,
    ) -> None:
        """Record a lost record, whose timestamp and headers the message lacks; librdkafka must not be called here."""
        if error is None or error.code() in PURGED:
            return
        record = RawRecord(message.topic(), message.partition(), -1, at, message.key(), message.value(), headers)
        if error.code() in _OF_ONE_RECORD and not self._in_transactions:  # else the transaction must be aborted
            self._suspects.append((record, source))
        else:
            self._lost.append(Lost(client_error(error), record, source))

    def _try_suspects(self) -> bool:
        """Write each alone, after the records written meanwhile: only the wrong ones are lost. False without any."""
        suspects, self._suspects = self._suspects, []
        for record, source in suspects:
            self._produce(
                record.topic(),
                record.key(),
                record.value(),
                record.partition(),
                record.timestamp()[1],
                record.headers(),
                partial(self._on_lone_delivery, record, source),
            )
            self._serve(self._producer.flush, _FOREVER)
        return bool(suspects)

    def _on_lone_delivery(self, record: Message, source: Source | None, error: KafkaError | None, _: Message) -> None:
        if error is not None and error.code() not in PURGED:
            self._lost.append(Lost(client_error(error), record, source, error.code() in _OF_ONE_RECORD))

    @override
    def send_due(self) -> None:
        """The thread of librdkafka sends."""

    @override
    def wait_ms(self) -> float:
        return math.inf

    @override
    def poll(self) -> None:
        self._serve(self._producer.poll, 0)
        self._try_suspects()

    @override
    def flush(self, seconds: float = math.inf) -> bool:
        end = time.monotonic() + seconds
        left = seconds
        while True:
            self._serve(self._producer.flush, _FOREVER if math.isinf(left) else left)
            if not self._try_suspects():
                return not len(self._producer)
            left = max(end - time.monotonic(), 0)

    def _serve(self, call: Callable[..., object], *arguments: object) -> None:
        """Call a method that runs callbacks; raises UnusableClientError if the client fails permanently."""
        try:
            checked(call, *arguments)
        except KafkaException as error:
            raise UnusableClientError(error.args[0].str()) from error

    @override
    def take_lost(self) -> list[Lost]:
        lost, self._lost = self._lost, []
        return lost

    @override
    def drop(self) -> None:
        """Do nothing, because librdkafka does not expose which records are in flight."""

    @override
    def close(self) -> None:
        if self._files is not None:
            self._files.close()
        self._producer.purge()

    @override
    def init_transactions(self, seconds: float) -> None:
        self._in_transactions = True
        _bounded(self._producer.init_transactions, seconds)

    @override
    def begin_transaction(self) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise _transaction_error(error.args[0]) from error

    @override
    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group_metadata: GroupMetadata, seconds: float
    ) -> None:
        positions = [
            confluent_kafka.TopicPartition(p.topic, p.partition, at.offset, at.metadata, at.leader_epoch)
            for p, at in offsets.items()
        ]
        call = self._producer.send_offsets_to_transaction
        _bounded(call, positions, encode_group_metadata(group_metadata), seconds)

    @override
    def commit_transaction(self, seconds: float) -> None:
        _bounded(self._producer.commit_transaction, seconds)

    @override
    def abort_transaction(self, seconds: float) -> None:
        _bounded(self._producer.abort_transaction, seconds)


def _bounded(call: Callable[..., object], *arguments: Any) -> None:
    """Run a call, whose last argument is its timeout in seconds, on a thread that may be abandoned.

    Raises TransactionError.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            checked(call, *arguments)
        except BaseException as error:  # noqa: BLE001  raised again below
            raised.append(error)

    thread = threading.Thread(target=run, name="transaction", daemon=True)
    thread.start()
    thread.join(arguments[-1] + GRACE_SECONDS)
    if thread.is_alive():
        reason = f"librdkafka did not return from {call.__name__} within {arguments[-1] + GRACE_SECONDS:.0f} s"
        raise TransactionError(UnreachableError(reason), can_abort=False)
    for error in raised:
        if isinstance(error, KafkaException):
            raise _transaction_error(error.args[0]) from error
        raise error


def _transaction_error(error: KafkaError) -> TransactionError:
    cause = client_error(error)
    # For a member that the group has replaced, librdkafka does not report that the transaction must be aborted.
    can_abort = not error.fatal() and (error.txn_requires_abort() or cause.kind is Kind.EVICTED)
    return TransactionError(cause, can_abort=can_abort)


def checked(call: Callable[..., object], *arguments: object) -> object:
    """Call a method of a Producer that runs callbacks: poll, flush, or a transactional one.

    If the client fails permanently meanwhile, confluent-kafka 2.16 sets an exception but still returns a result; after
    a plain call, Python would raise it from a later statement. operator.call raises it immediately. If it returns
    nothing and sets no exception, the reason is unknown.
    """
    try:
        return operator.call(call, *arguments)
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise KafkaException(KafkaError(KafkaError._FAIL, f"the client failed in {call.__name__}")) from error
