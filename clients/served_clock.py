"""A clock for a client's deadlines: it counts only time in which the client is served."""

from __future__ import annotations

from collections.abc import Callable

from .clock import Clock

#: The most that counts between two calls of a client, in ms. A stream thread serves its clients between records, which
#: takes less than that; but one record may take minutes.
STEP_MS = 100


class ServedClock:
    """The monotonic time without the pauses in which a client could neither send nor receive.

    It is read whenever the client is served. on_pause: called with the ms that do not count, because brokers continue
    meanwhile and close idle connections.
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
        """Count the next ms whatever happens: the client waits for its connections."""
        self.monotonic_ms()  # a pause since it was read last does not count as waiting
        self._counted_until += max(int(ms), 0)
