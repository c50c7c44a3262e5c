"""Actions that are due later: a process continues, a host restarts, a network recovers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """due: on the monotonic clock, in seconds. owner: a name by which entries can be dropped, or "". do: the action,
    which may add entries.
    """

    due: float
    owner: str
    do: Callable[[], None]


class Agenda:
    """Entries by time."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, delay_ms: float, do: Callable[[], None], owner: str = "") -> None:
        """Schedule an action in delay_ms."""
        self._entries.append(Entry(time.monotonic() + delay_ms / 1000, owner, do))

    def expects(self, owner: str) -> bool:
        """Return True if an owner has entries."""
        return any(entry.owner == owner for entry in self._entries)

    def drop(self, owner: str) -> None:
        """Drop the entries of an owner."""
        self._entries = [entry for entry in self._entries if entry.owner != owner]

    def run_due(self) -> None:
        """Run the due actions, the oldest first."""
        now = time.monotonic()
        for entry in sorted((entry for entry in self._entries if entry.due <= now), key=lambda entry: entry.due):
            if entry in self._entries:  # an earlier one may have dropped it
                self._entries.remove(entry)
                entry.do()
