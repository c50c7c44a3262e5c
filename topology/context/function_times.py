"""Statistics of a user's async or batch function: the number and duration of its calls."""

from __future__ import annotations

#: Times and percentiles cover this many of the latest attempts: few enough to follow a slowdown within seconds, enough
#: that ten of them lie above the p99.
SAMPLES = 1_024


class FunctionTimes:
    """The counts of one function in one task. One thread writes each of them, another may read it.

    calls: how many records, or batches, the function was called for. retries: how many attempts repeat one that failed.
    """

    __slots__ = ("_next", "_seconds", "calls", "retries")

    def __init__(self) -> None:
        self.calls = 0
        self.retries = 0
        self._seconds: list[float] = []  # the last SAMPLES, as a ring
        self._next = 0

    def note(self, seconds: float) -> None:
        """Record the duration of an attempt, whatever its outcome."""
        if len(self._seconds) < SAMPLES:
            self._seconds.append(seconds)
        else:
            self._seconds[self._next] = seconds
            self._next = (self._next + 1) % SAMPLES

    def recent_ms(self) -> list[float]:
        """Return the durations of the latest attempts in ms, ascending."""
        return [1000 * seconds for seconds in sorted(self._seconds)]
