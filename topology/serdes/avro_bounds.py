"""Refuses Avro that would take gigabytes, the whole C stack, or minutes, once fastavro reads it.

Almost every Avro value takes at least a byte, so damaged bytes end before they take much memory. Three kinds of schemas
are different: the items of an array may take no bytes at all (null), a record may contain itself, and fastavro converts
a decimal of any length, in quadratic time, before it rounds it. For schemas of these kinds the bytes are walked through
before fastavro reads them; all others cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..errors import SerializationError

#: How many array items without bytes one value may have: 100,000 empty dicts take 6 MB.
EMPTY_ITEMS_MAX = 100_000
#: How deep records may be inside of each other. fastavro's recursion overflows a stack of 8 MB at a few thousand.
DEPTH_MAX = 1_000

_PRIMITIVES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_VARINT_BYTES = 10
#: Names of fastavro's functions for decimals.
_DECIMALS = ("bytes-decimal", "fixed-decimal")


class _Walk:
    """Skips through one value. at: the position in its bytes. todo: the types to skip from there on, the last one
    first.
    """

    __slots__ = ("at", "data", "depth", "empty_items", "todo")

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at
        self.depth = 0
        self.empty_items = 0
        self.todo: list[_Skip] = []

    def run(self, skip: _Skip) -> None:
        """Skip a value: without recursion, because it may be deep. Raises IndexError at the end of the bytes."""
        self.todo.append(skip)
        while self.todo:
            self.todo.pop()(self)

    def number(self) -> int:
        """Take a zigzag varint. Raises IndexError at the end of the bytes."""
        value = shift = 0
        for byte in self.data[self.at : self.at + _VARINT_BYTES]:
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value >> 1 ^ -(value & 1)
            shift += 7
        if shift == 7 * _VARINT_BYTES:
            raise SerializationError("damaged Avro: a number of more than 64 bits")
        raise IndexError

    def skip(self, size: int) -> None:
        """Skip this many bytes. Raises IndexError beyond the end."""
        if size < 0:
            raise SerializationError(f"damaged Avro: a length of {size}")
        self.at += size
        if self.at > len(self.data):
            raise IndexError

    def decimal(self, size: int, precision: int) -> None:
        """Skip a decimal of this many bytes; raises SerializationError as check_decimal does."""
        self.skip(size)
        check_decimal(self.data[self.at - size : self.at], precision)


#: Skips one value of a type, or adds what to skip to ``todo``.
_Skip = Callable[[_Walk], None]


def bounds_check(schema: object) -> Callable[[bytes, int], None] | None:
    """Return a check of a value's bytes from a position on; None if values of the schema need none.

    schema: as fastavro.parse_schema returns it. The check raises SerializationError for values beyond the limits; bytes
    that end too early are left to fastavro.
    """
    types = _Types(schema)
    skip = types.skip_of(schema)
    if not types.is_always_walked and not types.is_recursive:
        return None

    def check(data: bytes, at: int) -> None:
        if types.is_always_walked or len(data) - at > DEPTH_MAX:  # each level takes a byte
            try:
                _Walk(data, at).run(skip)
            except IndexError:
                return

    return check


def check_decimal(data: bytes, precision: int) -> None:
    """Raise SerializationError for a decimal with more digits than its schema allows.

    Java reads these as well, but no writer that knows the schema writes them, and fastavro would round them. Leading
    sign bytes are no digits: a writer may pad.
    """
    unscaled = int.from_bytes(data, signed=True)
    bits = int(precision * math.log2(10))  # 2**bits is less than 10**precision, 2**(bits + 1) is more
    if unscaled.bit_length() > bits and (unscaled.bit_length() > bits + 1 or abs(unscaled) >= 10**precision):
        raise SerializationError(f"damaged Avro: a decimal of more than {precision} digits, in {len(data):,} bytes")


def bounded_readers(readers: Mapping[str, Callable[..., object]]) -> dict[str, Callable[..., Any]]:
    """Return fastavro's functions that read logical types, with check_decimal before those of decimals."""
    return {**readers, **{name: partial(_read_decimal, readers[name]) for name in _DECIMALS if name in readers}}


def _read_decimal(read: Callable[..., object], data: bytes, schema: object, reader_schema: object) -> object:
    if precision := _precision(schema):
        check_decimal(data, precision)
    return read(data, schema, reader_schema)


def _precision(schema: object) -> int | None:
    """Return the precision of a decimal, None for any other type, and without one: fastavro refuses to read that."""
    if isinstance(schema, dict) and schema.get("logicalType") == "decimal":
        precision: int | None = schema.get("precision")
        return precision
    return None


class _Types:
    """Turns the types of a schema into functions that skip their values.

    is_recursive: a record contains itself. is_always_walked: even a short value may be beyond the limits.
    """

    def __init__(self, schema: object) -> None:
        self._named: dict[str, object] = {}
        for part in schema if isinstance(schema, list) else [schema]:
            if isinstance(part, dict):
                self._named |= part.get("__named_schemas", {})
        self._skips: dict[str, _Skip] = {}
        self._begun: set[str] = set()
        self.is_always_walked = self.is_recursive = False

    def skip_of(self, schema: Any) -> _Skip:
        """Return the function for a type."""
        if isinstance(schema, list):
            return _union([self.skip_of(branch) for branch in schema])
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind in _PRIMITIVES:
            size = _PRIMITIVES[kind]
            return lambda walk: walk.skip(size)
        if kind in ("int", "long"):
            return _skip_number
        if kind in ("bytes", "string"):
            return self._text(schema, kind)
        if kind in ("array", "map"):
            return self._items(schema, kind)
        if kind in ("enum", "fixed", "record", "error"):
            return self._defined(schema)
        return self.skip_of(kind) if isinstance(kind, dict | list) else self._defined(self._named[kind])

    def _defined(self, schema: Any) -> _Skip:
        """Return the function for a type with a name, which may be used before it is complete."""
        name = schema["name"]
        self._named[name] = schema
        if name not in self._begun:
            self._begun.add(name)
            self._skips[name] = self._definition(schema)
        elif name not in self._skips:
            self.is_recursive = True
        return lambda walk: walk.todo.append(self._skips[name])

    def _definition(self, schema: Any) -> _Skip:
        if schema["type"] == "enum":
            return _skip_number
        if schema["type"] == "fixed":
            return self._fixed(schema)
        return _record([self.skip_of(field["type"]) for field in schema["fields"]])

    def _text(self, schema: object, kind: str) -> _Skip:
        precision = _precision(schema) if kind == "bytes" else None
        if not precision:
            return _skip_text
        self.is_always_walked = True
        return lambda walk: walk.decimal(walk.number(), precision)

    def _fixed(self, schema: Any) -> _Skip:
        size, precision = schema["size"], _precision(schema)
        if not precision:
            return lambda walk: walk.skip(size)
        self.is_always_walked = True
        return lambda walk: walk.decimal(size, precision)

    def _items(self, schema: Any, kind: str) -> _Skip:
        if kind == "map":
            return _blocks(_skip_text, self.skip_of(schema["values"]))
        item = self.skip_of(schema["items"])
        if not self._is_empty(schema["items"]):
            return _blocks(item)
        self.is_always_walked = True
        return _empty_items

    def _is_empty(self, schema: Any) -> bool:
        """Return whether values of a type take no bytes."""
        if isinstance(schema, list):
            return False
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind in ("record", "error"):
            return all(self._is_empty(field["type"]) for field in schema["fields"])
        if kind == "fixed":
            return bool(schema["size"] == 0)
        return kind == "null" or (kind in self._named and self._is_empty(self._named[kind]))


def _skip_number(walk: _Walk) -> None:
    walk.number()


def _skip_text(walk: _Walk) -> None:
    walk.skip(walk.number())


def _union(branches: list[_Skip]) -> _Skip:
    def skip(walk: _Walk) -> None:
        place = walk.number()
        if not 0 <= place < len(branches):
            raise SerializationError(f"damaged Avro: branch {place} of a union of {len(branches)}")
        walk.todo.append(branches[place])

    return skip


def _record(fields: list[_Skip]) -> _Skip:
    steps = [_leave, *reversed(fields)]

    def skip(walk: _Walk) -> None:
        walk.depth += 1
        if walk.depth > DEPTH_MAX:
            raise SerializationError(f"damaged Avro: more than {DEPTH_MAX} records inside of each other")
        walk.todo += steps

    return skip


def _leave(walk: _Walk) -> None:
    walk.depth -= 1


def _blocks(*item: _Skip) -> _Skip:
    steps = item[::-1]

    def skip(walk: _Walk) -> None:
        count = _block_size(walk)
        if count:
            walk.todo += (skip, items(count))

    def items(count: int) -> _Skip:
        return lambda walk: walk.todo.extend((*((items(count - 1),) if count > 1 else ()), *steps))

    return skip


def _empty_items(walk: _Walk) -> None:
    while count := _block_size(walk):
        walk.empty_items += count
        if walk.empty_items > EMPTY_ITEMS_MAX:
            raise SerializationError(f"damaged Avro: an array of {count:,} items without bytes")


def _block_size(walk: _Walk) -> int:
    """Take the number of items of a block; 0 ends an array or map."""
    count = walk.number()
    if count < 0:  # the block's size in bytes follows
        walk.number()
    return abs(count)
