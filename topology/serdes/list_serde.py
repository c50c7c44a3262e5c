"""Lists whose elements have another serde (Kafka: ListSerializer, ListDeserializer; KIP-466)."""

from __future__ import annotations

import struct
from typing import Any

from typing_extensions import override

from ..errors import SerializationError
from .codecs import refusing
from .serdes import Serde, SerdeLike, Serdes, as_serde, deserializer_for, serializer_for

#: The first byte: all elements have the same size, or each follows its size.
_CONSTANT_SIZE, _VARIABLE_SIZE = b"\x00", b"\x01"
_INT = struct.Struct(">i")
#: The size of an element that is null.
_NULL = _INT.pack(-1)
#: Size of an element, for the serdes that Kafka treats as having a fixed size.
_SIZES: dict[Serde, int] = {
    Serdes.int16(): 2,
    Serdes.int32(): 4,
    Serdes.int64(): 8,
    Serdes.float32(): 4,
    Serdes.float64(): 8,
    Serdes.uuid(): 36,
}


class ListSerde(Serde[list[Any]]):
    """A serde of lists; elements may be None.

    Elements of a fixed size: byte 0, number of nulls, their indices, number of elements, elements that are not null.
    All others: byte 1, number of elements, then the size of each element, -1 for null, and the element. Numbers have 4
    bytes.
    """

    def __init__(self, inner: SerdeLike | None) -> None:
        self.inner = as_serde(inner)

    def __reduce__(self) -> tuple[object, ...]:
        return ListSerde, (self.inner,)

    @override
    def with_elements(self, elements: Serde | None) -> ListSerde:
        return ListSerde(elements) if self.inner is None else self

    @override
    def open_part(self) -> str | None:
        return "elements of lists" if self.inner is None else self.inner.open_part()

    @override
    @refusing("write")
    def serialize(self, topic: str, value: list[Any] | None) -> bytes | None:
        """Return the bytes; raises SerializationError for anything but a list."""
        if value is None:
            return None
        if not isinstance(value, list):
            raise SerializationError(f"{self!r} expects a list, not a value of type {type(value).__name__}")
        to_bytes = serializer_for(self._inner(), topic)
        elements = [to_bytes(element) for element in value]
        if elements.count(None) != value.count(None):
            raise SerializationError(f"The serde of {self!r} wrote null for an element that is not None")
        if self.inner not in _SIZES:
            sized = (_NULL if data is None else _INT.pack(len(data)) + data for data in elements)
            return b"".join((_VARIABLE_SIZE, _INT.pack(len(elements)), *sized))
        nulls = [index for index, data in enumerate(elements) if data is None]
        head = struct.pack(f">{len(nulls) + 2}i", len(nulls), *nulls, len(elements))
        return b"".join((_CONSTANT_SIZE, head, *(data for data in elements if data is not None)))

    @override
    @refusing("read")
    def deserialize(self, topic: str, data: bytes | None) -> list[Any] | None:
        """Return the list; raises SerializationError for bytes that are not a list of such elements."""
        if data is None:
            return None
        from_bytes, size = deserializer_for(self._inner(), topic), _SIZES.get(self._inner())
        elements, end = _variable(data) if data[:1] == _VARIABLE_SIZE else _constant(data, size)
        if end != len(data):
            raise _NoListError(f"{len(data) - end} of them follow the last element")
        return [from_bytes(element) for element in elements]

    def _inner(self) -> Serde:
        if self.inner is None:
            raise SerializationError(f"{self!r} has no serde for its elements")
        return self.inner

    def __repr__(self) -> str:
        return f"Serdes.list({'' if self.inner is None else repr(self.inner)})"


class _NoListError(ValueError):
    """The bytes are not a list; the message says why."""


def _variable(data: bytes) -> tuple[list[bytes | None], int]:
    """Return the elements, each of which follows its size, and the index after the last one."""
    (count,), position = _INT.unpack_from(data, 1), 1 + _INT.size
    elements: list[bytes | None] = []
    for _ in range(count):
        (size,) = _INT.unpack_from(data, position)
        position += _INT.size
        elements.append(None if size == -1 else _element(data, position, size))
        position += max(size, 0)
    return elements, position


def _constant(data: bytes, size: int | None) -> tuple[list[bytes | None], int]:
    """Return the elements, all of the same size, and the index after the last one."""
    if data[:1] != _CONSTANT_SIZE:
        raise _NoListError(f"they begin with {data[:1]!r}, not with 0 or 1")
    if size is None:
        raise _NoListError("their elements have a fixed size, but this serde's elements do not")
    (null_count,) = _INT.unpack_from(data, 1)
    *nulls, count = struct.unpack_from(f">{max(null_count, 0) + 1}i", data, 1 + _INT.size)
    null_indices, position = set(nulls), 1 + _INT.size * (null_count + 2)
    elements: list[bytes | None] = []
    for index in range(count):
        is_null = index in null_indices
        elements.append(None if is_null else _element(data, position, size))
        position += 0 if is_null else size
    return elements, position


def _element(data: bytes, position: int, size: int) -> bytes:
    element = data[position : position + size]
    if size < 0 or len(element) != size:
        raise _NoListError(f"the element of {size} bytes at byte {position} is incomplete")
    return element
