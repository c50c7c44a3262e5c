"""The rows of one store behind Spark's state: sorted pages, each one value of Spark's (a B-tree of one level).

A value of Spark's state costs Python and Java much more than its bytes, and its maps cannot be scanned in key order.
So adjacent rows form a *page*, a sorted run of rows in one blob, and a *directory* has the first key of each page.
Within a micro-batch a page is read once, when one of its keys is first accessed, and written once, at the commit, if it
has changed. Scans visit the pages in the order of keys' bytes, as in RocksDB.

    directory   number, first key of each page, in order; then the marks, and what the value log must know
    page        key length, key, value length, value of each row, in order

A large value is in the store's value log; the page has its place in its stead. See value_log.py.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile
from typing import Protocol

from typing_extensions import override

from penstock.kernel.pages import Page
from penstock.statestore.rows.bytes_store import NO_MARKS, BytesStore, Marks, RawRow, Row
from penstock.topology.errors import StreamsError

from .packed_rows import pack_rows, unpack_rows
from .read_ahead import ReadAhead
from .value_log import SEGMENT_BYTES, Place, ValueLog, unpack_place

#: A page larger than this many bytes is split at its commit. One page is one round trip and is rewritten as a whole, so
#: larger pages help batches with many keys, and smaller ones batches with few.
PAGE_BYTES_MAX = 64 << 10
#: Split pages are filled to this share, to leave room for new rows before they split again.
FILL = 0.6
#: The number under which the directory is kept; pages count from 1, segments of the value log from -1 down.
DIRECTORY = 0
#: A value larger than this many bytes is in the value log.
LARGE_BYTES = 256
#: What a page has in place of a large value: these bytes and its place. A small value that begins with them is treated
#: as a large one.
ELSEWHERE = b"\xffPENSTOK"
#: The place of a value that waits for the commit.
WAITING = Place(0, 0, 0)

_number = struct.Struct(">q")


class Blobs(Protocol):
    """The storage of pages, by number: one store's part of the state of a task.

    directory: on this machine, for the segments of the value log that are read, of any stores; made when it is needed.
    """

    @property
    def directory(self) -> Path:
        """Return it; it need not exist."""

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

    def __init__(
        self,
        blobs: Blobs,
        page_bytes_max: int = PAGE_BYTES_MAX,
        large_bytes: int = LARGE_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._blobs = blobs
        self._large_bytes = large_bytes
        self._page_bytes_max = page_bytes_max
        (directory,) = blobs.read([DIRECTORY])
        pages, self._marks, log = _unpack_directory(directory) if directory else ([(1, b"")], {}, b"")
        self._log = ValueLog(_Segments(blobs), log, blobs.directory, segment_bytes)
        self._exists = {number for number, _ in pages} if directory else set()
        self._pages = [_Page(number, first) for number, first in pages]
        self._firsts = [page.first for page in self._pages]
        self._numbers = count(max(number for number, _ in pages) + 1)
        self._waiting: dict[bytes, bytes] = {}  # large values by key
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

    def _read_pages(self, pages: Iterable[_Page]) -> None:
        missing = [page for page in pages if page.rows is None]
        for page, data in zip(missing, self._blobs.read([page.number for page in missing]), strict=True):
            page.rows = Page(data or b"")

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
        return self._value(key, self._rows_beside(key).get(key))

    def _value(self, key: bytes, found: bytes | None) -> bytes | None:
        """Return the value that a page has, or has the place of."""
        place = _place_of(found)
        if place is None:
            return found
        return self._waiting[key] if place == WAITING else self._log.read(place)

    @override
    def put(self, key: bytes, value: bytes | None) -> None:
        page = self._rows_beside(key)
        place = _place_of(page.get(key))
        if place == WAITING:
            del self._waiting[key]
        elif place is not None:
            self._log.replaced(key, place)
        if value is not None and (len(value) > self._large_bytes or value.startswith(ELSEWHERE)):
            self._waiting[key] = value
            value = ELSEWHERE + WAITING.pack()
        page.put(key, value)

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
        return [(key, value if _place_of(value) is None else self._value(key, value) or b"") for key, value in found]

    @override
    def approximate_num_entries(self) -> int:
        """Pages that are not loaded count as the average of the loaded ones."""
        read = [len(page.rows) for page in self._pages if page.rows is not None]
        return sum(read) * len(self._pages) // len(read) if read else 0

    @override
    def has_uncommitted(self) -> bool:
        return bool(self._changed())

    @override
    def commit(self, changelog_offset: int | None, marks: Marks = NO_MARKS) -> None:
        """Write the changed pages. Spark makes this atomic with the rest of the task's state."""
        before = list(self._firsts), dict(self._marks), self._log.committed
        self._marks.update(marks)
        if self._changed():
            self._commit_log()
        for page, rows in self._changed():
            self._write(page, rows)
        if (self._firsts, self._marks, self._log.committed) != before or not self._exists:
            self._blobs.write(DIRECTORY, _pack_directory(self._pages, self._marks, self._log.committed))
            self._exists.update(page.number for page in self._pages)

    def _commit_log(self) -> None:
        """Move waiting values into the value log."""
        for key, place in self._log.commit(self._waiting, self._places_of):
            self._rows_beside(key).put(key, ELSEWHERE + place.pack())
        self._waiting.clear()

    def _places_of(self, keys: Sequence[bytes]) -> list[Place | None]:
        self._read_pages({page.number: page for page in map(self._page_of, keys)}.values())
        return [_place_of(self._read(self._page_of(key)).get(key)) for key in keys]

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
        self._waiting.clear()
        self._log.rollback()

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
        self._log.close()
        self._pages = []
        self._firsts = []


class _Segments:
    """The segments of the value log among the blobs of a store."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def read_segment(self, number: int) -> bytes:
        """Return a segment. Raises StreamsError if it does not exist."""
        (found,) = self._blobs.read([-number])
        if found is None:
            raise StreamsError(
                f"Segment {number} of the large values of a store is not in Spark's state, which has its rows: the "
                "checkpoint is damaged. Start from another one, or from the input"
            )
        return found

    def write_segment(self, number: int, data: bytes) -> None:
        """Keep a segment."""
        self._blobs.write(-number, data)

    def remove_segment(self, number: int) -> None:
        """Remove a segment."""
        self._blobs.remove(-number)


def _place_of(value: bytes | None) -> Place | None:
    """Return where the large value is that a page has the place of; None if there is none, or an ordinary one."""
    if value is None or not value.startswith(ELSEWHERE):
        return None
    return unpack_place(value, len(ELSEWHERE))


def stored_rows(blobs: Iterable[tuple[int, bytes]]) -> Iterator[Row]:
    """Yield the rows of a store. blobs: all of them, in the order of their numbers, which is: segments first."""
    with TemporaryFile() as file:  # a store may have more large values than the machine has memory
        starts: dict[int, int] = {}
        for number, data in blobs:
            if number < DIRECTORY:
                starts[-number] = file.tell()
                file.write(data)
            elif number > DIRECTORY:
                for key, value in unpack_rows(data):
                    place = _place_of(value)
                    if place is not None:
                        file.seek(starts[place.segment] + place.position)
                        yield key, file.read(place.size)
                    else:
                        yield key, value


def keys_in(number: int, data: bytes) -> Iterator[bytes]:
    """Yield the keys of the rows of a blob. A segment of the value log has only values of rows that are in pages."""
    return (key for key, _ in unpack_rows(data if number > DIRECTORY else b""))


def _pack_directory(pages: Iterable[_Page], marks: Marks, log: bytes) -> bytes:
    firsts = pack_rows((_number.pack(page.number), page.first) for page in pages)
    named = pack_rows((name.encode(), _number.pack(number)) for name, number in marks.items())
    return pack_rows(((firsts, named), (log, b"")))


def _unpack_directory(data: bytes) -> tuple[list[tuple[int, bytes]], dict[str, int], bytes]:
    (firsts, named), (log, _) = unpack_rows(data)
    pages = [(int(_number.unpack(number)[0]), first) for number, first in unpack_rows(firsts)]
    marks = {name.decode(): int(_number.unpack(number)[0]) for name, number in unpack_rows(named)}
    return pages, marks, log
