"""The time of a stream thread's current iteration: read once, used throughout."""

from __future__ import annotations

from penstock.clients.clock import Clock


class LoopTime:
    """now_ms: monotonic; wall_clock_ms: since the epoch. Both change only in advance()."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.now_ms = clock.monotonic_ms()
        self.wall_clock_ms = clock.wall_clock_ms()

    def advance(self) -> int:
        """Read the clocks; returns the ms since the last call."""
        before = self.now_ms
        self.now_ms = self._clock.monotonic_ms()
        self.wall_clock_ms = self._clock.wall_clock_ms()
        return max(self.now_ms - before, 0)

    def read_ms(self) -> int:
        """Return the current monotonic clock, for latencies within an iteration."""
        return self._clock.monotonic_ms()
