"""Runs SQL over state stores: a process with DuckDB for each query, and the scans of stores that it asks for.

A process starts slowly, so the one of the next query is started behind each query, and waits for it (SpareProcess).

Messages, both ways as bytes with their length (multiprocessing.connection). The process asks, as JSON:

    {"table": store}                               the columns of a store
    {"scan": store, "columns": […], "key_from": …} opens a scan; the answer is {"number": n}
    {"next": n}                                    the next batch of a scan, as bytes of Arrow; none after the last one
    {"result": columns}                            then come the schema and the batches of the result, and none
    {"error": kind, "text": …}                     the query has failed
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypedDict

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError, InvalidStateStoreError, StreamsError, UnknownStateStoreError
from penstock.topology.query.isolation_level import IsolationLevel
from penstock.topology.query.position import Position
from penstock.workers.control.messages import ReadStore

from ..logs.log_floods import bounded_logger
from ..queries.store_routing import RETRY_SECONDS, QueryError
from ..queries.store_scans import Scan, StoreScans, Table
from .sql_result import METADATA, SqlResult, positions_json

if TYPE_CHECKING:
    import pyarrow as pa

logger = bounded_logger(__name__)

#: How many queries run at a time; each has a process.
QUERIES_MAX = 4
#: How long stream threads may take for an answer, in seconds; a query may take less.
READ_SECONDS = 30.0
#: How long the process of the next query waits for it, in seconds.
SPARE_SECONDS = 600.0
#: Longest query, in bytes.
QUERY_BYTES_MAX = 64 << 10
#: The end of a stream of Arrow.
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_SCRIPT = Path(__file__).with_name("duckdb_process.py")

#: Columns by name, with their types: those of Arrow, or their names.
Schema = Mapping[str, Any]


class SqlQuestion(TypedDict, total=False):
    """A message of the process: "table", "scan" or "next" says which."""

    table: str
    scan: str
    columns: list[str]
    key_from: str | None
    key_to: str | None
    time_from: int | None
    time_to: int | None
    next: int


@dataclass(frozen=True, slots=True)
class SqlQuery:
    """A query. isolation, at_least: see ReadStore. schemas: by store, the columns of values, instead of those that its
    rows show. timeout: in seconds, at most that of the configuration; without it a query does not wait for at_least.
    """

    text: str
    isolation: IsolationLevel | None = None
    at_least: Position = field(default_factory=Position)
    schemas: Mapping[str, Schema] = field(default_factory=dict)
    timeout: float | None = None


class SqlQueries:
    """Any thread may use it."""

    def __init__(self, scans: StoreScans, config: StreamsConfig) -> None:
        self._scans = scans
        self._memory_bytes: int = config["penstock.sql.memory.bytes"]
        self._rows_max: int = config["penstock.sql.rows.max"]
        self._timeout: float = config["penstock.sql.timeout.ms"] / 1000
        self._free = threading.BoundedSemaphore(QUERIES_MAX)
        self._spare = SpareProcess(SPARE_SECONDS)

    def run(self, query: SqlQuery) -> SqlResult:
        """Return the result of a query. Raises QueryError, and ConfigError without penstock-streams[sql]."""
        if find_spec("duckdb") is None or find_spec("pyarrow") is None:
            raise ConfigError("SQL needs the extra: pip install 'penstock-streams[sql]'")
        size = len(query.text.encode(errors="replace"))
        if size > QUERY_BYTES_MAX:
            raise _bad(f"The query has {size} bytes; {QUERY_BYTES_MAX} are allowed.")
        if not self._free.acquire(blocking=False):
            text = f"{QUERIES_MAX} queries are running already. Try again."
            raise QueryError(503, "TOO_MANY_REQUESTS", text, RETRY_SECONDS)
        try:
            timeout = min(query.timeout or self._timeout, self._timeout)
            process = self._spare.take()
            with _Running(query, self._scans, process, timeout, self._memory_bytes, self._rows_max) as running:
                return running.result()
        finally:
            self._free.release()
            self._spare.start()

    def close(self) -> None:
        """End the process of the next query."""
        self._spare.close()

    def result(self, query: SqlQuery) -> SqlResult:
        """Return the result of a query, for programs.

        Raises UnknownStateStoreError, InvalidStateStoreError if the stores cannot be read now, TimeoutError, and
        StreamsError for a query that cannot be run.
        """
        try:
            return self.run(query)
        except QueryError as error:
            if error.code == "QUERY_TIMEOUT":
                raise TimeoutError(error.message) from None
            kinds = {404: UnknownStateStoreError, 503: InvalidStateStoreError}
            raise kinds.get(error.status, StreamsError)(error.message) from None


class DuckDBProcess:
    """A process for one query. connection: to it. Close it."""

    def __init__(self) -> None:
        mine, its = socket.socketpair()
        self.connection = Connection(mine.detach())
        with its:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-s", "-P", str(_SCRIPT), str(its.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[its.fileno()],
                    cwd="/",
                    env={"PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path)},
                )
            except BaseException:
                self.connection.close()
                raise

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, and can run nothing."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def wait(self) -> int:
        """Return its exit code."""
        return self._process.wait()

    def close(self) -> None:
        """End it, and release everything."""
        self.kill()
        self.wait()
        self.connection.close()


class SpareProcess:
    """The process of the next query, which waits for it. Any thread may use it.

    It ends when no query has taken it for a time, and with this process, because its connection then ends.
    """

    def __init__(self, idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._spare: DuckDBProcess | None = None
        self._timer: threading.Timer | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def take(self) -> DuckDBProcess:
        """Return the spare process, or a new one."""
        spare = self._taken()
        if spare is not None:
            if not spare.has_ended:
                return spare
            spare.close()
        return DuckDBProcess()

    def start(self) -> None:
        """Start the process of the next query, unless it exists. If that fails, the next query starts its process."""
        with self._lock:
            if self._spare is not None or self._is_closed:
                return
            try:
                self._spare = DuckDBProcess()
            except OSError as error:
                logger.warning("The process of the next query in SQL cannot be started: %s", error)
                return
            self._timer = threading.Timer(self._idle_seconds, self.end)
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        """End the spare process, if there is one."""
        spare = self._taken()
        if spare is not None:
            spare.close()

    def close(self) -> None:
        """End the spare process, and start no other."""
        with self._lock:
            self._is_closed = True
        self.end()

    def _taken(self) -> DuckDBProcess | None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            spare, self._spare = self._spare, None
            return spare


class _Running:
    """One query, and its process. A context manager that ends both."""

    def __init__(
        self,
        query: SqlQuery,
        scans: StoreScans,
        process: DuckDBProcess,
        timeout: float,
        memory_bytes: int,
        rows_max: int,
    ) -> None:
        self._query = query
        self._process = process
        self._connection = process.connection
        self._scans = scans
        self._timeout = timeout
        self._memory_bytes = memory_bytes
        self._rows_max = rows_max
        self._is_late = False
        self._deadline = time.monotonic() + timeout
        self._open: list[tuple[Scan, Iterator[bytes]]] = []
        self._positions: dict[str, Position | None] = {}
        self._tables: dict[str, Table] = {}
        self._stack = ExitStack()

    def __enter__(self) -> _Running:
        with self._stack:
            self._stack.callback(self._end)
            timer = threading.Timer(self._timeout, self._is_over)
            timer.daemon = True
            timer.start()
            self._stack.callback(timer.cancel)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        self._process.close()
        for scan, _ in self._open:
            scan.close()

    def _is_over(self) -> None:
        self._is_late = True
        self._process.kill()

    def result(self) -> SqlResult:
        """Return the result. Raises QueryError."""
        try:
            self._send({"query": self._query.text, "memory_bytes": self._memory_bytes})
            while True:
                message = json.loads(self._connection.recv_bytes())
                if "result" in message:
                    return SqlResult(tuple(message["result"]), self._positions, self._received())
                if "error" in message:
                    raise self._failed(message["error"], message.get("text", ""))
                self._answer(message)
        except (EOFError, OSError) as error:
            raise self._ended() from error

    def _answer(self, asked: SqlQuestion) -> None:
        if "table" in asked:
            table = self._table(asked["table"])
            schema = b64encode(table.schema.serialize().to_pybytes()).decode()
            self._send({"schema": schema, "key_order": table.key_order, "sessions": table.sessions})
        elif "scan" in asked:
            self._send({"number": self._opened(asked)})
        else:
            _, batches = self._open[asked["next"]]
            self._connection.send_bytes(next(batches, b""))

    def _table(self, store: str) -> Table:
        import pyarrow as pa

        found = self._scans.table(store, self._left())
        given = self._query.schemas.get(store)
        if given is not None:
            found = Table(_with_columns(pa, found.schema, given, store), found.key_order, found.sessions)
        self._tables[store] = found
        return found

    def _opened(self, asked: SqlQuestion) -> int:
        """Open a scan and return its number."""
        import pyarrow as pa

        store: str = asked["scan"]
        schema = pa.schema([self._tables[store].schema.field(name) for name in asked["columns"]])
        request = ReadStore(
            0,
            store,
            key_from=asked.get("key_from"),
            key_to=asked.get("key_to"),
            time_from=asked.get("time_from"),
            time_to=asked.get("time_to"),
            isolation=self._query.isolation,
            at_least=self._query.at_least,
        )
        wait = 0 if self._query.timeout is None else self._left()
        scan = self._scans.open(request, schema, self._left(), local=False, wait=wait)
        self._open.append((scan, iter(scan)))
        self._note_position(store, scan)
        return len(self._open) - 1

    def _note_position(self, store: str, scan: Scan) -> None:
        if store in self._positions and self._positions[store] != scan.position:
            text = f"The rows of {store} have changed between two reads of the query: try again, or name it once."
            raise QueryError(503, "INCOMPLETE", text, RETRY_SECONDS)
        self._positions[store] = scan.position

    def _received(self) -> bytes:
        """Return the rows of the result as a stream of Arrow. Raises QueryError if they are too many."""
        import pyarrow as pa

        schema = pa.ipc.read_schema(pa.py_buffer(self._connection.recv_bytes()))
        parts: list[bytes] = []
        size = rows = 0
        while batch := self._connection.recv_bytes():
            size += len(batch)
            rows += pa.ipc.read_record_batch(pa.py_buffer(batch), schema).num_rows
            if rows > self._rows_max:
                raise _too_large(f"more than {self._rows_max} rows", "penstock.sql.rows.max")
            if size > self._memory_bytes:
                raise _too_large(f"more than {self._memory_bytes} bytes", "penstock.sql.memory.bytes")
            parts.append(batch)
        positions = json.dumps(positions_json(self._positions)).encode()
        head: bytes = schema.with_metadata({METADATA: positions}).serialize().to_pybytes()
        return b"".join([head, *parts, END_OF_STREAM])

    def _send(self, message: dict[str, object]) -> None:
        self._connection.send_bytes(json.dumps(message).encode())

    def _left(self) -> float:
        """Return the seconds that stream threads may take for an answer."""
        return max(min(self._deadline - time.monotonic(), READ_SECONDS), 0.001)

    def _failed(self, kind: str, text: str) -> QueryError:
        return _bad(text) if kind == "query" else self._out_of_memory()

    def _ended(self) -> QueryError:
        """Return the error for a process that has ended without a result."""
        if self._is_late:
            text = f"The query has not ended within {self._timeout:g} s, and was stopped (penstock.sql.timeout.ms)."
            return QueryError(400, "QUERY_TIMEOUT", text)
        return self._out_of_memory(f" (its process has ended: {self._process.wait()})")

    def _out_of_memory(self, more: str = "") -> QueryError:
        text = f"The query needs more memory than {self._memory_bytes} bytes (penstock.sql.memory.bytes){more}."
        return QueryError(400, "QUERY_MEMORY", text)


def _with_columns(pa: ModuleType, schema: pa.Schema, given: Schema, store: str) -> pa.Schema:
    """Return a schema with other columns of values. Raises QueryError for a type that there is not."""
    from penstock.statestore.view.columns import ROW_COLUMNS, VALUE, WHOLE

    whole = WHOLE if given.keys() == {VALUE} else None
    try:
        values = [
            pa.field(name, pa.type_for_alias(kind) if isinstance(kind, str) else kind, metadata=whole)
            for name, kind in given.items()
        ]
    except (ValueError, TypeError) as error:
        raise _bad(f"The columns of {store} have a type that cannot be a column: {error}") from error
    rows = [field for field in schema if field.name in ROW_COLUMNS and field.name not in given]
    return pa.schema([*rows, *values])


def _bad(message: str) -> QueryError:
    return QueryError(400, "BAD_QUERY", message)


def _too_large(what: str, setting: str) -> QueryError:
    return QueryError(400, "RESULT_TOO_LARGE", f"The result has {what} ({setting}): group, filter, or add LIMIT.")
