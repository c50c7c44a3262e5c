"""Rows in one blob: key length, key, value length, value of each; a length has 4 bytes, big-endian."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import starmap

from penstock.statestore.rows.bytes_store import Row

_length = struct.Struct(">I")


def pack_row(key: bytes, value: bytes) -> bytes:
    """Return a row as it is in a blob."""
    return b"%b%b%b%b" % (_length.pack(len(key)), key, _length.pack(len(value)), value)


def pack_rows(rows: Iterable[Row]) -> bytes:
    """Return rows as a blob."""
    return b"".join(starmap(pack_row, rows))


def unpack_rows(data: bytes) -> Iterator[Row]:
    """Yield the rows of a blob."""
    for key, value, _ in rows_with_positions(data):
        yield key, value


def rows_with_positions(data: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield key, value and the value's position of each row of a blob."""
    unpack_from, at, end = _length.unpack_from, 0, len(data)
    while at < end:
        key_at = at + 4
        value_at = key_at + unpack_from(data, at)[0]
        key = data[key_at:value_at]
        value_at += 4
        at = value_at + unpack_from(data, value_at - 4)[0]
        yield key, data[value_at:at], value_at


def size_of_row(key: bytes, value_size: int) -> int:
    """Return how many bytes a row has in a blob."""
    return 2 * _length.size + len(key) + value_size
