"""A PostgreSQL that fails: what is retried, what is refused, and what is an error."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock import Serdes, StreamsBuilder
from penstock.sinks import (
    PostgresSink,
    SinkContext,
    SinkFencedError,
    SinkRecord,
    SinkUnavailableError,
)
from penstock.sinks.postgres_sink import PostgresWriter
from penstock.testing import TestInputTopic, TopologyTestDriver
from penstock.topology.errors import ConfigError, StreamsError, TaskTimeoutError
from penstock.topology.records import TopicPartition
from tests.postgres_server import HOST, PASSWORD, USER, PostgresDatabase, postgres_server
from tests.sinks.commit_breaker import Break, commit_breaker

PARTITION = TopicPartition("orders", 0)
#: Longer than the pauses between attempts.
LATER_MS = 10_000
LETTERS = "dead-letters"


@dataclass
class Order:
    """A row."""

    id: int
    item: str


ORDER = Serdes.json(Order)


@contextmanager
def piping(sink: PostgresSink, **config: Any) -> Iterator[tuple[TopologyTestDriver, TestInputTopic]]:
    """Run a driver whose input topic is written to a sink."""
    builder = StreamsBuilder()
    builder.stream("orders", key_serde=Serdes.string(), value_serde=ORDER).to_sink(sink, name="orders-sink")
    settings = {key.replace("_", "."): value for key, value in config.items()}
    with TopologyTestDriver(builder.build(), settings) as driver:
        yield driver, driver.create_input_topic("orders")


def orders(database: PostgresDatabase) -> list[tuple[int, str]]:
    """Return all rows, sorted."""
    return sorted(database.rows("SELECT id, item FROM orders"))


def opened(dsn: str, **options: Any) -> PostgresWriter:
    """Return a fenced writer of the sink."""
    sink = PostgresSink(dsn, "orders", **options)
    context = SinkContext("app", "orders-sink", Serdes.string(), ORDER)
    writer = PostgresWriter(sink, context, sink.shape(context))
    writer.fence({PARTITION: ""})
    return writer


def record(number: int) -> SinkRecord:
    """Return a record."""
    return SinkRecord("key", Order(number, "x"), 0, None)


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("how", Break)
def test_a_connection_that_breaks_at_the_commit_neither_loses_nor_repeats(
    database: PostgresDatabase, how: Break, mode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with commit_breaker(HOST, database.server.port) as proxy:
        dsn = database.dsn.replace(str(database.server.port), str(proxy.port))
        with piping(PostgresSink(dsn, "orders", mode)) as (driver, topic):
            topic.pipe_input("a", Order(1, "before"))
            proxy.plan = [how] * 3
            topic.pipe_input("b", Order(2, "broken"))
            topic.pipe_input("c", Order(3, "held meanwhile"))
            for _ in range(4):
                driver.advance_wall_clock_time(LATER_MS)
            assert proxy.broken == [how] * (3 if how is Break.BEFORE_COMMIT else 2)
            proxy.plan.clear()
            topic.pipe_input("d", Order(4, "after"))
    assert orders(database) == [(1, "before"), (2, "broken"), (3, "held meanwhile"), (4, "after")]
    assert "attempt 1; tries again in 50 ms" in caplog.text
    assert "writes again" in caplog.text
    assert PASSWORD not in caplog.text


def test_refused_rows_are_dead_letters_with_their_sqlstate(database: PostgresDatabase) -> None:
    database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, item text CHECK (item <> 'bad'))")
    handling = {"processing_exception_handler": "log_and_continue", "errors_dead_letter_queue_topic_name": LETTERS}
    with piping(PostgresSink(database.dsn, "orders"), **handling) as (driver, topic):
        topic.pipe_key_value_list([(str(n), Order(n, "bad" if n in (3, 4, 17) else "good")) for n in range(20)])
        topic.pipe_input("again", Order(5, "the same key"))
        letters = driver.create_output_topic(LETTERS).read_records_to_list()
        assert driver.dropped_records() == {("orders-sink", "processing error"): 4}
    assert orders(database) == [(n, "good") for n in range(20) if n not in (3, 4, 17)]
    messages = [str(dict(letter.headers or ())["__streams.errors.message"]) for letter in letters]
    assert [letter.key for letter in letters] == [b"3", b"4", b"17", b"again"]
    assert ["(SQLSTATE 23514)" in message for message in messages] == [True, True, True, False]
    assert "(SQLSTATE 23505)" in messages[3]
    assert stored(database) == 21


def stored(database: PostgresDatabase) -> int:
    """Return the stored offset."""
    ((offset,),) = database.rows("SELECT next_offset FROM penstock_offsets")
    return int(offset)


def test_a_refused_row_fails_the_task_without_a_handler(database: PostgresDatabase) -> None:
    database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, item text)")
    with piping(PostgresSink(database.dsn, "orders")) as (_, topic):
        topic.pipe_input("a", Order(1, "x"))
        with pytest.raises(StreamsError, match=r"processor=orders-sink, topic=orders.*SQLSTATE 23505"):
            topic.pipe_input("b", Order(1, "y"))
    assert orders(database) == [(1, "x")]


def test_a_constraint_that_is_checked_at_the_commit_refuses_only_its_rows(database: PostgresDatabase) -> None:
    database.execute("CREATE TABLE items (item text PRIMARY KEY)")
    database.execute("INSERT INTO items VALUES ('known')")
    database.execute("CREATE TABLE orders (id bigint, item text REFERENCES items DEFERRABLE INITIALLY DEFERRED)")
    with piping(PostgresSink(database.dsn, "orders"), processing_exception_handler="log_and_continue") as (_, topic):
        topic.pipe_input("a", Order(1, "known"))
        topic.pipe_input("b", Order(2, "unknown"))
        topic.pipe_input("c", Order(3, "known"))
    assert orders(database) == [(1, "known"), (3, "known")]


def test_a_statement_timeout_is_tried_again(database: PostgresDatabase, caplog: pytest.LogCaptureFixture) -> None:
    dsn = f"{database.dsn}?options=-c%20statement_timeout%3D100"
    with piping(PostgresSink(dsn, "orders")) as (driver, topic):
        with psycopg.connect(database.dsn) as other:
            other.execute("LOCK TABLE orders IN SHARE MODE")
            topic.pipe_input("a", Order(1, "x"))
            assert orders(database) == []
        driver.advance_wall_clock_time(LATER_MS)
    assert orders(database) == [(1, "x")]
    assert "(SQLSTATE 57014)" in caplog.text


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("40P01", id="deadlock"),
        pytest.param("40001", id="serialization failure"),
        pytest.param("55P03", id="lock timeout"),
        pytest.param("25006", id="read-only since a failover"),
        pytest.param("57P01", id="restart"),
        pytest.param("53300", id="too many connections"),
        pytest.param("53100", id="full disk"),
    ],
)
def test_what_may_pass_is_tried_again(database: PostgresDatabase, caplog: pytest.LogCaptureFixture, state: str) -> None:
    """As the server raises it, here in a trigger."""
    with piping(PostgresSink(database.dsn, "orders", "upsert")) as (driver, topic):
        topic.pipe_input("a", Order(1, "x"))
        database.execute(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"RAISE EXCEPTION 'made' USING ERRCODE = '{state}'; END $$"
        )
        database.execute("CREATE TRIGGER fail BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION fail()")
        topic.pipe_input("a", Order(2, "y"))
        database.execute("DROP TRIGGER fail ON orders")
        driver.advance_wall_clock_time(LATER_MS)
    assert orders(database) == [(2, "y")]
    assert f"(SQLSTATE {state})" in caplog.text


def test_a_database_that_stays_away_is_an_error_after_the_task_timeout(database: PostgresDatabase) -> None:
    with commit_breaker(HOST, database.server.port) as proxy:
        dsn = database.dsn.replace(str(database.server.port), str(proxy.port))
        with piping(PostgresSink(dsn, "orders"), task_timeout_ms=60_000) as (driver, topic):
            proxy.plan = [Break.BEFORE_COMMIT] * 100
            topic.pipe_input("a", Order(1, "x"))
            for _ in range(5):
                driver.advance_wall_clock_time(LATER_MS)
            with pytest.raises(TaskTimeoutError, match=r"writing to table orders .* fails: .*raise task.timeout.ms"):
                driver.advance_wall_clock_time(LATER_MS)
    assert orders(database) == []


def test_a_zombie_that_is_stopped_within_a_transaction_is_not_waited_for(database: PostgresDatabase) -> None:
    """It holds the locks of the rows of its offsets; the new owner ends its session."""
    zombie = opened(database.dsn)
    transaction = zombie._transaction()
    zombie._store_offsets(transaction.__enter__(), {PARTITION: 1})
    owner = opened(database.dsn)
    owner.write([record(2)], {PARTITION: 1})
    with pytest.raises(SinkUnavailableError, match="57P01"):
        transaction.__exit__(None, None, None)
    with pytest.raises(SinkFencedError):
        zombie.offsets()
    owner.write([record(3)], {PARTITION: 2})
    for writer in (zombie, owner):
        writer.close()
    assert orders(database) == [(2, "x"), (3, "x")]


@pytest.mark.parametrize(
    ("table", "mode", "problem"),
    [
        ("id bigint", "append", r"it has no column item \(text\)"),
        ("id text, item text", "append", "column id has type text, and the records have bigint"),
        ("id bigint, item text, place text NOT NULL", "append", "column place must not be null, and no record has a"),
        ("key text, id bigint, item text", "upsert", "has no primary key or unique index of exactly key"),
    ],
)
def test_a_table_that_does_not_fit_is_an_error(database: PostgresDatabase, table: str, mode: Any, problem: str) -> None:
    database.execute(f"CREATE TABLE orders ({table})")
    with pytest.raises(StreamsError, match=problem):
        opened(database.dsn, mode=mode)


def test_a_table_may_have_more_columns(database: PostgresDatabase) -> None:
    database.execute(
        "CREATE TABLE orders (n serial PRIMARY KEY, item varchar(9), id int, at timestamptz DEFAULT now())"
    )
    writer = opened(database.dsn)
    writer.write([record(1), record(2)], {PARTITION: 2})
    writer.close()
    assert orders(database) == [(1, "x"), (2, "x")]


def test_passwords_come_from_a_file_or_the_environment(
    database: PostgresDatabase, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "password"
    path.write_text("not yet\n")
    with pytest.raises(SinkUnavailableError, match="password authentication failed") as refused:
        opened(database.dsn_without_password, password_file=path)
    assert "not yet" not in str(refused.value)
    path.write_text(PASSWORD + "\n")
    opened(database.dsn_without_password, password_file=path).close()
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    opened(database.dsn_without_password).close()


def test_connections_over_tls_are_verified(certificate: Path) -> None:
    """By libpq, with the settings in the DSN."""
    with postgres_server(certificate=certificate) as server, server.database() as database:
        database.execute(
            "CREATE FUNCTION over_tls() RETURNS boolean LANGUAGE sql AS "
            "'SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()'"
        )
        database.execute("CREATE TABLE orders (id bigint, item text, tls boolean DEFAULT over_tls())")
        dsn = f"{database.dsn}?sslmode=verify-full&sslrootcert={certificate}/cert.pem"
        with pytest.raises(SinkUnavailableError, match=f'does not match host name "{HOST}"'):
            opened(dsn)
        with pytest.raises(SinkUnavailableError, match="no encryption"):
            opened(f"{database.dsn}?sslmode=disable")
        with piping(PostgresSink(dsn.replace(HOST, "localhost"), "orders")) as (_, topic):
            topic.pipe_input("a", Order(1, "x"))
        assert database.rows("SELECT id, item, tls FROM orders") == [(1, "x", True)]


def test_passwords_are_not_shown() -> None:
    sink = PostgresSink(f"host=db.example user={USER} password=secret dbname=shop", "orders")
    assert str(sink) == "table orders in PostgreSQL db.example/shop"
    assert "secret" not in repr(sink)
    with pytest.raises(ConfigError, match="is not one that libpq can read") as refused:
        PostgresSink("postgresql://user:secret@db.example:port/shop?no=such", "orders")
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None
