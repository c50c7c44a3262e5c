"""The offset in a sink's database: it moves without rows, too, and never passes a dead letter that is not committed."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from penstock import KStream, Serdes, StreamsBuilder
from penstock.sinks import SinkContext, SinkRecord, SinkWriter, SqliteSink, sqlite_sink
from penstock.topology.errors import TaskMigratedError
from penstock.topology.operators.sink_operator import OFFSETS_MS
from penstock.topology.records import TopicPartition
from penstock.workers.metrics.function_metrics import FUNCTION_GROUP
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.counting import IN
from tests.workers.test_function_metrics import status_of
from tests.workers.test_task_metrics import beat, measured
from tests.workers.thread_stage import Application, Thread

NODE, LETTERS = "rows-sink", "letters"
NEVER = 10**9
FIRST = TopicPartition(IN, 0)
Make = Callable[..., Application]


class Table:
    """A table in a SQLite file, and an application that writes what it likes of a topic to it."""

    def __init__(self, path: Path, cluster: DirectKafka, make: Make) -> None:
        self.path, self._cluster, self._make = path, cluster, make
        self.sink = SqliteSink(path, "rows")

    def thread(self, declare: Callable[[KStream[str, str]], KStream[str, str]], **config: Any) -> Thread:
        builder = StreamsBuilder()
        stream = declare(builder.stream(IN, key_serde=Serdes.string(), value_serde=Serdes.string()))
        stream.to_sink(self.sink, name=NODE, max_wait=0, value_serde=Serdes.string())
        times = {"commit_interval_ms": NEVER, "transaction_timeout_ms": NEVER}
        return self._make(builder.build(), **times, **config).thread().until_running()

    def feed(self, *values: str) -> None:
        for value in values:
            self._cluster.append(IN, 0, b"key", value.encode())

    def offset(self) -> int | None:
        return next((each.offset for each in self.sink.stored("app")), None)

    def rows(self) -> list[str]:
        connection = sqlite3.connect(self.path)
        try:
            return [value for (value,) in connection.execute("SELECT value FROM rows ORDER BY rowid")]
        finally:
            connection.close()


@pytest.fixture
def table(tmp_path: Path, cluster: DirectKafka, application: Make) -> Table:
    for topic in (IN, LETTERS):
        cluster.create_topic(topic, 1)
    return Table(tmp_path / "rows.db", cluster, application)


def rows_only(stream: KStream[str, str]) -> KStream[str, str]:
    return stream.filter(lambda _, value: value.startswith("row"))


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_the_offset_moves_at_a_commit_without_rows_once_a_minute(
    table: Table, clock: ManualClock, guarantee: str
) -> None:
    thread = table.thread(rows_only, processing_guarantee=guarantee)
    table.feed("none", "none")
    thread.step(3)
    assert table.offset() is None, "the group has not accepted these offsets yet"
    thread.commit()
    thread.step(3)
    assert table.offset() == 2
    table.feed("none")
    thread.step(3).commit()
    thread.step(3)
    assert table.offset() == 2, "the last one was less than a minute ago"
    table.feed("row 3")
    thread.step(3)
    assert (table.rows(), table.offset()) == (["row 3"], 4)
    clock.advance(OFFSETS_MS)
    table.feed("none")
    thread.step(3).commit()
    thread.step(3)
    assert (table.rows(), table.offset()) == (["row 3"], 5)


def test_a_replaced_writer_moves_no_offset(table: Table) -> None:
    thread = table.thread(rows_only)
    table.feed("none", "none")
    thread.step(3)
    owner = table.sink.open(SinkContext("app", NODE, Serdes.string(), Serdes.string()))
    owner.fence({FIRST: ""})
    with pytest.raises(TaskMigratedError, match="another writer has replaced this one for in-0"):
        thread.commit()
    assert table.offset() is None
    owner.close()


def test_an_offset_that_could_not_move_moves_later(
    table: Table, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite_sink, "_LOCK_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    thread = table.thread(rows_only)
    table.feed("none")
    thread.step(3)
    other = sqlite3.connect(table.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    thread.commit()
    thread.step()
    assert "could not write 0 records" in caplog.text
    other.execute("ROLLBACK")
    other.close()
    assert table.offset() is None
    clock.advance(1_000)
    table.feed("none")
    thread.step(3).commit()
    thread.step()
    assert table.offset() == 2
    assert f"Sink {NODE} of task 0_0 writes again" in caplog.text


def test_status_and_metrics_have_the_figures_of_a_sink(table: Table) -> None:
    thread = table.thread(rows_only)
    table.feed("row 1", "none", "row 2")
    thread.step(3)
    beat(thread)
    found = measured(thread, FUNCTION_GROUP, task_id="0_0", processor_node_id=NODE)
    assert (found["row-total"], found["records-waiting"], found["retry-total"]) == (2, 0, 0)
    (shown,) = status_of(thread).sinks
    assert (shown.name, shown.waiting, shown.retries) == (NODE, 0, 0)
    assert shown.rows_per_second == pytest.approx(found["row-rate"], rel=0.5)
    assert min(shown.rows_per_second, shown.batch_ms) > 0
    assert shown.batch_ms == found["call-latency-avg"]


class WatchedWriter(SinkWriter):
    """Calls a function before each write."""

    def __init__(self, writer: SinkWriter, before: Callable[[], object]) -> None:
        self._writer, self._before = writer, before

    @override
    def fence(self, topic_ids: Mapping[TopicPartition, str]) -> Any:
        return self._writer.fence(topic_ids)

    @override
    def write(self, records: Sequence[SinkRecord], offsets: Mapping[TopicPartition, int]) -> None:
        self._before()
        self._writer.write(records, offsets)

    @override
    def offsets(self) -> Mapping[TopicPartition, int]:
        return self._writer.offsets()

    @override
    def close(self) -> None:
        self._writer.close()


class WatchedSink(SqliteSink):
    """A table in a SQLite file whose writes can be watched. before: called before each of them."""

    def __init__(self, path: Path, before: Callable[[], object]) -> None:
        super().__init__(path, "rows")
        self._before = before

    @override
    def open(self, context: SinkContext) -> SinkWriter:
        return WatchedWriter(super().open(context), self._before)


def refused(_key: str, value: str) -> str:
    if value == "bad":
        raise ValueError("it is bad")
    return value


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_no_offset_passes_a_dead_letter_that_is_not_committed(
    table: Table, cluster: DirectKafka, guarantee: str
) -> None:
    """Otherwise it would be lost: a crash aborts the letter's transaction, and the record is not processed again."""
    seen: list[tuple[int, int | None]] = []

    def note() -> None:
        seen.append((len(cluster.records(LETTERS, committed_only=True)), cluster.committed_offset(FIRST)))

    table.sink = WatchedSink(table.path, note)
    thread = table.thread(
        lambda stream: stream.map_values(refused, with_key=True),
        processing_guarantee=guarantee,
        processing_exception_handler="log_and_continue",
        errors_dead_letter_queue_topic_name=LETTERS,
    )
    table.feed("bad", "row 1", "row 2")
    thread.step(6)
    assert (table.rows(), table.offset()) == (["row 1", "row 2"], 3)
    assert {letters for letters, _ in seen} == {1}, "it was committed before each write"
    assert seen[0][1] == 1, "the commit did not pass the rows that waited for it"
