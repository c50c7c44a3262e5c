"""A clock that a test sets."""

from __future__ import annotations


class ManualClock:
    """Does not advance until it is waited on or a test advances it."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.epoch_ms = 1_700_000_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_clock_ms(self) -> int:
        return self.epoch_ms + self.now_ms

    def advance(self, ms: int) -> None:
        self.now_ms += ms

    def sleep(self, seconds: float) -> None:
        self.advance(int(seconds * 1000))
