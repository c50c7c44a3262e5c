"""Time as a constructor argument: a simulation and the tests drive it, a process uses SystemClock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where a stream thread gets its time from."""

    def monotonic_ms(self) -> int:
        """Return milliseconds that never go back: for intervals and latencies."""

    def wall_clock_ms(self) -> int:
        """Return milliseconds since the epoch: for wall-clock punctuation and what is shown to people."""


class SystemClock:
    """The computer's clocks."""

    def monotonic_ms(self) -> int:
        """Return the monotonic clock in ms."""
        return time.monotonic_ns() // 1_000_000

    def wall_clock_ms(self) -> int:
        """Return the wall clock in ms since the epoch."""
        return time.time_ns() // 1_000_000
