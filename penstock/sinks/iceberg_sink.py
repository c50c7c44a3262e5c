"""A table in Apache Iceberg, by PyIceberg.

Each snapshot that a sink makes has in its summary the offsets of all tasks that write to the table. A commit is
conditional: it replaces the snapshot whose offsets its writer has read, or fails. So rows and offsets are stored
together, and a writer that was replaced cannot commit.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import orjson
from typing_extensions import override

from penstock.topology.context.sink_interfaces import (
    SinkContext,
    SinkOffset,
    SinkRecord,
    SinkUnavailableError,
    SinkWriter,
    StoredSinkOffset,
)
from penstock.topology.errors import ConfigError, StreamsError, TopologyError
from penstock.topology.records import TopicPartition

from .columns import ColumnType, as_json
from .table_sink import Change, Convert, TableShape, TableSink, TableWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

#: In the summaries of snapshots: application id -> name of the sink -> topic -> partition -> Entry, as JSON.
OFFSETS = "penstock-offsets"
#: A property of tables that have such snapshots.
MARK = "penstock-sink"
#: PyIceberg would repeat a commit that another one has overtaken, on top of that one.
_ONCE = {"commit.retry.num-retries": "0"}
#: How often a commit is tried while those of other tasks come first; then the task tries again later.
_COMMITS_MAX = 20

#: Of a partition: the next offset or None, the id of the topic, the number of its writer.
Entry = tuple[int | None, str, int]
_Offsets = dict[str, dict[str, dict[str, dict[str, Entry]]]]


def _utc(value: datetime.datetime) -> datetime.datetime:
    """Return a time in UTC; one without a zone is UTC's."""
    return value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)


_CONVERT: Mapping[ColumnType, Convert] = {
    ColumnType.DECIMAL: str,
    ColumnType.TIMESTAMP: _utc,
    ColumnType.UUID: str,
    ColumnType.JSON: as_json,
}


class IcebergSink(TableSink):
    """A table in Apache Iceberg; records are appended. key, columns: see TableSink.

    catalog: the name of one that PyIceberg knows from ``.pyiceberg.yaml`` or the environment. table: with its
    namespace, e.g. "shop.orders"; both are created if they do not exist. properties: of the catalog, beside those that
    PyIceberg knows. Each transaction makes a file for each partition of the table, so give ``to_sink()`` a ``max_wait``
    of a minute or so.

    Raises TopologyError for a wrong argument, ConfigError without PyIceberg (``pip install
    "penstock-streams[iceberg]"``).
    """

    def __init__(
        self,
        catalog: str,
        table: str,
        *,
        key: str | None = None,
        columns: Mapping[str, object] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(table, key=key, columns=columns)
        if "." not in table:
            raise TopologyError(f'The table of an IcebergSink has a namespace, as "shop.orders" has; got {table!r}')
        try:
            import pyiceberg  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f'IcebergSink needs PyIceberg: pip install "penstock-streams[iceberg]" ({error})'
            ) from error
        self.catalog = catalog
        self.properties = dict(properties or {})

    def __str__(self) -> str:
        return f"Iceberg table {self.table} of catalog {self.catalog}"

    def __repr__(self) -> str:
        return f"IcebergSink({self})"

    @override
    def open(self, context: SinkContext) -> SinkWriter:
        return IcebergWriter(self, context, self.shape(context))

    @override
    def stored(self, application_id: str) -> Sequence[StoredSinkOffset]:
        with self.load_catalog() as catalog:
            table = self.load(catalog)
            found = {} if table is None else _offsets_of(table, self).get(application_id, {})
        return [
            StoredSinkOffset(sink, TopicPartition(topic, int(partition)), offset)
            for sink, topics in sorted(found.items())
            for topic, partitions in sorted(topics.items())
            for partition, (offset, _, _) in sorted(partitions.items(), key=lambda pair: int(pair[0]))
            if offset is not None
        ]

    @override
    def forget(self, application_id: str) -> None:
        def without(offsets: _Offsets) -> None:
            offsets.pop(application_id, None)

        with self.load_catalog() as catalog:
            table = self.load(catalog)
            if table is not None and application_id in _offsets_of(table, self):
                self.commit(without, None, catalog)

    def load_catalog(self) -> Catalog:
        """Return the catalog, which the caller closes; raises SinkUnavailableError, StreamsError if it is not known."""
        from pyiceberg.catalog import load_catalog

        with self.translated():
            return load_catalog(self.catalog, **self.properties)

    def load(self, catalog: Catalog) -> Table | None:
        """Return the table as it is now, None if it does not exist; raises SinkUnavailableError."""
        from pyiceberg.exceptions import NoSuchTableError

        with self.translated():
            try:
                table = catalog.load_table(self.table)
            except NoSuchTableError:
                return None
            return _without_retries(table)

    def commit(self, change: Callable[[_Offsets], None], rows: pa.Table | None, catalog: Catalog) -> None:
        """Commit rows together with changed offsets. change(offsets): changes them, and is called for each attempt.

        Raises SinkUnavailableError; whether it has committed is then unknown.
        """
        from pyiceberg.exceptions import CommitFailedException

        for _ in range(_COMMITS_MAX):
            table = self.load(catalog)
            if table is None:
                raise StreamsError(f"{self} was dropped. Start the application again: it creates the table")
            offsets = _offsets_of(table, self)
            change(offsets)
            with self.translated():
                try:
                    with table.transaction() as transaction:
                        if MARK not in table.properties:
                            transaction.set_properties({MARK: "penstock"})
                        added = table.schema().as_arrow().empty_table() if rows is None else rows
                        transaction.append(added, {OFFSETS: orjson.dumps(offsets).decode()})
                except CommitFailedException:
                    continue  # another task has committed
                return
        raise SinkUnavailableError(f"{self}: other writers have overtaken {_COMMITS_MAX} attempts to commit")

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise PyIceberg's errors as those of a sink, but not those about conflicts and missing tables."""
        from pyiceberg.exceptions import (
            CommitFailedException,
            ForbiddenError,
            NoSuchTableError,
            UnauthorizedError,
            ValidationError,
        )

        try:
            yield
        except (CommitFailedException, NoSuchTableError, StreamsError):
            raise
        except (ForbiddenError, UnauthorizedError, ValidationError, ValueError, TypeError) as error:
            raise StreamsError(f"{self}: {_text(error)}") from error
        except Exception as error:  # of the catalog's client, or of the storage's: many libraries
            raise SinkUnavailableError(f"{self}: {_text(error)}") from error


def _without_retries(table: Table) -> Table:
    properties = {**table.metadata.properties, **_ONCE}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    return table


def _offsets_of(table: Table, sink: IcebergSink) -> _Offsets:
    """Return the offsets in the newest snapshot that has some; snapshots of other writers may follow it."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        if snapshot.summary is not None and (found := snapshot.summary.additional_properties.get(OFFSETS)) is not None:
            offsets: _Offsets = orjson.loads(found)
            return offsets
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    if MARK in table.properties:
        raise StreamsError(
            f"No snapshot of {sink} has offsets any more: those after the last commit of this application were "
            "expired, or the table was rolled back beyond it. Which records it has is not known. Remove the table's "
            f"property {MARK} to write all records of the input again"
        )
    return {}


class IcebergWriter(TableWriter[IcebergSink]):
    """Writes the rows of one task."""

    def __init__(self, sink: IcebergSink, context: SinkContext, shape: TableShape) -> None:
        super().__init__(sink, context, shape, _CONVERT)
        self._is_unknown = False  # whether the last commit failed, but may still be made
        self._catalog = sink.load_catalog()
        try:
            self._schema = self._prepare()
        except BaseException:
            self._catalog.close()
            raise

    def _prepare(self) -> pa.Schema:
        """Create the table, or check that it has the columns; return their schema."""
        import pyarrow as pa

        sink = self._sink
        wanted = pa.schema(
            [pa.field(column.name, _arrow_type(column.type), column.nullable) for column in self._shape.columns]
        )
        table = sink.load(self._catalog)
        if table is None:
            namespace = sink.table.rpartition(".")[0]
            with sink.translated():
                self._catalog.create_namespace_if_not_exists(namespace)
                table = self._catalog.create_table_if_not_exists(sink.table, wanted)
        there = table.schema().as_arrow()
        problems = [problem for field in wanted for problem in _problems(field, there)]
        problems += [
            f"column {field.name} must not be null, and no record has a value for it"
            for field in there
            if not field.nullable and field.name not in wanted.names
        ]
        if problems:
            raise StreamsError(
                f"{sink} does not fit: {'; '.join(problems)}. Change its schema, or give the sink its columns"
            )
        return wanted

    @override
    def fence(self, topic_ids: Mapping[TopicPartition, str]) -> Mapping[TopicPartition, SinkOffset]:
        self._topic_ids = dict(topic_ids)

        def replace_writers(offsets: _Offsets) -> None:
            found.clear()  # of an attempt that another commit has overtaken
            for partition in topic_ids:
                offset, topic_id, generation = self._entry(offsets, partition)
                self._stored[partition], self._generations[partition] = offset, generation + 1
                self._set(offsets, partition, (offset, topic_id, generation + 1))
                if offset is not None:
                    found[partition] = SinkOffset(offset, topic_id)

        found: dict[TopicPartition, SinkOffset] = {}
        self._sink.commit(replace_writers, None, self._catalog)
        self._is_unknown = False
        return found

    @override
    def write(self, records: Sequence[SinkRecord], offsets: Mapping[TopicPartition, int]) -> None:
        rows = self._table(self._rows.changes(records))

        def advance(stored: _Offsets) -> None:
            for partition, offset in offsets.items():
                before, topic_id, generation = self._entry(stored, partition)
                if generation != self._generations.get(partition) or before != self._stored.get(partition):
                    raise self._fenced(partition)
                self._set(stored, partition, (offset, self._topic_ids.get(partition) or topic_id, generation))

        self._is_unknown = True
        self._sink.commit(advance, rows, self._catalog)
        self._is_unknown = False
        self._stored |= offsets

    @override
    def offsets(self) -> Mapping[TopicPartition, int]:
        def check(stored: _Offsets) -> None:
            for partition, generation in self._generations.items():
                entry = self._entry(stored, partition)
                if entry[2] != generation:
                    raise self._fenced(partition)
                self._stored[partition] = entry[0]

        if self._is_unknown:  # after a commit of another snapshot, the last one cannot be made any more
            self._sink.commit(check, None, self._catalog)
            self._is_unknown = False
        else:
            table = self._sink.load(self._catalog)
            check({} if table is None else _offsets_of(table, self._sink))
        return {partition: offset for partition, offset in self._stored.items() if offset is not None}

    @override
    def close(self) -> None:
        self._catalog.close()

    def _entry(self, offsets: _Offsets, partition: TopicPartition) -> Entry:
        application, sink = self._of
        found = offsets.get(application, {}).get(sink, {}).get(partition.topic, {}).get(str(partition.partition))
        return (None, "", 0) if found is None else found

    def _set(self, offsets: _Offsets, partition: TopicPartition, entry: Entry) -> None:
        application, sink = self._of
        topics = offsets.setdefault(application, {}).setdefault(sink, {})
        topics.setdefault(partition.topic, {})[str(partition.partition)] = entry

    def _table(self, changes: Sequence[Change]) -> pa.Table | None:
        """Return rows as Arrow, None if there are none; raises RefusedRowsError."""
        import pyarrow as pa

        if not changes:
            return None
        refusals = pa.ArrowException, *_REFUSALS
        try:
            return self._arrow(changes)
        except refusals:
            raise self._refused_by(self._arrow, changes, refusals, _text) from None

    def _arrow(self, changes: Iterable[Change]) -> pa.Table:
        import pyarrow as pa

        columns = zip(*(change.row for change in changes if change.row is not None), strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        table = pa.table(arrays, self._schema)
        for field, array in zip(self._schema, arrays, strict=True):
            if not field.nullable and array.null_count:
                raise ValueError(f"column {field.name} must not be null")
        return table


#: What Arrow raises for a value that a column cannot have, beside its own exceptions.
_REFUSALS = (OverflowError, ValueError, TypeError)


def _arrow_type(kind: ColumnType) -> pa.DataType:
    """Return the type of a column in Arrow, of which PyIceberg makes that of the table."""
    import pyarrow as pa

    types = {
        ColumnType.BOOLEAN: pa.bool_(),
        ColumnType.INTEGER: pa.int64(),
        ColumnType.FLOAT: pa.float64(),
        ColumnType.BYTES: pa.binary(),
        ColumnType.TIMESTAMP: pa.timestamp("us", "UTC"),
        ColumnType.DATE: pa.date32(),
        ColumnType.TIME: pa.time64("us"),
    }
    return types.get(kind, pa.string())


def _problems(wanted: pa.Field, there: pa.Schema) -> Iterator[str]:
    if wanted.name not in there.names:
        yield f"it has no column {wanted.name} ({wanted.type})"
        return
    found = there.field(wanted.name)
    if _plain(found.type) != wanted.type:
        yield f"column {wanted.name} has type {found.type}, and the records have {wanted.type}"
    elif wanted.nullable and not found.nullable:
        yield f"column {wanted.name} must not be null, and records may have none"


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type without the difference between large and other strings, which Iceberg does not have."""
    import pyarrow as pa

    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def _text(error: BaseException) -> str:
    return f"{' '.join(str(error).split())} ({type(error).__name__})"
