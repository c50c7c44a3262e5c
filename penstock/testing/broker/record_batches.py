"""Record batches of format 2, as a broker handles them.

It reads headers, writes offset, epoch and time into them, and reads records only if a request needs them.

Kafka: DefaultRecordBatch, DefaultRecord, EndTransactionMarker.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from ...kernel.compression import BROKEN_DATA_ERRORS, decompression
from .errors import ApiError, ErrorCode

#: Offset, length, leader epoch, magic, CRC; then the fields covered by the CRC: attributes, last offset delta, first
#: and largest timestamp, producer id and epoch, first sequence number, number of records.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTHS = struct.Struct(">qi")
_MAGIC_AT, _CRC_AT, _CRC_BEGIN = 16, 17, 21
MAGIC = 2
NO_PRODUCER = -1

_CODEC_BITS, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0b111, 0b1000, 0b1_0000, 0b10_0000
_PIECE_BYTES = 1 << 20
#: The maximum decompressed size of a batch here; tests have small ones.
_LARGEST_BYTES = 256 << 20
#: The key of a control record: version and type; its value: version and the coordinator's epoch.
_MARKER_KEY, _MARKER_VALUE = struct.Struct(">hh"), struct.Struct(">hi")
ABORT, COMMIT = 0, 1
MAX_SEQUENCE = 0x7FFFFFFF


Headers: TypeAlias = Sequence[tuple[str, bytes | None]]


class NewRecord(NamedTuple):
    """A record to be written."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class StoredRecord(NamedTuple):
    """A record in a batch. encoded: its bytes there."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    encoded: bytes


class Origin(NamedTuple):
    """The producer of a batch: its id and epoch, the batch's sequence number, and whether it is in a transaction."""

    producer_id: int = NO_PRODUCER
    epoch: int = -1
    sequence: int = -1
    transactional: bool = False


NO_ORIGIN = Origin()


@dataclass(frozen=True)
class Batch:
    """One batch in a log. data: its bytes, header included; base, last: offsets of its first and last record."""

    data: bytes
    base: int
    last: int
    leader_epoch: int
    attributes: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def transactional(self) -> bool:
        """True if it belongs to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """True if it is a transaction marker."""
        return bool(self.attributes & _CONTROL)

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record."""
        return (self.base_sequence + self.count - 1) & MAX_SEQUENCE if self.base_sequence >= 0 else -1

    def placed(self, base: int, leader_epoch: int, append_time: int | None = None) -> Batch:
        """Return the batch as stored at this offset. append_time: replaces the records' timestamps, if given."""
        data = bytearray(self.data)
        struct.pack_into(">q", data, 0, base)
        struct.pack_into(">i", data, 12, leader_epoch)
        attributes, largest = self.attributes, self.max_timestamp
        if append_time is not None:
            attributes, largest = attributes | _LOG_APPEND_TIME, append_time
            struct.pack_into(">h", data, _CRC_BEGIN, attributes)
            struct.pack_into(">q", data, 35, largest)
            struct.pack_into(">I", data, _CRC_AT, crc32c(bytes(data[_CRC_BEGIN:])))
        return replace(
            self,
            data=bytes(data),
            base=base,
            last=base + self.last - self.base,
            leader_epoch=leader_epoch,
            attributes=attributes,
            max_timestamp=largest,
        )

    def only(self, records: Iterable[StoredRecord]) -> Batch:
        """Return the batch with only these of its records, which keep their offsets (Kafka: MemoryRecords.filterTo)."""
        kept = list(records)
        attributes = self.attributes & ~_CODEC_BITS
        fields = (attributes, self.last - self.base, self.first_timestamp, self.max_timestamp)
        identity = (self.producer_id, self.producer_epoch, self.base_sequence)
        data = _assembled(
            self.base, self.leader_epoch, (*fields, *identity, len(kept)), [record.encoded for record in kept]
        )
        return replace(self, data=data, attributes=attributes, count=len(kept))

    @cached_property
    def records(self) -> Sequence[StoredRecord]:
        """Its records; raises ApiError for an unreadable batch."""
        try:
            return tuple(self._records(self._payload()))
        except (*BROKEN_DATA_ERRORS, KeyError, IndexError) as error:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"a batch that cannot be read: {error!r}") from error

    def _payload(self) -> bytes:
        payload = self.data[_HEADER.size :]
        codec = self.attributes & _CODEC_BITS
        if not codec:
            return payload
        found, source = bytearray(), decompression(codec, payload, _LARGEST_BYTES)
        while piece := source.read(_PIECE_BYTES):
            found += piece
        return bytes(found)

    def _records(self, data: bytes) -> Iterator[StoredRecord]:
        at = 0
        for _ in range(self.count):
            begin = at
            length, at = _varint(data, at)
            end = at + length
            delta, at = _varint(data, at + 1)  # after the attributes
            time = self.max_timestamp if self.attributes & _LOG_APPEND_TIME else self.first_timestamp + delta
            delta, at = _varint(data, at)
            key, at = _bytes(data, at)
            value, at = _bytes(data, at)
            headers = _headers(data, at)
            yield StoredRecord(self.base + delta, time, key, value, headers, data[begin:end])
            at = end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)


def _headers(data: bytes, at: int) -> Headers:
    count, at = _varint(data, at)
    found = []
    for _ in range(count):
        name, at = _bytes(data, at)
        value, at = _bytes(data, at)
        found.append(((name or b"").decode(), value))
    return found


def read_batches(data: bytes) -> Iterator[Batch]:
    """Yield the batches of a request or response; raises ApiError if one is damaged or of an older format."""
    at = 0
    while at < len(data):
        if len(data) - at < _HEADER.size:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE)
        base, length = _LENGTHS.unpack_from(data, at)
        if data[at + _MAGIC_AT] != MAGIC:
            raise ApiError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, "a batch of an older format than 2")
        end = at + _LENGTHS.size + length
        if end > len(data) or length < _HEADER.size - _LENGTHS.size:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE)
        yield _batch(data[at:end], base)
        at = end


def one_batch(data: bytes) -> Batch:
    """Return the single batch of a Produce request for a partition; raises ApiError for another number of batches."""
    batches = list(read_batches(data))
    if len(batches) != 1:
        raise ApiError(
            ErrorCode.INVALID_RECORD, f"Compressed outer record has more than one batch or none: {len(batches)}"
        )
    return batches[0]


def _batch(data: bytes, base: int) -> Batch:
    fields = _HEADER.unpack_from(data)
    _, _, leader_epoch, _, crc, attributes, delta, first, largest, producer_id, epoch, sequence, count = fields
    if crc32c(data[_CRC_BEGIN:]) != crc:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE)
    if count <= 0 or delta != count - 1:
        raise ApiError(ErrorCode.INVALID_RECORD, f"a batch of {count} records whose last has the offset {delta}")
    return Batch(
        data, base, base + delta, leader_epoch, attributes, first, largest, producer_id, epoch, sequence, count
    )


def marker(producer_id: int, epoch: int, coordinator_epoch: int, commit: bool, timestamp: int) -> Batch:
    """Return a transaction marker (Kafka: EndTransactionMarker)."""
    key, value = _MARKER_KEY.pack(0, COMMIT if commit else ABORT), _MARKER_VALUE.pack(0, coordinator_epoch)
    record = _record(key, value, 0, 0)
    return _made([record], _TRANSACTIONAL | _CONTROL, timestamp, timestamp, producer_id, epoch, -1)


def batch_of(records: Sequence[NewRecord], origin: Origin = NO_ORIGIN) -> Batch:
    """Return a batch of records, as a producer would send it."""
    first = records[0].timestamp
    encoded = [
        _record(one.key, one.value, one.timestamp - first, number, one.headers) for number, one in enumerate(records)
    ]
    largest = max(one.timestamp for one in records)
    attributes = _TRANSACTIONAL if origin.transactional else 0
    return _made(encoded, attributes, first, largest, origin.producer_id, origin.epoch, origin.sequence)


def _made(
    records: list[bytes], attributes: int, first: int, largest: int, id_: int, epoch: int, sequence: int
) -> Batch:
    count = len(records)
    fields = attributes, count - 1, first, largest, id_, epoch, sequence, count
    data = _assembled(0, 0, fields, records)
    return Batch(data, 0, count - 1, 0, attributes, first, largest, id_, epoch, sequence, count)


def _assembled(base: int, leader_epoch: int, fields: tuple[int, ...], records: list[bytes]) -> bytes:
    payload = b"".join(records)
    length = _HEADER.size - _LENGTHS.size + len(payload)
    covered = _HEADER.pack(base, length, leader_epoch, MAGIC, 0, *fields)[_CRC_BEGIN:] + payload
    return _HEADER.pack(base, length, leader_epoch, MAGIC, crc32c(covered), *fields) + payload


def _record(key: bytes | None, value: bytes | None, time: int, offset: int, headers: Headers = ()) -> bytes:
    parts = [b"\0", _encoded(time), _encoded(offset), _sized(key), _sized(value), _encoded(len(headers))]
    parts += [_sized(name.encode()) + _sized(content) for name, content in headers]
    return _sized(b"".join(parts))


def _sized(data: bytes | None) -> bytes:
    return _encoded(-1) if data is None else _encoded(len(data)) + data


def _encoded(number: int) -> bytes:
    rest, found = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)
