"""Changelog tombstones of rows whose records a store has forwarded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .state_store import StateStore


class Removals:
    """Writes tombstones for rows that held records until they were forwarded: suppress, and joins with a buffer.

    With exactly-once it writes them at once. With at-least-once a tombstone could reach the brokers although the
    forwarded record did not, because producers keep order only within a partition. After a crash in between, the record
    would be lost. So the commit writes the tombstones after all other records are acknowledged. (Kafka Streams has this
    gap.)
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._held: dict[bytes, int | None] = {}

    def add(self, row_key: bytes, timestamp: int | None) -> None:
        """Add a removed row. timestamp: that of its tombstone, in ms; None: the producer's clock."""
        if self._store.task.holds_removals:
            self._held[row_key] = timestamp
        else:
            self._store.task.output.log_change(self._store.name, row_key, None, timestamp)

    def cancel(self, row_key: bytes) -> None:
        """Drop the tombstone of a row that was written again."""
        self._held.pop(row_key, None)

    def write(self) -> bool:
        """Write the held tombstones. Returns whether there were any."""
        held, self._held = self._held, {}
        for row_key, timestamp in held.items():
            self._store.task.output.log_change(self._store.name, row_key, None, timestamp)
        return bool(held)

    def clear(self) -> None:
        """Forget the tombstones: what removed the rows is not committed."""
        self._held.clear()
