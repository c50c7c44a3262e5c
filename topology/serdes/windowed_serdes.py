"""Serdes of windowed keys, and of the changes that a grouped table sends through its repartition topic."""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from typing_extensions import override

from penstock.kernel.codecs import (
    Rewriter,
    change_decoder,
    change_encoder,
    windowed_decoder,
    windowed_written,
)
from penstock.kernel.codecs import windowed_encoder as compiled_encoder
from penstock.kernel.conversions import Guarded

from ..common.durations import Duration, to_millis
from ..errors import SerializationError
from ..records import Change, Windowed
from .codecs import refusal
from .serdes import (
    FromBytes,
    Serde,
    SerdeLike,
    ToBytes,
    TopicSerde,
    as_serde,
    deserializer_for,
    direct,
    nullable,
    serializer_for,
    set_direct,
    takes_none,
)

T = TypeVar("T")
_TIME_MAX = 2**63 - 1


class OuterSerde(TopicSerde[T]):
    """A serde around an inner one: its functions wrap those of the inner serde."""

    @override
    def make_serializer(self, topic: str) -> ToBytes:
        return self._serializer(serializer_for(self._inner(), topic))

    @override
    def make_deserializer(self, topic: str) -> FromBytes:
        return self._deserializer(deserializer_for(self._inner(), topic))

    @abstractmethod
    def _inner(self) -> Serde:
        """Return the inner serde; raises SerializationError if it is missing."""

    @abstractmethod
    def _serializer(self, inner: ToBytes) -> ToBytes:
        """Return the serializer around the inner one."""

    @abstractmethod
    def _deserializer(self, inner: FromBytes) -> FromBytes:
        """Return the deserializer around the inner one."""


class WindowedSerde(OuterSerde[Windowed]):
    """A serde of windowed keys: the key's bytes from the inner serde, by default the default serde, then the window.

    times: indices of the fields of a Windowed that follow the key, 8 bytes each. window_size_ms: the size of the
    windows if their end is not written; window_end(start), if there is one, returns their end instead (ms).
    """

    times: ClassVar[tuple[int, ...]]
    window_size_ms = 0
    window_end: Callable[[int], int] | None = None

    def __init__(self, inner: SerdeLike | None) -> None:
        super().__init__()
        self.inner = as_serde(inner)
        inner_serde = self.inner
        if inner_serde is None:
            return
        if inner_serde.serializer is not None and inner_serde.deserializer is not None:
            encode = windowed_encoder(inner_serde.serializer, self.times)
            self.serializer = self._serializer(inner_serde.serializer)
            self.deserializer = self._deserializer(inner_serde.deserializer)
            if inner_serde.is_written is not None:
                self.is_written = windowed_written(inner_serde.is_written, self.times_size)
            self.rewrite = Rewriter(encode, self.deserializer, self.is_written)

    @property
    def times_size(self) -> int:
        """The number of bytes after the key."""
        return 8 * len(self.times)

    @override
    def _serializer(self, inner: ToBytes) -> ToBytes:
        made = nullable(windowed_encoder(inner, self.times))
        set_direct(made, windowed_encoder(inner, self.times))
        return made

    @override
    def _deserializer(self, inner: FromBytes) -> FromBytes:
        size, unpack = self.times_size, struct.Struct(f">{len(self.times)}q").unpack_from

        def decode(data: bytes) -> Windowed | None:
            if not data:
                return None
            times = dict(zip(self.times, unpack(data, len(data) - size), strict=True))
            start = times[1]
            return Windowed(inner(data[:-size]), start, times.get(2, min(start + self.window_size_ms, _TIME_MAX)))

        read_inner = direct(inner) or inner
        made = windowed_decoder(decode, read_inner, size, self.window_size_ms, self.window_end, Windowed)
        return nullable(Guarded(made, refusal(repr(self), "read")))

    @override
    def open_part(self) -> str | None:
        return "inner key of windowed keys" if self.inner is None else self.inner.open_part()

    def serialize_base_key(self, topic: str, key: object) -> bytes | None:
        """Return the bytes of a windowed key's inner key, which determine its partition."""
        return self._inner().serialize(topic, key)

    @override
    def _inner(self) -> Serde:
        if self.inner is None:
            raise SerializationError(f"{self!r} has no serde for the inner key")
        return self.inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"


class TimeWindowedSerde(WindowedSerde):
    """Key, then the start of the window as 8 bytes (Kafka Streams: TimeWindowedSerde).

    The end is not written: a key that is read ends window_size (timedelta or ms) after its start, by default as late as
    possible; or at window_end(start), for windows of several sizes.
    """

    times = (1,)

    def __init__(
        self,
        inner: SerdeLike | None,
        window_size: Duration | None = None,
        window_end: Callable[[int], int] | None = None,
    ) -> None:
        self.window_size_ms = _TIME_MAX if window_size is None else to_millis(window_size, "The window size")
        self.window_end = window_end
        super().__init__(inner)

    def __reduce__(self) -> tuple[object, ...]:
        return TimeWindowedSerde, (self.inner, self.window_size_ms, self.window_end)

    @override
    def with_default(self, default: Serde | None) -> TimeWindowedSerde:
        return self if self.inner is not None else TimeWindowedSerde(default, self.window_size_ms, self.window_end)


class SessionWindowedSerde(WindowedSerde):
    """Key, then end and start of the session as 8 bytes each (Kafka Streams: SessionWindowedSerde)."""

    times = (2, 1)

    def __reduce__(self) -> tuple[object, ...]:
        return SessionWindowedSerde, (self.inner,)

    @override
    def with_default(self, default: Serde | None) -> SessionWindowedSerde:
        return SessionWindowedSerde(default) if self.inner is None else self


def windowed_encoder(to_key: ToBytes, times: tuple[int, ...]) -> Callable[[Any], bytes]:
    """Return a function that serializes windowed keys; to_key serializes the inner key; times: see WindowedSerde."""
    pack = struct.Struct(f">{len(times)}q").pack

    def encode(windowed: object) -> bytes:
        checked = _windowed(windowed)
        return (to_key(checked[0]) or b"") + pack(*(checked[field] for field in times))

    inner = direct(to_key)
    made = compiled_encoder(encode, inner, times)
    checked: Callable[[Any], bytes] = Guarded(made, refusal("A serde of windowed keys", "write"))
    return checked


def _windowed(value: object) -> tuple[object, int, int]:
    """Return a windowed key unchanged; raises SerializationError for anything else, and if its key is None."""
    if not isinstance(value, tuple) or len(value) != 3:
        raise SerializationError(f"a windowed key is needed, not a value of type {type(value).__name__}")
    if value[0] is None:
        raise SerializationError("a windowed key is needed, not one whose key is None")
    return value


class ChangedSerde(OuterSerde[Change]):
    """Changes in a grouped table's repartition topic (Kafka Streams: ChangedSerializer, ChangedDeserializer; KIP-904).

    The last byte is the format of the bytes before it. 0: old value; 1: new value; 2: length of the new value as zigzag
    varint, new value, old value; 3, 4 and 5: as 0, 1 and 2, followed by a byte for is_latest.
    """

    def __init__(self, inner: SerdeLike | None) -> None:
        super().__init__()
        self.inner = as_serde(inner)
        inner_serde = self.inner
        if inner_serde is not None and inner_serde.serializer is not None and inner_serde.deserializer is not None:
            self.serializer = self._serializer(inner_serde.serializer)
            self.deserializer = self._deserializer(inner_serde.deserializer)

    def __reduce__(self) -> tuple[object, ...]:
        return ChangedSerde, (self.inner,)

    @override
    def with_default(self, default: Serde | None) -> ChangedSerde:
        return ChangedSerde(default) if self.inner is None else self

    @override
    def _inner(self) -> Serde:
        if self.inner is None:
            raise SerializationError("a grouped table's repartition topic has no value serde")
        return self.inner

    @override
    def _serializer(self, inner: ToBytes) -> ToBytes:
        encode = change_encoder(direct(inner) or inner, takes_none(inner))
        return nullable(Guarded(encode, refusal(repr(self), "write")))

    @override
    def _deserializer(self, inner: FromBytes) -> FromBytes:
        return nullable(Guarded(change_decoder(direct(inner) or inner, Change), refusal(repr(self), "read")))
