"""The windows of a number of records that are not full yet, as a store keeps them for each key."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from typing_extensions import override

from penstock.kernel.conversions import Guarded

from ..errors import SerializationError
from .codecs import refusal
from .serdes import FromBytes, Serde, SerdeLike, ToBytes, as_serde, nullable
from .shape_changes import Shape
from .windowed_serdes import OuterSerde

#: records, start, end, and the length of the aggregate's bytes; -1 without them.
_HEAD = struct.Struct(">iqqi")


class CountWindow(NamedTuple):
    """A window that is not full yet. start, end: the smallest and the largest timestamp of its records (ms)."""

    records: int
    start: int
    end: int
    aggregate: Any


class CountWindowsSerde(OuterSerde[list[CountWindow]]):
    """The open windows of a key, the oldest first: 24 bytes each, then the aggregate by the inner serde."""

    def __init__(self, inner: SerdeLike | None) -> None:
        super().__init__()
        self.inner = found = as_serde(inner)
        if found is None:
            return
        if found.serializer is not None and found.deserializer is not None:
            self.serializer = self._serializer(found.serializer)
            self.deserializer = self._deserializer(found.deserializer)
        shown = found.results
        if shown is not None:
            self.results = lambda windows: [window._replace(aggregate=shown(window.aggregate)) for window in windows]

    def __reduce__(self) -> tuple[object, ...]:
        return CountWindowsSerde, (self.inner,)

    @override
    def with_default(self, default: Serde | None) -> CountWindowsSerde:
        return self if self.inner is not None else CountWindowsSerde(default)

    @override
    def open_part(self) -> str | None:
        return "aggregates of count windows" if self.inner is None else self.inner.open_part()

    @override
    def shape(self) -> Shape | None:
        return None if self.inner is None else self.inner.shape()

    @override
    def _inner(self) -> Serde:
        if self.inner is None:
            raise SerializationError("count windows have no value serde")
        return self.inner

    @override
    def _serializer(self, inner: ToBytes) -> ToBytes:
        def write(windows: list[CountWindow]) -> bytes:
            parts = []
            for window in windows:
                data = inner(window.aggregate)
                parts += [_HEAD.pack(*window[:3], -1 if data is None else len(data)), data or b""]
            return b"".join(parts)

        return nullable(Guarded(write, refusal(repr(self), "write")))

    @override
    def _deserializer(self, inner: FromBytes) -> FromBytes:
        def read(data: bytes) -> list[CountWindow]:
            windows, at = [], 0
            while at < len(data):
                count, start, end, size = _HEAD.unpack_from(data, at)
                at += _HEAD.size
                windows.append(CountWindow(count, start, end, None if size < 0 else inner(data[at : at + size])))
                at += max(size, 0)
            return windows

        return nullable(Guarded(read, refusal(repr(self), "read")))

    def __repr__(self) -> str:
        return f"CountWindowsSerde({self.inner!r})"
