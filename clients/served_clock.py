"""A clock for a client's deadlines: it does not count time in which the client was not called."""

from __future__ import annotations

from collections.abc import Callable

from .clock import Clock

#: The longest time between two calls of a client that counts in full, in ms. A stream thread calls its clients between
#: records, usually more often than this, but processing one record may take minutes.
STEP_MS = 100


class ServedClock:
    """Monotonic time, excluding pauses in which the client could neither send nor receive.

    Read it on every call of the client. on_pause: called with the ms that were excluded, because brokers count them and
    close idle connections.
    """

    def __init__(self, clock: Clock, on_pause: Callable[[int], None]) -> None:
        self._clock = clock
        self._on_pause = on_pause
        self._counted_until = clock.monotonic_ms()
        self._paused_ms = 0

    def monotonic_ms(self) -> int:
        """Return the time now, in ms."""
        now = self._clock.monotonic_ms()
        paused = now - self._counted_until - STEP_MS
        self._counted_until = now
        if paused > 0:
            self._paused_ms += paused
            self._on_pause(paused)
        return now - self._paused_ms

    def wall_clock_ms(self) -> int:
        """Return ms since the epoch."""
        return self._clock.wall_clock_ms()

    def begin_wait(self, ms: float) -> None:
        """Count the next ms in full: the client is about to wait for its connections."""
        self.monotonic_ms()  # a pause before this call does not count as waiting
        self._counted_until += max(int(ms), 0)
