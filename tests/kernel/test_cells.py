"""Compiled nodes over the cells of a cache, and over rows, have the results of Python functions."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import (
    BufferConfig,
    CalendarWindows,
    Serdes,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    StreamsConfig,
    Suppressed,
    TimeWindows,
    agg,
)
from penstock.kernel.cells import CellTable
from penstock.kernel.nodes import RecordContext
from penstock.kernel.table_nodes import Aggregate, CachedRows, Count
from penstock.kernel.window_nodes import TimeWindows as CompiledWindows
from penstock.statestore.cache.thread_cache import ThreadCache
from penstock.testing.driver_task import Clock, DriverTask
from penstock.topology.context.store_interfaces import CacheKeys
from penstock.topology.graph.subtopologies import build_whole_topology
from penstock.topology.records import RawRecord
from tests.examples import examples
from tests.topology.only_functions import only_functions

pytestmark = pytest.mark.medium

TEXT: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
KEYS = "abcdefgh"
#: A few entries: evictions happen in the middle.
CACHE_BYTES = 600


def count(builder: StreamsBuilder) -> Any:
    return builder.stream("in", **TEXT).group_by_key().count(store="store")


def windowed_count(builder: StreamsBuilder) -> Any:
    windows = TimeWindows.of_size_with_no_grace(10)
    return builder.stream("in", **TEXT).group_by_key().windowed_by(windows).count(store="store")


def hopping_reduce(builder: StreamsBuilder) -> Any:
    """Like reduce, in overlapping windows."""
    windows = TimeWindows.of_size_with_no_grace(10).advance_by(3)
    return builder.stream("in", **TEXT).group_by_key().windowed_by(windows).reduce(reduced, store="store")


def sliding_count(builder: StreamsBuilder) -> Any:
    windows = SlidingWindows.of_time_difference_and_grace(10, 100)
    return builder.stream("in", **TEXT).group_by_key().windowed_by(windows).count(store="store")


def sliding_reduce(builder: StreamsBuilder) -> Any:
    windows = SlidingWindows.of_time_difference_and_grace(1_010, 100)  # begins before 0
    return builder.stream("in", **TEXT).group_by_key().windowed_by(windows).reduce(reduced, store="store")


def session_count(builder: StreamsBuilder) -> Any:
    windows = SessionWindows.of_inactivity_gap_and_grace(4, 100)
    return builder.stream("in", **TEXT).group_by_key().windowed_by(windows).count(store="store")


def session_reduce(builder: StreamsBuilder) -> Any:
    windows = SessionWindows.of_inactivity_gap_and_grace(4, 100)
    return builder.stream("in", **TEXT).group_by_key().windowed_by(windows).reduce(reduced, store="store")


def suppressed_windows(builder: StreamsBuilder) -> Any:
    closed = Suppressed.until_window_closes(BufferConfig.unbounded())
    return hopping_reduce(builder).suppress(closed)


def suppressed_updates(builder: StreamsBuilder) -> Any:
    """By time; the first updates are emitted early when there are too many."""
    limited = Suppressed.until_time_limit(5, BufferConfig.max_records(3).emit_early_when_full())
    return reduce(builder).suppress(limited)


def reduced(old: str, new: str | None) -> str | None:
    """Return the result of a reduction: x deletes, like None in windows, and y stays unchanged."""
    return None if new in (None, "x") else new if new == "y" else old + new


def aggregate(builder: StreamsBuilder) -> Any:
    """Values of x delete the aggregate."""
    return (
        builder.stream("in", **TEXT)
        .group_by_key()
        .aggregate(
            str, lambda _, value, old: None if value == "x" else old + value, store="store", value_serde=Serdes.string()
        )
    )


def reduce(builder: StreamsBuilder) -> Any:
    """Values of x delete, and y keeps the record's own value."""
    return builder.stream("in", **TEXT).group_by_key().reduce(reduced, store="store")


AGGREGATES = {"n": agg.count(), "values": agg.count(str), "low": agg.min(), "last": agg.last(), "list": agg.collect(3)}


def aggregates(builder: StreamsBuilder) -> Any:
    return builder.stream("in", **TEXT).group_by_key().aggregate(AGGREGATES, store="store")


def hopping_aggregates(builder: StreamsBuilder) -> Any:
    windows = TimeWindows.of_size_with_no_grace(10).advance_by(3)
    return builder.stream("in", **TEXT).group_by_key().windowed_by(windows).aggregate(AGGREGATES, store="store")


def session_aggregates(builder: StreamsBuilder) -> Any:
    windows = SessionWindows.of_inactivity_gap_and_grace(4, 100)
    return builder.stream("in", **TEXT).group_by_key().windowed_by(windows).aggregate(AGGREGATES, store="store")


def calendar_aggregate(builder: StreamsBuilder) -> Any:
    windows = CalendarWindows("day", tz="Europe/Paris")
    return builder.stream("in", **TEXT).group_by_key().windowed_by(windows).aggregate(agg.last(), store="store")


def join(builder: StreamsBuilder) -> Any:
    table = builder.table("table", **TEXT, store="store")
    return builder.stream("in", **TEXT).left_join(table, lambda value, other: f"{value}{other}")


TOPOLOGIES: dict[str, Callable[[StreamsBuilder], Any]] = {
    function.__name__: function
    for function in (
        count,
        windowed_count,
        hopping_reduce,
        sliding_count,
        sliding_reduce,
        session_count,
        session_reduce,
        suppressed_windows,
        suppressed_updates,
        aggregate,
        reduce,
        aggregates,
        hopping_aggregates,
        session_aggregates,
        calendar_aggregate,
        join,
    )
}

#: By then segments of windows and sessions expire, possibly within a flush.
JUMPS_MS = (70_000, 200_000, 200_003)
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(("in", "table")),
        st.sampled_from(KEYS),
        st.sampled_from(("x", "y", "z", None)),
        st.one_of(st.integers(0, 40), st.sampled_from(JUMPS_MS)),
        st.booleans(),  # whether a batch ends here
        st.integers(0, 5).map(lambda number: number == 0),  # whether a commit follows
    ),
    max_size=60,
)


def run(
    declare: Callable[[StreamsBuilder], Any], records: list[tuple[Any, ...]], cache_bytes: int, compiled: bool = True
) -> list[Any]:
    """Return all sent and logged records, and the final rows; the records up to a commit form a batch."""
    builder = StreamsBuilder()
    result = declare(builder)
    stream = result.to_stream() if hasattr(result, "to_stream") else result
    # As text, because the keys of windows cannot be compared.
    stream.map(lambda key, value: (str(key), str(value))).to("out", **TEXT)
    config = StreamsConfig({"application.id": "cells", "bootstrap.servers": "localhost:0"})
    topology = build_whole_topology(builder.build().internal_builder, config)
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        if not compiled:
            only_functions(patch)
        cache = ThreadCache(cache_bytes)
        task = DriverTask(topology, config, Clock(0), Path(directory), cache)
        batch: list[RawRecord] = []
        for number, (topic, key, value, at, ends_batch, commits) in enumerate(records):
            source = task.compiled.source_of(topic)
            if source is None:
                continue
            data = None if value is None else value.encode()
            batch.append(RawRecord(topic, 0, number, 1_000 + at, key.encode(), data, [("n", b"%d" % number)]))
            if ends_batch or commits or topic == "table":
                source.process_batch(batch)
                batch = []
            if commits:
                task.commit()
        task.commit()
        found: list[Any] = [list(task.take_produced()), sorted(task.dropped.items(), key=str)]
        for each in cache._caches:  # as after a restart; expired rows are visible while the cache happens to have them
            each.evict_clean(len(each.table))
        found.append([repr(row) for row in task.store("store").all()])
        task.close()
    return found


@pytest.mark.parametrize("name", TOPOLOGIES)
@settings(max_examples=examples(40), deadline=None)
@given(records=RECORDS)
@example(
    records=[
        *[("in", "a", "x", 0, False, True)] * 8,
        ("in", "b", "x", 70_000, False, True),
        ("in", "b", "y", 70_000, False, True),
        ("in", "a", "x", 70_000, False, True),
        ("in", "a", "x", 200_000, False, True),
    ]
)
def test_nodes_over_cells_give_the_results_of_functions(name: str, records: list[tuple[Any, ...]]) -> None:
    assert run(TOPOLOGIES[name], records, CACHE_BYTES, compiled=False) == run(TOPOLOGIES[name], records, CACHE_BYTES)


@pytest.mark.parametrize("name", TOPOLOGIES)
@settings(max_examples=examples(20), deadline=None)
@given(records=RECORDS)
def test_nodes_over_rows_give_the_results_of_functions(name: str, records: list[tuple[Any, ...]]) -> None:
    assert run(TOPOLOGIES[name], records, 0, compiled=False) == run(TOPOLOGIES[name], records, 0)


def put(table: CellTable, key: object, row: Any, at: int = 0) -> None:
    """Put a row into a cache, with its own timestamp as that of the record."""
    context = RecordContext()
    context.timestamp, context.headers = at, [("h", b"%d" % at)]
    table.putter(context, lambda: None)(key, row)


def keys_of(table: CellTable) -> set[object]:
    """Return the keys that are cached with a row."""
    return {key for key, _ in table.rows()}


def letters(keys: str) -> CellTable:
    """Return the cells of some keys, which are letters, each changed at its place."""
    table = CellTable()
    for at, key in enumerate(keys):
        put(table, key, (key, at), at)
    return table


def test_a_cell_has_a_row_and_the_headers_of_its_last_change() -> None:
    table = CellTable()
    table.add_clean("a", ("stored", 1))
    cell = table.get("a")
    assert cell is not None
    assert (cell.value, cell.is_changed, cell.used) == (("stored", 1), False, False)
    put(table, "a", None, 7)
    assert (cell.value, cell.is_changed, cell.used, cell.headers) == (None, True, True, [("h", b"7")])
    assert table.get("b") is None


def test_a_cell_loaded_by_an_update_that_failed_still_counts_as_growth() -> None:
    table, grown = CellTable(), 0

    def load(key: bytes) -> Any:
        return table.add_clean(key, None)

    def grow() -> None:
        nonlocal grown
        grown += 1

    def fail(*_: Any) -> Any:
        raise ValueError("no")

    task, serde = RecordContext(), Serdes.bytes()
    rows = CachedRows(task, table.updates(load, int, None, int), serde, None, grow, keeps_messages=False)
    with pytest.raises(ValueError, match="no"):
        Aggregate(task, "sum", None, rows, pytest.fail, int, fail).receive(b"a", "v", 1, None)
    assert (table.changed(), grown) == ([], 0)
    count = Count(task, "count", None, rows, pytest.fail)
    count.receive(b"a", "v", 2, None)
    assert grown == 1, "now there is a row to evict"
    count.receive(b"a", "v", 3, None)
    assert grown == 1
    assert list(table.take_dirty()) == [(b"a", (2, 3), 3, None, None)]


def test_a_full_cache_writes_what_it_drops_and_no_more_in_the_order_of_the_last_changes() -> None:
    table = letters("abcdefa")
    flushed: list[Any] = []
    table.evict(3, flushed.extend)
    assert flushed == [(key, (key, at), at, [("h", b"%d" % at)], None) for at, key in ((1, "b"), (2, "c"), (3, "d"))]
    assert keys_of(table) == set("aef")
    assert table.dirty_count == 3
    assert [change[:2] for change in table.take_dirty()] == [("e", ("e", 4)), ("f", ("f", 5)), ("a", ("a", 6))]
    assert table.dirty_count == 0


def test_entries_that_their_flush_uses_stay_in_the_cache() -> None:
    table = letters("abcdef")

    def flush(changes: Any) -> None:
        used = table.get("b")
        if "b" in [change[0] for change in changes] and used is not None:
            used.used = True

    table.evict(3, flush)
    assert keys_of(table) == {"b", "e", "f"}


def test_changes_are_selected() -> None:
    table = letters("abc")
    put(table, "b", None)
    changes = table.take_dirty()
    assert [change[0] for change in changes] == ["a", "c", "b"]
    assert changes.deleted() == {"b"}
    assert table.get("b") is None
    kept, olds = changes.effective([None, "old", None])
    assert ([change[0] for change in kept], olds) == (["a", "c"], [None, "old"])
    kept, olds = changes.effective([None, None, "old"])
    assert (list(kept), olds) == (list(changes), [None, None, "old"])
    assert list(changes.only([2, 0])) == [changes[2], changes[0]]
    for place in (-1, 3):
        with pytest.raises(IndexError):
            changes.only([place])


@dataclass
class Entry:
    """An entry of a cache, in plain Python."""

    row: Any
    used: bool = False
    at: int | None = None  # of its change, None if it has not changed


class PlainCache:
    """What a CellTable does, in plain Python: two dicts, whose order is that of the queues."""

    def __init__(self) -> None:
        self.clean: dict[Any, Entry] = {}
        self.changed: dict[Any, Entry] = {}

    def get(self, key: Any) -> Entry | None:
        """Return an entry."""
        return self.clean.get(key) or self.changed.get(key)

    def put(self, key: Any, row: Any, at: int) -> None:
        """Change an entry."""
        known = self.clean.pop(key, None) or self.changed.pop(key, None)
        self.changed[key] = Entry(row, used=known is not None, at=at)

    def add_clean(self, key: Any, row: Any) -> None:
        """Add an entry of the store below."""
        self.clean.pop(key, None), self.changed.pop(key, None)
        self.clean[key] = Entry(row)

    def take(self, most: int) -> list[Any]:
        """Return the first changes, which are then clean."""
        taken = []
        for key in list(self.changed)[:most]:
            entry = self.changed.pop(key)
            taken.append((key, entry.row, entry.at))
            if entry.row is not None:
                self.clean[key] = Entry(entry.row, entry.used)
        return taken

    def evict_clean(self, wanted: int) -> int:
        """Drop the oldest entries that have not changed, those that were used last."""
        for _ in range(2 * len(self.clean)):
            if not wanted or not self.clean:
                break
            key = next(iter(self.clean))
            entry = self.clean.pop(key)
            if entry.used:
                entry.used = False
                self.clean[key] = entry
            else:
                wanted -= 1
        return wanted

    def evict(self, wanted: int) -> list[Any]:
        """Drop entries, and return the changes that are written before."""
        wanted = self.evict_clean(wanted)
        taken = self.take(wanted)
        for key, row, _ in taken:
            if row is not None:
                del self.clean[key]
        return taken


CACHE_KEYS: dict[CacheKeys, st.SearchStrategy[Any]] = {
    CacheKeys.PLAIN: st.sampled_from(KEYS),
    CacheKeys.WINDOW: st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 12)),
    CacheKeys.SESSION: st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 5), st.integers(0, 3)),
}
STEP = st.sampled_from(("put", "put", "put", "delete", "load", "use", "evict", "evict", "take", "clear"))


@pytest.mark.parametrize("keys", CacheKeys)
@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_cells_are_found_flushed_and_evicted_as_in_plain_python(keys: CacheKeys, data: st.DataObject) -> None:
    table, plain = CellTable(keys), PlainCache()
    for at, (step, key, most) in enumerate(
        data.draw(st.lists(st.tuples(STEP, CACHE_KEYS[keys], st.integers(0, 6)), max_size=80))
    ):
        written: list[Any] = []
        expected: list[Any] = []
        if step in ("put", "delete"):
            row = (step, at) if step == "put" else None
            put(table, key, row, at)
            plain.put(key, row, at)
        elif step == "load":
            table.add_clean(key, ("stored", at))
            plain.add_clean(key, ("stored", at))
        elif step == "use":
            cell, entry = table.get(key), plain.get(key)
            if cell is not None and entry is not None:
                cell.used = entry.used = True
        elif step == "evict":
            table.evict(most, written.extend)
            expected = plain.evict(most)
        elif step == "take":
            written, expected = list(table.take_dirty()), plain.take(len(plain.changed))
        else:
            table.clear()
            plain = PlainCache()
        assert [change[:3] for change in written] == expected
        rows = [(key, entry.row) for key, entry in (*plain.clean.items(), *plain.changed.items())]
        assert table.rows() == rows
        assert table.changed() == rows[len(plain.clean) :]
        assert (len(table), table.dirty_count) == (len(rows), len(plain.changed))
        cell, entry = table.get(key), plain.get(key)
        assert (cell and (cell.value, cell.used)) == (entry and (entry.row, entry.used))
        assert [value for _, value in table.sample(3)] == [
            row for _, row in reversed(table.changed() or table.rows())
        ][:3]
        if keys is CacheKeys.WINDOW:
            record_key, time = key
            near = {known: row for known, row in rows if known[0] == record_key and abs(known[1] - time) <= 2}
            assert table.cached(record_key, time - 2, time + 2) == near


@given(
    size=st.integers(1, 50) | st.integers(1, 2**60),
    parts=st.integers(1, 7),
    grace=st.integers(0, 100) | st.integers(0, 2**60),
    steps=st.lists(st.tuples(st.integers(0, 200) | st.integers(0, 2**62), st.booleans()), max_size=30),
)
def test_windows_match_their_declaration(size: int, parts: int, grace: int, steps: list[tuple[int, bool]]) -> None:
    """Tumbling windows and overlapping ones, whether the size is a multiple of the advance or not."""
    stream_time = -1
    declared = TimeWindows(size, grace, max(1, size // parts))
    windows = CompiledWindows(size, declared.advance_ms, grace)
    for timestamp, is_told in steps:
        if is_told:  # as when the operator's state is set
            windows.stream_time = stream_time = timestamp
            continue
        stream_time = max(stream_time, timestamp)
        expected = declared.windows_for(timestamp)
        assert list(windows.starts(timestamp)) == [
            start if end > stream_time - grace else None for start, (_, end) in expected.items()
        ]
        assert [windows.end(start) for start in expected] == [end for _, end in expected.values()]
        assert windows.stream_time == stream_time
