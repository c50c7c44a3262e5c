"""The large values of one store on Spark: a log in segments, each one value of Spark's and one file on the executor.

In pages, each update of a row of a kilobyte would write a page of 64; a value of Spark's for each such row costs a call
from Python to Java for each read and write. So the new values of a micro-batch are appended to a log (as in Bitcask and
WiscKey), and a page has the place of a value in its stead. Reads are reads of a file: a segment that this executor does
not have is fetched from Spark's state once.

    segment     key length, key, value length, value of each row, in the order of their writes

A segment in which most values have been replaced is cleaned: what is left of it is appended again.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.topology.errors import StreamsError

from .packed_rows import pack_rows, rows_with_positions, size_of_row, unpack_rows

#: A segment of this many bytes is complete. It is one value of Spark's.
SEGMENT_BYTES = 4 << 20
#: The last segment is continued by the next commit, which writes it as a whole again, up to this many bytes.
CONTINUED_BYTES = 1 << 20
#: Segments are cleaned when the log has more than this many times the bytes of its values, and another segment.
SPACE_MAX = 2
OPEN_FILES = 64

_number = struct.Struct(">q")
_segment = struct.Struct(">qqq")
_place = struct.Struct(">qII")


class Segments(Protocol):
    """Where the segments are kept, by number."""

    def read_segment(self, number: int) -> bytes:
        """Return a segment, which must exist."""

    def write_segment(self, number: int, data: bytes) -> None:
        """Keep a segment."""

    def remove_segment(self, number: int) -> None:
        """Remove a segment, which must exist."""


class Place(NamedTuple):
    """Where a value is: the segment's number, and the value's position and size in bytes."""

    segment: int
    position: int
    size: int

    def pack(self) -> bytes:
        """Return the place as bytes."""
        return _place.pack(*self)


def unpack_place(data: bytes, at: int) -> Place:
    """Return a place from its bytes, which begin at a position."""
    return Place(*_place.unpack_from(data, at))


@dataclass(slots=True)
class Segment:
    """version: differs for each content that was written under a number, also by repeated micro-batches. size, live: in
    bytes; live ones belong to rows that have this value still.
    """

    version: int
    size: int
    live: int


class ValueLog:
    """Appends wait until commit().

    packed: ``committed``, as the last commit has left it; directory: of the files for reading, made if it is missing;
    new_version: returns another number at each call, in all processes. Files may be removed at any time: they are
    fetched again.
    """

    def __init__(
        self,
        segments: Segments,
        packed: bytes,
        directory: Path,
        segment_bytes: int = SEGMENT_BYTES,
        new_version: Callable[[], int] = lambda: int.from_bytes(os.urandom(8)) >> 1,
    ) -> None:
        self._kept = segments
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._continued_bytes = segment_bytes // (SEGMENT_BYTES // CONTINUED_BYTES)
        self._new_version = new_version
        self._files: OrderedDict[int, int] = OrderedDict()  # descriptors by segment
        self._load(packed)

    def _load(self, packed: bytes) -> None:
        self._segments = {
            int(_number.unpack(key)[0]): Segment(*_segment.unpack(value)) for key, value in unpack_rows(packed)
        }
        #: What the log must know to be opened again, as of the last commit.
        self.committed = packed

    def _pack(self) -> bytes:
        return pack_rows(
            (_number.pack(number), _segment.pack(each.version, each.size, each.live))
            for number, each in sorted(self._segments.items())
        )

    def read(self, place: Place) -> bytes:
        """Return a value."""
        found = os.pread(self._file(place.segment), place.size, place.position)
        if len(found) != place.size:
            raise StreamsError(
                f"{self._path(place.segment)} ends before byte {place.position + place.size}, where a store has a "
                "value: something else has changed the file. Remove it and start again; the checkpoint has it, too"
            )
        return found

    def replaced(self, key: bytes, place: Place) -> None:
        """Note that a row has another value now, or none."""
        self._segments[place.segment].live -= size_of_row(key, place.size)

    def commit(
        self, changed: Mapping[bytes, bytes], places_of: Callable[[list[bytes]], Iterable[Place | None]]
    ) -> list[tuple[bytes, Place]]:
        """Append rows, and clean segments; return the places of all rows that have a new one.

        places_of: returns the committed places of rows, None for those that are not in this log any more. Keep
        ``committed`` in the same commit.
        """
        rows = dict(changed)
        cleaned = self._worst(sum(size_of_row(key, len(value)) for key, value in rows.items()))
        for number in cleaned:
            found = list(rows_with_positions(self._whole(number)))
            for (key, value, at), now in zip(found, places_of([key for key, _, _ in found]), strict=True):
                if now == (number, at, len(value)):
                    rows[key] = value
                    self.replaced(key, now)
        places = self._append(rows)
        for number in [number for number, segment in self._segments.items() if segment.live <= 0]:
            self._remove(number)
        self.committed = self._pack()
        return places

    def _worst(self, added: int) -> list[int]:
        """Return the segments to be cleaned, those with the least live part first. added: bytes of new rows."""
        live = sum(segment.live for segment in self._segments.values()) + added
        size = sum(segment.size for segment in self._segments.values() if segment.live > 0) + added
        found = []
        by_part = sorted((s.live / s.size, number) for number, s in self._segments.items() if s.live > 0)
        for _, number in by_part:
            if size <= SPACE_MAX * live + self._segment_bytes:
                break
            segment = self._segments[number]
            size -= segment.size - segment.live
            found.append(number)
        return found

    def _append(self, rows: dict[bytes, bytes]) -> list[tuple[bytes, Place]]:
        """Write rows behind the last segment, or continue it."""
        places: list[tuple[bytes, Place]] = []
        if not rows:
            return places
        number = max(self._segments, default=0)
        last = self._segments.get(number)
        continues = last is not None and last.live > 0 and last.size < self._continued_bytes
        if not continues:
            number += 1
        data = bytearray(self._whole(number) if continues else b"")
        live = last.live if last is not None and continues else 0
        for key, value in rows.items():
            if len(data) >= self._segment_bytes:
                self._write(number, data, live)
                number, data, live = number + 1, bytearray(), 0
            data += pack_rows(((key, value),))
            places.append((key, Place(number, len(data) - len(value), len(value))))
            live += size_of_row(key, len(value))
        self._write(number, data, live)
        return places

    def _write(self, number: int, data: bytearray, live: int) -> None:
        if number in self._segments:
            self._forget(number)
        self._segments[number] = Segment(self._new_version(), len(data), live)
        self._kept.write_segment(number, bytes(data))
        self._keep_file(number, data)

    def _remove(self, number: int) -> None:
        self._forget(number)
        del self._segments[number]
        self._kept.remove_segment(number)

    def rollback(self) -> None:
        """Forget what was replaced since the last commit."""
        self._load(self.committed)

    def close(self) -> None:
        """Close the files; they stay for the next micro-batch."""
        while self._files:
            os.close(self._files.popitem()[1])

    # -- the files

    def _path(self, number: int) -> Path:
        return self._directory / f"{number}-{self._segments[number].version:016x}"

    def _file(self, number: int) -> int:
        """Return the descriptor of a segment's file, which is fetched if it does not exist."""
        file = self._files.get(number)
        if file is None:
            file = self._opened(number)
            if len(self._files) >= OPEN_FILES:
                os.close(self._files.popitem(last=False)[1])
            self._files[number] = file
        else:
            self._files.move_to_end(number)
        return file

    def _opened(self, number: int) -> int:
        try:
            return os.open(self._path(number), os.O_RDONLY)
        except FileNotFoundError:
            self._keep_file(number, self._kept.read_segment(number))
            return os.open(self._path(number), os.O_RDONLY)

    def _whole(self, number: int) -> bytes:
        return self.read(Place(number, 0, self._segments[number].size))

    def _keep_file(self, number: int, data: bytes | bytearray) -> None:
        """Write a segment's file; other processes see all of it or nothing."""
        unfinished = self._directory / f"new-{os.getpid()}"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(data)
            unfinished.replace(self._path(number))
        except OSError as error:
            raise StreamsError(
                f"{self._path(number)} cannot be written: {error}. Large values of stores are there for reading, below "
                "spark.local.dir: check the disk"
            ) from error

    def _forget(self, number: int) -> None:
        """Close and remove a segment's file."""
        file = self._files.pop(number, None)
        if file is not None:
            os.close(file)
        self._path(number).unlink(missing_ok=True)
