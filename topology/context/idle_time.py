"""Stream time that advances without records: idle_timeout of sources.

Stream time is the highest timestamp of a task's records. A task whose topics have gone quiet keeps its windows open,
and its results back, until the next record comes. With an idle timeout, the stream time of such a task follows the wall
clock, or the tasks that do get records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ..common.durations import Duration, to_millis
from ..errors import TopologyError

Follows = Literal["wall_clock", "others"]
#: Stream time advances at most this often, in ms of the wall clock.
STEP_MS = 1000


@dataclass(frozen=True, slots=True)
class IdleTimeout:
    """After this long without records in any topic of a task, its stream time advances by itself.

    follows: "wall_clock", by as much as that has since the last record; "others", to the highest timestamp in the other
    partitions of the same topics (KIP-734).
    """

    duration_ms: int
    follows: Follows

    def __init__(self, duration: Duration, follows: Follows = "wall_clock") -> None:
        duration_ms = to_millis(duration, "An idle timeout")
        if duration_ms < 1:
            raise TopologyError(f"An idle timeout must be at least a millisecond, got {duration!r}")
        if follows not in get_args(Follows):
            raise TopologyError(f'An idle timeout follows "wall_clock" or "others", got {follows!r}')
        object.__setattr__(self, "duration_ms", duration_ms)
        object.__setattr__(self, "follows", follows)


#: What users give: a duration follows the wall clock.
IdleTimeoutLike = Duration | IdleTimeout | None


def as_idle_timeout(given: IdleTimeoutLike) -> IdleTimeout | None:
    """Return an idle timeout that was given as a duration or an IdleTimeout."""
    return given if given is None or isinstance(given, IdleTimeout) else IdleTimeout(given)


def combined(timeouts: Collection[IdleTimeout]) -> IdleTimeout | None:
    """Return the idle timeout of a task that has several: the longest, by the wall clock if one follows it."""
    if not timeouts:
        return None
    follows = {timeout.follows for timeout in timeouts}
    longest_ms = max(timeout.duration_ms for timeout in timeouts)
    return IdleTimeout(longest_ms, "wall_clock" if "wall_clock" in follows else "others")


class IdleTime:
    """The advance of the stream time of a task without records.

    others(): the highest timestamp (ms) of the other partitions, None if there is none or it is not known.
    """

    def __init__(self, timeout: IdleTimeout, now_ms: int, others: Callable[[], int | None]) -> None:
        self._timeout = timeout
        self._others = others
        self.record_came(now_ms)

    def record_came(self, now_ms: int) -> None:
        """Wait for the timeout again."""
        self._counted_ms = now_ms
        self._next_ms = now_ms + self._timeout.duration_ms

    def kept(self) -> list[int]:
        """Return what recall() needs in another process."""
        return [self._counted_ms, self._next_ms]

    def recall(self, kept: Sequence[int]) -> None:
        """Continue from what kept() has returned."""
        self._counted_ms, self._next_ms = kept

    @property
    def next_ms(self) -> int:
        """When to ask next, by the wall clock."""
        return self._next_ms

    def advanced(self, stream_time_ms: int, now_ms: int) -> int:
        """Return the stream time to advance to, which may be the same."""
        if now_ms < self._next_ms or stream_time_ms < 0:
            return stream_time_ms
        passed_ms, self._counted_ms = now_ms - self._counted_ms, now_ms
        self._next_ms = now_ms + min(STEP_MS, self._timeout.duration_ms)
        if self._timeout.follows == "wall_clock":
            return stream_time_ms + passed_ms
        return max(stream_time_ms, self._others() or 0)
