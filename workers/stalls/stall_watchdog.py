"""Finds partitions that are not read although the broker has records for them, and makes them be read again.

A consumer can lose a partition without an error: a fetch is never repeated, or a broker returns empty responses. Such a
partition looks idle, because its lag is only known from its fetches. So the end offsets are requested from the broker,
but only for partitions that have not moved for a while. Kafka Streams has no such watchdog.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum

from penstock.clients.errors import BrokerError, RetriableError
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.records import TopicPartition

#: Checks per stall timeout: a stall is reported at most a quarter of the timeout late.
LOOKS_PER_TIMEOUT = 4
#: Time limit for a request of end offsets, in ms; without a response there is no stall.
END_OFFSETS_TIMEOUT_MS = 10_000

#: Requests the end offsets of partitions without blocking; records of open transactions do not count.
AskEnds = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, "Future[int]"]]

#: Returns how long ago a partition's broker has ended its last throttle, in ms; None without one.
ThrottledAgo = Callable[[TopicPartition], "float | None"]


class StallAction(Enum):
    """The response to a stalled partition."""

    REOPEN_TASK = "REOPEN_TASK"
    REPLACE_PROCESS = "REPLACE_PROCESS"


@dataclass(frozen=True, slots=True)
class Stall:
    """A stalled partition. position: next offset to read; end: the broker's end offset; for_ms: its duration."""

    partition: TopicPartition
    position: int
    end: int
    for_ms: int
    action: StallAction

    @property
    def lag(self) -> int:
        """Unread records on the broker."""
        return self.end - self.position


@dataclass(slots=True)
class _Watched:
    """One partition. behind_since_ms: since when the broker has had unread records; None: no known ones. reopened: how
    often its task was reopened at this position.
    """

    position: int
    still_since_ms: int
    behind_since_ms: int | None = None
    reopened: int = 0


class StallWatchdog:
    """Watches the partitions of one stream thread's running tasks. Times in ms of the monotonic clock.

    A partition is stalled if its position has not moved for timeout_ms, during which the broker had unread records. The
    first reopen_max times its task is reopened; after that the process must be replaced. timeout_ms 0: never.
    throttled_ago_ms: how long ago a partition's broker has ended its last throttle (see Reader): for timeout_ms after
    that nothing is a stall, because a quota is no fault of the consumer.
    """

    def __init__(
        self, timeout_ms: int, reopen_max: int, ask_ends: AskEnds, throttled_ago_ms: ThrottledAgo, log: PrefixedLogger
    ) -> None:
        self._throttled_ago_ms = throttled_ago_ms
        self._timeout_ms = timeout_ms
        self._reopen_max = reopen_max
        self._ask_ends = ask_ends
        self._log = log
        self._watched: dict[TopicPartition, _Watched] = {}
        self._asked: Mapping[TopicPartition, Future[int]] = {}
        self._next_look_ms = 0

    @property
    def stalled(self) -> int:
        """The number of stalled partitions: their task was reopened, and no record has been read since."""
        return sum(watched.reopened > 0 for watched in self._watched.values())

    def is_due(self, now_ms: int) -> bool:
        """Return whether check should be called now."""
        return self._timeout_ms > 0 and now_ms >= self._next_look_ms

    def check(
        self, owned: Collection[TopicPartition], positions: Mapping[TopicPartition, int], now_ms: int
    ) -> list[Stall]:
        """Return the stalled partitions, with the response to each. Never blocks.

        owned: the input partitions of all tasks. positions: the next offset of each partition that should be read,
        without those that have buffered records and therefore do not wait for the broker.
        """
        self._next_look_ms = now_ms + self._timeout_ms // LOOKS_PER_TIMEOUT
        # A task that is being reopened returns, so keep its count.
        self._watched = {p: w for p, w in self._watched.items() if p in positions or (w.reopened and p in owned)}
        for partition, position in positions.items():
            self._note(partition, position, now_ms)
            ago_ms = self._throttled_ago_ms(partition)
            if ago_ms is not None and ago_ms < self._timeout_ms:
                self._watched[partition].still_since_ms = now_ms
        stalls = [stall for p, end in self._answers() if (stall := self._judge(p, end, now_ms)) is not None]
        self._ask(now_ms)
        return stalls

    def _note(self, partition: TopicPartition, position: int, now_ms: int) -> None:
        watched = self._watched.get(partition)
        if watched is not None and position == watched.position:
            return
        # A task reopened without a commit moves backwards, which does not mean that records were read.
        reopened = 0 if watched is None or position > watched.position else watched.reopened
        if watched is not None and watched.reopened and not reopened:
            self._log.info("%s is read again, from offset %d on", partition, watched.position)
        self._watched[partition] = _Watched(position, now_ms, reopened=reopened)

    def _answers(self) -> Iterator[tuple[TopicPartition, int]]:
        """Yield the end offsets that have arrived; partitions of a broker that does not answer are not stalled."""
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
        """Request the end offsets of partitions that have not moved since the last check."""
        still = [p for p, watched in self._watched.items() if watched.still_since_ms < now_ms or watched.reopened]
        if still:
            self._asked = self._ask_ends(still)
