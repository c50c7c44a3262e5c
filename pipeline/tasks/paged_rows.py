"""The rows of one store behind Spark's state: sorted pages, each one value of Spark's (a B-tree of one level).

A value of Spark's state costs Python and Java much more than its bytes, and its maps cannot be scanned in key order.
So adjacent rows form a *page*, a sorted run of rows in one blob, and a *directory* has the first key of each page.
Within a micro-batch a page is read once, when one of its keys is first accessed, and written once, at the commit, if it
has changed. Scans visit the pages in the order of keys' bytes, as in RocksDB.

    directory   number, first key of each page, in order; then the marks
    page        key length, key, value length, value of each row, in order

A large value is a separate blob, with its key, as in a page of one row; the page has its number in place of the value.
Otherwise each update of a row of a kilobyte would write a page of 64.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from typing_extensions import override

from penstock.kernel.pages import Page
from penstock.statestore.rows.bytes_store import NO_MARKS, BytesStore, Marks, RawRow, Row

from .read_ahead import ReadAhead

#: A page larger than this many bytes is split at its commit. One page is one round trip and is rewritten as a whole, so
#: larger pages help batches with many keys, and smaller ones batches with few.
PAGE_BYTES_MAX = 64 << 10
#: Split pages are filled to this share, to leave room for new rows before they split again.
FILL = 0.6
#: The number under which the directory is kept; pages count from 1, large values from -1 down.
DIRECTORY = 0
#: A value larger than this many bytes is a separate blob.
LARGE_BYTES = 256
#: What a page has in place of a large value: these bytes and its number. A small value that begins with them is treated
#: as a large one.
ELSEWHERE = b"\xffPENSTOK"
#: The mark with the number of the last large value.
LAST_LARGE = "last-large"

_length = struct.Struct(">I")
_number = struct.Struct(">q")


class Blobs(Protocol):
    """The storage of pages, by number: one store's part of the state of a task."""

    def read(self, numbers: Sequence[int]) -> list[bytes | None]:
        """Return blobs, None for one that does not exist. Many at once are cheaper."""

    def write(self, number: int, data: bytes) -> None:
        """Keep a blob."""

    def remove(self, number: int) -> None:
        """Remove a blob, which must exist."""


@dataclass(slots=True)
class _Page:
    """A page and, once it was read, its rows."""

    number: int
    first: bytes
    rows: Page | None = None


class PagedRows(BytesStore):
    """An ordered map in pages. Updates wait in their pages until commit() writes the changed ones.

    It has no offset and persists nothing: Spark's checkpoint does, together with the rest of the micro-batch.
    """

    persistent = True

    def __init__(self, blobs: Blobs, page_bytes_max: int = PAGE_BYTES_MAX, large_bytes: int = LARGE_BYTES) -> None:
        self._blobs = blobs
        self._large_bytes = large_bytes
        self._page_bytes_max = page_bytes_max
        (directory,) = blobs.read([DIRECTORY])
        pages, self._marks = _unpack_directory(directory) if directory else ([(1, b"")], {})
        self._exists = {number for number, _ in pages} if directory else set()
        self._pages = [_Page(number, first) for number, first in pages]
        self._firsts = [page.first for page in self._pages]
        self._numbers = count(max(number for number, _ in pages) + 1)
        self._last_large = self._marks.get(LAST_LARGE, 0)
        #: Large rows that were read or changed, by number; None: to be removed.
        self._large: dict[int, Row | None] = {}
        self._changed_large: set[int] = set()
        self._ahead = ReadAhead()
        self._accesses = 0

    def expect(self, keys: Sequence[bytes]) -> None:
        """Prepare for records with these keys, in this order."""
        self._ahead = ReadAhead(keys)

    def _page_of(self, key: bytes) -> _Page:
        return self._pages[bisect_right(self._firsts, key) - 1]

    def _rows_beside(self, key: bytes) -> Page:
        page = self._page_of(key)
        if page.rows is None:
            self._read_with_followers(key)
        return self._read(page)

    def _read_with_followers(self, key: bytes) -> None:
        """Read the row of a key, and those that will probably be needed after it."""
        keys = self._ahead.with_followers(key, self._accesses)
        self._accesses = 0
        self._read_pages({page.number: page for page in map(self._page_of, keys)}.values())
        self._read_large(self._read(self._page_of(each)).get(each) for each in keys)

    def _read_pages(self, pages: Iterable[_Page]) -> None:
        missing = [page for page in pages if page.rows is None]
        for page, data in zip(missing, self._blobs.read([page.number for page in missing]), strict=True):
            page.rows = Page(data or b"")

    def _read_large(self, values: Iterable[bytes | None]) -> None:
        """Read the large values that these stand for."""
        numbers = {number: None for number in map(_number_of, values) if number is not None}
        missing = [number for number in numbers if number not in self._large]
        for number, data in zip(missing, self._blobs.read(missing), strict=True):
            ((_, value),) = unpack_rows(data or b"")
            self._large[number] = b"", value

    def _read(self, page: _Page) -> Page:
        if page.rows is None:
            self._read_pages((page,))
        assert page.rows is not None
        return page.rows

    def _changed(self) -> list[tuple[_Page, Page]]:
        return [(page, page.rows) for page in self._pages if page.rows is not None and page.rows.is_changed]

    @override
    def get(self, key: bytes) -> bytes | None:
        self._accesses += 1
        found = self._rows_beside(key).get(key)
        number = _number_of(found)
        if number is None:
            return found
        if number not in self._large:
            self._read_with_followers(key)
        return self._value_of(number)

    def _value_of(self, number: int) -> bytes:
        row = self._large[number]
        assert row is not None, "a row of a page cannot stand for a large value that was removed"
        return row[1]

    @override
    def put(self, key: bytes, value: bytes | None) -> None:
        page = self._rows_beside(key)
        number = _number_of(page.get(key))
        if value is None or not (len(value) > self._large_bytes or value.startswith(ELSEWHERE)):
            if number is not None:
                self._set_large(number, None)
            page.put(key, value)
            return
        if number is None:
            number = self._last_large = self._last_large - 1
            page.put(key, ELSEWHERE + _number.pack(number))
        self._set_large(number, (key, value))

    def _set_large(self, number: int, row: Row | None) -> None:
        self._large[number] = row
        self._changed_large.add(number)

    @override
    def rows(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> list[Row]:
        """A scan, too, holds them in memory: earlier versions of pages cannot be read again."""
        first = 0 if start is None else bisect_right(self._firsts, start) - 1
        last = len(self._pages) if end is None else bisect_left(self._firsts, end)
        pages = self._pages[first:last]
        self._read_pages(pages)
        found = [row for page in pages for row in self._read(page).between(start, end)]
        if reverse:
            found.reverse()
        self._read_large(value for _, value in found)
        return [(key, value if (n := _number_of(value)) is None else self._value_of(n)) for key, value in found]

    @override
    def approximate_num_entries(self) -> int:
        """Pages that are not loaded count as the average of the loaded ones."""
        read = [len(page.rows) for page in self._pages if page.rows is not None]
        return sum(read) * len(self._pages) // len(read) if read else 0

    @override
    def has_uncommitted(self) -> bool:
        return bool(self._changed() or self._changed_large)

    @override
    def commit(self, changelog_offset: int | None, marks: Marks = NO_MARKS) -> None:
        """Write the changed pages. Spark makes this atomic with the rest of the task's state."""
        before = list(self._firsts), dict(self._marks)
        self._marks.update(marks)
        self._write_large(self._marks.get(LAST_LARGE, 0))
        if self._last_large:
            self._marks[LAST_LARGE] = self._last_large
        for page, rows in self._changed():
            self._write(page, rows)
        if (self._firsts, self._marks) != before or not self._exists:
            self._blobs.write(DIRECTORY, _pack_directory(self._pages, self._marks))
            self._exists.update(page.number for page in self._pages)

    def _write_large(self, last_written: int) -> None:
        """Write the changed large values. last_written: the number of the last one that the last commit has given."""
        for number in sorted(self._changed_large):
            row = self._large[number]
            if row is not None:
                self._blobs.write(number, pack_rows((row,)))
            elif number >= last_written:
                self._blobs.remove(number)
        self._changed_large.clear()
        self._large.clear()

    def _write(self, page: _Page, rows: Page) -> None:
        data = rows.fold()
        if not data and len(self._pages) > 1:
            self._drop(page)
        elif len(data) > self._page_bytes_max and len(rows) > 1:
            self._split(page, rows)
        else:
            self._blobs.write(page.number, data)

    def _split(self, page: _Page, rows: Page) -> None:
        """Write a page that is too large as several; the first keeps its number."""
        (_, page.rows), *others = rows.split(int(self._page_bytes_max * FILL))
        added = [_Page(next(self._numbers), first, part) for first, part in others]
        for part in (page, *added):
            self._blobs.write(part.number, self._read(part).fold())
        place = bisect_right(self._firsts, page.first)
        self._pages[place:place] = added
        self._firsts[place:place] = [part.first for part in added]

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
        for _, rows in self._changed():
            rows.forget()
        self._large.clear()
        self._changed_large.clear()
        self._last_large = self._marks.get(LAST_LARGE, 0)

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


def _number_of(value: bytes | None) -> int | None:
    """Return the number of the large value that a value stands for; None if it is none, or an ordinary one."""
    if value is None or not value.startswith(ELSEWHERE):
        return None
    return int(_number.unpack_from(value, len(ELSEWHERE))[0])


def rows_in(number: int, data: bytes) -> Iterator[Row]:
    """Yield the rows of a blob that is not the directory. A large row is in its own blob only."""
    rows = unpack_rows(data)
    return rows if number < DIRECTORY else (row for row in rows if _number_of(row[1]) is None)


def _pack_directory(pages: Iterable[_Page], marks: Marks) -> bytes:
    firsts = pack_rows((_number.pack(page.number), page.first) for page in pages)
    named = pack_rows((name.encode(), _number.pack(number)) for name, number in marks.items())
    return _length.pack(len(firsts)) + firsts + named


def _unpack_directory(data: bytes) -> tuple[list[tuple[int, bytes]], dict[str, int]]:
    end = 4 + _length.unpack_from(data)[0]
    pages = [(int(_number.unpack(number)[0]), first) for number, first in unpack_rows(data[4:end])]
    marks = {name.decode(): int(_number.unpack(number)[0]) for name, number in unpack_rows(data[end:])}
    return pages, marks
