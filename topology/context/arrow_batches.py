"""Batches of values as Arrow columns, for functions that take a pyarrow.RecordBatch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import msgspec

from ..errors import StreamsError, TopologyError


def arrow_columns() -> tuple[Callable[[Sequence[Any]], Any], Callable[[Any], Sequence[Any]]]:
    """Return two functions: from values to a RecordBatch, and from an array or RecordBatch to values.

    Values are dicts, dataclasses or msgspec.Structs, whose fields become columns. Raises TopologyError without pyarrow.
    """
    try:
        import pyarrow
    except ImportError:
        raise TopologyError("map_batches(as_='arrow') needs pyarrow: pip install pyarrow") from None

    def to_batch(values: Sequence[Any]) -> Any:
        return pyarrow.RecordBatch.from_pylist([_fields(value) for value in values])

    def to_values(found: Any) -> Sequence[Any]:
        if isinstance(found, pyarrow.RecordBatch | pyarrow.Table | pyarrow.Array | pyarrow.ChunkedArray):
            values: list[Any] = found.to_pylist()
            return values
        raise StreamsError(f"A function of Arrow batches must return an array or a RecordBatch, not {type(found)}")

    return to_batch, to_values


def _fields(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise StreamsError(f"Arrow columns are made of dicts, dataclasses and Structs, not of a {type(value).__name__}")
