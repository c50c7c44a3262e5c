"""Who this producer is to the brokers (Kafka: TransactionManager, as far as it goes without transactions)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError

from ..cluster.brokers import Brokers, ProducerId
from ..errors import BrokerError

_LAST_EPOCH = 32_767


class ProducerIdentity:
    """A producer id that is asked for when it is first wanted, and its epoch. Nothing here waits.

    on_done: called on another thread when there is an answer to take.
    """

    def __init__(self, brokers: Brokers, retry_backoff_ms: int, on_done: Callable[[], None]) -> None:
        self._brokers = brokers
        self._retry_backoff_ms = retry_backoff_ms
        self._on_done = on_done
        self._id: ProducerId | None = None
        self._asked: Future[ProducerId] | None = None
        self._ask_at = 0
        #: Why there is no producer id and will be none, None as long as there may be.
        self.refusal: KafkaError | None = None

    @property
    def has_answer(self) -> bool:
        """Whether current() has something to take."""
        return self._asked is not None and self._asked.done()

    def current(self, now_ms: int) -> ProducerId | None:
        """Return the producer id, None if it is not there yet; asks for it if need be."""
        if self._id is None:
            if self._asked is not None and self._asked.done():
                self._take(self._asked, now_ms)
            if self._id is None and self._asked is None and now_ms >= self._ask_at:
                self._asked = self._brokers.producer_id(self._on_done)
        return self._id

    def _take(self, answer: Future[ProducerId], now_ms: int) -> None:
        self._asked = None
        error: Any = answer.exception()
        if error is None:
            self._id = answer.result()
            return
        self._ask_at = now_ms + self._retry_backoff_ms
        if isinstance(error, BrokerError) and not error.code.retriable:
            self.refusal = KafkaError(error.code, str(error))

    def bump(self) -> None:
        """Begin a new epoch, because the brokers may not have all that was sent, or forgot it (KIP-360).

        Each partition then counts from 0 again. No broker is asked: only one with transactions would have to be.
        """
        if self._id is not None:
            last = self._id.epoch == _LAST_EPOCH
            self._id = None if last else ProducerId(self._id.id, self._id.epoch + 1)
