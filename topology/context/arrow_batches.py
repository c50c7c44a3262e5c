"""Batches of values as Arrow columns, for functions that take a pyarrow.RecordBatch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import msgspec

from ..errors import StreamsError, TopologyError
from .batch_results import result_values


def arrow_columns(schema: object = None) -> tuple[Callable[[Sequence[Any]], Any], Callable[[Any], list[Any] | None]]:
    """Return two functions: from values to a RecordBatch, and from a function's result to values (result_values).

    Values are dicts, dataclasses or msgspec.Structs, whose fields become columns. None has no fields and gets no row.
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
        names: dict[str, Any] = {}
        for row in rows:  # from_pylist would take the names from the first row
            names.update(row)
        if not names:  # only a struct keeps the number of rows without columns
            return pyarrow.RecordBatch.from_struct_array(pyarrow.array(rows, pyarrow.struct([])))
        return pyarrow.RecordBatch.from_pydict({name: [row.get(name) for row in rows] for name in names})

    return to_batch, result_values


def _fields(value: object) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise StreamsError(f"Arrow columns are made of dicts, dataclasses and Structs, not of a {type(value).__name__}")
