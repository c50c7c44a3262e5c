"""A table in PostgreSQL, by psycopg 3."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

from typing_extensions import override

from penstock.topology.context.sink_interfaces import (
    RefusedRowError,
    RefusedRowsError,
    SinkContext,
    SinkFencedError,
    SinkOffset,
    SinkRecord,
    SinkUnavailableError,
    SinkWriter,
    StoredSinkOffset,
)
from penstock.topology.errors import ConfigError, StreamsError
from penstock.topology.records import TopicPartition

from .columns import ColumnType, as_json
from .table_sink import Change, Convert, Mode, TableShape, TableSink, TableWriter, last_changes, quoted

if TYPE_CHECKING:
    from psycopg import Connection, Cursor
    from psycopg.sql import Composed

#: libpq's settings unless the DSN has others. Seconds: a stream thread waits for a new connection. Milliseconds: for a
#: server that does not answer any more, at the level of TCP.
_CONNECTION = {"connect_timeout": "10", "tcp_user_timeout": "30000", "keepalives_idle": "10"}
#: How long a statement waits for another writer's lock; then the task tries again. A former owner holds it at most
#: until its session is ended, see PostgresWriter.fence.
_LOCK_TIMEOUT = "5s"
#: PostgreSQL names sessions with 63 bytes.
_NAME_BYTES = 63

_OFFSETS = """
    CREATE TABLE IF NOT EXISTS {} (
        application text NOT NULL, sink text NOT NULL, topic text NOT NULL, partition integer NOT NULL,
        topic_id text NOT NULL, next_offset bigint, generation bigint NOT NULL,
        updated_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (application, sink, topic, partition)
    )"""
#: The table that batches of upserts are copied into.
_BATCH = "CREATE TEMPORARY TABLE penstock_batch ON COMMIT DELETE ROWS AS SELECT {names} FROM {table} WITH NO DATA"
_ROW = "application = %s AND sink = %s AND topic = %s AND partition = %s"

#: By the type of a column: its name in CREATE TABLE, and the names of the types that an existing column may have.
_TYPES: Mapping[ColumnType, tuple[str, frozenset[str]]] = {
    ColumnType.BOOLEAN: ("boolean", frozenset({"bool"})),
    ColumnType.INTEGER: ("bigint", frozenset({"int2", "int4", "int8", "numeric"})),
    ColumnType.FLOAT: ("double precision", frozenset({"float4", "float8", "numeric"})),
    ColumnType.DECIMAL: ("numeric", frozenset({"numeric"})),
    ColumnType.TEXT: ("text", frozenset({"text", "varchar", "bpchar", "citext", "name"})),
    ColumnType.BYTES: ("bytea", frozenset({"bytea"})),
    ColumnType.TIMESTAMP: ("timestamp with time zone", frozenset({"timestamptz", "timestamp"})),
    ColumnType.DATE: ("date", frozenset({"date"})),
    ColumnType.TIME: ("time", frozenset({"time", "timetz"})),
    ColumnType.UUID: ("uuid", frozenset({"uuid"})),
    ColumnType.JSON: ("jsonb", frozenset({"jsonb", "json", "text"})),
}
_CONVERT: Mapping[ColumnType, Convert] = {ColumnType.JSON: as_json}

#: Classes of SQLSTATE that are about a row: data exceptions, constraints, a check option of a view, exceptions that a
#: trigger raises.
_REFUSED_CLASSES = ("22", "23", "44", "P0")
#: Exceptions of psycopg and Python for values that cannot be sent at all.
_UNSENDABLE = (ValueError, TypeError, OverflowError, UnicodeEncodeError)
#: Another attempt may succeed: the connection, the transaction (deadlock, serialization failure, idle for too long),
#: resources, a lock or statement timeout, an operator's intervention, the system, a server that only reads since a
#: failover.
_AGAIN = ("08", "40", "53", "55P03", "57", "58", "25006", "25P03", "25P04")


class PostgresSink(TableSink):
    """A table in PostgreSQL. The rest: see TableSink.

    dsn: libpq's connection string or URI, with all of its settings, such as sslmode, sslrootcert and several hosts with
    target_session_attrs. Missing settings come from the environment (PGHOST, PGUSER, PGPASSWORD, PGPASSFILE …).
    password_file: a file with the password, read at each connection, so that it may be renewed. Passwords appear in no
    log, error or description.

    Raises ConfigError for a DSN that libpq cannot read, and without psycopg (``pip install
    "penstock-streams[postgres]"``).
    """

    def __init__(
        self,
        dsn: str,
        table: str,
        mode: Mode = "append",
        *,
        key: str | None = None,
        columns: Mapping[str, object] | None = None,
        password_file: str | Path | None = None,
    ) -> None:
        super().__init__(table, mode, key=key, columns=columns)
        self.dsn = dsn
        self.password_file = None if password_file is None else str(password_file)
        self._settings()  # raises

    def __str__(self) -> str:
        return f"table {self.table} in PostgreSQL {self._place()}"

    def __repr__(self) -> str:
        return f"PostgresSink({self})"

    def _settings(self) -> dict[str, Any]:
        """Return libpq's settings from the DSN."""
        try:
            from psycopg import Error
            from psycopg.conninfo import conninfo_to_dict
        except ImportError as error:
            raise ConfigError(
                f'PostgresSink needs psycopg: pip install "penstock-streams[postgres]" ({error})'
            ) from error
        try:
            return conninfo_to_dict(self.dsn)
        except Error:  # its text may contain the password
            raise ConfigError(
                f"The DSN of the sink for table {self.table} is not one that libpq can read. It is like "
                "postgresql://user@host:5432/database?sslmode=verify-full, or host=… dbname=…"
            ) from None

    def _place(self) -> str:
        settings = self._settings()
        host, port, database = (settings.get(name) for name in ("host", "port", "dbname"))
        where = ":".join(filter(None, [host, port]))
        return "/".join(filter(None, [where, database])) or "of libpq's environment"

    @override
    def open(self, context: SinkContext) -> SinkWriter:
        return PostgresWriter(self, context, self.shape(context))

    @override
    def stored(self, application_id: str) -> Sequence[StoredSinkOffset]:
        with self.session() as connection, connection.transaction(), connection.cursor() as cursor:
            if not self.has_offsets(cursor):
                return []
            cursor.execute(
                self.statement(
                    "SELECT sink, topic, partition, next_offset FROM {offsets} WHERE application = %s"
                    " AND next_offset IS NOT NULL ORDER BY sink, topic, partition"
                ),
                [application_id],
            )
            return [StoredSinkOffset(sink, TopicPartition(*partition), at) for sink, *partition, at in cursor]

    @override
    def forget(self, application_id: str) -> None:
        with self.session() as connection, connection.transaction(), connection.cursor() as cursor:
            if self.has_offsets(cursor):
                cursor.execute(self.statement("DELETE FROM {offsets} WHERE application = %s"), [application_id])

    def has_offsets(self, cursor: Cursor) -> bool:
        """Return whether the table of offsets exists."""
        return self.exists(cursor, self._offsets_name())

    def exists(self, cursor: Cursor, name: Sequence[str]) -> bool:
        """Return whether a table exists. name: [schema, table], or [table]."""
        found = cursor.execute("SELECT to_regclass(%s)", [".".join(map(quoted, name))]).fetchone()
        return found is not None and found[0] is not None

    def _offsets_name(self) -> list[str]:
        return [*self.table.split(".")[:-1], "penstock_offsets"]

    def statement(self, text: str, **parts: Composed) -> Composed:
        """Return a statement. {offsets} and {table} are the names of these tables."""
        from psycopg.sql import SQL, Identifier

        names = {"offsets": Identifier(*self._offsets_name()), "table": Identifier(*self.table.split("."))}
        return SQL(text).format(**names, **parts)

    def connect(self, name: str) -> Connection:
        """Return a new connection in autocommit mode; name: of the session. Raises SinkUnavailableError."""
        import psycopg

        given: dict[str, Any] = {key: value for key, value in _CONNECTION.items() if key not in self._settings()}
        given |= {"application_name": name[:_NAME_BYTES]}
        if self.password_file is not None:
            given["password"] = self._password(Path(self.password_file))
        try:
            connection = psycopg.connect(self.dsn, autocommit=True, **given)
            try:
                connection.execute("SET TIME ZONE 'UTC'")
                connection.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}'")
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as error:
            raise SinkUnavailableError(f"no connection to {self}: {_text(error)}") from error
        return connection

    def _password(self, path: Path) -> str:
        try:
            return path.read_text().rstrip("\n")
        except OSError as error:
            raise SinkUnavailableError(f"the password of {self} cannot be read: {error}") from error

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """Connect for some statements; raises SinkUnavailableError."""
        connection = self.connect("penstock")
        with connection, translated(self):
            yield connection


@contextmanager
def translated(sink: PostgresSink) -> Iterator[None]:
    """Raise psycopg's errors as those of a sink, except the refusals of rows."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        if _is_refusal(error):
            raise
        code = error.sqlstate
        lost = code is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        if lost or (code is not None and code.startswith(_AGAIN)):
            raise SinkUnavailableError(f"{sink}: {_text(error)}") from error
        raise StreamsError(f"{sink}: {_text(error)}") from error


def _is_refusal(error: BaseException) -> bool:
    """Return whether an exception is about a row."""
    import psycopg

    if isinstance(error, psycopg.Error):
        if error.sqlstate is not None:
            return error.sqlstate.startswith(_REFUSED_CLASSES)
        return isinstance(error, psycopg.DataError | psycopg.ProgrammingError)  # a value that cannot be sent
    return isinstance(error, _UNSENDABLE)


def _text(error: BaseException) -> str:
    """Return the server's message with the SQLSTATE, without its statement."""
    code = getattr(error, "sqlstate", None)
    text = " ".join(str(error).split())
    return f"{text} (SQLSTATE {code})" if code else text


class PostgresWriter(TableWriter[PostgresSink]):
    """Writes the rows of one task, with one connection, which is replaced after each failure."""

    def __init__(self, sink: PostgresSink, context: SinkContext, shape: TableShape) -> None:
        super().__init__(sink, context, shape, _CONVERT)
        self._connection: Connection | None = None
        self._session = 0  # the server process of the last connection
        with self._transaction() as cursor:
            self._prepare(cursor)

    # -- connection

    @property
    def _session_name(self) -> str:
        """The name of this task's session: of the same partitions, for each owner."""
        partitions = ",".join(map(str, sorted(self._topic_ids)))
        digest = hashlib.sha256("\0".join([*self._of, partitions]).encode()).hexdigest()[:16]
        return f"penstock {digest} {self._of[1]}"

    @contextmanager
    def _transaction(self) -> Iterator[Cursor]:
        """Run statements in a transaction, of a new connection if there is none. After a failure there is none."""
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection
        try:
            with translated(self._sink), connection.transaction(), connection.cursor() as cursor:
                yield cursor
        except (RefusedRowsError, SinkFencedError):
            raise  # rolled back
        except BaseException as error:
            if not _is_refusal(error):
                self.close()
            raise

    def _connect(self) -> Connection:
        """Return a new connection. The session before it may still be in a transaction, unless it is ended."""
        connection = self._sink.connect(self._session_name)
        try:
            with translated(self._sink):
                self._end_sessions(connection, "pid = %s", self._session)
                self._session = connection.info.backend_pid
                if self._sink.mode == "upsert" and self._topic_ids:
                    connection.execute(self._statement(_BATCH))
        except BaseException:
            connection.close()
            raise
        return connection

    def _end_sessions(self, connection: Connection, which: LiteralString, *parameters: object) -> None:
        """End other sessions of this task: a process that is stopped within a transaction would keep its locks."""
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
            f" AND usename = current_user AND datname = current_database() AND pid <> pg_backend_pid() AND {which}",
            [self._session_name[:_NAME_BYTES], *parameters],
        )

    @override
    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- tables

    def _prepare(self, cursor: Cursor) -> None:
        """Create the tables, or check that the table has the columns."""
        sink = self._sink
        table = sink.table.split(".")
        if not sink.has_offsets(cursor) or not sink.exists(cursor, table):
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext('penstock'))")  # several tasks start at once
            cursor.execute(sink.statement(_OFFSETS.replace("{}", "{offsets}")))
            if not sink.exists(cursor, table):
                cursor.execute(self._create_table())
        self._check_columns(cursor)
        if sink.mode == "upsert":
            self._check_key(cursor)

    def _create_table(self) -> Composed:
        from psycopg.sql import SQL, Identifier

        columns = [
            SQL("{} {}{}").format(
                Identifier(column.name), SQL(_TYPES[column.type][0]), SQL("" if column.nullable else " NOT NULL")
            )
            for column in self._shape.columns
        ]
        if self._sink.mode == "upsert":
            columns.append(SQL("PRIMARY KEY ({})").format(self._names(self._shape.key_names)))
        return self._sink.statement("CREATE TABLE {table} ({columns})", columns=SQL(", ").join(columns))

    def _check_columns(self, cursor: Cursor) -> None:
        cursor.execute(
            "SELECT attname, CASE typtype WHEN 'b' THEN typname ELSE '' END,"
            " attnotnull AND NOT atthasdef AND attidentity = ''"
            " FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid"
            " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            [".".join(map(quoted, self._sink.table.split(".")))],
        )
        found = {name: (kind, needed) for name, kind, needed in cursor}
        problems = [self._problem(name, kind, found) for name, kind in self._wanted()]
        problems += [
            f"column {name} must not be null, and no record has a value for it"
            for name, (_, needed) in found.items()
            if needed and name not in self._shape.names
        ]
        if any(problems):
            raise StreamsError(
                f"{self._sink} does not fit: {'; '.join(filter(None, problems))}. Change it with ALTER TABLE, or give "
                "the sink its columns"
            )

    def _wanted(self) -> Iterator[tuple[str, ColumnType]]:
        return ((column.name, column.type) for column in self._shape.columns)

    def _problem(self, name: str, kind: ColumnType, found: Mapping[str, tuple[str, bool]]) -> str:
        if name not in found:
            return f"it has no column {name} ({_TYPES[kind][0]})"
        if found[name][0] in ("", *_TYPES[kind][1]):  # "" for a domain or an enum: the server checks
            return ""
        return f"column {name} has type {found[name][0]}, and the records have {_TYPES[kind][0]}"

    def _check_key(self, cursor: Cursor) -> None:
        """Raise StreamsError unless the columns of the key are unique, which ON CONFLICT needs."""
        cursor.execute(
            "SELECT array_agg(attname::text) FROM pg_index JOIN pg_attribute ON attrelid = indrelid"
            " AND attnum = ANY (indkey) WHERE indrelid = to_regclass(%s) AND indisunique AND indpred IS NULL"
            " AND indexprs IS NULL GROUP BY indexrelid",
            [".".join(map(quoted, self._sink.table.split(".")))],
        )
        names = self._shape.key_names
        if not any(sorted(found) == sorted(names) for (found,) in cursor):
            raise StreamsError(
                f"{self._sink} has no primary key or unique index of exactly {', '.join(names)}, which mode upsert "
                f"needs. Create it: CREATE UNIQUE INDEX ON {self._sink.table} ({', '.join(names)})"
            )

    # -- SinkWriter

    @override
    def fence(self, topic_ids: Mapping[TopicPartition, str]) -> Mapping[TopicPartition, SinkOffset]:
        self.close()  # the name of the session depends on the partitions
        self._topic_ids = dict(topic_ids)
        found: dict[TopicPartition, SinkOffset] = {}
        self._connection = self._connect()
        with translated(self._sink):
            self._end_sessions(self._connection, "true")
        with self._transaction() as cursor:
            for partition in sorted(topic_ids):
                offset, topic_id, self._generations[partition] = self._one(
                    cursor,
                    "INSERT INTO {offsets} AS o VALUES (%s, %s, %s, %s, '', NULL, 1)"
                    " ON CONFLICT (application, sink, topic, partition) DO UPDATE SET generation = o.generation + 1"
                    " RETURNING next_offset, topic_id, generation",
                    [*self._of, *partition],
                )
                self._stored[partition] = offset
                if offset is not None:
                    found[partition] = SinkOffset(offset, topic_id)
        return found

    @override
    def offsets(self) -> Mapping[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        with self._transaction() as cursor:
            for partition, generation in sorted(self._generations.items()):
                row = self._one(
                    cursor,
                    f"SELECT next_offset FROM {{offsets}} WHERE {_ROW} AND generation = %s FOR UPDATE",
                    [*self._of, *partition, generation],
                )
                if row is None:
                    raise self._fenced(partition)
                self._stored[partition] = row[0]
                if row[0] is not None:
                    found[partition] = row[0]
        return found

    def _one(self, cursor: Cursor, text: str, parameters: Sequence[object]) -> Any:
        return cursor.execute(self._sink.statement(text), parameters).fetchone()

    @override
    def write(self, records: Sequence[SinkRecord], offsets: Mapping[TopicPartition, int]) -> None:
        changes = self._rows.changes(records)
        try:
            with self._transaction() as cursor:
                self._store_offsets(cursor, offsets)
                self._apply(cursor, changes)
        except Exception as error:
            if not _is_refusal(error):
                raise
            raise RefusedRowsError(self._refused(changes, error)) from error
        self._stored |= offsets

    def _store_offsets(self, cursor: Cursor, offsets: Mapping[TopicPartition, int]) -> None:
        """Store the next offsets, first of all: the rows' locks keep other writers out until the end."""
        statement = self._sink.statement(
            "UPDATE {offsets} SET next_offset = %s, topic_id = coalesce(nullif(%s, ''), topic_id), updated_at = now()"
            f" WHERE {_ROW} AND generation = %s AND next_offset IS NOT DISTINCT FROM %s"
        )
        for partition, offset in sorted(offsets.items()):
            mine = self._generations.get(partition), self._stored.get(partition)
            cursor.execute(statement, [offset, self._topic_ids.get(partition, ""), *self._of, *partition, *mine])
            if cursor.rowcount != 1:
                raise self._fenced(partition)

    def _apply(self, cursor: Cursor, changes: Sequence[Change]) -> None:
        if self._sink.mode == "append":
            self._copy(cursor, "{table}", [change.row for change in changes if change.row is not None])
            return
        last = last_changes(changes)
        deleted = [key for key, row in last.items() if row is None]
        if deleted:
            from psycopg.sql import SQL, Identifier

            where = SQL(" AND ").join(SQL("{} = %s").format(Identifier(name)) for name in self._shape.key_names)
            cursor.executemany(self._sink.statement("DELETE FROM {table} WHERE {where}", where=where), deleted)
        rows = [row for row in last.values() if row is not None]
        if rows:
            cursor.execute("DELETE FROM penstock_batch")
            self._copy(cursor, "penstock_batch", rows)
            cursor.execute(self._merge())

    def _copy(self, cursor: Cursor, table: str, rows: Sequence[tuple[object, ...]]) -> None:
        if not rows:
            return
        with cursor.copy(self._statement(f"COPY {table} ({{names}}) FROM STDIN")) as copy:
            write_row = copy.write_row
            for row in rows:
                write_row(row)

    def _merge(self) -> Composed:
        from psycopg.sql import SQL, Identifier

        sets = [SQL("{0} = EXCLUDED.{0}").format(Identifier(column.name)) for column in self._shape.value_columns]
        does = SQL("UPDATE SET {}").format(SQL(", ").join(sets)) if sets else SQL("NOTHING")
        return self._statement(
            "INSERT INTO {table} ({names}) SELECT {names} FROM penstock_batch ON CONFLICT ({keys}) DO {does}",
            keys=self._names(self._shape.key_names),
            does=does,
        )

    def _statement(self, text: str, **parts: Any) -> Composed:
        return self._sink.statement(text, names=self._names(self._shape.names), **parts)

    @staticmethod
    def _names(names: Sequence[str]) -> Composed:
        from psycopg.sql import SQL, Identifier

        return SQL(", ").join(map(Identifier, names))

    # -- refused rows

    def _refused(self, changes: Sequence[Change], first: BaseException) -> dict[int, RefusedRowError]:
        """Return the refused changes, by trying halves, in a transaction that is rolled back."""
        from psycopg import Rollback

        refused: dict[int, RefusedRowError] = {}
        with self._transaction() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            self._search(cursor, changes, range(len(changes)), refused)
            raise Rollback
        if not refused:  # e.g. another session has changed what the rows depend on
            raise SinkUnavailableError(f"{self._sink} refused rows, and accepts each of them: {_text(first)}")
        return refused

    def _search(
        self, cursor: Cursor, changes: Sequence[Change], indexes: range, refused: dict[int, RefusedRowError]
    ) -> None:
        try:
            with cursor.connection.transaction():
                self._apply(cursor, changes[indexes.start : indexes.stop])
        except Exception as error:
            if not _is_refusal(error):
                raise
            if len(indexes) == 1:
                refused[indexes.start] = RefusedRowError(f"{self._sink} refused the row: {_text(error)}")
                return
            half = indexes.start + len(indexes) // 2
            self._search(cursor, changes, range(indexes.start, half), refused)
            self._search(cursor, changes, range(half, indexes.stop), refused)
