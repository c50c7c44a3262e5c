"""What is counted of a user's function that waits or takes batches: its calls, and how long they take."""

from __future__ import annotations

#: Times and percentiles are those of so many of the last attempts: they follow a service that slows down within
#: seconds, and a p99 still comes from ten of them.
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
        """Take in how long an attempt took, whatever came of it."""
        if len(self._seconds) < SAMPLES:
            self._seconds.append(seconds)
        else:
            self._seconds[self._next] = seconds
            self._next = (self._next + 1) % SAMPLES

    def recent_ms(self) -> list[float]:
        """Return how long the last attempts took in ms, the shortest first."""
        return [1000 * seconds for seconds in sorted(self._seconds)]
