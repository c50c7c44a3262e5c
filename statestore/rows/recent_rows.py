"""Rows of a store that are also on disk, kept in memory for reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from penstock.kernel.rows import RowBuffer

from .bytes_store import RawRow

#: How many rows the size of a row is estimated from.
SAMPLE_ROWS = 100
#: Memory of a row in addition to its bytes: two bytes objects and a slot of a dict.
BUFFERED_ROW_OVERHEAD_BYTES = 180
#: Rows are kept if reads find at least one of USEFUL added rows. Otherwise no rows are kept during the next
#: READS_WITHOUT reads. Keeping a row takes a twentieth of the time of a read from disk.
USEFUL, READS_WITHOUT = 16, 40_000
#: The decision is made after this many added rows, and whenever the room is full. It is not made after the first rows,
#: because the first reads of many keys find little.
DECIDED_AFTER = 10_000
#: How many rows that are read are kept while the size of a row is not known.
FIRST_READS = 1_000


class RecentRows:
    """Fills a RowBuffer's recent with the last committed rows, as Python objects, and leaves the rest of the room to
    rows that are read; RocksDB's get takes ten times as long.

    Rows are kept as long as reads find them. Otherwise (each update has a new key, or a record cache has the rows
    already) they are not worth their memory; after some reads they are tried again. Reads count, not commits: a table
    that is only read, or a global one, has hardly any.
    """

    __slots__ = ("_added", "_buffer", "_has_rows", "_read_room")

    def __init__(self, buffer: RowBuffer) -> None:
        self._buffer = buffer
        self._added = 0  # since the last decision
        self._has_rows = False  # that reads could have found since then
        self._read_room = 0
        self.clear()

    def take(self, max_bytes: int) -> int:
        """Keep the buffer's rows, which were just committed, and earlier ones if there is room for both.

        Returns how many bytes of memory they take.
        """
        if self._buffer.read_room < 0:
            return 0
        return self._fit(self._buffer.rows, max_bytes)

    def refill(self, max_bytes: int) -> int:
        """Make room for more rows that are read, because read_room has become zero; returns as take does."""
        return self._fit({}, max_bytes)

    def _fit(self, committed: dict[bytes, bytes | None], max_bytes: int) -> int:
        buffer = self._buffer
        recent = buffer.recent
        self._added += len(committed) + self._read_room - buffer.read_room
        recent.update(committed)
        row_bytes = bytes_of_a_row(islice(reversed(recent.items()), SAMPLE_ROWS)) if recent else 0
        room = int(max_bytes / row_bytes) if recent else FIRST_READS
        surplus = len(recent) - room
        is_full = surplus > 0
        if is_full or self._added > DECIDED_AFTER:
            useful = buffer.found * USEFUL >= self._added or not (is_full or self._has_rows)
            self._added = buffer.found = 0
            self._has_rows = useful
            if not useful:
                self.clear(-READS_WITHOUT)
                return 0
        if len(committed) > room:
            recent.clear()
        elif is_full:
            for key in list(islice(recent, surplus)):  # the rows that came first
                del recent[key]
        self._read_room = buffer.read_room = max(0, room - len(buffer.recent))
        return int(row_bytes * len(buffer.recent))

    def drop(self, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        """Drop the rows of some ranges of keys."""
        kept: Iterable[tuple[bytes, bytes | None]] = self._buffer.recent.items()
        for start, end in ranges:
            kept = [row for row in kept if not start <= row[0] < end]
        self._buffer.recent = dict(kept)

    def clear(self, read_room: int = FIRST_READS) -> None:
        """Drop all rows: they are not worth it, or the disk has changed in another way. read_room: see RowBuffer."""
        buffer = self._buffer
        buffer.recent, buffer.read_room, self._read_room = {}, read_room, max(0, read_room)


def bytes_of_a_row(sample: Iterable[RawRow]) -> float:
    """Return the approximate memory of a row, estimated from a sample, which must have some."""
    sizes = [len(key) + len(value or b"") for key, value in sample]
    return sum(sizes) / len(sizes) + BUFFERED_ROW_OVERHEAD_BYTES
