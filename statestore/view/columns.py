"""Rows of stores as Arrow batches: the key, windows, the fields of the value, and timestamps as columns.

Needs penstock-streams[sql]. Rows are bytes, as StateStore.stored_rows gives them, and only the columns that are asked
for are decoded. Numbers, text and times are copied in C (kernel/columns.pyx); other serdes read each key or value.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernel.columns import bytes_column, number_column, take_rows
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.errors import SerializationError, StateStoreTypeError
from penstock.topology.serdes.serdes import PlainSerde, Serde
from penstock.topology.stores.timer import DUE_BYTES

from ..rows.bytes_store import Row
from ..stores.headers_format import HeadersFormat
from ..stores.state_store import LONG, Bounds, StateStore
from ..stores.values import TIMESTAMPED
from .column_types import (
    JSON,
    PLAIN,
    UTC_MS,
    declared_type,
    first_type,
    merged,
    object_fields,
    plain_value,
    type_of_values,
    without_nulls,
)

KEY, VALUE = "key", "value"
WINDOW_START, WINDOW_END, TIMESTAMP, VALID_TO = "window_start", "window_end", "timestamp", "valid_to"
#: The columns of a row besides its value; a field of the value with such a name is a column ``value_<name>``.
ROW_COLUMNS = (KEY, WINDOW_START, WINDOW_END, TIMESTAMP, VALID_TO)
#: The metadata of a column with the value itself, and not with a field of this name.
WHOLE = {b"whole": b"true"}
#: How many rows of each task show the types of values whose serde does not.
SAMPLE_ROWS = 1_000
#: How many rows are read for a batch, and how many bytes of keys and values end it earlier.
BATCH_ROWS, BATCH_BYTES = 32_768, 8 << 20
#: Times that SQL's timestamps can show; others, such as that of a row without a timestamp, are null.
_FIRST_MS, _LAST_MS = 0, 9_223_372_036_854_000
_KEY_VALUE = (StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE)
_WINDOWS = (StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW)
#: Bytes of a row key besides the record's: in front (the segment) and behind it.
_KEY_BYTES: Mapping[StoreKind, tuple[int, int]] = {**dict.fromkeys(_WINDOWS, (8, 12)), StoreKind.SESSION: (8, 16)}
#: Where a row has its times: in the key (0) or the value (1), and from which byte on.
_TIMES: Mapping[StoreKind, Mapping[str, tuple[int, int]]] = {
    **{kind: {WINDOW_START: (0, -12)} for kind in _WINDOWS},
    StoreKind.SESSION: {WINDOW_START: (0, -8), WINDOW_END: (0, -16)},
    StoreKind.VERSIONED_KEY_VALUE: {TIMESTAMP: (1, 0), VALID_TO: (1, 8)},
}


class StoreColumns:
    """The columns of a store. Its rows are those of StateStore.stored_rows."""

    def __init__(self, store: StateStore) -> None:
        builder: StoreBuilder = store.builder
        self._builder = builder
        self._serdes = store.serdes
        self._key_bytes = _KEY_BYTES.get(builder.kind, (0, 0))
        self._times = dict(_TIMES.get(builder.kind, {}))
        front = DUE_BYTES if builder.is_dated else 0
        self._headers = HeadersFormat(builder.kind in TIMESTAMPED) if builder.keeps_headers else None
        if builder.kind in TIMESTAMPED and not builder.plain_values:
            self._times[TIMESTAMP] = (1, front)
            front += LONG.size
        elif builder.kind is StoreKind.VERSIONED_KEY_VALUE:
            front = 2 * LONG.size
        self._value_front = front

    # -- types

    def schema(self, store: StateStore) -> pa.Schema:
        """Return the columns and their types. store: whose first rows show the types that no serde declares."""
        key, value = declared_type(self._serdes.key_serde), declared_type(self._serdes.value_serde)
        if key is None or value is None:
            sample = self._plain(list(islice(store.stored_rows(Bounds()), SAMPLE_ROWS)))
            key = type_of_values(self._decoded_keys(sample)) if key is None else key
            first = first_type(self._serdes.value_serde)
            value = type_of_values(self._decoded_values(sample), first) if value is None else value
        return self._schema(key, value)

    def _schema(self, key: pa.DataType, value: pa.DataType) -> pa.Schema:
        windows = [name for name in (WINDOW_START, WINDOW_END) if self._builder.windowed]
        times = [name for name in (TIMESTAMP, VALID_TO) if name in self._times]
        return pa.schema(
            [
                pa.field(KEY, key),
                *(pa.field(name, UTC_MS) for name in windows),
                *value_fields(value),
                *(pa.field(name, UTC_MS) for name in times),
            ]
        )

    @property
    def key_order(self) -> str:
        """How keys are ordered: "string" or "integer" as SQL orders them, "" if differently."""
        serde = self._serdes.key_serde
        name = serde.name if isinstance(serde, PlainSerde) else ""
        return {"string": "string", "int16": "integer", "int32": "integer", "int64": "integer"}.get(name, "")

    # -- rows

    def batches(self, rows: Iterator[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield batches with some of the columns. Raises StateStoreTypeError for a row that does not fit a type."""
        while block := take_rows(rows, BATCH_ROWS, BATCH_BYTES):
            yield self._batch(block, schema)

    def _batch(self, rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
        rows = self._plain(rows)
        values = _Values(self, rows)
        try:
            arrays = [self._column(field, rows, values) for field in schema]
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise StateStoreTypeError(
                f"a row of the store {self._builder.name} does not fit the type of its column ({error}): give the "
                "columns with schemas="
            ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else _empty(len(rows))

    def _plain(self, rows: list[Row]) -> list[Row]:
        """Return rows without headers."""
        if self._headers is None:
            return rows
        split, front = self._headers.split, self._value_front
        if not front:
            return [(key, split(row)[0]) for key, row in rows]
        return [(key, LONG.pack(stamp) + data) for key, row in rows for data, stamp, _ in [split(row)]]

    def _column(self, field: pa.Field, rows: list[Row], values: _Values) -> pa.Array:
        name = field.name
        if name == KEY:
            fast = _bulk(self._serdes.key_serde, rows, 0, *self._key_bytes)
            return fast if fast is not None else column(self._decoded_keys(rows), field.type)
        if name in self._times:
            return self._time(rows, *self._times[name])
        if name == WINDOW_END and self._builder.windowed:
            return self._window_ends(rows)
        return values.column(field)

    def _time(self, rows: list[Row], item: int, at: int) -> pa.Array:
        return _as_times(_numbers(pa.int64(), rows, item, at, LONG.size))

    def _window_ends(self, rows: list[Row]) -> pa.Array:
        starts = _numbers(pa.int64(), rows, *self._times[WINDOW_START], LONG.size)
        end_of, size = self._builder.window_end, self._builder.window_size_ms or 0
        if end_of is None:
            return _as_times(pc.add(starts, _scalar(size, pa.int64())))
        return _as_times(pa.array([end_of(start) for start in starts.to_pylist()], pa.int64()))

    def bulk_values(self, rows: list[Row]) -> pa.Array | None:
        """Return the values of rows, without reading each one; None if the serde has no such values."""
        return _bulk(self._serdes.value_serde, rows, 1, self._value_front, 0)

    def _decoded_keys(self, rows: list[Row]) -> list[object]:
        (front, back), decode = self._key_bytes, self._serdes.decode_key
        return [plain_value(decode(key[front : len(key) - back])) for key, _ in rows]

    def decoded(self, rows: list[Row]) -> list[Any]:
        """Return the values of rows, as readers get them."""
        front, decode, results = self._value_front, self._serdes.decode_value, self._serdes.value_serde.results
        values = [decode(row[front:]) for _, row in rows]
        return values if results is None else [None if value is None else results(value) for value in values]

    def _decoded_values(self, rows: list[Row]) -> list[object]:
        return [plain_value(value) for value in self.decoded(rows)]


@dataclass
class _Values:
    """The values of a batch, read when the first of their columns is needed."""

    columns: StoreColumns
    rows: list[Row]
    _read: list[object] | None = None

    def column(self, field: pa.Field) -> pa.Array:
        """Return a field of the values, or the values themselves."""
        fast = self.columns.bulk_values(self.rows) if field.name == VALUE else None
        if fast is not None:
            return fast
        if self._read is None:
            self._read = self.columns.decoded(self.rows)
        is_whole = field.metadata is not None and WHOLE.items() <= field.metadata.items()
        return column(self._read if is_whole else _field_of(self._read, _field_name(field.name)), field.type)


def _field_of(values: list[Any], name: str) -> list[Any]:
    """Return a field of each value; that of a value without fields is itself, and null if it has others."""
    kinds = set(map(type, values))
    if kinds == {dict}:
        return [value.get(name) for value in values]
    if len(kinds) == 1 and (attribute := _attribute(kinds.pop(), name)) is not None:
        return list(map(attrgetter(attribute), values))
    return [None if value is None else _fields(value).get(name) for value in values]


def _attribute(kind: type, name: str) -> str | None:
    """Return the attribute of a class of msgspec with a field of this name in JSON."""
    names = getattr(kind, "__struct_encode_fields__", ())
    return kind.__struct_fields__[names.index(name)] if name in names else None  # type: ignore[attr-defined]


def _fields(value: object) -> Mapping[str, object]:
    fields = value if isinstance(value, Mapping) else object_fields(value)
    return {VALUE: value} if fields is None else fields


def value_fields(kind: pa.DataType) -> list[pa.Field]:
    """Return the columns of a value's type: its fields, or one of the value itself."""
    if not pa.types.is_struct(kind):
        return [pa.field(VALUE, kind, metadata=WHOLE)]
    return [pa.field(column_name(field.name), field.type) for field in kind]


def column_name(field: str) -> str:
    """Return the column of a value's field."""
    return f"{VALUE}_{field}" if field.lower() in ROW_COLUMNS else field


def _field_name(name: str) -> str:
    rest = name.removeprefix(f"{VALUE}_")
    return rest if rest.lower() in ROW_COLUMNS else name


def merged_schemas(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return the columns of several tasks' rows: a value that has no such field has null there."""
    fields: dict[str, pa.Field] = {}
    for field in (field for schema in schemas for field in schema):
        known = fields.get(field.name, field)
        fields[field.name] = pa.field(field.name, merged(known.type, field.type), metadata=known.metadata)
    last = (TIMESTAMP, VALID_TO)
    return pa.schema([*(fields[n] for n in fields if n not in last), *(fields[n] for n in last if n in fields)])


def table_schema(schemas: Iterable[pa.Schema], store: str) -> pa.Schema:
    """Return the columns of a store's table.

    Raises StateStoreTypeError for names that differ only in upper and lower case, which SQL cannot distinguish.
    """
    found = merged_schemas(schemas)
    has_fields = any(name not in (*ROW_COLUMNS, VALUE) for name in found.names)
    fields = [one for one in found if not (has_fields and one.name == VALUE and pa.types.is_null(one.type))]
    if len({field.name.lower() for field in fields}) < len(fields):
        names = ", ".join(sorted(field.name for field in fields))
        raise StateStoreTypeError(f"SQL cannot distinguish the fields of the store {store} by their names: {names}")
    return pa.schema([field.with_type(without_nulls(field.type)) for field in fields])


def chosen_columns(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    """Return some of the columns. Raises KeyError for a name that there is not."""
    return pa.schema([schema.field(name) for name in names])


def column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return an array of values; those of other types than Arrow's are converted."""
    if kind != JSON:
        with suppress(pa.ArrowException, TypeError):
            return pa.array(values, kind)
    fit, plain = _fitting(kind), map(plain_value, values)
    return pa.array(plain if fit is None else [None if value is None else fit(value) for value in plain], kind)


def _fitting(kind: pa.DataType) -> Callable[[Any], object] | None:
    """Return what makes a plain value one of a type; None if nothing has to be done."""
    if kind == JSON:
        return _json_text
    if pa.types.is_string(kind):
        return _text
    if pa.types.is_list(kind):
        inner = _fitting(kind.value_type)
        return None if inner is None else lambda value: [None if one is None else inner(one) for one in value]
    if pa.types.is_struct(kind):
        fits = {field.name: fit for field in kind if (fit := _fitting(field.type)) is not None}
        return (lambda value: _fit_fields(value, fits)) if fits else None
    return None


def _fit_fields(value: Mapping[str, object], fits: Mapping[str, Callable[[Any], object]]) -> dict[str, object]:
    return {name: field if field is None or name not in fits else fits[name](field) for name, field in value.items()}


def _text(value: object) -> str:
    return _json_text(value) if isinstance(value, dict | list | bool) else str(value)


def _json_text(value: object) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def _bulk(serde: Serde, rows: list[Row], item: int, front: int, back: int) -> pa.Array | None:
    kind = PLAIN.get(serde.name) if isinstance(serde, PlainSerde) else None
    if kind is None:
        return None
    if kind == pa.string() or kind == pa.binary():
        offsets, data = bytes_column(rows, item, front, back)
        found = pa.Array.from_buffers(kind, len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        if kind == pa.string():
            _check_text(found, serde)
        return found
    if kind == pa.bool_():
        return pc.not_equal(_numbers(pa.int8(), rows, item, front, 1), _scalar(0, pa.int8()))
    size = kind.bit_width // 8
    if back == 0:
        return _numbers(kind, rows, item, front, size, whole=True)
    return _numbers(kind, rows, item, -back - size, size)


def _check_text(found: pa.Array, serde: Serde) -> None:
    try:
        found.validate(full=True)
    except pa.ArrowInvalid as error:
        raise SerializationError(f"{serde!r} cannot read a row: {error}") from error


def _numbers(kind: pa.DataType, rows: list[Row], item: int, at: int, size: int, whole: bool = False) -> pa.Array:
    return pa.Array.from_buffers(kind, len(rows), [None, pa.py_buffer(number_column(rows, item, at, size, whole))])


def _as_times(numbers: pa.Array) -> pa.Array:
    """Return times of milliseconds; null where SQL has no such time."""
    low, high = (_scalar(limit, pa.int64()) for limit in (_FIRST_MS, _LAST_MS))
    shown = pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high))
    return pc.if_else(shown, numbers, pa.nulls(1, pa.int64())[0]).view(UTC_MS)


def _scalar(number: int, kind: pa.DataType) -> pa.Scalar:
    """Return a number as pa.scalar does, which imports pandas: 40 MB of each stream thread."""
    data = number.to_bytes(kind.bit_width // 8, sys.byteorder, signed=True)
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(data)])[0]


def _empty(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))
