"""Rows of values with headers, in the stores that Stores' builders "with headers" declare (KIP-1271).

    row       size of headers (varint), headers, timestamp (8, big-endian; sessions have none), serialized value
    headers   nothing without headers; otherwise their number (varint), and for each: name, value (both sized)
    sized     length (varint), bytes; -1 for null

Varints are those of Kafka's records: zigzag, 7 bits in each byte, lowest first. A value is a tuple of the plain value,
its timestamp unless it is a session's, and headers: ValueTimestampHeaders or AggregationWithHeaders. Kafka Streams:
HeadersSerializer, ValueTimestampHeadersSerializer, AggregationWithHeadersSerializer, RecordConverters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.topology.context.task_context import TaskContext
from penstock.topology.records import AggregationWithHeaders, Headers, Message, ValueTimestampHeaders, as_headers

from .state_store import LONG

_NULL = b"\x01"  # -1
_new = tuple.__new__


@dataclass(frozen=True, slots=True)
class HeadersFormat:
    """The format of one store. timestamped: False for sessions."""

    timestamped: bool

    def to_row(self, data: bytes, value: Any) -> bytes:
        """Return the row bytes of a serialized value; the timestamp and the headers are those of value."""
        return self._prefix(value[-1]) + (LONG.pack(value[1]) if self.timestamped else b"") + data

    def split(self, row: bytes) -> tuple[Any, ...]:
        """Return (serialized value, timestamp unless it is a session's, headers) of row bytes."""
        size, at = _read_varint(row, 0)
        headers = _read_headers(row, at) if size else None
        at += size
        if not self.timestamped:
            return row[at:], headers
        return row[at + LONG.size :], LONG.unpack_from(row, at)[0], headers

    def row_or_none(self, data: bytes | None, timestamp: int, headers: Headers) -> bytes | None:
        """Return to_row() of a timestamped value, None for None."""
        return None if data is None else self.to_row(data, (None, timestamp, headers))

    def plain_decoder(self, decode: Callable[[bytes | None], object]) -> Callable[[bytes | None], Any]:
        """Return the function from row bytes to the plain value."""
        return lambda row: decode(None if row is None else self.split(row)[0])

    def row_of(self, message: Message) -> bytes | None:
        """Return the row bytes of a changelog record."""
        return self.row_or_none(message.value(), message.timestamp()[1], message.headers())

    def encoder(self, encode: Callable[[Any], bytes | None]) -> Callable[[Any], bytes | None]:
        """Return the function from a value to row bytes. encode: of the plain value."""

        def encode_row(value: Any) -> bytes | None:
            data = None if value is None else encode(value[0])
            return None if data is None else self.to_row(data, value)

        return encode_row

    def decoder(self, decode: Callable[[bytes], object], held: bool = False) -> Callable[[bytes | None], Any]:
        """Return the function from row bytes to a value, as it is held or as readers get it."""
        row_type: type = tuple if held else self._type

        def decode_row(row: bytes | None) -> object:
            if row is None:
                return None
            data, *rest = self.split(row)
            return _new(row_type, (decode(data), *rest))

        return decode_row

    def holder(self, hold_plain: Callable[[Any], Any]) -> Callable[[Any], object]:
        """Return the function from a value to what is held of it; it raises for an invalid timestamp or headers."""

        def hold(value: Any) -> object:
            if value is None:
                return None
            held = hold_plain(value[0])
            times = LONG.unpack(LONG.pack(value[1])) if self.timestamped else ()
            return None if held is None else (held, *times, as_headers(value[-1]) or None)

        return hold

    def reader(self, read_plain: Callable[[Any], Any]) -> Callable[[Any], object]:
        """Return the function from what is held to a value of the reader's own."""
        row_type: type = self._type

        def read(held: Any) -> Any:
            return None if held is None else _new(row_type, (read_plain(held[0]), *held[1:]))

        return read

    def logger(
        self, name: str, task: TaskContext, encode: Callable[[Any], bytes | None]
    ) -> Callable[[bytes, Any], bytes | None]:
        """Return log_value: the changelog record has the plain value, and the timestamp and headers of the value.

        A tombstone has those of the record being processed, and any record of sessions has its timestamp.
        """

        def log_value(key: bytes, value: Any) -> bytes | None:
            data = None if value is None else encode(value[0])
            if data is None:
                task.output.log_change(name, key, None, task.timestamp, task.headers)
                return None
            row = self.to_row(data, value)
            timestamp = value[1] if self.timestamped else task.timestamp
            task.output.log_change(name, key, data, timestamp, as_headers(value[-1]) or None)
            return row

        return log_value

    @property
    def _type(self) -> type:
        return ValueTimestampHeaders if self.timestamped else AggregationWithHeaders

    def _prefix(self, given: Any) -> bytes:
        headers = as_headers(given)
        if not headers:
            return b"\0"
        sized = (_sized(name.encode()) + _sized(value) for name, value in headers)
        data = _varint(len(headers)) + b"".join(sized)
        return _varint(len(data)) + data


def _sized(data: bytes | None) -> bytes:
    return _NULL if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Return a number that is not negative as a zigzag varint."""
    number <<= 1
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint, and its end in data."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            return number >> 1 ^ -(number & 1), at
        shift += 7


def _read_headers(data: bytes, at: int) -> Headers:
    count, at = _read_varint(data, at)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, at = _read_varint(data, at)
        name = data[at : at + size].decode()
        at += size
        size, at = _read_varint(data, at)
        value = None if size < 0 else data[at : at + size]
        at += max(size, 0)
        headers.append((name, value))
    return headers
