"""Clocks, passed as constructor arguments: simulations and tests supply their own, processes use SystemClock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The time source of a stream thread."""

    def monotonic_ms(self) -> int:
        """Return a monotonic time in ms, for intervals and latencies."""

    def wall_clock_ms(self) -> int:
        """Return milliseconds since the epoch, for wall-clock punctuation and for display."""


class SystemClock:
    """The computer's clocks."""

    def monotonic_ms(self) -> int:
        """Return the monotonic clock in ms."""
        return time.monotonic_ns() // 1_000_000

    def wall_clock_ms(self) -> int:
        """Return the wall clock in ms since the epoch."""
        return time.time_ns() // 1_000_000
