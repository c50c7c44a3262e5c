"""The conversion in a handover: changelog records become pages of Spark's state, and these the same records again."""

from __future__ import annotations

import gc
import os
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from penstock import Punctuation, Serdes, Stores, StreamsConfig, StreamsError, Ttl
from penstock.pipeline.checkpoint.checkpoint import CheckpointError
from penstock.pipeline.checkpoint.ownership import BACKFILL, LOCAL, SPARK, Ownership, require_engine, unpack_ownership
from penstock.pipeline.handover.store_changelogs import StoreChangelog, changelog_records
from penstock.pipeline.queries.history_files import HistoryFiles
from penstock.pipeline.queries.query_progress import progress_of
from penstock.pipeline.tasks.changelog_reader import MemoryState
from penstock.pipeline.tasks.sorted_runs import stored_rows
from penstock.pipeline.tasks.spark_stores import SparkOutput, SparkStores
from penstock.statestore.buffers.buffer_value import BufferValue, serialize_source
from penstock.statestore.buffers.time_ordered_buffers import BUFFER_TIME, HEADERS
from penstock.statestore.stores.dated_stores import DUE_HEADER
from penstock.statestore.stores.state_store import LONG
from penstock.topology.context.store_interfaces import StoreBackend, StoreBuilder, StoreKind
from penstock.topology.context.task_context import TaskContext
from penstock.topology.records import ProcessorRecordContext, RawRecord, TaskId

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
CONFIG = StreamsConfig({"application.id": "app", "bootstrap.servers": "localhost:1"})
BUFFERED = BufferValue(None, None, b"new", ProcessorRecordContext(START_MS, 7, 0, "in", [])).serialize()


def builder(kind: StoreKind, **more: Any) -> StoreBuilder:
    return StoreBuilder("store", kind, Serdes.bytes(), Serdes.bytes(), retention_ms=HOUR_MS, grace_ms=HOUR_MS, **more)


def times(*moments: int) -> bytes:
    return b"".join(map(LONG.pack, moments))


#: The kind of a store, and the key and value of a record of its changelog.
CASES: list[tuple[StoreBuilder, bytes, bytes]] = [
    (builder(StoreKind.KEY_VALUE), b"key", b"value"),
    (builder(StoreKind.TIMESTAMPED_KEY_VALUE), b"key", b"value"),
    (builder(StoreKind.TIMESTAMPED_KEY_VALUE, plain_values=True), b"key", b"value"),
    (builder(StoreKind.KEY_VALUE, backend=StoreBackend.LRU, max_entries=3), b"key", b"value"),
    (builder(StoreKind.WINDOW), b"key" + times(START_MS) + b"\0\0\0\0", b"value"),
    (builder(StoreKind.TIMESTAMPED_WINDOW, time_ordered=True), b"key" + times(START_MS) + b"\0\0\0\0", b"value"),
    (builder(StoreKind.WINDOW, retain_duplicates=True), b"key" + times(START_MS) + b"\0\0\0\5", b"value"),
    (builder(StoreKind.SESSION), b"key" + times(START_MS, START_MS - 10), b"value"),
    (builder(StoreKind.SESSION, backend=StoreBackend.IN_MEMORY), b"key" + times(START_MS, START_MS), b"value"),
    (builder(StoreKind.TIMESTAMPED_KEY_VALUE, keeps_headers=True), b"key", b"value"),
    (builder(StoreKind.TIMESTAMPED_WINDOW, keeps_headers=True), b"key" + times(START_MS) + b"\0\0\0\0", b"value"),
    (builder(StoreKind.SESSION, keeps_headers=True), b"key" + times(START_MS, START_MS - 10), b"value"),
    (builder(StoreKind.LIST_VALUE), b"key", b"\0\0\0\1\0\0\0\5value"),
    (builder(StoreKind.FOREIGN_KEY_SUBSCRIPTION), b"key", b"value"),
    (builder(StoreKind.JOIN_BUFFER), b"\0" + times(START_MS) + b"key\0\0\0\1", BUFFERED + BUFFER_TIME),
    (builder(StoreKind.SUPPRESS_BUFFER), b"key", BUFFERED + times(START_MS)),
]


@pytest.mark.parametrize(("store", "key", "value"), CASES, ids=lambda each: getattr(each, "kind", None))
def test_spark_rows_become_their_changelog_records(store: StoreBuilder, key: bytes, value: bytes) -> None:
    headers: Any = list(HEADERS) if store.kind is StoreKind.SUPPRESS_BUFFER or store.keeps_headers else None
    messages = [
        RawRecord("log", 3, 0, START_MS, b"x" + key[1:], value, headers),
        RawRecord("log", 3, 1, START_MS, key, value, headers),
        RawRecord("log", 3, 2, START_MS, b"x" + key[1:], None, headers),
    ]
    if store.kind is StoreKind.JOIN_BUFFER:  # every key begins with 0
        messages = messages[1:2]
    rows = pages_of(store, messages)
    (record,) = changelog_records(StoreChangelog(store, "log", False), 3, rows, START_MS)
    assert (record.topic, record.partition, record.key, record.value) == ("log", 3, key, value)
    assert record.timestamp == START_MS
    assert record.headers == headers


def test_the_changelog_of_a_join_buffer_has_no_input_records() -> None:
    """Spark's rows have them, for dead letters."""
    context = ProcessorRecordContext(START_MS, 7, 0, "in", None, b"raw key", b"raw value")
    row = BufferValue(None, None, b"new", context).serialize() + serialize_source(context)
    (record,) = changelog_records(
        StoreChangelog(builder(StoreKind.JOIN_BUFFER), "log", False), 3, [(b"\0key", row)], START_MS
    )
    assert record.value == BUFFERED + BUFFER_TIME


def table_store(ttl: Ttl) -> StoreBuilder:
    supplier = Stores.persistent_timestamped_key_value_store("store", ttl=ttl)
    return Stores.timestamped_key_value_store_builder(supplier, Serdes.string(), Serdes.string())


def pages_of(store: StoreBuilder, messages: list[RawRecord]) -> list[tuple[bytes, bytes]]:
    """Return the rows of a store in Spark's state after a restore."""
    with TemporaryDirectory() as directory:
        state, output = MemoryState(Path(directory)), SparkOutput()
        task = TaskContext(TaskId(0, 3), CONFIG, output)
        stores = SparkStores({"store": store}, task, output.images, state, None)
        stores.by_name["store"].restore(messages, None)
        for message in messages if store.kind is StoreKind.SUPPRESS_BUFFER else ():
            output.log_change("store", message.key() or b"", message.value(), None)
        stores.commit()
        stores.close()
    return list(stored_rows((number, data) for (_, number), data in sorted(state.blobs.items())))


@pytest.mark.parametrize(("store", "key", "value"), CASES, ids=lambda each: getattr(each, "kind", None))
def test_closed_stores_hold_no_files(store: StoreBuilder, key: bytes, value: bytes, tmp_path: Path) -> None:
    """Nothing waits for the garbage collector: an executor's process runs thousands of tasks."""
    state = MemoryState(tmp_path)

    def files_after_a_task() -> int:
        output = SparkOutput()
        stores = SparkStores({"store": store}, TaskContext(TaskId(0, 3), CONFIG, output), output.images, state, None)
        output.log_change("store", key, value, None)
        stores.commit()
        stores.close()
        return len(os.listdir("/proc/self/fd"))

    gc.disable()
    try:
        assert files_after_a_task() == files_after_a_task() == files_after_a_task()
    finally:
        gc.enable()


SOON, LATER = (1_000).to_bytes(8, "big"), (90_000).to_bytes(8, "big")
DATED: list[tuple[StoreBuilder, list[RawRecord]]] = [
    (
        Stores.timer_store_builder(Stores.persistent_key_value_store("store"), Serdes.string()),
        [RawRecord("log", 3, 0, START_MS, b"a", b"s" + SOON), RawRecord("log", 3, 1, START_MS, b"b", b"w" + LATER)],
    ),
    (
        table_store(Ttl(5_000)),
        [RawRecord("log", 3, 0, 7_000, b"a", b"one"), RawRecord("log", 3, 1, 9_000, b"b", b"two")],
    ),
    (
        table_store(Ttl(5_000, Punctuation.WALL_CLOCK_TIME)),
        [
            RawRecord("log", 3, 0, 7_000, b"a", b"one", [(DUE_HEADER, LATER)]),
            RawRecord("log", 3, 1, 9_000, b"b", b"x" * 1_000, [(DUE_HEADER, SOON)]),
        ],
    ),
]


@pytest.mark.parametrize(("store", "messages"), DATED)
def test_rows_that_are_due_at_a_time_come_back_as_they_were(store: StoreBuilder, messages: list[RawRecord]) -> None:
    records = changelog_records(StoreChangelog(store, "log", False), 3, pages_of(store, messages), START_MS)
    found = sorted((r.key, r.value, r.timestamp, r.headers) for r in records)
    assert found == [(m.key(), m.value(), m.timestamp()[1], m.headers()) for m in messages]


def test_the_file_that_names_the_owner_of_the_state() -> None:
    owner = Ownership(SPARK, 2, {"in": {0: 5}}, (1,), {"in": {0: 9}})
    assert unpack_ownership(owner.packed(), "there") == owner
    assert unpack_ownership(None, "there") == Ownership()
    assert owner.query_directory("there", 1) == "there/handover-2/subtopology-1"
    assert Ownership().query_directory("there", 1) == "there/subtopology-1"
    assert owner.starting_offsets('{"in":{"0":-2,"1":-2},"other":{"0":-1}}') == (
        '{"in":{"0":5,"1":-2},"other":{"0":-1}}'
    )
    assert owner.wanted() == "NOT ((topic = 'in' AND partition = 0 AND offset >= 9))"
    of_files = Ownership(BACKFILL, 1, {"in": {0: 5}}, (), {"in": {0: 9}}, 7, "/history", ("in",))
    assert unpack_ownership(of_files.packed(), "there") == of_files
    assert of_files.from_files(["in", "other"]) == ["in"]
    assert "AND offset < 5)" in of_files.wanted()
    with pytest.raises(CheckpointError, match="cannot be read"):
        unpack_ownership(b"{", "there")


@pytest.mark.parametrize(
    ("last", "told"),
    [({"in": {0: 9}}, None), ({"in": {0: 8}}, "it has the offsets 3 to 8"), ({}, "it does not exist")],
)
def test_a_topic_must_continue_where_its_files_end(last: dict[str, dict[int, int]], told: str | None) -> None:
    text = f"in-0 does not continue where the history in /history ends, at offset 9: {told}"
    with nullcontext() if told is None else pytest.raises(StreamsError, match=text):
        HistoryFiles("parquet:/history", {}).check_follows({"in": {0: 9}}, {"in": {0: 3}}, last)


@pytest.mark.parametrize(
    ("engine", "wanted", "message"),
    [(LOCAL, SPARK, "handed over to the local"), (BACKFILL, SPARK, "unfinished backfill"), (SPARK, BACKFILL, "empty")],
)
def test_a_checkpoint_of_another_engine_is_refused(engine: str, wanted: str, message: str) -> None:
    require_engine(Ownership(engine), engine, "there")
    with pytest.raises(CheckpointError, match=message):
        require_engine(Ownership(engine), wanted, "there")


class Query:
    """The part of a StreamingQuery that its progress needs."""

    name = "my-app-2"
    isActive = True  # noqa: N815 - Spark's
    lastProgress: Any = None  # noqa: N815


def test_progress_is_reported_in_the_local_engines_terms() -> None:
    query: Any = Query()
    assert progress_of(query).batch == -1
    source = {"endOffset": '{"in":{"0":4,"1":6}}', "latestOffset": {"in": {"0": 4, "1": 9}}}
    query.lastProgress = {
        "batchId": 3,
        "numInputRows": 10,
        "processedRowsPerSecond": 12.34,
        "batchDuration": 810,
        "sources": [source],
    }
    found = progress_of(query)
    assert (found.subtopology, found.batch, found.records, found.behind, found.batch_ms) == (2, 3, 10, 3, 810)
    assert found.records_per_second == 12.3
