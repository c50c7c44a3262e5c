"""Rows of a store that are also on disk, kept in memory for reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from .row_buffer import RowBuffer

#: Memory of a row in addition to its bytes: two bytes objects and a slot of a dict.
BUFFERED_ROW_OVERHEAD_BYTES = 180
#: Rows are kept if reads have found one in USEFUL; otherwise none are kept for some commits. Keeping a row takes a
#: twentieth of the time of a read from disk.
USEFUL, COMMITS_WITHOUT = 16, 4
#: Whether rows are worth it is decided when there is no more room, and each time that so many were added, but not the
#: first time: the first reads of many keys find little.
DECIDED_AFTER = 10_000
#: How many rows that are read are kept while the size of a row is not known.
FIRST_READS = 1_000


class RecentRows:
    """Fills a RowBuffer's recent with the last committed rows, as Python objects, and leaves the rest of the room to
    rows that are read; RocksDB's get takes ten times as long.

    Rows are kept as long as reads find them. Otherwise (each update has a new key, or a record cache has the rows
    already) they are not worth their memory; after some commits they are tried again.
    """

    __slots__ = ("_added", "_buffer", "_has_rows", "_read_room", "_without")

    def __init__(self, buffer: RowBuffer) -> None:
        self._buffer = buffer
        self._added = 0  # since the last decision
        self._has_rows = False  # that reads could have found since then
        self._read_room = 0
        self._without = 0  # number of commits to skip

    def take(self, max_bytes: int) -> int:
        """Keep the buffer's rows, which were just committed, and earlier ones if there is room for both.

        Returns how many bytes of memory they take.
        """
        buffer = self._buffer
        rows, recent = buffer.rows, buffer.recent
        if self._without:
            self._without -= 1
            return 0
        self._added += len(rows) + self._read_room - buffer.read_room
        recent.update(rows)
        row_bytes = bytes_of_a_row(recent) if recent else 0
        room = int(max_bytes / row_bytes) if recent else FIRST_READS
        is_full = len(recent) > room
        if is_full or self._added > DECIDED_AFTER:
            useful = buffer.found * USEFUL >= self._added or not (is_full or self._has_rows)
            self._added = buffer.found = 0
            self._has_rows = useful
            if not useful:
                self._without = COMMITS_WITHOUT - 1  # after this one
                self.clear()
                return 0
        if is_full:
            buffer.recent = dict(rows) if len(rows) <= room else {}
        self._read_room = buffer.read_room = max(0, room - len(buffer.recent))
        return int(row_bytes * len(buffer.recent))

    def drop(self, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        """Drop the rows of some ranges of keys."""
        kept: Iterable[tuple[bytes, bytes | None]] = self._buffer.recent.items()
        for start, end in ranges:
            kept = [row for row in kept if not start <= row[0] < end]
        self._buffer.recent = dict(kept)

    def clear(self) -> None:
        """Drop all rows, because the disk has changed in another way."""
        self._buffer.recent, self._buffer.read_room, self._read_room = {}, 0, 0


def bytes_of_a_row(rows: dict[bytes, bytes | None]) -> float:
    """Return the approximate memory of a row, estimated from the newest ones; there must be some."""
    sample = [len(key) + len(value or b"") for key, value in islice(reversed(rows.items()), 100)]
    return sum(sample) / len(sample) + BUFFERED_ROW_OVERHEAD_BYTES
