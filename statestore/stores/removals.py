"""The changelog's tombstones of rows whose records a store has sent on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .state_store import StateStore


class Removals:
    """Writes tombstones for rows that held records until these were sent on: suppress, and joins that wait.

    With exactly-once at once. With at-least-once a tombstone could reach the brokers although the record that was sent
    on did not, since producers keep an order within a partition only; after a crash in between the record would be
    lost. So the commit writes the tombstones, when all other records are acknowledged. (Kafka Streams has this gap.)
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._held: dict[bytes, int | None] = {}

    def add(self, row_key: bytes, timestamp: int | None) -> None:
        """Take note of a removed row. timestamp: of its tombstone, in ms; None: the producer's clock."""
        if self._store.task.holds_removals:
            self._held[row_key] = timestamp
        else:
            self._store.task.log_change(self._store.name, row_key, None, timestamp)

    def cancel(self, row_key: bytes) -> None:
        """Take note that the row is there again."""
        self._held.pop(row_key, None)

    def write(self) -> bool:
        """Write the tombstones that are held. Returns whether there were any."""
        held, self._held = self._held, {}
        for row_key, timestamp in held.items():
            self._store.task.log_change(self._store.name, row_key, None, timestamp)
        return bool(held)

    def clear(self) -> None:
        """Forget the tombstones: what removed the rows is not committed."""
        self._held.clear()
