"""Logs input that is blocked by a transaction that a producer has left open.

With read_committed, no record after the first one of an open transaction is read, which looks like a topic without new
records. The difference: the high watermark advances, but the last stable offset does not. If both advance, the consumer
is stuck: see stall_watchdog.py.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from penstock.clients.clock import Clock
from penstock.clients.cluster.admin import Admin
from penstock.clients.cluster.offsets import LATEST
from penstock.clients.errors import BrokerError, RetriableError
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.records import TopicPartition

from ..tasks.partition_consumer import PartitionConsumer
from .stall_watchdog import END_OFFSETS_TIMEOUT_MS

#: How long a partition is blocked before it is logged, in ms; longer than Penstock's own transactions.
STANDSTILL_MS = 10_000


@dataclass(eq=False)
class OpenTransactionWatch:
    """Checks every interval_ms which partitions are blocked before existing records. Never blocks.

    committed_only: whether the consumer reads committed records only (``isolation.level``); otherwise there is nothing
    to check.
    """

    admin: Admin
    consumer: PartitionConsumer
    clock: Clock
    committed_only: bool
    log: PrefixedLogger
    interval_ms: int = STANDSTILL_MS

    def __post_init__(self) -> None:
        self._next_ms = self.clock.monotonic_ms() + self.interval_ms
        #: The last check: the positions, and the pending requests of last stable offsets and high watermarks.
        self._asked: dict[TopicPartition, tuple[int, tuple[Future[int], Future[int]]]] = {}
        self._told: dict[TopicPartition, int] = {}

    def poll(self) -> None:
        """Check, if the interval has passed."""
        now_ms = self.clock.monotonic_ms()
        if not self.committed_only or now_ms < self._next_ms:
            return
        self._next_ms = now_ms + self.interval_ms
        at_end = self._at_end()
        for partition, (position, futures) in self._asked.items():
            if at_end.get(partition) == position and all(future.done() for future in futures):
                self._judge(partition, position, *futures)
        self._ask(at_end)

    def _at_end(self) -> dict[TopicPartition, int]:
        """Return the positions of partitions that have been read to the (stable) end."""
        consumer = self.consumer
        partitions = consumer.assignment() - consumer.paused()
        found = {p: consumer.position(p) for p in partitions if consumer.lag(p) == 0}
        return {partition: position for partition, position in found.items() if position is not None}

    def _ask(self, at_end: dict[TopicPartition, int]) -> None:
        self._asked = {}
        if not at_end:
            return
        stable, high = (
            self.admin.offsets(dict.fromkeys(at_end, LATEST), END_OFFSETS_TIMEOUT_MS, committed_only)
            for committed_only in (True, False)
        )
        self._asked = {p: (position, (stable[p], high[p])) for p, position in at_end.items()}

    def _judge(self, partition: TopicPartition, position: int, stable: Future[int], high: Future[int]) -> None:
        try:
            readable, end = stable.result(), high.result()
        except (RetriableError, BrokerError) as error:  # a broker is unavailable, which is logged elsewhere
            self.log.debug("The end of %s is not known: %s", partition, error)
            return
        if readable <= position < end and self._told.get(partition) != position:
            self._told[partition] = position
            self.log.warning(
                "%s is held at offset %s, although there are records up to %s: a producer has begun a transaction "
                "there and neither committed nor aborted it. The broker ends it after that producer's "
                "transaction.timeout.ms, or as soon as a producer with the same transactional.id starts.",
                partition,
                position,
                end,
            )
