"""What the sinks of SQL databases have in common: a table, and how records become its rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from typing_extensions import override

from penstock.topology.context.sink_interfaces import (
    RefusedRowError,
    RefusedRowsError,
    Sink,
    SinkContext,
    SinkFencedError,
    SinkRecord,
    SinkWriter,
)
from penstock.topology.errors import StreamsError, TopologyError
from penstock.topology.records import TopicPartition

from .columns import Column, ColumnType, columns_named, columns_of, plain

Mode = Literal["append", "upsert"]
S = TypeVar("S", bound="TableSink")

#: Makes a column's value into what a driver takes.
Convert = Callable[[Any], object]


class Change(NamedTuple):
    """What a record does: it adds a row, or, in mode upsert with row None, deletes the row of a key."""

    key: tuple[object, ...]
    row: tuple[object, ...] | None


@dataclass(frozen=True, slots=True)
class TableShape:
    """The columns of a table: those of the record's key, then those of its value."""

    key_columns: Sequence[Column]
    value_columns: Sequence[Column]

    @property
    def columns(self) -> list[Column]:
        """All columns."""
        return [*self.key_columns, *self.value_columns]

    @property
    def key_names(self) -> list[str]:
        """The names of the columns of the key."""
        return [column.name for column in self.key_columns]

    @property
    def names(self) -> list[str]:
        """The names of all columns."""
        return [column.name for column in self.columns]


class TableSink(Sink):
    """A sink that is a table.

    table: its name, with its schema if needed. It is created if there is none, and otherwise checked; it is never
    altered. mode: "append" adds a row for each record; "upsert" keeps one row for each key, and deletes it if the value
    is None.

    key: the column of the record's key, by default "key" in mode upsert and no column in mode append. A key with fields
    has a column for each of them. columns: the columns of the value, by name and Python type, e.g.
    ``{"id": int, "item": str | None}``; by default one for each field of the type of the value's serde, or a column
    "value".

    Raises TopologyError for a wrong argument.
    """

    def __init__(
        self,
        table: str,
        mode: Mode = "append",
        *,
        key: str | None = None,
        columns: Mapping[str, object] | None = None,
    ) -> None:
        if not isinstance(table, str) or not all(table.split(".")):
            raise TopologyError(f"The table of a sink must be a name, got {table!r}")
        if mode not in ("append", "upsert"):
            raise TopologyError(f'mode must be "append" or "upsert", got {mode!r}')
        columns_named(columns or {})  # raises
        self.table = table
        self.mode = mode
        self.key = key if key is not None or mode == "append" else "key"
        self.columns = None if columns is None else dict(columns)

    @abstractmethod
    @override
    def open(self, context: SinkContext) -> SinkWriter: ...

    def shape(self, context: SinkContext) -> TableShape:
        """Return the columns; raises StreamsError if they are not known."""
        keys = [] if self.key is None else columns_of(context.key_serde, self.key)
        if keys is None:
            raise StreamsError(
                f"Sink {context.name}: the type of the keys is not known, so neither is that of column {self.key}. "
                "Give to_sink() a key_serde such as Serdes.string()"
            )
        values = columns_of(context.value_serde, "value") if self.columns is None else columns_named(self.columns)
        if values is None:
            raise StreamsError(
                f"Sink {context.name}: the type of the values is not known, so neither are the columns of "
                f"{self.table}. Give to_sink() a value_serde with a type, such as Serdes.json(Order), or give "
                "the sink its columns"
            )
        if self.mode == "append":  # records may have no key
            keys = [replace(column, nullable=True) for column in keys]
        names = {column.name for column in keys}
        return TableShape(keys, [column for column in values if column.name not in names])


class Rows:
    """Makes records into changes of a table. convert: by the type of a column, for values other than None."""

    def __init__(self, sink: TableSink, shape: TableShape, convert: Mapping[ColumnType, Convert]) -> None:
        self._appends = sink.mode == "append"
        self._key_fields = _fields(shape.key_columns, convert)
        self._value_fields = _fields(shape.value_columns, convert)

    def changes(self, records: Iterable[SinkRecord]) -> list[Change]:
        """Return a change for each record; raises RefusedRowsError for those that are no rows."""
        changes: list[Change] = []
        refused: dict[int, RefusedRowError] = {}
        for index, record in enumerate(records):
            try:
                changes.append(self._change(record))
            except Exception as error:  # noqa: BLE001  of the record's types, e.g. a missing attribute
                refused[index] = RefusedRowError(f"the record is no row of the table: {type(error).__name__}: {error}")
        if refused:
            raise RefusedRowsError(refused)
        return changes

    def _change(self, record: SinkRecord) -> Change:
        key = _values(self._key_fields, record.key)
        if record.value is not None:
            return Change(key, key + _values(self._value_fields, record.value))
        if self._appends:
            raise ValueError("its value is null, and mode append adds rows only")
        return Change(key, None)


class TableWriter(SinkWriter, Generic[S]):
    """Writes the rows of one task. Of the table of offsets it reads and writes only its own rows."""

    def __init__(self, sink: S, context: SinkContext, shape: TableShape, convert: Mapping[ColumnType, Convert]) -> None:
        self._sink = sink
        self._of = context.application_id, context.name
        self._shape = shape
        self._rows = Rows(sink, shape, convert)
        self._topic_ids: dict[TopicPartition, str] = {}
        self._generations: dict[TopicPartition, int] = {}
        self._stored: dict[TopicPartition, int | None] = {}

    def _fenced(self, partition: TopicPartition) -> SinkFencedError:
        return SinkFencedError(f"another writer has replaced this one for {partition} in {self._sink}")

    def _refused_by(
        self,
        attempt: Callable[[Sequence[Change]], object],
        changes: Sequence[Change],
        errors: tuple[type[Exception], ...],
        text: Callable[[Exception], str],
    ) -> RefusedRowsError:
        """Return the error that names the refused changes, by trying each. errors: that attempt raises for them."""
        refused: dict[int, RefusedRowError] = {}
        for index, change in enumerate(changes):
            try:
                attempt([change])
            except errors as error:
                refused[index] = RefusedRowError(f"{self._sink} refused the row: {text(error)}")
        return RefusedRowsError(refused)


def quoted(name: str) -> str:
    """Return a name as an identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


def last_changes(changes: Iterable[Change]) -> dict[tuple[object, ...], tuple[object, ...] | None]:
    """Return the last row of each key, None if it is deleted."""
    last: dict[tuple[object, ...], tuple[object, ...] | None] = {}
    for key, row in changes:
        last[key] = row
    return last


_Fields = Sequence[tuple[Callable[[Any], Any], Convert]]


def _fields(columns: Sequence[Column], convert: Mapping[ColumnType, Convert]) -> _Fields:
    return [(column.get, convert.get(column.type, plain)) for column in columns]


def _values(fields: _Fields, source: object) -> tuple[object, ...]:
    return tuple([None if (found := get(source)) is None else convert(found) for get, convert in fields])
