"""A table in a SQLite file: a sink that needs no server, to try things out and for a single process."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from penstock.topology.context.sink_interfaces import (
    SinkContext,
    SinkOffset,
    SinkRecord,
    SinkUnavailableError,
    SinkWriter,
    StoredSinkOffset,
)
from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition

from .columns import ColumnType, as_json
from .table_sink import Change, Convert, Mode, TableShape, TableSink, TableWriter, last_changes, quoted

#: How long a writer waits for another one's transaction, in seconds; then the task tries again.
_LOCK_SECONDS = 5.0

_OFFSETS = """
    CREATE TABLE IF NOT EXISTS penstock_offsets (
        application TEXT NOT NULL, sink TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
        topic_id TEXT NOT NULL, next_offset INTEGER, generation INTEGER NOT NULL, updated_at TEXT NOT NULL,
        PRIMARY KEY (application, sink, topic, partition)
    )"""
_ROW = "application = ? AND sink = ? AND topic = ? AND partition = ?"

_TYPES: Mapping[ColumnType, str] = {
    ColumnType.BOOLEAN: "INTEGER",
    ColumnType.INTEGER: "INTEGER",
    ColumnType.FLOAT: "REAL",
    ColumnType.BYTES: "BLOB",
}


def _utc_text(value: datetime.datetime) -> str:
    """Return a time as text that sorts by time; one without a zone is UTC's."""
    zoned = value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)
    return zoned.isoformat(sep=" ", timespec="microseconds")


_CONVERT: Mapping[ColumnType, Convert] = {
    ColumnType.BOOLEAN: int,
    ColumnType.DECIMAL: str,
    ColumnType.TIMESTAMP: _utc_text,
    ColumnType.DATE: datetime.date.isoformat,
    ColumnType.TIME: datetime.time.isoformat,
    ColumnType.UUID: str,
    ColumnType.JSON: as_json,
}

#: Primary result codes after which another attempt may succeed: busy, locked, I/O error, full, no access to the file.
_AGAIN = (5, 6, 10, 13, 14)
#: What SQLite raises for a row: constraints, and values that it cannot hold.
_REFUSALS = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, OverflowError, UnicodeEncodeError)


class SqliteSink(TableSink):
    """A table in a SQLite file, which is created if there is none. path: of the file. The rest: see TableSink.

    Only one process writes at a time: with several tasks others wait. On another file system than a local one SQLite's
    locks may not work.
    """

    def __init__(
        self,
        path: str | Path,
        table: str,
        mode: Mode = "append",
        *,
        key: str | None = None,
        columns: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(table, mode, key=key, columns=columns)
        self.path = str(path)

    def __str__(self) -> str:
        return f"table {self.table} in SQLite file {self.path}"

    @override
    def open(self, context: SinkContext) -> SinkWriter:
        return SqliteWriter(self, context, self.shape(context))

    @override
    def stored(self, application_id: str) -> Sequence[StoredSinkOffset]:
        with self.transaction() as connection:
            connection.execute(_OFFSETS)
            found = connection.execute(
                "SELECT sink, topic, partition, next_offset FROM penstock_offsets"
                " WHERE application = ? AND next_offset IS NOT NULL ORDER BY sink, topic, partition",
                [application_id],
            )
            return [StoredSinkOffset(sink, TopicPartition(*partition), at) for sink, *partition, at in found]

    @override
    def forget(self, application_id: str) -> None:
        with self.transaction() as connection:
            connection.execute(_OFFSETS)
            connection.execute("DELETE FROM penstock_offsets WHERE application = ?", [application_id])

    def connect(self) -> sqlite3.Connection:
        """Return a connection without implicit transactions; raises SinkUnavailableError."""
        try:
            connection = sqlite3.connect(self.path, timeout=_LOCK_SECONDS, isolation_level=None)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            raise _translated(error, self) from error
        return connection

    @contextmanager
    def transaction(self, connection: sqlite3.Connection | None = None) -> Iterator[sqlite3.Connection]:
        """Run statements in a transaction; by default of a new connection. Raises SinkUnavailableError."""
        used = connection or self.connect()
        try:
            used.execute("BEGIN IMMEDIATE")
            try:
                yield used
                used.execute("COMMIT")
            finally:
                if used.in_transaction:
                    used.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise _translated(error, self) from error
        finally:
            if connection is None:
                used.close()


def _translated(error: sqlite3.Error, sink: SqliteSink) -> StreamsError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    kind = SinkUnavailableError if code in _AGAIN else StreamsError
    return kind(f"{sink}: {_text(error)}")


def _text(error: Exception) -> str:
    return f"{error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})"


class SqliteWriter(TableWriter[SqliteSink]):
    """Writes the rows of one task, with one connection."""

    def __init__(self, sink: SqliteSink, context: SinkContext, shape: TableShape) -> None:
        super().__init__(sink, context, shape, _CONVERT)
        self._connection = sink.connect()
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        """Create the tables, or check that the table has the columns."""
        with self._transaction() as connection:
            connection.execute(_OFFSETS)
            found = [row[1] for row in connection.execute(f"PRAGMA table_info({quoted(self._sink.table)})")]
            if not found:
                connection.execute(self._create_table())
                return
        missing = [name for name in self._shape.names if name not in found]
        if missing:
            raise StreamsError(
                f"{self._sink} has no column {', '.join(missing)}; its columns are {', '.join(found)}. Add it with "
                "ALTER TABLE, or give the sink its columns"
            )

    def _create_table(self) -> str:
        columns = [
            f"{quoted(column.name)} {_TYPES.get(column.type, 'TEXT')}{'' if column.nullable else ' NOT NULL'}"
            for column in self._shape.columns
        ]
        if self._sink.mode == "upsert":
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted, self._shape.key_names))})")
        return f"CREATE TABLE {quoted(self._sink.table)} ({', '.join(columns)})"

    @override
    def fence(self, topic_ids: Mapping[TopicPartition, str]) -> Mapping[TopicPartition, SinkOffset]:
        found: dict[TopicPartition, SinkOffset] = {}
        self._topic_ids = dict(topic_ids)
        with self._transaction() as connection:
            for partition in sorted(topic_ids):
                connection.execute(
                    "INSERT INTO penstock_offsets VALUES (?, ?, ?, ?, '', NULL, 1, datetime('now'))"
                    " ON CONFLICT DO UPDATE SET generation = generation + 1",
                    [*self._of, *partition],
                )
                offset, topic_id, generation = connection.execute(
                    f"SELECT next_offset, topic_id, generation FROM penstock_offsets WHERE {_ROW}",
                    [*self._of, *partition],
                ).fetchone()
                self._generations[partition] = generation
                self._stored[partition] = offset
                if offset is not None:
                    found[partition] = SinkOffset(offset, topic_id)
        return found

    @override
    def write(self, records: Sequence[SinkRecord], offsets: Mapping[TopicPartition, int]) -> None:
        changes = self._rows.changes(records)
        with self._transaction() as connection:
            for partition, offset in offsets.items():
                self._store_offset(connection, partition, offset)
            self._apply(connection, changes)
        self._stored |= offsets

    def _store_offset(self, connection: sqlite3.Connection, partition: TopicPartition, offset: int) -> None:
        updated = connection.execute(
            "UPDATE penstock_offsets SET next_offset = ?, topic_id = coalesce(nullif(?, ''), topic_id),"
            f" updated_at = datetime('now') WHERE {_ROW} AND generation = ? AND next_offset IS ?",
            [
                *(offset, self._topic_ids.get(partition, ""), *self._of, *partition),
                *(self._generations.get(partition), self._stored.get(partition)),
            ],
        )
        if updated.rowcount != 1:
            raise self._fenced(partition)

    def _apply(self, connection: sqlite3.Connection, changes: Sequence[Change]) -> None:
        try:
            connection.execute("SAVEPOINT rows")
            self._execute(connection, changes)
        except _REFUSALS:
            connection.execute("ROLLBACK TO rows")
            raise self._refused_by(partial(self._execute, connection), changes, _REFUSALS, _text) from None

    def _execute(self, connection: sqlite3.Connection, changes: Sequence[Change]) -> None:
        shape, table = self._shape, quoted(self._sink.table)
        rows: list[tuple[object, ...]]
        insert = f"INSERT INTO {table} ({_list(shape.names)}) VALUES ({', '.join('?' * len(shape.names))})"
        if self._sink.mode == "append":
            connection.executemany(insert, [change.row for change in changes if change.row is not None])
            return
        last = last_changes(changes)
        where = " AND ".join(f"{quoted(name)} = ?" for name in shape.key_names)
        connection.executemany(f"DELETE FROM {table} WHERE {where}", [key for key, row in last.items() if row is None])
        rows = [row for row in last.values() if row is not None]
        updated = ", ".join(f"{quoted(c.name)} = excluded.{quoted(c.name)}" for c in shape.value_columns)
        does = f"UPDATE SET {updated}" if updated else "NOTHING"
        connection.executemany(f"{insert} ON CONFLICT ({_list(shape.key_names)}) DO {does}", rows)

    @override
    def offsets(self) -> Mapping[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        with self._transaction() as connection:
            for partition, generation in self._generations.items():
                row: Any = connection.execute(
                    f"SELECT next_offset FROM penstock_offsets WHERE {_ROW} AND generation = ?",
                    [*self._of, *partition, generation],
                ).fetchone()
                if row is None:
                    raise self._fenced(partition)
                self._stored[partition] = row[0]
                if row[0] is not None:
                    found[partition] = row[0]
        return found

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._sink.transaction(self._connection) as connection:
            yield connection

    @override
    def close(self) -> None:
        self._connection.close()


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))
