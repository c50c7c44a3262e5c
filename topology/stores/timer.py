"""The clock and the time at which a row is due, as stores and changelogs keep them; the value of a timer."""

from __future__ import annotations

from typing import NamedTuple

from ..clocks import Punctuation

_CLOCKS = {b"s": Punctuation.STREAM_TIME, b"w": Punctuation.WALL_CLOCK_TIME}
#: The byte of each clock.
CLOCK_BYTES = {clock: letter for letter, clock in _CLOCKS.items()}
TIME_BYTES = 8
#: How many bytes due_bytes() returns.
DUE_BYTES = 1 + TIME_BYTES


def due_bytes(clock: Punctuation, due_ms: int) -> bytes:
    """Return a byte for the clock, ``s`` or ``w``, and 8 bytes with the time at which a row is due."""
    return CLOCK_BYTES[clock] + due_ms.to_bytes(TIME_BYTES, "big")


def due_of(data: bytes) -> tuple[Punctuation, int]:
    """Return the clock and the time (ms) from bytes that begin with due_bytes()."""
    return _CLOCKS[data[:1]], int.from_bytes(data[1:DUE_BYTES], "big")


class Timer(NamedTuple):
    """A timer that is set: when it fires (ms since the epoch), by which clock."""

    at_ms: int
    clock: Punctuation


class TimerSerde:
    """See due_bytes."""

    def serialize(self, topic: str, value: Timer | None) -> bytes | None:
        """Return the bytes of a timer."""
        return None if value is None else due_bytes(value.clock, value.at_ms)

    def deserialize(self, topic: str, data: bytes | None) -> Timer | None:
        """Return a timer."""
        if data is None:
            return None
        clock, at_ms = due_of(data)
        return Timer(at_ms, clock)
