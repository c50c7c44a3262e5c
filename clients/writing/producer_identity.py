"""Who a producer is to the brokers (Kafka: TransactionManager, as far as it goes without transactions)."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from typing_extensions import override

from penstock.topology.records import TopicPartition

from ..cluster.brokers import Brokers, ProducerId
from ..errors import BrokerError, ClientError
from ..protocol.produce_messages import API_VERSION

_LAST_EPOCH = 32_767


class Identity(Protocol):
    """By what a Sender's batches are known: a ProducerIdentity, or a TransactionManager. Nothing here waits."""

    @property
    def transactional_id(self) -> str | None:
        """The id of the transactions that batches belong to, None for batches without."""

    @property
    def produce_version(self) -> int:
        """The version of Produce requests."""

    @property
    def producer(self) -> ProducerId | None:
        """Who writes, None as long as nothing can be written."""

    @property
    def refusal(self) -> ClientError | None:
        """Why nothing will be written until something else happens, None if it may be."""

    @property
    def has_answer(self) -> bool:
        """Whether advance() has something to take."""

    @property
    def next_at(self) -> float:
        """When advance() has something to do though no answer comes, in ms; infinity: not before."""

    def advance(self, now_ms: int) -> None:
        """Take an answer if there is one, and send the next request."""

    def may_write(self, partition: TopicPartition) -> bool:
        """Return whether batches of a partition may be sent now; if not, see to it that they may be soon."""

    def note_failed(self, error: ClientError) -> None:
        """Take in that a batch was refused, or came too late."""

    def bump(self) -> None:
        """Begin a new epoch before anything else is written: brokers may have a number that comes again."""


class ProducerIdentity(Identity):
    """A producer id, requested on first use, and its epoch. Nothing here waits.

    on_done: called on another thread when there is an answer to take.
    """

    transactional_id = None
    produce_version = API_VERSION
    producer: ProducerId | None = None
    #: Why there is no producer id and will be none, None as long as there may be.
    refusal: ClientError | None = None

    def __init__(self, brokers: Brokers, retry_backoff_ms: int, on_done: Callable[[], None]) -> None:
        self._brokers = brokers
        self._retry_backoff_ms = retry_backoff_ms
        self._on_done = on_done
        self._asked: Future[ProducerId] | None = None
        self._ask_at = 0

    @property
    @override
    def has_answer(self) -> bool:
        return self._asked is not None and self._asked.done()

    @property
    @override
    def next_at(self) -> float:
        return math.inf if self.producer is not None or self._asked is not None else self._ask_at

    @override
    def advance(self, now_ms: int) -> None:
        if self._asked is not None and self._asked.done():
            self._take(self._asked, now_ms)
        if self.producer is None and self._asked is None and now_ms >= self._ask_at:
            self._asked = self._brokers.producer_id(self._on_done)

    @override
    def may_write(self, partition: TopicPartition) -> bool:
        return True

    @override
    def note_failed(self, error: ClientError) -> None:
        pass

    def _take(self, answer: Future[ProducerId], now_ms: int) -> None:
        self._asked = None
        error: Any = answer.exception()
        if error is None:
            self.producer = answer.result()
            return
        self._ask_at = now_ms + self._retry_backoff_ms
        if isinstance(error, BrokerError) and not error.code.retriable:
            self.refusal = error

    @override
    def bump(self) -> None:
        """Begin a new epoch, because the brokers may not have all that was sent, or forgot it (KIP-360).

        Each partition then counts from 0 again. No broker is asked: only one with transactions would have to be.
        """
        if self.producer is not None:
            last = self.producer.epoch == _LAST_EPOCH
            self.producer = None if last else ProducerId(self.producer.id, self.producer.epoch + 1)
