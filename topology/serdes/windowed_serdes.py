"""Serdes of windowed keys, and of the changes that a grouped table sends through its repartition topic."""

from __future__ import annotations

import struct
from typing import Any, ClassVar

from typing_extensions import override

from ..common.durations import Duration, to_millis
from ..errors import SerializationError
from ..records import Change, Windowed
from .codecs import windowed_written
from .serdes import (
    FromBytes,
    Inline,
    Serde,
    SerdeLike,
    ToBytes,
    as_serde,
    deserializer_for,
    inline,
    rewriter,
    serializer_for,
    set_inline,
)

_TIMESTAMP = struct.Struct(">q")
_SESSION = struct.Struct(">qq")
_TIMESTAMP_MAX = 2**63 - 1


class WindowedSerde(Serde[Windowed]):
    """A serde of windowed keys: the key in another serde (without inner in the default one), and the window.

    times: the fields of a Windowed that follow the key, 8 bytes each.
    """

    times: ClassVar[tuple[int, ...]]

    def __init__(self, inner: SerdeLike | None) -> None:
        self.inner = as_serde(inner)
        inner_serde = self.inner
        if inner_serde is None:
            return
        if inner_serde.serializer is not None and inner_serde.deserializer is not None:
            self.serializer = self._serializer(inner_serde.serializer)
            self.deserializer = self._deserializer(inner_serde.deserializer)
            set_inline(self.serializer, inline_windowed(inner_serde.serializer, self.times))
            if inner_serde.is_written is not None:
                self.is_written = windowed_written(inner_serde.is_written, 8 * len(self.times))
            self.rewrite = rewriter(self.serializer, self.deserializer, self.is_written)

    def _serializer(self, inner: ToBytes) -> ToBytes:
        raise NotImplementedError

    def _deserializer(self, inner: FromBytes) -> FromBytes:
        raise NotImplementedError

    @override
    def serialize(self, topic: str, value: Windowed | None) -> bytes | None:
        return self._serializer(serializer_for(self._inner(), topic))(value)

    @override
    def deserialize(self, topic: str, data: bytes | None) -> Windowed | None:
        result: Windowed | None = self._deserializer(deserializer_for(self._inner(), topic))(data)
        return result

    @override
    def open_part(self) -> str | None:
        return "key inside windowed keys" if self.inner is None else self.inner.open_part()

    def serialize_base_key(self, topic: str, key: Any) -> bytes | None:
        """Return the bytes of the key inside a windowed key: what its partition is derived from."""
        return self._inner().serialize(topic, key)

    def _inner(self) -> Serde[Any]:
        if self.inner is None:
            raise SerializationError(f"{self!r} has no serde for the key inside")
        return self.inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"


class TimeWindowedSerde(WindowedSerde):
    """Key, then the start of the window as 8 bytes (Kafka Streams: TimeWindowedSerde).

    The end is not in the bytes: window_size (timedelta or ms) says where it is, else it is as late as can be.
    """

    times = (1,)

    def __init__(self, inner: SerdeLike | None, window_size: Duration | None = None) -> None:
        self.window_size_ms = _TIMESTAMP_MAX if window_size is None else to_millis(window_size, "The window size")
        super().__init__(inner)

    def __reduce__(self) -> Any:
        return TimeWindowedSerde, (self.inner, self.window_size_ms)

    @override
    def with_default(self, default: Serde[Any] | None) -> TimeWindowedSerde:
        return TimeWindowedSerde(default, self.window_size_ms) if self.inner is None else self

    def _serializer(self, inner: ToBytes) -> ToBytes:
        pack = _TIMESTAMP.pack

        def serialize(windowed: Windowed | None) -> bytes | None:
            if windowed is None:
                return None
            key, start, _ = _windowed(windowed)
            return (inner(key) or b"") + pack(start)

        return serialize

    def _deserializer(self, inner: FromBytes) -> FromBytes:
        unpack, size = _TIMESTAMP.unpack_from, self.window_size_ms

        def deserialize(data: bytes | None) -> Windowed | None:
            if not data:
                return None
            (start,) = unpack(data, len(data) - 8)
            return Windowed(inner(data[:-8]), start, min(start + size, _TIMESTAMP_MAX))

        return deserialize


class SessionWindowedSerde(WindowedSerde):
    """Key, then end and start of the session as 8 bytes each (Kafka Streams: SessionWindowedSerde)."""

    times = (2, 1)

    def __reduce__(self) -> Any:
        return SessionWindowedSerde, (self.inner,)

    @override
    def with_default(self, default: Serde[Any] | None) -> SessionWindowedSerde:
        return SessionWindowedSerde(default) if self.inner is None else self

    def _serializer(self, inner: ToBytes) -> ToBytes:
        pack = _SESSION.pack

        def serialize(windowed: Windowed | None) -> bytes | None:
            if windowed is None:
                return None
            key, start, end = _windowed(windowed)
            return (inner(key) or b"") + pack(end, start)

        return serialize

    def _deserializer(self, inner: FromBytes) -> FromBytes:
        unpack = _SESSION.unpack_from

        def deserialize(data: bytes | None) -> Windowed | None:
            if not data:
                return None
            end, start = unpack(data, len(data) - 16)
            return Windowed(inner(data[:-16]), start, end)

        return deserialize


def _windowed(value: Any) -> tuple[Any, int, int]:
    """Return a windowed key; raises SerializationError for anything else, and for one without a key."""
    if not isinstance(value, tuple) or len(value) != 3:
        raise SerializationError(f"a windowed key is needed, not a value of type {type(value).__name__}")
    if value[0] is None:
        _refuse_no_key()
    return value


def _refuse_no_key() -> bytes:
    raise SerializationError("a windowed key is needed, not one whose key is None")


def inline_windowed(to_key: ToBytes, times: tuple[int, ...]) -> Inline:
    """Return what serializes a windowed key; to_key: the key inside; times: as of WindowedSerde."""
    key, pack = inline(to_key).of("{0}[0]"), struct.Struct(f">{len(times)}q").pack
    fields = ", ".join(f"{{0}}[{field}]" for field in times)
    return Inline(
        f"({{no_key}}() if {{0}}[0] is None else {key.template}) + {{pack}}({fields})",
        {**key.names, "pack": pack, "no_key": _refuse_no_key},
    )


class ChangedSerde(Serde[Change]):
    """Changes in a grouped table's repartition topic (Kafka Streams: ChangedSerializer, ChangedDeserializer; KIP-904).

    The last byte says what stands before it: 0 old value, 1 new value, 2 length of the new value as zigzag varint, new
    value, old value. 3, 4 and 5 are the same with one byte before the last for is_latest.
    """

    def __init__(self, inner: SerdeLike | None) -> None:
        self.inner = as_serde(inner)
        inner_serde = self.inner
        if inner_serde is not None and inner_serde.serializer is not None and inner_serde.deserializer is not None:
            self.serializer = self._serializer(inner_serde.serializer)
            self.deserializer = self._deserializer(inner_serde.deserializer)

    def __reduce__(self) -> Any:
        return ChangedSerde, (self.inner,)

    @override
    def with_default(self, default: Serde[Any] | None) -> ChangedSerde:
        return ChangedSerde(default) if self.inner is None else self

    @override
    def serialize(self, topic: str, value: Change | None) -> bytes | None:
        return self._serializer(serializer_for(self._inner(), topic))(value)

    @override
    def deserialize(self, topic: str, data: bytes | None) -> Change | None:
        result: Change | None = self._deserializer(deserializer_for(self._inner(), topic))(data)
        return result

    def _inner(self) -> Serde[Any]:
        if self.inner is None:
            raise SerializationError("a grouped table's repartition topic has no value serde")
        return self.inner

    def _serializer(self, inner: ToBytes) -> ToBytes:
        def serialize(change: Change | None) -> bytes | None:
            if change is None:
                return None
            new, old = inner(change.new), inner(change.old)
            if new is None and old is None:
                raise SerializationError("Both old and new value of a change are null, which is not allowed")
            if old is None:
                return (new or b"") + b"\x01"
            if new is None:
                return old + b"\x00"
            return write_varint(len(new)) + new + old + b"\x02"

        return serialize

    def _deserializer(self, inner: FromBytes) -> FromBytes:
        def deserialize(data: bytes | None) -> Change | None:
            if data is None:
                return None
            kind = data[-1]
            if kind > 5:
                raise SerializationError(f"Unknown encoding flag {kind} of a change in a repartition topic")
            body, is_latest = (data[:-1], True) if kind < 3 else (data[:-2], data[-2] == 1)
            if kind in (0, 3):
                return Change(None, inner(body), is_latest)
            if kind in (1, 4):
                return Change(inner(body), None, is_latest)
            length, at = read_varint(body)
            return Change(inner(body[at : at + length]), inner(body[at + length :]), is_latest)

        return deserialize


def write_varint(number: int) -> bytes:
    """Return a non-negative number as Kafka's zigzag varint."""
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes) -> tuple[int, int]:
    """Return the non-negative zigzag varint at the start of data, and the index behind it."""
    number = shift = at = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return number >> 1, at
