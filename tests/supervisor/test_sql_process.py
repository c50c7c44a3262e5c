"""The process that runs SQL: what DuckDB makes of a query, and what an attacker can reach from there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from penstock.supervisor.queries.store_routing import QueryError
from penstock.supervisor.queries.store_scans import Table
from penstock.supervisor.sql.sql_queries import QUERIES_MAX, DuckDBProcess, SpareProcess, SqlQueries, SqlQuery
from penstock.supervisor.sql.sql_result import SqlResult
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.query.position import Position
from penstock.workers.control.messages import ReadStore
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.medium  # each query starts a process
COUNTS = pa.table(
    {
        "key": pa.array([f"key-{number:03}" for number in range(300)]),
        "value": pa.array(range(300), pa.int64()),
        "timestamp": pa.array(range(0, 300_000, 1_000), pa.timestamp("ms", "UTC")),
    }
)
START = pa.array([0, 60_000, 120_000], pa.timestamp("ms", "UTC"))
WINDOWS = pa.table({"key": ["a", "b", "c"], "window_start": START, "window_end": START, "value": [1, 2, 3]})
NUMBERS = pa.table({"key": pa.array([-2, -1, 0, 7], pa.int64()), "value": [1, 2, 3, 4]})
STORES = {
    "counts": (COUNTS, "string", False),
    "hyphened-name": (COUNTS, "string", False),
    "windows": (WINDOWS, "string", False),
    "sessions": (WINDOWS, "string", True),
    "numbers": (NUMBERS, "integer", False),
    "structs": (COUNTS, "", False),
}


@dataclass
class OneScan:
    """A scan whose rows are in memory."""

    table: pa.Table
    position: Position
    is_closed: bool = False

    def __iter__(self) -> Iterator[bytes]:
        for batch in self.table.to_batches(max_chunksize=100):
            yield batch.serialize().to_pybytes()

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Stores:
    """The stores of an application, without one. requests: the reads, with the columns that they want."""

    requests: list[tuple[ReadStore, tuple[str, ...]]] = field(default_factory=list)
    scans: list[OneScan] = field(default_factory=list)

    def table(self, store: str, _timeout: float) -> Table:
        if store not in STORES:
            raise QueryError(404, "UNKNOWN_STORE", f"The topology has no state store {store!r}")
        table, key_order, sessions = STORES[store]
        return Table(table.schema, key_order, sessions)

    def open(self, request: ReadStore, schema: pa.Schema, _timeout: float, local: bool, wait: float) -> OneScan:
        assert (local, wait) == (False, 0)
        self.requests.append((request, tuple(schema.names)))
        found = OneScan(STORES[request.store][0].select(schema.names), Position.from_map({"in": {0: len(self.scans)}}))
        self.scans.append(found)
        return found


#: Those of the running test.
made: list[SqlQueries] = []


@pytest.fixture
def stores() -> Stores:
    return Stores()


def queries_of(stores: Stores, **settings: int) -> SqlQueries:
    scans: Any = stores
    settings = {"timeout_ms": int(PATIENCE_SECONDS * 1000)} | settings
    config = {f"penstock.sql.{name.replace('_', '.')}": value for name, value in settings.items()}
    made.append(SqlQueries(scans, StreamsConfig({"application.id": "app", **config})))
    return made[-1]


@pytest.fixture
def queries(stores: Stores) -> SqlQueries:
    return queries_of(stores)


def rows(result: SqlResult) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in result.rows()]


earlier: set[psutil.Process] = set()


def processes() -> list[psutil.Process]:
    """Return the children that this test has started."""
    return [process for process in psutil.Process().children() if process not in earlier]


@pytest.fixture(autouse=True)
def nothing_is_left(stores: Stores) -> Iterator[None]:
    """No process, no descriptor and no open scan stays behind."""
    process = psutil.Process()
    earlier.clear()
    earlier.update(process.children())
    descriptors = process.num_fds()
    yield
    while made:
        made.pop().close()
    assert processes() == []
    assert process.num_fds() <= descriptors
    assert all(scan.is_closed for scan in stores.scans)


# -- queries


def test_stores_are_joined_grouped_and_sorted(queries: SqlQueries, stores: Stores) -> None:
    text = """
        with high as (select key, value from counts where value >= 290)
        select high.key, h.value * 2 as twice from high join "hyphened-name" h using (key)
        where h.value < 295 order by twice desc limit 3
    """
    result = queries.run(SqlQuery(text))
    assert rows(result) == [("key-294", 588), ("key-293", 586), ("key-292", 584)]
    assert result.columns == ("key", "twice")
    assert result.positions.keys() == {"counts", "hyphened-name"}
    assert result.position == Position.from_map({"in": {0: 1}})
    assert len(stores.scans) == 2


def test_results_are_tables_of_three_libraries(queries: SqlQueries) -> None:
    result = queries.run(SqlQuery("select key, value, timestamp from counts where value < 2 order by key"))
    table = result.to_arrow()
    assert table.schema.metadata == {b"penstock": b'{"counts": {"in": {"0": 0}}}'}
    assert table.column("value").to_pylist() == [0, 1]
    assert list(result.to_pandas()["key"]) == ["key-000", "key-001"]
    assert str(result.to_pandas()["timestamp"].dtype) == "datetime64[us, UTC]"
    assert result.to_polars()["value"].to_list() == [0, 1]
    assert result.to_json() == {
        "columns": ["key", "value", "timestamp"],
        "rows": [["key-000", 0, "1970-01-01T00:00:00+00:00"], ["key-001", 1, "1970-01-01T00:00:01+00:00"]],
        "positions": {"counts": {"in": {"0": 0}}},
    }


def test_results_without_rows_have_columns(queries: SqlQueries) -> None:
    result = queries.run(SqlQuery("select key, sum(value) as n from counts where value < 0 group by key"))
    assert (rows(result), result.columns) == ([], ("key", "n"))
    assert result.to_pandas().empty
    assert result.to_polars().is_empty()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("select 1", [(1,)]),
        ("from counts select count(*)", [(300,)]),
        ("select count(*) from counts, range(2)", [(600,)]),
        ("select * from (values (1, 'a')) v(x, y)", [(1, "a")]),
        ('select count(*) from counts where key = any (select key from "hyphened-name" limit 3)', [(3,)]),
        ("select count(*) from counts where timestamp < '1970-01-01 00:00:10'", [(10,)]),
        ("select date_trunc('minute', max(timestamp))::text from counts", [("1970-01-01 00:04:00+00",)]),
        ("select count(*) from counts a, counts b where a.key = b.key", [(300,)]),
        ("with c as (select * from counts) select count(*) from c a, c b where a.key = b.key", [(300,)]),
        ("select count(*) from counts where key like 'key-1%' and key not like 'key-10%'", [(90,)]),
        ("select count(*) from counts where starts_with(key, 'key-29') or key = 'key-000'", [(11,)]),
        ("select count(*) from counts where not starts_with(key, 'key-29')", [(290,)]),
        ("select count(*) from counts where key like 'KEY%'", [(0,)]),
        ("select count(*) from counts where key in ('key-001', 'key-200', 'x')", [(2,)]),
        ("select count(*) from counts where key = 'key-001' or value = 5", [(2,)]),
        ("select count(*) from counts where key is null", [(0,)]),
        ("select sum(key) from numbers where key >= -1", [(6,)]),
        ("select sum(key) from numbers where key < 0", [(-3,)]),
        ("select sum(key) from numbers where key > -1", [(7,)]),
        ("select count(*) from numbers where key between 5 and 3", [(0,)]),
        ("select max(key) from counts union all select max(key) from windows order by 1", [("c",), ("key-299",)]),
        ("select column_name from (describe numbers)", [("key",), ("value",)]),
    ],
)
def test_what_sql_means(queries: SqlQueries, text: str, expected: list[tuple[Any, ...]]) -> None:
    assert rows(queries.run(SqlQuery(text))) == expected


BOUNDS = ("key_from", "key_to", "time_from", "time_to")


@pytest.mark.parametrize(
    ("text", "store", "bounds", "columns"),
    [
        ("select value from counts where key = 'a'", "counts", ("a", "a", None, None), ("key", "value")),
        ("select value from counts where key in ('b', 'a')", "counts", ("a", "b", None, None), ("key", "value")),
        ("select value from counts where key = 'a' or key = 'c'", "counts", ("a", "c", None, None), ("key", "value")),
        ("select key from counts where key > 'b' and key <= 'd'", "counts", ("b", "d", None, None), ("key",)),
        ("select key from counts where key like 'ab%'", "counts", ("ab", "ac", None, None), ("key",)),
        ("select key from counts where key like 'a_b%'", "counts", ("a", "b", None, None), ("key",)),
        ("select key from counts where starts_with(key, 'é')", "counts", ("é", "ê", None, None), ("key",)),
        ("select key from counts where key like '%a'", "counts", (None,) * 4, ("key",)),
        ("select timestamp from counts where value > 5", "counts", (None,) * 4, ("value", "timestamp")),
        ("select count(*) from counts", "counts", (None,) * 4, ("key",)),
        ("select key from structs where key = 'a'", "structs", (None,) * 4, ("key",)),
        ("select value from numbers where key = 7", "numbers", ("7", "7", None, None), ("key", "value")),
        ("select key from numbers where key >= 3", "numbers", ("3", str(2**63 - 1), None, None), ("key",)),
        ("select key from numbers where key < -3", "numbers", (str(-(2**63)), "-3", None, None), ("key",)),
        ("select key from numbers where key > -3", "numbers", (None,) * 4, ("key",)),
        (
            "select key from windows where window_start >= '1970-01-01 00:01:00' and window_start < '1970-01-01 00:02'",
            "windows",
            (None, None, 60_000, 120_000),
            ("key", "window_start"),
        ),
        (
            "select key from sessions where window_end >= '1970-01-01 00:01:00' and window_start < '1970-01-01 00:02'",
            "sessions",
            (None, None, 60_000, 120_000),
            ("key", "window_start", "window_end"),
        ),
        (
            "select key from windows where window_end >= '1970-01-01 00:01:00'",
            "windows",
            (None,) * 4,
            ("key", "window_end"),
        ),
    ],
)
def test_filters_and_columns_reach_the_store(
    queries: SqlQueries, stores: Stores, text: str, store: str, bounds: tuple[Any, ...], columns: tuple[str, ...]
) -> None:
    queries.run(SqlQuery(text))
    ((request, wanted),) = stores.requests
    assert request.store == store
    assert tuple(getattr(request, name) for name in BOUNDS) == bounds
    assert wanted == columns


def test_a_filter_that_no_row_passes_reads_nothing(queries: SqlQueries, stores: Stores) -> None:
    assert rows(queries.run(SqlQuery("select key from counts where key > 'b' and key < 'a'"))) == []
    assert stores.requests == []


def test_columns_can_be_given(queries: SqlQueries, stores: Stores) -> None:
    schema = {"value": "int64", "m": pa.string()}
    result = queries.run(SqlQuery("select column_name from (describe counts)", schemas={"counts": schema}))
    assert rows(result) == [("key",), ("timestamp",), ("value",), ("m",)]
    with pytest.raises(QueryError, match="have a type that cannot be a column"):
        queries.run(SqlQuery("select * from counts", schemas={"counts": {"n": "no such type"}}))


# -- bad input, and attacks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("select * from nix", "no state store 'nix'"),
        ("select nix from counts", 'Referenced column "nix" not found'),
        ("selekt 1", "syntax error"),
        ("", "Expected one SELECT, got 0"),
        ("select 1; select 2", "Expected one SELECT, got 2"),
        ("select 'a' + 1 from counts", "Could not"),
        ("insert into counts values ('a', 1, now())", "Only SELECT can be run"),
        ("update counts set value = 1", "Only SELECT can be run"),
        ("delete from counts", "Only SELECT can be run"),
        ("create table t as select 1", "Only SELECT can be run"),
        ("drop table counts", "Only SELECT can be run"),
        ("with x as (delete from counts returning *) select * from x", "Only SELECT|cannot"),
        ("select '\ud800'", "."),
        ("select " + "(" * 5_000 + "1" + ")" * 5_000, "."),
        ("select " + "1," * 40_000 + "1", "65536 are allowed"),
    ],
)
def test_queries_that_cannot_be_run(queries: SqlQueries, text: str, message: str) -> None:
    with pytest.raises(QueryError, match=message) as raised:
        queries.run(SqlQuery(text))
    assert raised.value.status in (400, 404)


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "secret.csv"
    path.write_text("a,b\nhunter2,2\n")
    monkeypatch.setenv("PENSTOCK_HTTP_TOKEN", "hunter2")
    return path


@pytest.mark.parametrize(
    "text",
    [
        *("select * from read_csv('{path}')", "select * from read_text('{path}')", "select * from '{path}'"),
        *("select * from read_blob('{path}')", "select * from glob('/*')", "select * from read_json('{path}')"),
        *("select * from sniff_csv('{path}')", "select * from parquet_scan('{path}')", "from '{path}'"),
        *("select * from read_csv_auto('{path}')", "select * from read_duckdb('{path}')"),
        *("copy (select 1) to '{path}'", "copy counts from '{path}'", "attach '{path}'", "export database '{path}'"),
        *("install httpfs", "load httpfs", "select * from 'https://localhost/x.parquet'"),
        *("set enable_external_access = true", "reset lock_configuration", "pragma enable_profiling"),
        *("set memory_limit = '10GB'", "call enable_logging()", "create secret (type s3)"),
        *("select * from query('select * from read_text(''{path}'')')", "select * from query_table('{path}')"),
        *("select * from duckdb_secrets()", "select * from duckdb_settings()", "select * from duckdb_settings"),
        *(
            "select * from information_schema.tables",
            "select * from pg_catalog.pg_class",
            "select * from sqlite_master",
        ),
        *("select getenv('PENSTOCK_HTTP_TOKEN')", "select * from pandas_scan(1::pointer)"),
        *("select * from python_arrow_scan(1, 2, 3)", "select * from arrow_scan(1, 2, 3)", "select * from seq_scan()"),
        *("select * from json_execute_serialized_sql('x')", "explain analyze select 1", "begin transaction"),
        *("select * from main.read_csv('{path}')", "select * from system.main.read_text('{path}')"),
        *(
            "select (select content from read_text('{path}'))",
            "select * from counts, lateral (from read_text('{path}'))",
        ),
        *("with f as (from read_text('{path}')) from f", "select * from counts where key in (from glob('/*'))"),
        *("create macro f(x) as x", "prepare p as select 1", "vacuum", "checkpoint", "use memory", "detach memory"),
        *("select * from counts order by (select content from read_text('{path}'))", "describe '{path}'"),
        *("summarize '{path}'", "select * from test_all_types()", "from repeat_row(1, num_rows=3)"),
    ],
)
def test_neither_files_nor_settings_can_be_reached(queries: SqlQueries, secret: Path, text: str) -> None:
    with pytest.raises(QueryError) as raised:
        queries.run(SqlQuery(text.format(path=secret)))
    assert raised.value.status in (400, 404)
    assert "hunter2" not in str(raised.value)
    assert "memory" not in raised.value.code.lower(), "it has ended the process"
    assert secret.read_text() == "a,b\nhunter2,2\n"


@pytest.mark.parametrize("text", ["select current_setting('enable_external_access')", "select getvariable('x')"])
def test_harmless_functions_pass(queries: SqlQueries, text: str) -> None:
    assert rows(queries.run(SqlQuery(text)))[0][0] in (False, None)


class Probe:
    """Runs code in the process of a query, in the place of what reads a table: as an attacker who broke DuckDB."""

    def __init__(self, tmp_path: Path, code: str) -> None:
        from penstock.supervisor.sql import sql_queries

        source = sql_queries._SCRIPT.read_text()
        marked = "        described = _asked(connection"
        assert source.count(marked) == 1
        attack = (
            f"        import socket\n        try:\n            found = {code}\n        except BaseException as error:\n"
        )
        attack += "            found = type(error).__name__\n        raise RefusedError(f'found {found}')\n"
        self.script = tmp_path / "duckdb_process.py"
        self.script.write_text(source.replace(marked, attack + marked))


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("open('/etc/passwd').read()", "OSError"),
        ("open('/proc/self/environ')", "OSError"),
        ("socket.socket()", "OSError"),
        ("os.listdir('/')", "OSError"),
        ("os.pipe()", "OSError"),
        ("resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)) or 'raised'", "ValueError|PermissionError|raised"),
        ("sorted(os.environ)", r"\['LC_CTYPE', 'PYTHONPATH'\]|\['PYTHONPATH'\]"),
        ("bytearray(2 << 30)", "MemoryError"),
    ],
)
def test_what_code_in_the_process_can_reach(
    queries: SqlQueries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: Path, code: str, found: str
) -> None:
    from penstock.supervisor.sql import sql_queries

    monkeypatch.setattr(sql_queries, "_SCRIPT", Probe(tmp_path, code).script)
    with pytest.raises(QueryError, match=f"found ({found})"):
        queries.run(SqlQuery("select * from counts"))


@pytest.mark.parametrize(
    "text",
    [
        "select count(*) from range(100000000) a, range(100000000) b where a.range + b.range = 1",
        "with recursive t(n) as (select 1 union all select n + 1 from t) select sum(n) from t",
        "select sum(length(repeat('x', (1000000 + range)::bigint))) from range(100000000)",
        "select count(*) from counts a, counts b, counts c, counts d where a.value + b.value + c.value + d.value < 0",
        "select repeat('x', 100000000000)",
    ],
)
def test_endless_queries_end_in_their_time(stores: Stores, text: str) -> None:
    with pytest.raises(QueryError) as raised:
        queries_of(stores, timeout_ms=1_500).run(SqlQuery(text))
    assert raised.value.code in ("QUERY_TIMEOUT", "QUERY_MEMORY", "BAD_QUERY")


@pytest.mark.parametrize(
    "text",
    [
        "select list(range) from range(1000000000)",
        "select a.range, list(b.range) from range(10) a, range(100000000) b group by a.range",
        "select repeat('x', 3000000000)",
        "select a.key, b.key from counts a, counts b, counts c order by a.value + b.value + c.value",
        "select string_agg(repeat('x', 1000000), '') from range(10000)",
    ],
)
def test_queries_that_need_much_memory_fail(stores: Stores, text: str) -> None:
    peak = Peak()
    with peak, pytest.raises(QueryError) as raised:
        queries_of(stores, memory_bytes=32 << 20).run(SqlQuery(text))
    assert raised.value.code in ("QUERY_MEMORY", "RESULT_TOO_LARGE"), raised.value
    assert peak.bytes < 700 << 20


class Peak:
    """Measures the largest memory of a child process."""

    def __init__(self) -> None:
        self.bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.01):
            for child in processes():
                try:
                    self.bytes = max(self.bytes, child.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue


def test_large_results_are_refused(stores: Stores) -> None:
    with pytest.raises(QueryError, match=r"more than 299 rows \(penstock.sql.rows.max") as raised:
        queries_of(stores, rows_max=299).run(SqlQuery("select * from counts"))
    assert raised.value.code == "RESULT_TOO_LARGE"
    assert len(rows(queries_of(stores, rows_max=300).run(SqlQuery("select * from counts")))) == 300


def test_a_store_that_changes_between_two_reads_of_a_query_is_an_error(queries: SqlQueries, stores: Stores) -> None:
    """Named twice, it is read once; a subquery that DuckDB runs again would see other rows."""
    text = "select count(*) from counts where value > (select avg(value) from counts)"
    assert rows(queries.run(SqlQuery(text))) == [(150,)]
    assert len(stores.scans) == 1


def test_only_some_queries_run_at_a_time(stores: Stores) -> None:
    queries = queries_of(stores)
    endless = SqlQuery("with recursive t(n) as (select 1 union all select n + 1 from t) select sum(n) from t")

    def run() -> None:
        with pytest.raises(QueryError):
            queries.run(endless)

    threads = [threading.Thread(target=run) for _ in range(QUERIES_MAX)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(processes()) >= QUERIES_MAX, "all run")
    with pytest.raises(QueryError, match="queries are running already") as raised:
        queries.run(SqlQuery("select 1"))
    assert (raised.value.status, raised.value.retry_after) == (503, 1)
    for process in processes():
        process.kill()
    for thread in threads:
        thread.join()
    assert rows(queries.run(SqlQuery("select 1"))) == [(1,)]


def test_a_process_that_dies_is_an_error(queries: SqlQueries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.supervisor.sql import sql_queries

    monkeypatch.setattr(sql_queries, "_SCRIPT", Probe(tmp_path, "os.kill(os.getpid(), 9)").script)
    with pytest.raises(QueryError, match="its process has ended: -9"):
        queries.run(SqlQuery("select * from counts"))


# -- the process of the next query


def spare() -> psutil.Process:
    """Return the one process that waits for a query."""
    (process,) = processes()
    return process


@pytest.mark.parametrize("text", ["select 1", "select", "select * from nothing", "drop table counts"])
def test_a_query_is_run_by_the_process_that_waits_and_the_next_one_by_another(queries: SqlQueries, text: str) -> None:
    queries.run(SqlQuery("select 1"))
    first = spare()
    try:
        queries.run(SqlQuery(text))
    except QueryError:
        assert text != "select 1"
    assert spare() != first
    assert not first.is_running()


def test_a_process_that_waits_may_die(queries: SqlQueries) -> None:
    queries.run(SqlQuery("select 1"))
    first = spare()
    first.kill()
    eventually(lambda: first.status() == psutil.STATUS_ZOMBIE, "it has died")
    assert rows(queries.run(SqlQuery("select 2"))) == [(2,)]
    assert spare() != first


def test_a_process_that_cannot_be_started_ahead_fails_no_query(
    queries: SqlQueries, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from penstock.supervisor.sql import sql_queries

    started = [sql_queries.DuckDBProcess()]

    def start() -> sql_queries.DuckDBProcess:
        if not started:
            raise OSError("no memory")
        return started.pop()

    monkeypatch.setattr(sql_queries, "DuckDBProcess", start)
    assert rows(queries.run(SqlQuery("select 1"))) == [(1,)]
    assert "cannot be started: no memory" in caplog.text
    with pytest.raises(OSError, match="no memory"):
        queries.run(SqlQuery("select 1"))


def test_a_process_waits_for_a_limited_time() -> None:
    brief = SpareProcess(idle_seconds=0.2)
    brief.start()
    eventually(lambda: processes() == [], "it has ended")
    waiting = SpareProcess(idle_seconds=PATIENCE_SECONDS)
    waiting.start()
    waiting.start()
    spare()
    taken = waiting.take()
    assert not taken.has_ended
    taken.close()
    waiting.close()
    waiting.start()
    assert processes() == []


def test_a_process_ends_with_the_one_that_has_started_it() -> None:
    process = DuckDBProcess()
    process.connection.close()  # as the kernel does
    assert process.wait() == 0
