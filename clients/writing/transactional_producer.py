"""A KafkaProducer with transactions; see transactions.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from typing_extensions import override

from penstock.topology.records import TopicPartition

from ..errors import TransactionError, UnreachableError, UnusableClientError
from ..protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from ..retry_log import RetryLog
from .kafka_producer import KafkaProducer
from .producer_identity import Identity
from .transactions import TransactionManager, TransactionState
from .writer import TransactionalWriter

#: Default timeout of a call, in seconds.
_DEFAULT_SECONDS = 60.0


class TransactionalKafkaProducer(KafkaProducer, TransactionalWriter):
    """A Writer with a transactional id."""

    def _new_identity(self, on_done: Callable[[], None], retries: RetryLog) -> Identity:
        self._transactions = TransactionManager(
            self._brokers,
            cast("str", self._settings.transactional_id),
            self._settings.transaction_timeout_ms,
            self._settings.retry_backoff_ms,
            self._settings.metadata_max_age_ms,
            on_done,
            retries,
            self._log,
        )
        return self._transactions

    @override
    def init_transactions(self, seconds: float = _DEFAULT_SECONDS) -> None:
        self._transactions.initialize()
        self._await_state(TransactionState.READY, seconds)

    @override
    def restart(self, transactional_id: str) -> bool:
        self._transactions.restart(transactional_id)
        return True

    @override
    def begin_transaction(self) -> None:
        self._transactions.begin()

    @override
    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: GroupMetadata,
        seconds: float = _DEFAULT_SECONDS,
    ) -> None:
        self._transactions.send_offsets(offsets, group_metadata)
        self._await(lambda: self._transactions.has_sent_offsets, seconds)

    @override
    def commit_transaction(self, seconds: float = _DEFAULT_SECONDS) -> None:
        self.flush(seconds)
        self._await(lambda: self._sender.is_idle, 0)
        self._transactions.commit()
        self._await_state(TransactionState.READY, seconds)

    @override
    def abort_transaction(self, seconds: float = _DEFAULT_SECONDS) -> None:
        self._transactions.drain()
        self._drop_batches()
        self._await(lambda: not self._sender.drop(), seconds)
        self.take_lost()
        self._transactions.abort()
        self._await_state(TransactionState.READY, seconds)

    def _await_state(self, state: TransactionState, seconds: float) -> None:
        self._await(lambda: self._transactions.state is state, seconds)

    def _await(self, is_done: Callable[[], bool], seconds: float) -> None:
        """Wait for a condition; raises TransactionError if the transaction fails or the timeout expires."""
        self._serve_until(lambda: self._transactions.refusal is not None or is_done(), seconds)
        self._transactions.check()
        if self._failure is not None:
            raise TransactionError(UnusableClientError(str(self._failure)), can_abort=False) from self._failure
        if not is_done():
            reason = f"the brokers did not complete the request within {seconds:.0f} s"
            last = self._transactions.failure
            raise TransactionError(UnreachableError(f"{reason}: {last}" if last else reason), can_abort=False)
