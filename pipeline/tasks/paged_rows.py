"""The rows of one store behind Spark's state: sorted pages, each one value of Spark's (a B-tree of one level).

A call to Spark's state from Python is a round trip over a socket, about 15,000 per second, and its maps cannot be
scanned in key order. So adjacent rows form a *page*, a sorted run of rows in one blob, and a *directory* has the first
key of each page. Within a micro-batch a page is read once, when one of its keys is first accessed, and written once, at
the commit, if it has changed. Scans visit the pages in the order of keys' bytes, as in RocksDB.

    directory   number, first key of each page, in order; then the marks
    page        key length, key, value length, value of each row, in order
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Protocol

from typing_extensions import override

from penstock.statestore.rows.bytes_store import NO_MARKS, BytesStore, Marks, RawRow, Row
from penstock.statestore.rows.sorted_keys import SortedKeys

#: A page larger than this many bytes is split at its commit. One page is one round trip and is rewritten as a whole, so
#: larger pages help batches with many keys, and smaller ones batches with few.
PAGE_BYTES_MAX = 64 << 10
#: Split pages are filled to this share, to leave room for new rows before they split again.
FILL = 0.6
#: The number under which the directory is kept; pages count from 1.
DIRECTORY = 0

_length = struct.Struct(">I")
_number = struct.Struct(">q")


class Blobs(Protocol):
    """The storage of pages, by number: one store's part of the state of a task."""

    def read(self, number: int) -> bytes | None:
        """Return a blob, None if there is none."""

    def write(self, number: int, data: bytes) -> None:
        """Keep a blob."""

    def remove(self, number: int) -> None:
        """Remove a blob, which must exist."""


class _Page:
    """A page in memory. rows: by key; order: its sorted keys, created for a scan."""

    __slots__ = ("changed", "first", "number", "order", "rows")

    def __init__(self, number: int, first: bytes, rows: dict[bytes, bytes] | None = None) -> None:
        self.number = number
        self.first = first
        self.rows = rows  # None: not read yet
        self.order: SortedKeys | None = None
        self.changed = False

    def between(self, start: bytes | None, end: bytes | None) -> Iterable[bytes]:
        """Return the keys of a loaded page in a range, in order."""
        assert self.rows is not None
        if self.order is None:
            self.order = SortedKeys(self.rows)
        return self.order.between(start, end)

    def set(self, key: bytes, value: bytes | None) -> bytes | None:
        """Set or delete a row of a loaded page; return the previous value."""
        assert self.rows is not None
        old = self.rows.get(key)
        if value is not None:
            self.rows[key] = value
            if old is None and self.order is not None:
                self.order.add(key)
        elif old is not None:
            del self.rows[key]
            if self.order is not None:
                self.order.remove(key)
        return old


class PagedRows(BytesStore):
    """An ordered map in pages. Updates wait in their pages until commit() writes the changed ones.

    It has no offset and persists nothing: Spark's checkpoint does, together with the rest of the micro-batch.
    """

    persistent = True

    def __init__(self, blobs: Blobs, page_bytes_max: int = PAGE_BYTES_MAX) -> None:
        self._blobs = blobs
        self._page_bytes_max = page_bytes_max
        self._undo: dict[bytes, bytes | None] = {}
        directory = blobs.read(DIRECTORY)
        pages, self._marks = _unpack_directory(directory) if directory else ([(1, b"")], {})
        self._exists = {number for number, _ in pages} if directory else set()
        self._pages = [_Page(number, first) for number, first in pages]
        self._firsts = [page.first for page in self._pages]

    def _page(self, key: bytes) -> _Page:
        page = self._pages[bisect_right(self._firsts, key) - 1]
        if page.rows is None:
            self._load(page)
        return page

    def _load(self, page: _Page) -> dict[bytes, bytes]:
        if page.rows is None:
            data = self._blobs.read(page.number)
            page.rows = {} if data is None else dict(unpack_rows(data))
        return page.rows

    @override
    def get(self, key: bytes) -> bytes | None:
        rows = self._page(key).rows
        assert rows is not None
        return rows.get(key)

    @override
    def put(self, key: bytes, value: bytes | None) -> None:
        page = self._page(key)
        old = page.set(key, value)
        page.changed = True
        self._undo.setdefault(key, old)

    @override
    def rows(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> list[Row]:
        """A scan, too, holds them in memory: earlier versions of pages cannot be read again."""
        found: list[Row] = []
        first = 0 if start is None else bisect_right(self._firsts, start) - 1
        for page in self._pages[first:]:
            if end is not None and page.first >= end:
                break
            rows = self._load(page)
            found.extend((key, rows[key]) for key in page.between(start, end))
        if reverse:
            found.reverse()
        return found

    @override
    def approximate_num_entries(self) -> int:
        """Pages that are not loaded count as the average of the loaded ones."""
        read = [len(page.rows) for page in self._pages if page.rows is not None]
        return sum(read) * len(self._pages) // len(read) if read else 0

    @override
    def has_uncommitted(self) -> bool:
        return bool(self._undo)

    @override
    def commit(self, changelog_offset: int | None, marks: Marks = NO_MARKS) -> None:
        """Write the changed pages. Spark makes this atomic with the rest of the task's state."""
        self._undo.clear()
        changed = [page for page in self._pages if page.changed]
        before = list(self._firsts), dict(self._marks)
        self._marks.update(marks)
        for page in changed:
            self._write(page)
        if (self._firsts, self._marks) != before or not self._exists:
            self._blobs.write(DIRECTORY, _pack_directory(self._pages, self._marks))
            self._exists.update(page.number for page in self._pages)

    def _write(self, page: _Page) -> None:
        page.changed = False
        assert page.rows is not None
        if not page.rows and len(self._pages) > 1:
            self._drop(page)
            return
        rows = [(key, page.rows[key]) for key in page.between(None, None)]
        data = pack_rows(rows)
        if len(data) <= self._page_bytes_max or len(rows) == 1:
            self._blobs.write(page.number, data)
            return
        place = self._pages.index(page)
        parts = self._split(page, rows)
        self._pages[place : place + 1] = parts
        self._firsts = [part.first for part in self._pages]

    def _split(self, page: _Page, rows: list[Row]) -> list[_Page]:
        """Write a page that is too large as several; the first keeps its number. Returns them."""
        limit = int(self._page_bytes_max * FILL)
        runs: list[list[Row]] = [[]]
        size = 0
        for row in rows:
            row_bytes = len(row[0]) + len(row[1]) + 2 * _length.size
            if runs[-1] and size + row_bytes > limit:
                runs.append([])
                size = 0
            runs[-1].append(row)
            size += row_bytes
        next_number = max(existing.number for existing in self._pages) + 1
        parts = [_Page(page.number, page.first, dict(runs[0]))]
        parts += [_Page(next_number + place, run[0][0], dict(run)) for place, run in enumerate(runs[1:])]
        for part, run in zip(parts, runs, strict=True):
            self._blobs.write(part.number, pack_rows(run))
        return parts

    def _drop(self, page: _Page) -> None:
        """Remove a page without rows. Another takes over its range, and the first page always begins with b""."""
        self._pages.remove(page)
        self._pages[0].first = b""
        self._firsts = [other.first for other in self._pages]
        if page.number in self._exists:
            self._exists.discard(page.number)
            self._blobs.remove(page.number)

    @override
    def rollback(self) -> None:
        for key, value in self._undo.items():
            self._page(key).set(key, value)
        self._undo.clear()
        for page in self._pages:
            page.changed = False

    @override
    def committed_mark(self, name: str) -> int | None:
        return self._marks.get(name)

    @override
    def restore(self, rows: Iterable[RawRow], next_offset: int | None, marks: Marks = NO_MARKS) -> None:
        for key, value in rows:
            self.put(key, value)
        self.commit(next_offset, marks)

    @override
    def close(self) -> None:
        self._undo.clear()
        self._pages = []
        self._firsts = []


def pack_rows(rows: Iterable[Row]) -> bytes:
    """Return rows as the blob of a page."""
    pack, parts = _length.pack, list[bytes]()
    for key, value in rows:
        parts += (pack(len(key)), key, pack(len(value)), value)
    return b"".join(parts)


def unpack_rows(data: bytes) -> Iterator[Row]:
    """Yield the rows of a page's blob."""
    unpack_from, at, end = _length.unpack_from, 0, len(data)
    while at < end:
        key_at = at + 4
        value_at = key_at + unpack_from(data, at)[0]
        key = data[key_at:value_at]
        at = value_at + 4 + unpack_from(data, value_at)[0]
        yield key, data[value_at + 4 : at]


def _pack_directory(pages: Iterable[_Page], marks: Marks) -> bytes:
    firsts = pack_rows((_number.pack(page.number), page.first) for page in pages)
    named = pack_rows((name.encode(), _number.pack(number)) for name, number in marks.items())
    return _length.pack(len(firsts)) + firsts + named


def _unpack_directory(data: bytes) -> tuple[list[tuple[int, bytes]], dict[str, int]]:
    end = 4 + _length.unpack_from(data)[0]
    pages = [(int(_number.unpack(number)[0]), first) for number, first in unpack_rows(data[4:end])]
    marks = {name.decode(): int(_number.unpack(number)[0]) for name, number in unpack_rows(data[end:])}
    return pages, marks
