"""The changelog format of buffered records (Kafka Streams: BufferValue, ProcessorRecordContext).

All numbers are big-endian:

    context     timestamp (8), offset (8), topic (sized), partition (4), number of headers (4), headers
    header      name (sized), value (sized)
    value       context, prior value (sized), old value (sized, -2: same as prior), new value (sized)
    sized       length (4), bytes; -1 for null

In a changelog, 8 bytes with the buffer time follow. In the rows of a join buffer, Penstock's own format, the source
follows:

    source      key of the input record (sized), its value (sized)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from penstock.kernel.buffered_changes import value_size
from penstock.kernel.codecs import join_parts
from penstock.topology.records import ProcessorRecordContext

NULL = -1
SAME_AS_PRIOR = -2
_int = struct.Struct(">i")
_context = struct.Struct(">qq")
_null = _int.pack(NULL)
_same_as_prior = _int.pack(SAME_AS_PRIOR)
_no_headers = _int.pack(0)


class BufferValue(NamedTuple):
    """A buffered record; prior is the key's value before it was buffered."""

    prior: bytes | None
    old: bytes | None
    new: bytes | None
    context: ProcessorRecordContext

    def serialize(self) -> bytes:
        """Return the bytes, without a buffer time."""
        return serialize_value(*self)

    @classmethod
    def deserialize(cls, data: bytes) -> tuple[BufferValue, int]:
        """Return the value and its end in data."""
        context, at = deserialize_context(data)
        prior, at = _read_sized(data, at)
        if _int.unpack_from(data, at)[0] == SAME_AS_PRIOR:
            old, at = prior, at + 4
        else:
            old, at = _read_sized(data, at)
        new, at = _read_sized(data, at)
        return cls(prior, old, new, context), at

    def size(self) -> int:
        """Return the size in bytes that Kafka Streams counts for it (residentMemorySizeEstimate)."""
        return value_size(*self)


def serialize_value(
    prior: bytes | None, old: bytes | None, new: bytes | None, context: ProcessorRecordContext
) -> bytes:
    """Return the bytes of a BufferValue with these fields."""
    timestamp, offset, partition, topic, headers, _, _ = context
    return join_parts(
        timestamp, offset, (topic or "").encode(), partition, serialize_headers(headers or ()), prior, old, new
    )


def serialize_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Return the number and the bytes of headers."""
    if not headers:
        return _no_headers
    return _int.pack(len(headers)) + b"".join(_sized(name.encode()) + _sized(value) for name, value in headers)


def deserialize_context(data: bytes) -> tuple[ProcessorRecordContext, int]:
    """Return the record context at the start of data, and its end."""
    timestamp, offset = _context.unpack_from(data)
    topic, at = _read_sized(data, _context.size)
    partition, count = struct.unpack_from(">ii", data, at)
    at += 8
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _read_sized(data, at)
        value, at = _read_sized(data, at)
        headers.append(((name or b"").decode(), value))
    context = ProcessorRecordContext(timestamp, offset, partition, (topic or b"").decode() or None, headers or None)
    return context, at


def serialize_source(context: ProcessorRecordContext) -> bytes:
    """Return the bytes of the input record's key and value."""
    return _sized(context.source_raw_key) + _sized(context.source_raw_value)


def with_source(context: ProcessorRecordContext, data: bytes, at: int) -> ProcessorRecordContext:
    """Return the context with the input record's key and value, which are at an offset of data, if it has them."""
    if at == len(data):  # restored from a changelog
        return context
    key, at = _read_sized(data, at)
    value, _ = _read_sized(data, at)
    return context._replace(source_raw_key=key, source_raw_value=value)


def _sized(data: bytes | None) -> bytes:
    return _null if data is None else _int.pack(len(data)) + data


def _read_sized(data: bytes, at: int) -> tuple[bytes | None, int]:
    length = int(_int.unpack_from(data, at)[0])
    at += 4
    return (None, at) if length == NULL else (data[at : at + length], at + length)
