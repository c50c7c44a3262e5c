"""The rows of one store behind Spark's state: sorted runs of what has changed, merged as they grow (an LSM tree).

The cost of a micro-batch follows its records, not the keys in the state. So its commit appends the changed rows as a
*run*: one or more *tables*, each a blob of rows in the order of their keys, with a Bloom filter. A row counts in the
newest run that has it. A new run is merged with the runs before it that have no more rows than all later ones together.
So each run has more rows than all newer ones: the runs are few, and a row is written again only when the rows of its
run have at least doubled.

    directory   the format; of each table the age of its run (0 is the newest), number, version and size; marks; the
                segments of the value log
    table       see kernel/sorted_tables.pyx; tables of newer runs have higher numbers

A large value is in the store's value log; the row then has the value's place in the log. See value_log.py.
"""

from __future__ import annotations

import mmap
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from tempfile import TemporaryFile

from typing_extensions import override

from penstock.kernel.rows import RowBuffer
from penstock.kernel.sorted_tables import Merged, SortedTable, find, packed
from penstock.statestore.rows.bytes_store import NO_MARKS, BytesStore, Marks, RawRow, Row, merge

from ..checkpoint.checkpoint import FORMAT, OTHER_FORMAT, CheckpointError
from .blob_files import Blob, BlobFiles, Blobs
from .packed_rows import pack_rows, unpack_rows
from .value_log import SEGMENT_BYTES, Place, ValueLog, unpack_place

#: A table is complete when its rows have this many bytes. It is one value of Spark's, which Python and Java copy
#: several times; but each one is an open file, and most systems let a process have 1,024.
TABLE_BYTES = 16 << 20
#: The number under which the directory is kept; tables count from 1, segments of the value log from -1 down.
DIRECTORY = 0
#: The number of a blob that is no table but packed rows, all that its store has.
PACKED_ROWS = (1 << 63) - 1
#: A value larger than this many bytes is in the value log.
LARGE_BYTES = 256
#: What a row has in place of a large value: these bytes and its place. A small value that begins with them is treated
#: as a large one.
ELSEWHERE = b"\xffPENSTOK"
#: What a row has that is deleted, as long as an older run may have it.
DELETED = ELSEWHERE

_number = struct.Struct(">q")
_blob = struct.Struct(">qqq")


class SortedRuns(BytesStore):
    """An ordered map in sorted runs. Updates wait in memory until commit() writes them.

    It has no offset and persists nothing: Spark's checkpoint does, together with the rest of the micro-batch.
    """

    persistent = True
    buffer: RowBuffer

    def __init__(
        self,
        blobs: Blobs,
        table_bytes: int = TABLE_BYTES,
        large_bytes: int = LARGE_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._blobs = blobs
        self._large_bytes = large_bytes
        self._table_bytes = table_bytes
        (self._directory,) = blobs.read([DIRECTORY])
        self._runs, self._marks, log = _unpack_directory(self._directory) if self._directory else ([], {}, b"")
        self._opened: list[list[SortedTable]] | None = None  # the tables of the runs
        self._tables: list[SortedTable] = []  # all of them
        self._places: dict[bytes, Place | None] = {}  # of the large values of committed rows that were read
        self._files = BlobFiles(blobs)
        self._log = ValueLog(self._files, log, segment_bytes)
        self.buffer = RowBuffer(self._committed, lambda: None, sys.maxsize, lambda: None)

    def _open(self) -> list[list[SortedTable]]:
        """Return the tables of the runs."""
        if self._opened is None:
            self._opened = [[SortedTable(self._files.mapped(blob)) for blob in run] for run in self._runs]
            self._tables = list(chain.from_iterable(self._opened))
        return self._opened

    def _find(self, key: bytes) -> bytes | None:
        """Return what the newest run with a key has for it."""
        self._open()
        return find(self._tables, key)

    def _committed(self, key: bytes) -> bytes | None:
        found = self._find(key)
        place = self._places[key] = None if found is None else _place_of(found)
        return self._log.read(place) if place is not None else None if found == DELETED else found

    def _value(self, found: bytes) -> bytes:
        """Return the value that a row has, or has the place of."""
        place = _place_of(found)
        return found if place is None else self._log.read(place)

    @override
    def get(self, key: bytes) -> bytes | None:
        return self.buffer.get(key)

    @override
    def put(self, key: bytes, value: bytes | None) -> None:
        self.buffer.put(key, value)

    @override
    def rows(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> list[Row]:
        """A scan, too, holds them in memory: earlier runs cannot be read again."""
        found: dict[bytes, bytes] = {}
        for run in reversed(self._open()):
            for table in run:
                found.update(table.between(start, end))
        ordered = sorted(found.items(), reverse=reverse)
        stored = [(key, self._value(value)) for key, value in ordered if value != DELETED]
        buffered = self.buffer.between(start, end, reverse)
        return list(merge(iter(stored), buffered, reverse)) if buffered else stored

    @override
    def approximate_num_entries(self) -> int:
        """Rows that newer runs have, too, count twice."""
        return sum(map(len, chain.from_iterable(self._open())))

    @override
    def has_uncommitted(self) -> bool:
        return bool(self.buffer)

    @override
    def commit(self, changelog_offset: int | None, marks: Marks = NO_MARKS) -> None:
        """Write the changed rows. Spark makes this atomic with the rest of the task's state."""
        self._marks.update(marks)
        if self.buffer.rows:
            self._add_run(sorted(self._as_stored(self.buffer.rows).items()))
            self.buffer.clear()
        directory = _pack_directory(self._runs, self._marks, self._log.packed())
        if directory != self._directory:
            self._blobs.write(DIRECTORY, directory)
            self._directory = directory

    def _as_stored(self, rows: Mapping[bytes, bytes | None]) -> dict[bytes, bytes]:
        """Return rows in the format of tables, with the further rows whose values the value log has moved."""
        stored = {key: DELETED if value is None else value for key, value in rows.items()}
        large = {key: value for key, value in rows.items() if value is not None and self._is_large(value)}
        if large or not self._log.is_empty:
            replaced = [(key, place) for key in rows if (place := self._place(key)) is not None]
            moved = self._log.commit(
                large, replaced, lambda keys: [None if key in rows else self._place(key) for key in keys]
            )
            stored.update((key, ELSEWHERE + place.pack()) for key, place in moved)
        self._places.clear()
        return stored

    def _is_large(self, value: bytes) -> bool:
        return len(value) > self._large_bytes or value.startswith(ELSEWHERE)

    def _place(self, key: bytes) -> Place | None:
        """Return where the large value of a committed row is; None if it has none."""
        if key in self._places:
            return self._places[key]
        found = self._find(key)
        return None if found is None else _place_of(found)

    def _add_run(self, rows: Sequence[Row]) -> None:
        """Write rows as a run. The newest run is merged into it if it is not larger, then the next one, and so on."""
        opened = self._open()
        blobs: Iterable[bytes] = packed(rows, self._table_bytes)
        count, merged = len(rows), 0
        while merged < len(opened) and sum(map(len, opened[merged])) <= count:
            count += sum(map(len, opened[merged]))
            merged += 1
        if merged or not opened:
            dropped = DELETED if merged == len(opened) else None
            blobs = Merged([map(SortedTable, blobs), *opened[:merged]], dropped, self._table_bytes)
        number = 1 + max((blob.number for run in self._runs for blob in run), default=DIRECTORY)
        added = [self._files.write(number + place, data) for place, data in enumerate(blobs)]
        for blob in chain.from_iterable(self._runs[:merged]):
            self._files.remove(blob)
        self._runs[:merged] = [added] if added else []
        self._opened = None

    @override
    def rollback(self) -> None:
        self.buffer.clear()

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
        self._opened = None
        self._tables = []


def _place_of(value: bytes) -> Place | None:
    """Return where the large value is that a row has the place of; None if it is deleted, or has an ordinary one."""
    if not value.startswith(ELSEWHERE) or value == DELETED:
        return None
    return unpack_place(value, len(ELSEWHERE))


def stored_rows(blobs: Iterable[tuple[int, bytes]]) -> Iterator[Row]:
    """Yield the rows of a store. blobs: all of them, with their numbers."""
    with TemporaryFile() as file:  # a store may have more rows than the machine has memory
        parts: dict[int, memoryview] = {}
        sizes: dict[int, tuple[int, int]] = {}
        for number, data in blobs:
            if number == PACKED_ROWS:
                yield from unpack_rows(data)
            else:
                sizes[number] = file.tell(), len(data)
                file.write(data)
        if not any(number > DIRECTORY for number in sizes):
            return
        file.flush()
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        parts = {number: whole[start : start + size] for number, (start, size) in sizes.items()}
        runs = [[SortedTable(parts[number])] for number in sorted(parts, reverse=True) if number > DIRECTORY]
        for data in Merged(runs, DELETED, TABLE_BYTES):
            for key, value in SortedTable(data).between(None, None):
                place = _place_of(value)
                if place is not None:
                    value = bytes(parts[-place.segment][place.position : place.position + place.size])
                yield key, value


def _pack_directory(runs: Iterable[Iterable[Blob]], marks: Marks, log: bytes) -> bytes:
    """Return the directory. It begins with the format; that of format 1 begins with a zero."""
    tables = pack_rows((_number.pack(age), _blob.pack(*blob)) for age, run in enumerate(runs) for blob in run)
    named = pack_rows((name.encode(), _number.pack(number)) for name, number in marks.items())
    return bytes([FORMAT]) + pack_rows(((tables, named), (log, b"")))


def _unpack_directory(data: bytes) -> tuple[list[list[Blob]], dict[str, int], bytes]:
    """Return the runs, the marks and what the value log must know. Raises CheckpointError for another format."""
    if data[0] != FORMAT:
        raise CheckpointError(
            f"A store in Spark's state is in the format {data[0] or 1}, and this Penstock reads format {FORMAT}. "
            f"{OTHER_FORMAT}"
        )
    (tables, named), (log, _) = unpack_rows(data[1:])
    runs: dict[bytes, list[Blob]] = {}
    for age, blob in unpack_rows(tables):
        runs.setdefault(age, []).append(Blob(*_blob.unpack(blob)))
    marks = {name.decode(): int(_number.unpack(number)[0]) for name, number in unpack_rows(named)}
    return list(runs.values()), marks, log
