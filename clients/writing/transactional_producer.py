"""A KafkaProducer with transactions; see transactions.py."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, cast

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from penstock.kernel import record_accumulator
from penstock.topology.records import TopicPartition

from ..clock import Clock
from ..cluster.brokers import KafkaBrokers
from ..log_context import PrefixedLogger
from .kafka_producer import KafkaProducer
from .produce_settings import ProduceSettings
from .producer_identity import Identity
from .transaction_requests import CommittedOffset, GroupMetadata
from .transactions import TransactionManager, TransactionState

_SEEDS = 1 << 16
#: Of a call that is told no other, in seconds.
_DEFAULT_SECONDS = 60.0


class TransactionalKafkaProducer(KafkaProducer):
    """Has the methods of confluent_kafka.Producer for transactions, too.

    Each of them waits. What goes wrong is raised as KafkaException: an error that requires an abort
    (txn_requires_abort), one after which only another producer helps (fatal), or that time is over (_TIMED_OUT): then
    nobody knows what became of it, and another producer is needed, too.
    """

    def _new_identity(self, on_done: Callable[[], None]) -> Identity:
        self._transactions = TransactionManager(
            self._brokers,
            cast("str", self._settings.transactional_id),
            self._settings.transaction_timeout_ms,
            self._settings.retry_backoff_ms,
            on_done,
            self._log,
        )
        return self._transactions

    def init_transactions(self, seconds: float = _DEFAULT_SECONDS) -> None:
        """Fence the producer before that had the same id, and wait for the end of its transaction."""
        self._transactions.initialize()
        self._await_state(TransactionState.READY, seconds)

    def begin_transaction(self) -> None:
        """Begin a transaction: all that is produced from now on belongs to it."""
        self._transactions.begin()

    def send_offsets_to_transaction(
        self,
        positions: Iterable[confluent_kafka.TopicPartition],
        group_metadata: GroupMetadata,
        seconds: float = _DEFAULT_SECONDS,
    ) -> None:
        """Have offsets committed together with the transaction."""
        offsets = {
            TopicPartition(at.topic, at.partition): CommittedOffset(
                at.offset, at.metadata or "", -1 if at.leader_epoch is None else at.leader_epoch
            )
            for at in positions
        }
        self._transactions.send_offsets(offsets, group_metadata)
        self._await(lambda: self._transactions.has_sent_offsets, seconds)

    def commit_transaction(self, seconds: float = _DEFAULT_SECONDS) -> None:
        """Wait until every record is acknowledged, then commit them."""
        self.flush(seconds)
        self._await(lambda: self._sender.is_idle, 0)
        self._transactions.commit()
        self._await_state(TransactionState.READY, seconds)

    def abort_transaction(self, seconds: float = _DEFAULT_SECONDS) -> None:
        """Drop what is not on its way, wait for what is, and abort the transaction."""
        self._transactions.drain()
        self.drop()
        self._await(lambda: not self._sender.drop(), seconds)
        self.take_lost()
        self._transactions.abort()
        self._await_state(TransactionState.READY, seconds)

    def _await_state(self, state: TransactionState, seconds: float) -> None:
        self._await(lambda: self._transactions.state is state, seconds)

    def _await(self, is_done: Callable[[], bool], seconds: float) -> None:
        """Wait for something; raises KafkaException if the transaction fails, or is over time."""
        self._serve_until(lambda: self._transactions.refusal is not None or is_done(), seconds)
        self._transactions.check()
        if self._failure is not None:
            raise KafkaException(KafkaError(KafkaError._FATAL, str(self._failure), fatal=True))
        if not is_done():
            reason = f"the brokers have not done it within {seconds:.0f} s"
            last = self._transactions.failure
            raise KafkaException(
                KafkaError(KafkaError._TIMED_OUT, f"{reason}: {last}" if last else reason, retriable=True)
            )


def kafka_producer_for(client: Any, clock: Clock, log: PrefixedLogger) -> KafkaProducer | None:
    """Return a producer in place of one whose supplier gave it produce_settings, None where librdkafka writes."""
    settings: ProduceSettings | None = getattr(client, "produce_settings", None)
    if settings is None or record_accumulator is None:
        return None
    brokers = KafkaBrokers(settings, creates_topics=True)
    kind = KafkaProducer if settings.transactional_id is None else TransactionalKafkaProducer
    return kind(client, brokers, settings, clock, log, random.randrange(_SEEDS))
