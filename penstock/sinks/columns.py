"""The columns of a sink's table: from the types of keys and values."""

from __future__ import annotations

import datetime
import decimal
import types
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any

import orjson
from msgspec import inspect

from penstock.topology.errors import TopologyError
from penstock.topology.records import Windowed
from penstock.topology.serdes.serdes import Serde
from penstock.topology.serdes.typed_json_serde import TypedJsonSerde
from penstock.topology.serdes.windowed_serdes import WindowedSerde

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_LAST = datetime.datetime.max.replace(tzinfo=datetime.UTC)


class ColumnType(Enum):
    """The type of a column; each sink has its own name for it."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "float"
    DECIMAL = "decimal"
    TEXT = "text"
    BYTES = "bytes"
    TIMESTAMP = "timestamp"
    DATE = "date"
    TIME = "time"
    UUID = "uuid"
    JSON = "json"


_PYTHON: Mapping[object, ColumnType] = {
    bool: ColumnType.BOOLEAN,
    int: ColumnType.INTEGER,
    float: ColumnType.FLOAT,
    decimal.Decimal: ColumnType.DECIMAL,
    str: ColumnType.TEXT,
    bytes: ColumnType.BYTES,
    datetime.datetime: ColumnType.TIMESTAMP,
    datetime.date: ColumnType.DATE,
    datetime.time: ColumnType.TIME,
    uuid.UUID: ColumnType.UUID,
}
_MSGSPEC: Mapping[type, ColumnType] = {
    inspect.BoolType: ColumnType.BOOLEAN,
    inspect.IntType: ColumnType.INTEGER,
    inspect.FloatType: ColumnType.FLOAT,
    inspect.DecimalType: ColumnType.DECIMAL,
    inspect.StrType: ColumnType.TEXT,
    inspect.BytesType: ColumnType.BYTES,
    inspect.DateTimeType: ColumnType.TIMESTAMP,
    inspect.DateType: ColumnType.DATE,
    inspect.TimeType: ColumnType.TIME,
    inspect.UUIDType: ColumnType.UUID,
}
#: The types of Serdes' plain serdes, by their names.
_SERDES: Mapping[str, object] = {
    "string": str,
    "bytes": bytes,
    "uuid": uuid.UUID,
    "boolean": bool,
    "int16": int,
    "int32": int,
    "int64": int,
    "float32": float,
    "float64": float,
    "json": Any,
}
_WITH_FIELDS = (inspect.StructType, inspect.DataclassType, inspect.NamedTupleType, inspect.TypedDictType)


@dataclass(frozen=True, slots=True)
class Column:
    """A column. get: returns its value from a key or a value. nullable: whether the type allows None."""

    name: str
    type: ColumnType
    get: Callable[[Any], object]
    nullable: bool = True


def columns_of(serde: Serde | None, name: str) -> list[Column] | None:
    """Return a column for each field of a serde's type, or one with this name; None if the type is not known."""
    if isinstance(serde, WindowedSerde):
        inner = columns_of(serde.inner, name)
        return None if inner is None else [*(_within_window(column) for column in inner), *_window_columns()]
    if isinstance(serde, TypedJsonSerde):
        return list(_of_type(inspect.type_info(serde.kind), name))
    plain = _SERDES.get(getattr(serde, "name", ""))
    return None if plain is None else [Column(name, _PYTHON.get(plain, ColumnType.JSON), _same, nullable=plain is Any)]


def columns_named(given: Mapping[str, object]) -> list[Column]:
    """Return the columns that the user declared, by name and Python type, e.g. ``{"id": int, "note": str | None}``.

    A value is a dict with these keys, or an object with these attributes. Raises TopologyError for a type that no
    column has.
    """
    return [Column(name, *_declared(name, kind)) for name, kind in given.items()]


def _declared(name: str, kind: object) -> tuple[ColumnType, Callable[[Any], object], bool]:
    parts = set(getattr(kind, "__args__", ())) if isinstance(kind, types.UnionType) else {kind}
    nullable = type(None) in parts
    parts -= {type(None)}
    found = next(iter(parts)) if len(parts) == 1 else kind
    known = ColumnType.JSON if found in (Any, dict, list) else _PYTHON.get(found)
    if known is None:
        names = ", ".join(each.__name__ for each in _PYTHON if isinstance(each, type))
        raise TopologyError(f"Column {name} has type {kind!r}; columns have {names}, or dict and list for JSON")
    return known, _item(name), nullable


def _of_type(described: inspect.Type, name: str) -> Iterator[Column]:
    if not isinstance(described, _WITH_FIELDS):
        yield _single(name, described)
        return
    for field in described.fields:
        kind, nullable = _column_type(field.type)
        get = _item(field.encode_name) if isinstance(described, inspect.TypedDictType) else attrgetter(field.name)
        yield Column(field.encode_name, kind, get, nullable or not field.required)


def _single(name: str, described: inspect.Type) -> Column:
    kind, nullable = _column_type(described)
    return Column(name, kind, _same, nullable)


def _column_type(described: inspect.Type) -> tuple[ColumnType, bool]:
    """Return the type of a column and whether it may be null."""
    nullable = False
    if isinstance(described, inspect.UnionType):
        parts = [part for part in described.types if not isinstance(part, inspect.NoneType)]
        nullable = len(parts) < len(described.types)
        described = parts[0] if len(parts) == 1 else described
    if isinstance(described, inspect.EnumType | inspect.LiteralType):
        values = (
            [member.value for member in described.cls] if isinstance(described, inspect.EnumType) else described.values
        )
        whole = all(isinstance(value, int) for value in values)
        return (ColumnType.INTEGER if whole else ColumnType.TEXT), nullable
    found = _MSGSPEC.get(type(described), ColumnType.JSON)
    return found, nullable or isinstance(described, inspect.AnyType)


def _window_columns() -> Iterator[Column]:
    yield Column("window_start", ColumnType.TIMESTAMP, lambda key: moment(key.start), nullable=False)
    yield Column("window_end", ColumnType.TIMESTAMP, lambda key: moment(key.end), nullable=False)


def _within_window(column: Column) -> Column:
    def get(windowed: Windowed[Any]) -> object:
        return column.get(windowed.key)

    return Column(column.name, column.type, get, column.nullable)


def moment(milliseconds: int) -> datetime.datetime:
    """Return a time; the latest datetime for one that is too late, such as the end of an unlimited window."""
    try:
        return _EPOCH + datetime.timedelta(milliseconds=milliseconds)
    except OverflowError:
        return _LAST


def _item(name: str) -> Callable[[Any], object]:
    def get(value: object) -> object:
        return value.get(name) if isinstance(value, Mapping) else getattr(value, name)

    return get


def _same(value: object) -> object:
    return value


def as_json(value: object) -> str:
    """Return the JSON text of a value."""
    return orjson.dumps(value).decode()


def plain(value: object) -> object:
    """Return the value of an enum's member, and anything else unchanged."""
    return value.value if isinstance(value, Enum) else value
