"""The value of a timer in its store and in the changelog."""

from __future__ import annotations

from typing import NamedTuple

from ..clocks import Punctuation

_CLOCKS = {b"s": Punctuation.STREAM_TIME, b"w": Punctuation.WALL_CLOCK_TIME}
_BYTES = {clock: letter for letter, clock in _CLOCKS.items()}


class Timer(NamedTuple):
    """A timer that is set: when it fires (ms since the epoch), by which clock."""

    at_ms: int
    clock: Punctuation


class TimerSerde:
    """A byte for the clock, ``s`` or ``w``, and 8 bytes with the time."""

    def serialize(self, topic: str, value: Timer | None) -> bytes | None:
        """Return the bytes of a timer."""
        return None if value is None else _BYTES[value.clock] + value.at_ms.to_bytes(8, "big")

    def deserialize(self, topic: str, data: bytes | None) -> Timer | None:
        """Return a timer."""
        return None if data is None else Timer(int.from_bytes(data[1:9], "big"), _CLOCKS[data[:1]])
