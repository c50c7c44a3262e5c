"""A store's rows in memory: uncommitted ones, and some of those that are also on disk."""

from __future__ import annotations

from collections.abc import Callable

from .bytes_store import RawRow
from .sorted_keys import SortedKeys

#: The value of a row that is not in memory.
MISSING: bytes = b"missing from memory"


class RowBuffer:
    """Rows by key; None for a deleted row. penstock.kernel.rows has a compiled version.

    read(key): reads from disk. check(): called by each put from check_at rows on. recent: rows that are also on disk,
    see RecentRows; found: how often get has found a row there; read_room: how many rows that get reads from disk may
    still be kept there, or below zero how many must be read first. refill(): called when it becomes zero. index: the
    keys of rows in order, maintained once it exists.
    """

    def __init__(
        self,
        read: Callable[[bytes], bytes | None],
        check: Callable[[], None],
        check_at: int,
        refill: Callable[[], None],
    ) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self.recent: dict[bytes, bytes | None] = {}
        self.found = 0
        self.read_room = 0
        self.index: SortedKeys | None = None
        self.check_at = check_at
        self._read = read
        self._check = check
        self._refill = refill

    def get(self, key: bytes) -> bytes | None:
        """Return a row, None if there is none."""
        value = self.rows.get(key, MISSING)
        if value is MISSING:
            value = self.recent.get(key, MISSING)
            if value is MISSING:
                read = self._read(key)
                if self.read_room:
                    self._note(key, read)
                return read
            self.found += 1
        return value

    def _note(self, key: bytes, row: bytes | None) -> None:
        if self.read_room > 0:
            self.recent[key] = row
            self.read_room -= 1
        else:
            self.read_room += 1
        if not self.read_room:
            self._refill()

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set a row, or delete it."""
        rows = self.rows
        if self.index is not None and key not in rows:
            self.index.add(key)
        rows[key] = value
        if len(rows) >= self.check_at:
            self._check()

    def between(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> list[RawRow]:
        """Return the uncommitted rows with start <= key < end in order; None leaves a side open."""
        rows = self.rows
        if not rows:
            return []
        if self.index is None:
            self.index = SortedKeys(rows)
        found = [(key, rows[key]) for key in self.index.between(start, end)]
        if reverse:
            found.reverse()
        return found

    def clear(self) -> None:
        """Drop the uncommitted rows."""
        self.rows.clear()
        self.index = None
