"""The Arrow types of keys and values: from the shape of a serde, or from the values of some rows.

Needs penstock-streams[sql]. A value that may have several types is a column of JSON text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import reduce
from typing import Any
from uuid import UUID

import pyarrow as pa

from penstock.topology.errors import StateStoreTypeError
from penstock.topology.serdes.aggregates_serde import AggregatesSerde
from penstock.topology.serdes.serdes import PlainSerde, Serde
from penstock.topology.serdes.shape_keywords import KIND, NAMES, RULES, Rules, Shape

from .store_view import fields_of

UTC_MS = pa.timestamp("ms", "UTC")
_UTC_US, _LOCAL_US = pa.timestamp("us", "UTC"), pa.timestamp("us")
#: The type of columns of JSON text, and of nothing else: it distinguishes them from the text of pa.string().
JSON = pa.large_string()
#: The types of plain serdes, by their names.
PLAIN: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "uuid": pa.string(),
    "bytes": pa.binary(),
    "boolean": pa.bool_(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
}
_BY_TYPE = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
#: The types of dates and times, by the kind of the value (see shape_keywords).
_TIMES: Mapping[str, pa.DataType] = {
    "string (date)": pa.date32(),
    "string (date-time)": _UTC_US,
    "string (date-time, any zone)": _UTC_US,
    "string (date-time, no zone)": _LOCAL_US,
    "int (date)": pa.date32(),
    "long (timestamp-millis)": _UTC_US,
    "long (timestamp-micros)": _UTC_US,
    "long (local-timestamp-millis)": _LOCAL_US,
    "long (local-timestamp-micros)": _LOCAL_US,
}
#: Avro's numbers that are read as other objects, and shown as text.
_AS_TEXT = ("(time-millis)", "(time-micros)", "(decimal)", "(uuid)")
#: The types of aggregates that do not depend on the records.
_OF_AGGREGATES = {"count": pa.int64(), "distinct": pa.int64()}
_OF_VALUES: tuple[tuple[type | tuple[type, ...], pa.DataType], ...] = (
    (bool, pa.bool_()),
    (int, pa.int64()),
    (float, pa.float64()),
    ((bytes, bytearray, memoryview), pa.binary()),
    ((str, UUID, Decimal), pa.string()),
    (datetime, _UTC_US),
    (date, pa.date32()),
)


def declared_type(serde: Serde) -> pa.DataType | None:
    """Return the type of a serde's values; None if only its values show it."""
    if isinstance(serde, PlainSerde):
        return PLAIN.get(serde.name)
    shape = serde.shape()
    if shape is None or shape.get(RULES) not in (Rules.JSON, Rules.AVRO):
        return None
    found = _Shapes(shape.get("$defs", {})).type_of(shape, ())
    return None if found == JSON and shape.keys() <= {RULES} else found


def first_type(serde: Serde) -> pa.DataType:
    """Return what is known of the type of values that only rows show: the names of aggregates."""
    if not isinstance(serde, AggregatesSerde) or isinstance(serde.declared, str):
        return pa.null()
    kinds = ((name, _OF_AGGREGATES.get(text.partition("(")[0], pa.null())) for name, text in serde.declared.items())
    return pa.struct(list(kinds))


class _Shapes:
    """definitions: the shapes of named types."""

    def __init__(self, definitions: Mapping[str, Shape]) -> None:
        self._definitions = definitions

    def type_of(self, shape: Shape, around: tuple[str, ...]) -> pa.DataType:
        """Return the type of a shape. around: the named types that it is in."""
        if "$ref" in shape:
            name = shape["$ref"].removeprefix("#/$defs/")
            return JSON if name in around else self.type_of(self._definitions[name], (*around, name))
        if "anyOf" in shape:
            return self._any_of([one for one in shape["anyOf"] if one.get("type") != "null"], around)
        if "enum" in shape:
            return reduce(merged, map(value_type, shape["enum"]), pa.null())
        kind = str(shape.get(KIND) or shape.get("type"))
        form = shape.get("format")
        found = _TIMES.get(kind) or _TIMES.get(f"{kind} ({form})")
        if found is not None:
            return found
        if kind.endswith(_AS_TEXT):
            return pa.string()
        if shape.get("contentEncoding") is not None:
            return pa.binary()
        if shape.get(NAMES):
            named = zip(shape[NAMES], shape["prefixItems"], strict=True)
            return pa.struct([pa.field(name, self.type_of(field, around)) for name, field in named])
        if shape.get("type") == "array" and "items" in shape and "prefixItems" not in shape:
            return pa.list_(self.type_of(shape["items"], around))
        if shape.get("type") == "object" and shape.get("properties"):
            fields = shape["properties"].items()
            return pa.struct([pa.field(name, self.type_of(field, around)) for name, field in fields])
        return _BY_TYPE.get(str(shape.get("type")), JSON)

    def _any_of(self, shapes: list[Shape], around: tuple[str, ...]) -> pa.DataType:
        return reduce(merged, (self.type_of(one, around) for one in shapes), pa.null())


def type_of_values(values: Iterable[object], first: pa.DataType | None = None) -> pa.DataType:
    """Return a type that fits all of some plain values; null without any. first: see first_type."""
    return reduce(merged, map(value_type, values), pa.null() if first is None else first)


def value_type(value: object) -> pa.DataType:
    """Return the type of a plain value; raises StateStoreTypeError for an object that cannot be a column."""
    if value is None:
        return pa.null()
    if isinstance(value, Mapping):
        return pa.struct([pa.field(str(name), value_type(field)) for name, field in value.items()]) if value else JSON
    if isinstance(value, list | tuple | set | frozenset):
        return pa.list_(type_of_values(value))
    for kinds, found in _OF_VALUES:
        if isinstance(value, kinds):
            return found
    raise StateStoreTypeError(f"an object of the class {type(value).__qualname__} cannot be a column")


def merged(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type that fits the values of both: JSON text if no other does."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} <= {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = merged(fields.get(field.name, pa.null()), field.type)
        return pa.struct(list(fields.items()))
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(merged(one.value_type, other.value_type))
    return JSON


def without_nulls(kind: pa.DataType) -> pa.DataType:
    """Return a type with JSON text in place of types of which there was no value."""
    if pa.types.is_null(kind):
        return JSON
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, without_nulls(field.type)) for field in kind])
    return pa.list_(without_nulls(kind.value_type)) if pa.types.is_list(kind) else kind


def plain_value(value: object) -> Any:
    """Return a value as those of Arrow's types are made from: classes with fields become dicts."""
    if isinstance(value, Enum):
        return plain_value(value.value)
    if value is None or isinstance(value, str | int | float | bool | bytes | datetime | date):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain_value(field) for name, field in value.items()}
    fields = object_fields(value)
    if fields is not None:
        return {name: plain_value(field) for name, field in fields.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_value(one) for one in value]
    return value


def object_fields(value: object) -> Mapping[str, Any] | None:
    """Return the fields of a NamedTuple, msgspec.Struct, dataclass or Protobuf message, None for anything else."""
    fields = fields_of(value)
    if fields is not None:
        names = getattr(type(value), "__struct_encode_fields__", None)
        return fields if names is None else dict(zip(names, fields.values(), strict=True))
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    descriptor = getattr(value, "DESCRIPTOR", None)
    if descriptor is None or not hasattr(descriptor, "fields"):
        return None
    return {field.name: _message_field(value, field) for field in descriptor.fields}


def _message_field(message: Any, field: Any) -> Any:
    """Return the value of a Protobuf message's field; None for an optional field that is not set."""
    value = getattr(message, field.name)
    if field.is_repeated:
        return dict(value) if hasattr(value, "items") else list(value)
    return None if field.has_presence and not message.HasField(field.name) else value
