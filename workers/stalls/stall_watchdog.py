"""Finds partitions that are not read although the broker has records for them, and has them read again.

A consumer can lose a partition without an error: a fetch that is never sent again, a broker that answers with nothing.
Such a partition looks idle from inside, because its lag is only known from its fetches. So the broker is
asked, and only about partitions that have been stuck for a while. Kafka Streams has no such thing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum

from penstock.clients.errors import BrokerError, RetriableError
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.records import TopicPartition

#: Looks in the time of one stall: so that a stall is reported at most a quarter of the timeout late.
LOOKS_PER_TIMEOUT = 4
#: How long the broker may take to name ends, in ms; no answer is no stall.
END_OFFSETS_TIMEOUT_MS = 10_000

#: Asks for the end offsets of partitions without waiting for them; an open transaction's records are no lag.
AskEnds = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, "Future[int]"]]


class StallAction(Enum):
    """What is done about a stalled partition."""

    REOPEN_TASK = "REOPEN_TASK"
    REPLACE_PROCESS = "REPLACE_PROCESS"


@dataclass(frozen=True, slots=True)
class Stall:
    """A partition that is stalled. position: next offset to be read; end: of the broker; for_ms: how long by now."""

    partition: TopicPartition
    position: int
    end: int
    for_ms: int
    action: StallAction

    @property
    def lag(self) -> int:
        """Records on the broker that are not read."""
        return self.end - self.position


@dataclass(slots=True)
class _Watched:
    """One partition. behind_since_ms: since when there have been records for it; None: as far as is known there are
    none. reopened: how often its task was re-opened at this position.
    """

    position: int
    still_since_ms: int
    behind_since_ms: int | None = None
    reopened: int = 0


class StallWatchdog:
    """Watches the partitions of one stream thread's running tasks. Times in ms of the monotonic clock.

    A partition is stalled when its position has not moved for timeout_ms, during which the broker had records behind
    it. The first reopen_max times its task is re-opened; after that the process is to be replaced. timeout_ms 0: never.
    """

    def __init__(self, timeout_ms: int, reopen_max: int, ask_ends: AskEnds, log: PrefixedLogger) -> None:
        self._timeout_ms = timeout_ms
        self._reopen_max = reopen_max
        self._ask_ends = ask_ends
        self._log = log
        self._watched: dict[TopicPartition, _Watched] = {}
        self._asked: Mapping[TopicPartition, Future[int]] = {}
        self._next_look_ms = 0

    @property
    def stalled(self) -> int:
        """How many partitions are stalled: their task was re-opened, and nothing has been read since."""
        return sum(watched.reopened > 0 for watched in self._watched.values())

    def is_due(self, now_ms: int) -> bool:
        """Return whether check is to be called now."""
        return self._timeout_ms > 0 and now_ms >= self._next_look_ms

    def check(
        self, owned: Collection[TopicPartition], positions: Mapping[TopicPartition, int], now_ms: int
    ) -> list[Stall]:
        """Return what is stalled now, with what to do. Never waits.

        owned: the input partitions of all tasks. positions: the next offset to be read of those that should be read;
        those with records in buffers are left out, because they wait for others and not for the broker.
        """
        self._next_look_ms = now_ms + self._timeout_ms // LOOKS_PER_TIMEOUT
        # A task that is being re-opened comes back, and its count with it.
        self._watched = {p: w for p, w in self._watched.items() if p in positions or (w.reopened and p in owned)}
        for partition, position in positions.items():
            self._note(partition, position, now_ms)
        stalls = [stall for p, end in self._answers() if (stall := self._judge(p, end, now_ms)) is not None]
        self._ask(now_ms)
        return stalls

    def _note(self, partition: TopicPartition, position: int, now_ms: int) -> None:
        watched = self._watched.get(partition)
        if watched is not None and position == watched.position:
            return
        # Backwards goes a task that was re-opened without a commit: nothing has been read by that.
        reopened = 0 if watched is None or position > watched.position else watched.reopened
        if watched is not None and watched.reopened and not reopened:
            self._log.info("%s is read again, from offset %d on", partition, watched.position)
        self._watched[partition] = _Watched(position, now_ms, reopened=reopened)

    def _answers(self) -> Iterator[tuple[TopicPartition, int]]:
        """Yield the end offsets that have arrived; a broker that does not answer has no stalled partitions."""
        asked, self._asked = self._asked, {}
        for partition, future in asked.items():
            if not future.done():
                continue
            try:
                end = future.result()
            except (RetriableError, BrokerError) as error:
                self._log.debug("The end of %s could not be read: %s", partition, error)
                continue
            yield partition, end

    def _judge(self, partition: TopicPartition, end: int, now_ms: int) -> Stall | None:
        watched = self._watched.get(partition)
        if watched is None:
            return None
        if end <= watched.position:
            watched.behind_since_ms = None
            return None
        if watched.behind_since_ms is None:
            watched.behind_since_ms = now_ms
        for_ms = now_ms - max(watched.behind_since_ms, watched.still_since_ms)
        if for_ms < self._timeout_ms:
            return None
        action = StallAction.REOPEN_TASK if watched.reopened < self._reopen_max else StallAction.REPLACE_PROCESS
        watched.reopened += 1
        watched.behind_since_ms = None
        watched.still_since_ms = now_ms
        return Stall(partition, watched.position, end, for_ms, action)

    def _ask(self, now_ms: int) -> None:
        """Ask for the ends of those that have not moved since the last look."""
        still = [p for p, watched in self._watched.items() if watched.still_since_ms < now_ms or watched.reopened]
        if still:
            self._asked = self._ask_ends(still)
