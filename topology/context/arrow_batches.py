"""Batches of values as Arrow columns, for functions that take a pyarrow.RecordBatch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec

from ..errors import StreamsError, TopologyError
from .batch_results import result_values

#: Types that Arrow knows, and that contain no other values.
_SIMPLE = frozenset((str, int, float, bool, bytes, type(None), datetime, date, time, timedelta, Decimal, UUID))


def arrow_columns(schema: object = None) -> tuple[Callable[[Sequence[Any]], Any], Callable[[Any], list[Any] | None]]:
    """Return two functions: from values to a RecordBatch, and from a function's result to values (result_values).

    Values are dicts, dataclasses, NamedTuples or msgspec.Structs, whose fields become columns; inside of other values
    they become structs of Arrow. An Enum becomes its value. None has no fields and gets no row.
    schema: the pyarrow.Schema of the columns; None: a column for each field of any value, of the type that pyarrow
    infers. Raises TopologyError without pyarrow, and for anything but a schema.
    """
    try:
        import pyarrow
    except ImportError:
        raise TopologyError("map_batches(as_='arrow') needs pyarrow: pip install pyarrow") from None
    if schema is not None and not isinstance(schema, pyarrow.Schema):
        raise TopologyError(f"schema must be a pyarrow.Schema, got {schema!r}")

    def to_batch(values: Sequence[object]) -> object:
        rows = [_fields(value) for value in values if value is not None]
        if schema is not None:
            return pyarrow.RecordBatch.from_pylist(rows, schema=schema)
        names: dict[str, object] = {}
        for row in rows:  # from_pylist would take the names from the first row
            names.update(row)
        if not names:  # only a struct keeps the number of rows without columns
            return pyarrow.RecordBatch.from_struct_array(pyarrow.array(rows, pyarrow.struct([])))
        return pyarrow.RecordBatch.from_pydict({name: [row.get(name) for row in rows] for name in names})

    return to_batch, result_values


def _fields(value: object) -> Mapping[str, object]:
    row = _plain(value)
    if isinstance(row, Mapping):
        return row
    raise StreamsError(
        f"Arrow columns are made of dicts, dataclasses, NamedTuples and Structs, not of a {type(value).__name__}"
    )


def _plain(value: object) -> object:
    """Return a value with what Arrow knows: dicts for everything with fields, lists for everything with items."""
    if type(value) in _SIMPLE:
        return value
    value = _with_names(value)
    if isinstance(value, Mapping):
        is_simple = _SIMPLE.issuperset(map(type, value.values()))
        return value if is_simple else {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset | deque):
        is_simple = type(value) is list and _SIMPLE.issuperset(map(type, value))
        return value if is_simple else [_plain(part) for part in value]
    if isinstance(value, Enum):
        return _plain(value.value)
    return None if value is msgspec.UNSET else value


def _with_names(value: object) -> object:
    """Return the fields of a Struct, a dataclass or a NamedTuple by name; anything else unchanged."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return value._asdict() if isinstance(value, tuple) and hasattr(value, "_asdict") else value
