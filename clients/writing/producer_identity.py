"""A producer's id and epoch (Kafka: the part of TransactionManager that is used without transactions)."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from typing_extensions import override

from penstock.topology.records import TopicPartition

from ..cluster.brokers import Brokers, ProducerId
from ..errors import BrokerError, ClientError
from ..protocol.messages import INIT_PRODUCER_ID
from ..protocol.produce_messages import API_VERSION
from ..retry_log import RetryLog

_LAST_EPOCH = 32_767


class Identity(Protocol):
    """The producer id, epoch and transaction of a Sender: a ProducerIdentity or a TransactionManager. Never blocks."""

    @property
    def transactional_id(self) -> str | None:
        """The transactional id of the batches, None without transactions."""

    @property
    def produce_version(self) -> int:
        """The version of Produce requests."""

    @property
    def producer(self) -> ProducerId | None:
        """The current producer id and epoch, None while nothing can be written."""

    @property
    def refusal(self) -> ClientError | None:
        """Why nothing can be written until further notice; None if writing is possible."""

    @property
    def has_response(self) -> bool:
        """Whether advance() has a response to handle."""

    @property
    def next_at(self) -> float:
        """When advance() is due even without a response, in ms; infinity if it is not."""

    def advance(self, now_ms: int) -> None:
        """Handle a response that has arrived, and send the next request."""

    def note_pause(self, ms: int) -> None:
        """Count a pause of the caller, which the times passed to other methods exclude."""

    def may_write(self, partition: TopicPartition) -> bool:
        """Return whether batches of a partition may be sent now; if not, start what is necessary."""

    def note_failed(self, error: ClientError) -> None:
        """Record that a batch was rejected or timed out."""

    def bump(self) -> None:
        """Begin a new epoch before the next write, because a sequence number would otherwise be reused."""


class ProducerIdentity(Identity):
    """A producer id, requested on first use, and its epoch. Never blocks.

    on_done: called on another thread when a response has arrived.
    """

    transactional_id = None
    produce_version = API_VERSION
    producer: ProducerId | None = None
    #: Why there will be no producer id; None if it exists or can still be obtained.
    refusal: ClientError | None = None

    def __init__(self, brokers: Brokers, retry_backoff_ms: int, on_done: Callable[[], None], retries: RetryLog) -> None:
        self._brokers = brokers
        self._retries = retries
        self._retry_backoff_ms = retry_backoff_ms
        self._on_done = on_done
        self._asked: Future[ProducerId] | None = None
        self._ask_at = 0

    @property
    @override
    def has_response(self) -> bool:
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
    def note_pause(self, ms: int) -> None:
        pass

    @override
    def may_write(self, partition: TopicPartition) -> bool:
        return True

    @override
    def note_failed(self, error: ClientError) -> None:
        pass

    def _take(self, response: Future[ProducerId], now_ms: int) -> None:
        self._asked = None
        error: object = response.exception()
        if error is None:
            self.producer = response.result()
            self._retries.succeeded(INIT_PRODUCER_ID.name, now_ms)
            return
        self._ask_at = now_ms + self._retry_backoff_ms
        self._retries.failed(INIT_PRODUCER_ID.name, str(error) or type(error).__name__, now_ms)
        if isinstance(error, BrokerError) and not error.code.retriable:
            self.refusal = error

    @override
    def bump(self) -> None:
        """Begin a new epoch, because the brokers may lack some of the sent batches, or lost their state (KIP-360).

        Sequence numbers of all partitions restart at 0. No request is needed: only transactions require one.
        """
        if self.producer is not None:
            last = self.producer.epoch == _LAST_EPOCH
            self.producer = None if last else ProducerId(self.producer.id, self.producer.epoch + 1)
