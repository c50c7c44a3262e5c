"""The large values of one store on Spark: a log in segments.

In runs, a row of a kilobyte would be written again at each merge. So the new values of a micro-batch are appended to a
log (as in Bitcask and WiscKey), and a row has the place of its value in its stead.

    segment     key length, key, value length, value of each row, in the order of their writes

A segment in which most values have been replaced is cleaned: what is left of it is appended again.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.topology.errors import StreamsError

from .blob_files import Blob, BlobFiles
from .packed_rows import pack_row, pack_rows, rows_with_positions, size_of_row, unpack_rows

#: A segment of this many bytes is complete. It is one value of Spark's.
SEGMENT_BYTES = 8 << 20
#: The last segment is continued by the next commit, which writes it as a whole again, up to this many bytes.
CONTINUED_BYTES = 1 << 20
#: Segments are cleaned when the log has more than this many times the bytes of its values, and another segment.
SPACE_MAX = 2
#: Most systems let a process have 1,024 files open.
OPEN_FILES = 256

_number = struct.Struct(">q")
_segment = struct.Struct(">qqq")
_place = struct.Struct(">qII")


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
    return Place._make(_place.unpack_from(data, at))


@dataclass(slots=True)
class Segment:
    """live: how many of its bytes are values that rows still have."""

    blob: Blob
    live: int

    @property
    def size(self) -> int:
        """Return how many bytes the segment has."""
        return self.blob.size


class ValueLog:
    """packed: the log as packed() has returned it; files: where segment n is the blob with the number -n."""

    def __init__(self, files: BlobFiles, packed: bytes, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._files = files
        self._segment_bytes = segment_bytes
        self._continued_bytes = segment_bytes // (SEGMENT_BYTES // CONTINUED_BYTES)
        self._open: OrderedDict[int, int] = OrderedDict()  # descriptors by segment
        self._segments: dict[int, Segment] = {}
        for key, value in unpack_rows(packed):
            (number,), (version, size, live) = _number.unpack(key), _segment.unpack(value)
            self._segments[number] = Segment(Blob(-number, version, size), live)

    def packed(self) -> bytes:
        """Return what the log must know to be opened again."""
        return pack_rows(
            (_number.pack(number), _segment.pack(each.blob.version, each.size, each.live))
            for number, each in sorted(self._segments.items())
        )

    @property
    def is_empty(self) -> bool:
        """Whether no row has a value here."""
        return not self._segments

    def read(self, place: Place) -> bytes:
        """Return a value."""
        found = os.pread(self._descriptor(place.segment), place.size, place.position)
        if len(found) != place.size:
            raise StreamsError(
                f"Segment {place.segment} of the large values of a store ends before byte "
                f"{place.position + place.size}, where a row has its value: the checkpoint is damaged. Start from "
                "another one, or from the input"
            )
        return found

    def commit(
        self,
        changed: Mapping[bytes, bytes],
        replaced: Iterable[tuple[bytes, Place]],
        places_of: Callable[[list[bytes]], Iterable[Place | None]],
    ) -> list[tuple[bytes, Place]]:
        """Append rows, and clean segments; return the places of all rows that have a new one.

        replaced: the places of rows that have another value now, or none. places_of: returns the places of other rows,
        None for those that are not in this log any more.
        """
        for key, place in replaced:
            self._replaced(key, place)
        rows = dict(changed)
        cleaned = self._worst(sum(size_of_row(key, len(value)) for key, value in rows.items()))
        for number in cleaned:
            found = list(rows_with_positions(self._whole(number)))
            for (key, value, at), now in zip(found, places_of([key for key, _, _ in found]), strict=True):
                if now == (number, at, len(value)):
                    rows[key] = value
                    self._replaced(key, now)
        places = self._append(rows)
        for number in [number for number, segment in self._segments.items() if segment.live <= 0]:
            self._remove(number)
        return places

    def _replaced(self, key: bytes, place: Place) -> None:
        self._segments[place.segment].live -= size_of_row(key, place.size)

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
        parts, size = ([self._whole(number)], last.size) if last is not None and continues else ([], 0)
        live = last.live if last is not None and continues else 0
        for key, value in rows.items():
            if size >= self._segment_bytes:
                self._write(number, parts, live)
                number, parts, size, live = number + 1, [], 0, 0
            row = pack_row(key, value)
            size += len(row)
            live += len(row)
            parts.append(row)
            places.append((key, Place(number, size - len(value), len(value))))
        self._write(number, parts, live)
        return places

    def _write(self, number: int, parts: Iterable[bytes], live: int) -> None:
        if number in self._segments:
            self._close(number)
            self._files.forget(self._segments[number].blob)
        self._segments[number] = Segment(self._files.write(-number, b"".join(parts)), live)

    def _remove(self, number: int) -> None:
        self._close(number)
        self._files.remove(self._segments.pop(number).blob)

    def close(self) -> None:
        """Close the files; they stay for the next micro-batch."""
        for number in list(self._open):
            self._close(number)

    def _whole(self, number: int) -> bytes:
        return self.read(Place(number, 0, self._segments[number].size))

    def _descriptor(self, number: int) -> int:
        """Return the descriptor of a segment's file."""
        file = self._open.get(number)
        if file is None:
            file = self._files.opened(self._segments[number].blob)
            if len(self._open) >= OPEN_FILES:
                self._close(next(iter(self._open)))
            self._open[number] = file
        else:
            self._open.move_to_end(number)
        return file

    def _close(self, number: int) -> None:
        file = self._open.pop(number, None)
        if file is not None:
            os.close(file)
