"""Trace contexts stored with the rows of a table, on disk and in changelogs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.statestore.rows.rocksdb_store import RocksDBStore
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.serdes.serdes import Serdes
from tests import collected_spans
from tests.direct_kafka import DirectKafka
from tests.workers.counting import IN, OUT
from tests.workers.thread_stage import Application, Stage, Thread

MakeApplication = Callable[..., Application]
TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
CHANGELOG = "app-newest-changelog"
HEADERS = {"dsl_store_format": "HEADERS"}
TRACED = {"processor_wrapper_class": "penstock.tracing:TracingWrapper", **HEADERS}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return collected_spans.exporter()


def newest() -> Any:
    """Keeps each key's newest value."""
    builder = StreamsBuilder()
    stream = builder.stream(IN, **TEXT)
    stream.group_by_key().reduce(lambda old, new: new, name="newest", store="newest").to_stream().to(OUT, **TEXT)
    return builder.build()


@pytest.fixture
def app(cluster: DirectKafka, application: MakeApplication) -> Callable[..., Application]:
    for topic in (IN, OUT, CHANGELOG):
        cluster.create_topic(topic, 1)
    return lambda **config: application(newest(), **config)


def send(
    cluster: DirectKafka, thread: Thread, value: bytes | None, trace: int | None = None, commit: bool = True
) -> None:
    headers = None if trace is None else [("traceparent", f"00-{trace:032x}-{trace:016x}-01".encode())]
    cluster.append(IN, 0, b"k", value, 1_000, headers)
    thread.until_idle()
    if commit:
        thread.commit()


def linked(exporter: InMemorySpanExporter) -> list[int]:
    """Return the traces that the aggregation's last span links to."""
    spans = [span for span in exporter.get_finished_spans() if span.name == "newest"]
    return [link.context.trace_id for link in spans[-1].links]


@pytest.mark.parametrize("cache_bytes", [0, 1_000_000])
def test_a_restart_reads_contexts_from_disk(
    app: Callable[..., Application], cluster: DirectKafka, exporter: InMemorySpanExporter, cache_bytes: int
) -> None:
    counting = app(statestore_cache_max_bytes=cache_bytes, **TRACED)
    thread = counting.thread()
    send(cluster, thread, b"a", 7)
    thread.close()
    read = cluster.log(cluster.partitions(CHANGELOG)[0]).end
    thread = counting.thread()
    send(cluster, thread, b"b", 8)
    assert linked(exporter) == [7]
    assert thread.changelog_reader.total_restored == 0
    assert cluster.log(cluster.partitions(CHANGELOG)[0]).end == read + 1


def test_a_restore_reads_contexts_from_the_changelog(
    app: Callable[..., Application], cluster: DirectKafka, stage: Stage, exporter: InMemorySpanExporter
) -> None:
    counting = app(**TRACED)
    thread = counting.thread()
    send(cluster, thread, b"a", 7)
    thread.close()
    shutil.rmtree(stage.state_dir)
    thread = counting.thread()
    send(cluster, thread, b"b", 8)
    assert thread.changelog_reader.total_restored == 1
    assert linked(exporter) == [7]


def test_a_cached_row_has_the_context_of_its_last_record(
    app: Callable[..., Application], cluster: DirectKafka, exporter: InMemorySpanExporter
) -> None:
    thread = app(**TRACED).thread()
    send(cluster, thread, b"a", 6)
    send(cluster, thread, b"b", 7, commit=False)
    send(cluster, thread, b"c", 8, commit=False)
    assert linked(exporter) == [7]
    assert cluster.table(OUT) == {b"k": b"a"}


def test_a_record_without_a_trace_removes_the_context(
    app: Callable[..., Application], cluster: DirectKafka, stage: Stage, exporter: InMemorySpanExporter
) -> None:
    counting = app(**TRACED)
    thread = counting.thread()
    send(cluster, thread, b"a", 7)
    send(cluster, thread, b"b")
    send(cluster, thread, b"c", 8)
    assert linked(exporter) == []
    send(cluster, thread, b"d")
    thread.close()
    shutil.rmtree(stage.state_dir)
    thread = counting.thread()
    send(cluster, thread, b"e", 9)
    assert linked(exporter) == []


def test_uncommitted_contexts_are_not_kept(
    app: Callable[..., Application], cluster: DirectKafka, exporter: InMemorySpanExporter
) -> None:
    counting = app(statestore_cache_max_bytes=0, processing_guarantee="exactly_once_v2", **TRACED)
    thread = counting.thread()
    send(cluster, thread, b"a", 7)
    (task,) = thread.thread.task_manager.active.all_tasks().values()
    store = task.state_manager.stores["newest"]
    kept = store.rows.context(b"k")
    store.rows.keep_context(b"k", b"other")
    store.rollback()
    assert store.rows.context(b"k") == kept


def families(stage: Stage) -> list[str]:
    """Return the column families of a store's database, besides those of rows and offset."""
    (path,) = stage.state_dir.rglob("stores/newest")
    with_contexts = RocksDBStore(path)
    try:
        return ["contexts"] if with_contexts._contexts is not None else []
    finally:
        with_contexts.close()


def test_a_database_gets_a_column_family_with_the_first_context(
    app: Callable[..., Application], cluster: DirectKafka, stage: Stage
) -> None:
    thread = app(**TRACED).thread()
    send(cluster, thread, b"a")
    thread.close()
    assert families(stage) == []
    thread = app(**TRACED).thread()
    send(cluster, thread, b"a", 7)
    thread.close()
    assert families(stage) == ["contexts"]


@pytest.mark.parametrize("config", [{}, HEADERS])
def test_the_rows_are_readable_without_them(
    app: Callable[..., Application], cluster: DirectKafka, stage: Stage, exporter: InMemorySpanExporter, config: Any
) -> None:
    """Traces can be turned off and on again: a row that was written while they were off has no context."""
    thread = app(**TRACED).thread()
    send(cluster, thread, b"a", 7)
    thread.close()
    thread = app(**config).thread()
    send(cluster, thread, b"b", 8)
    assert thread.changelog_reader.total_restored == 0
    thread.close()
    assert cluster.table(OUT) == {b"k": b"b"}
    exporter.clear()
    thread = app(**TRACED).thread()
    send(cluster, thread, b"c", 9)
    assert linked(exporter) == []
    assert cluster.table(OUT) == {b"k": b"c"}


def test_a_snapshot_contains_contexts(
    app: Callable[..., Application], cluster: DirectKafka, stage: Stage, tmp_path: Path
) -> None:
    thread = app(**TRACED).thread()
    send(cluster, thread, b"a", 7)
    (task,) = thread.thread.task_manager.active.all_tasks().values()
    rows = task.state_manager.stores["newest"].rows
    rows.checkpoint(tmp_path / "copy")
    copy = RocksDBStore(tmp_path / "copy", read_only=True)
    assert copy.context(b"k") == rows.context(b"k") is not None
    copy.close()
