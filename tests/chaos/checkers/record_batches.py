"""Decoder of Kafka's record batches (magic 2), including markers and producers, which consumers do not show."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

#: base offset, length behind this field, leader epoch, magic, crc, attributes, last offset delta, base and max
#: timestamp, producer id, producer epoch, base sequence, count of records.
_HEADER = struct.Struct(">qiibIhiqqqhii")
#: Base offset and length, which are not included in the length.
_PREFIX = 12
_MAGIC = 2
_COMPRESSION, _TRANSACTIONAL, _CONTROL = 0x07, 0x10, 0x20
_GZIP = 1
#: The key of a control record: version and kind. The value: version and the coordinator's epoch.
_CONTROL_KEY, _CONTROL_VALUE = struct.Struct(">hh"), struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1


@dataclass(frozen=True, slots=True)
class Record:
    """A record in the log."""

    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a producer's transaction in a partition."""

    commit: bool
    coordinator_epoch: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one producer, or the marker that ends its transaction. producer_id: -1 without a producer.

    timestamp: of its last record by the producer's clock, or of the marker by the broker's; ms since the epoch.
    """

    first: int
    last: int
    producer_id: int
    epoch: int
    transactional: bool
    records: tuple[Record, ...]
    marker: Marker | None
    timestamp: int = 0


def decode(data: bytes) -> Iterator[Batch]:
    """Yield the complete batches; raises ValueError for an unknown format or compression."""
    position = 0
    while position + _HEADER.size <= len(data):
        fields = _HEADER.unpack_from(data, position)
        end = position + _PREFIX + fields[1]
        if end > len(data):
            return
        yield _batch(fields, data[position + _HEADER.size : end])
        position = end


def _batch(fields: tuple[int, ...], payload: bytes) -> Batch:
    base, magic, attributes, last_delta, timestamp = fields[0], fields[3], fields[5], fields[6], fields[8]
    producer_id, epoch, count = fields[9], fields[10], fields[12]
    if magic != _MAGIC:
        raise ValueError(f"the batch at offset {base} has magic {magic}, not {_MAGIC}")
    records = tuple(_records(base, count, _decompressed(payload, attributes & _COMPRESSION, base)))
    marker = _marker(records[0]) if attributes & _CONTROL else None
    kept = () if marker else records
    transactional = bool(attributes & _TRANSACTIONAL)
    return Batch(base, base + last_delta, producer_id, epoch, transactional, kept, marker, timestamp)


def _decompressed(payload: bytes, compression: int, base: int) -> bytes:
    if compression == 0:
        return payload
    if compression == _GZIP:
        return zlib.decompress(payload, wbits=zlib.MAX_WBITS | 16)
    raise ValueError(f"the batch at offset {base} has compression {compression}: run with none, or gzip")


def _records(base: int, count: int, payload: bytes) -> Iterator[Record]:
    position = 0
    for _ in range(count):
        length, position = varint(payload, position)
        end = position + length
        _, position = varint(payload, position + 1)  # after the attributes: the timestamp's delta
        delta, position = varint(payload, position)
        key, position = _bytes(payload, position)
        value, _ = _bytes(payload, position)
        yield Record(base + delta, key, value)
        position = end  # headers are not needed here


def _bytes(payload: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = varint(payload, position)
    return (None, position) if length < 0 else (payload[position : position + length], position + length)


def varint(payload: bytes, position: int) -> tuple[int, int]:
    """Return a zigzag varint and the position behind it."""
    raw = shift = 0
    while True:
        byte = payload[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7


def _marker(record: Record) -> Marker:
    _, kind = _CONTROL_KEY.unpack_from(record.key or b"")
    if kind not in (_ABORT, _COMMIT):
        raise ValueError(f"the control record at offset {record.offset} is of kind {kind}")
    return Marker(kind == _COMMIT, _CONTROL_VALUE.unpack_from(record.value or b"")[1])
