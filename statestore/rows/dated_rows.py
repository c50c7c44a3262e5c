"""Rows that are due at a time: those of stores with a ttl, and timers.

Layout, in the database of the store: a row is ``0`` and its key, with the clock (1 byte), the time at which it is due
(8 bytes, ms) and its bytes; the index has ``1``, the clock, that time and the key, with no value. Both are written in
the same batch, so an index entry and its row always belong together.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from typing_extensions import override

from penstock.kernel.rows import after
from penstock.topology.stores.timer import CLOCK_BYTES, DUE_BYTES, TIME_BYTES, due_of

from .bytes_store import NO_MARKS, BytesStore, Marks, RawRow, Row

ROW, INDEX = b"\0", b"\1"
#: The first entries of an index are kept in memory: FEW after they are read, at most MOST.
FEW, MOST = 512, 4096


class TimeIndex:
    """The keys that are due by one clock, in the order of their times. rows: where the entries are, below a prefix.

    The first entries are in memory, so that asking which one is next costs nothing.
    """

    def __init__(self, rows: BytesStore, prefix: bytes) -> None:
        self._rows = rows
        self._prefix = prefix
        self.forget()

    def forget(self) -> None:
        """Read again: the rows have changed in another way."""
        self._first: list[bytes] = []
        #: The first entry that is not among the first ones in memory; None if all are.
        self._rest: bytes | None = b""

    def add(self, entry: bytes) -> None:
        """Add an entry: time and key."""
        self._rows.put(self._prefix + entry, b"")
        if self._rest is None or entry < self._rest:
            insort(self._first, entry)
            if len(self._first) > MOST:
                self._rest = self._first[FEW]
                del self._first[FEW:]

    def remove(self, entry: bytes) -> None:
        """Remove an entry."""
        self._rows.put(self._prefix + entry, None)
        at = bisect_left(self._first, entry)
        if at < len(self._first) and self._first[at] == entry:
            del self._first[at]

    def next(self) -> tuple[int, bytes] | None:
        """Return the time and the key of the entry that is due first, None without one."""
        if not self._first and self._rest is not None:
            self._read()
        if not self._first:
            return None
        entry = self._first[0]
        return int.from_bytes(entry[:TIME_BYTES], "big"), entry[TIME_BYTES:]

    def _read(self) -> None:
        start, skipped = self._prefix + (self._rest or b""), len(self._prefix)
        found = [key[skipped:] for key, _ in islice(self._rows.scan(start, after(self._prefix)), FEW + 1)]
        self._first, self._rest = found[:FEW], found[FEW] if len(found) > FEW else None


class DatedRows(BytesStore):
    """An ordered map from bytes to bytes, each with a clock and a time (see timer.due_bytes) before its own bytes.

    rows: where they are kept; they belong to this object.
    """

    def __init__(self, rows: BytesStore) -> None:
        self.below = rows
        self.persistent = rows.persistent
        self.indexes = {clock: TimeIndex(rows, INDEX + letter) for clock, letter in CLOCK_BYTES.items()}

    @override
    def get(self, key: bytes) -> bytes | None:
        return self.below.get(ROW + key)

    @override
    def put(self, key: bytes, value: bytes | None) -> None:
        row_key = ROW + key
        old = self.below.get(row_key)
        if old is not None and (value is None or old[:DUE_BYTES] != value[:DUE_BYTES]):
            self.indexes[due_of(old)[0]].remove(old[1:DUE_BYTES] + key)
            old = None
        self.below.put(row_key, value)
        if value is not None and old is None:
            self.indexes[due_of(value)[0]].add(value[1:DUE_BYTES] + key)

    @override
    def rows(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> list[Row]:
        return [(key[1:], value) for key, value in self.below.rows(*_range(start, end), reverse)]

    @override
    def scan(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> Iterator[Row]:
        return ((key[1:], value) for key, value in self.below.scan(*_range(start, end), reverse))

    @override
    def approximate_num_entries(self) -> int:
        """Each row has an entry in the index."""
        return self.below.approximate_num_entries() // 2

    @override
    def has_uncommitted(self) -> bool:
        return self.below.has_uncommitted()

    @override
    def commit(self, changelog_offset: int | None, marks: Marks = NO_MARKS) -> None:
        self.below.commit(changelog_offset, marks)

    @override
    def can_wait(self) -> bool:
        return self.below.can_wait()

    @override
    def rollback(self) -> None:
        self.below.rollback()
        self._forget()

    @override
    def committed_row(self, key: bytes) -> bytes | None:
        return self.below.committed_row(ROW + key)

    @override
    def committed_scan(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> Iterator[Row]:
        return ((key[1:], value) for key, value in self.below.committed_scan(*_range(start, end), reverse))

    @override
    def approximate_num_committed(self) -> int:
        return self.below.approximate_num_committed() // 2

    @override
    def committed_offset(self) -> int | None:
        return self.below.committed_offset()

    @override
    def committed_mark(self, name: str) -> int | None:
        return self.below.committed_mark(name)

    @override
    def restore(self, rows: Iterable[RawRow], next_offset: int | None, marks: Marks = NO_MARKS) -> None:
        restored = dict(rows)  # the last record of a key counts
        self.below.restore(self._with_index(restored), next_offset, marks)
        self._forget()

    def _with_index(self, restored: dict[bytes, bytes | None]) -> Iterator[RawRow]:
        for key, value in restored.items():
            old = self.below.get(ROW + key)
            if old is not None:
                yield INDEX + old[:DUE_BYTES] + key, None
            yield ROW + key, value
            if value is not None:
                yield INDEX + value[:DUE_BYTES] + key, b""

    def _forget(self) -> None:
        for index in self.indexes.values():
            index.forget()

    @override
    def persist(self, beside_writes: bool = False) -> None:
        self.below.persist(beside_writes)

    @override
    def checkpoint(self, path: Path) -> None:
        self.below.checkpoint(path)

    @override
    def close(self) -> None:
        self.below.close()


def _range(start: bytes | None, end: bytes | None) -> tuple[bytes, bytes]:
    return ROW + (start or b""), INDEX if end is None else ROW + end
