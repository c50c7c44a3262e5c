"""to_sink(): where the sink's task is cut off, its columns, and its arguments."""

from __future__ import annotations

import datetime
import enum
import sqlite3
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest

from penstock import KStream, Serdes, StreamsBuilder, TimeWindows
from penstock.pipeline.queries.capabilities import Capability, report_capabilities
from penstock.sinks import PostgresSink, SqliteSink
from penstock.testing import TopologyTestDriver
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import StreamsError, TopologyError
from tests.postgres_server import PostgresDatabase

TEXT, NUMBER = Serdes.string(), Serdes.int64()


class Size(enum.Enum):
    """An enum."""

    SMALL = "s"


@dataclass
class Everything:
    """A field of each type."""

    flag: bool
    number: int
    real: float
    exact: Decimal
    text: str
    data: bytes
    at: datetime.datetime
    day: datetime.date
    clock: datetime.time
    id: uuid.UUID
    size: Size
    kind: Literal["a", "b"]
    tags: list[str]
    maybe: int | None = None


VALUE = Everything(
    flag=True,
    number=-(2**63),
    real=0.1,
    exact=Decimal("1.10"),
    text="tab\tline\nback\\slash ' \" \\N é",
    data=b"\x00\xff",
    at=datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.UTC),
    day=datetime.date(2026, 11, 30),
    clock=datetime.time(12, 30),
    id=uuid.UUID(int=7),
    size=Size.SMALL,
    kind="a",
    tags=["x", 'y"'],
)


def declared(path: Path, declare: Callable[[KStream[str, int], SqliteSink], Any]) -> Any:
    """Return a topology whose topic "in" goes to a sink."""
    builder = StreamsBuilder()
    declare(builder.stream("in", key_serde=TEXT, value_serde=NUMBER), SqliteSink(path / "rows.db", "rows", key="key"))
    return builder.build()


def rows(path: Path, query: str = "SELECT key, value FROM rows ORDER BY rowid") -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path / "rows.db")
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def with_copy(stream: KStream[str, int], sink: SqliteSink) -> None:
    stream.to("copy")
    stream.to_sink(sink, name="rows-sink")


def with_peek(stream: KStream[str, int], sink: SqliteSink) -> None:
    stream.to_sink(sink, name="rows-sink")
    stream.peek(print)


def both(stream: KStream[str, int], sink: SqliteSink) -> None:
    stream.to_sink(sink, name="first")
    stream.to_sink(sink, name="second")


@pytest.mark.parametrize(
    ("declare", "internal"),
    [
        (lambda s, sink: s.to_sink(sink, name="rows-sink"), []),
        (lambda s, sink: s.filter(lambda k, v: v > 0).map_values(abs).to_sink(sink, name="a", value_serde=NUMBER), []),
        (with_copy, ["rows-sink"]),
        (with_peek, ["rows-sink"]),
        (lambda s, sink: s.peek(print).to_sink(sink, name="rows-sink"), ["rows-sink"]),
        (lambda s, sink: s.group_by_key().count().to_stream().to_sink(sink, name="rows-sink"), ["rows-sink"]),
        (lambda s, sink: s.repartition(name="mine").to_sink(sink, name="rows-sink"), ["mine"]),
        (both, ["first", "second"]),
    ],
)
def test_an_internal_topic_separates_a_sink_from_all_other_work(
    tmp_path: Path, declare: Callable[..., Any], internal: list[str]
) -> None:
    topology = declared(tmp_path, declare)
    topics = {topic for built in topology.internal_builder.build_subtopologies() for topic in built.repartition_topics}
    assert topics == {f"{name}-repartition" for name in internal}
    with TopologyTestDriver(topology) as driver:
        driver.create_input_topic("in").pipe_key_value_list([("a", 7), ("b", 8)])
    assert {key for key, _ in rows(tmp_path)} == {"a", "b"}


def test_records_without_a_key_pass_the_internal_topic(tmp_path: Path) -> None:
    topology = declared(tmp_path, with_copy)
    with TopologyTestDriver(topology) as driver:
        driver.create_input_topic("in").pipe_input(None, 7)
    assert rows(tmp_path) == [(None, 7)]


def test_it_is_described(tmp_path: Path) -> None:
    text = str(declared(tmp_path, lambda s, sink: s.to_sink(sink, name="rows-sink")).describe())
    assert f"Sink: rows-sink (table rows in SQLite file {tmp_path}/rows.db)\n      <-- KSTREAM-SOURCE" in text


def test_spark_refuses_it(tmp_path: Path) -> None:
    topology = declared(tmp_path, lambda s, sink: s.to_sink(sink, name="rows-sink"))
    report = report_capabilities(topology, StreamsConfig({"application.id": "a", "bootstrap.servers": "b:1"}))
    findings = {finding.node: finding for finding in report.findings}
    assert findings["rows-sink"].capability is Capability.REFUSED


def test_rows_of_one_record_are_in_one_transaction(tmp_path: Path) -> None:
    """So a crash between them would not make the other half missing: batches end between records."""
    topology = declared(
        tmp_path,
        lambda s, sink: s.flat_map_values(range).to_sink(sink, name="rows-sink", max_records=2, value_serde=NUMBER),
    )
    with TopologyTestDriver(topology) as driver:
        driver.create_input_topic("in").pipe_input("a", 5)
    assert rows(tmp_path) == [("a", number) for number in range(5)]


def test_windowed_keys_have_the_times_of_their_windows(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    counts = builder.stream("in", key_serde=TEXT, value_serde=NUMBER).group_by_key().windowed_by(TimeWindows(60_000))
    counts.count().to_stream().to_sink(SqliteSink(tmp_path / "rows.db", "rows", "upsert"), name="rows-sink")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        for timestamp in (0, 59_999, 60_000):
            topic.pipe_input("a", 1, timestamp)
    found = rows(tmp_path, "SELECT key, window_start, window_end, value FROM rows ORDER BY window_start")
    times = [f"1970-01-01 00:0{minute}:00.000000+00:00" for minute in range(3)]
    assert found == [("a", times[0], times[1], 2), ("a", times[1], times[2], 1)]


def test_each_type_has_a_column(database: PostgresDatabase) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=TEXT, value_serde=Serdes.json(Everything))
    stream.to_sink(PostgresSink(database.dsn, "things", "upsert"), name="things-sink")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_input("k", VALUE)
    ((key, *found),) = database.rows("SELECT * FROM things")
    assert key == "k"
    expected = [*(getattr(VALUE, name) for name in Everything.__dataclass_fields__)]
    expected[10] = "s"
    assert found == expected
    types = database.rows(
        "SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = 'things'::regclass "
        "AND attnum > 0 ORDER BY attnum"
    )
    assert [name for (name,) in types] == [
        "text", "boolean", "bigint", "double precision", "numeric", "text", "bytea", "timestamp with time zone", "date",
        "time without time zone", "uuid", "text", "text", "jsonb", "bigint",
    ]  # fmt: skip
    optional = database.rows(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'things'::regclass AND attnum > 0 AND NOT attnotnull"
    )
    assert optional == [("maybe",)]


def test_unknown_columns_are_an_error(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=TEXT, value_serde=NUMBER).map_values(str)
    stream.to_sink(SqliteSink(tmp_path / "rows.db", "rows"), name="rows-sink")
    topology = builder.build()
    with pytest.raises(StreamsError, match="Give to_sink\\(\\) a value_serde with a type"):
        TopologyTestDriver(topology, {"default.value.serde": _Opaque()})


class _Opaque:
    def serialize(self, topic: str, value: Any) -> bytes | None:
        return None

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        return data


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda s: s.to_sink("rows"), "The argument of to_sink\\(\\) must be a sink"),
        (lambda s: s.to_sink(SqliteSink("x", "t"), max_records=0), "max_records must be 1 or more"),
        (lambda s: s.to_sink(SqliteSink("x", "t"), max_wait=-1), "max_wait of to_sink\\(\\) must not be negative"),
        (lambda s: SqliteSink("x", ""), "The table of a sink must be a name"),
        (lambda s: SqliteSink("x", "t", "insert"), 'mode must be "append" or "upsert"'),  # type: ignore[arg-type]
        (lambda s: SqliteSink("x", "t", columns={"a": complex}), "Column a has type"),
    ],
)
def test_wrong_arguments_are_errors(make: Callable[[Any], object], problem: str) -> None:
    stream = StreamsBuilder().stream("in")
    with pytest.raises(TopologyError, match=problem):
        make(stream)
