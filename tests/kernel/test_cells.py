"""Compiled nodes over the cells of a cache, and over rows, have the results of Python functions."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
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
from penstock.kernel.cells import Cell, CellTable
from penstock.kernel.nodes import RecordContext
from penstock.kernel.window_nodes import TimeWindows as CompiledWindows
from penstock.statestore.cache.thread_cache import ThreadCache
from penstock.testing.driver_task import Clock, DriverTask
from penstock.topology.context.store_interfaces import USED
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
        for (
            entries
        ) in cache._caches:  # as after a restart; expired rows are visible while the cache happens to have them
            entries.evict_clean(len(entries.entries))
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


def test_a_cell_looks_like_the_list_that_it_replaces() -> None:
    fields = [("row", 7), 1_000, [("h", b"")], "message", True, "key"]
    create: Any = Cell  # each field has another type
    cell = create(*fields)
    assert [cell[number] for number in range(7)] == [fields[0], False, *fields[1:]]
    for number, value in {0: None, 2: 2_000, 3: None, 4: None, 5: False}.items():
        cell[number] = value
    assert [cell[number] for number in range(7)] == [None, False, 2_000, None, None, False, "key"]
    with pytest.raises(IndexError):
        cell[7]


def test_a_cell_loaded_by_an_update_that_failed_still_counts_as_growth() -> None:
    table = CellTable()

    def load(key: str) -> Any:
        return table.entries.setdefault(key, Cell(None, 0, None, None, False, key))

    updates = table.updates(load, int, None, int)

    def fail(*_: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        updates.aggregate(int, fail, "a", "a", "v", 1, None, None)
    assert not table.dirty()
    assert updates.count("a", 2, None, None)  # now there is a row to evict
    assert not updates.count("a", 3, None, None)
    assert list(table.take_dirty()) == [("a", (2, 3), 3, None, None)]


def counted_keys(keys: str) -> CellTable:
    """Return the cells of counts, after a record of each key."""
    table = CellTable()

    def load(key: str) -> Any:
        return table.entries.setdefault(key, Cell(None, 0, None, None, False, key))

    updates = table.updates(load, int, None, int)
    for number, key in enumerate(keys):
        updates.count(key, number, None, None)
    return table


def test_a_full_cache_writes_what_it_drops_and_no_more_in_the_order_of_the_last_changes() -> None:
    table = counted_keys("abcdefa")
    flushed: list[Any] = []
    table.evict(3, flushed.extend)
    assert flushed == [(key, (1, at), at, None, None) for at, key in enumerate("abcdef") if key in "bcd"]
    assert set(table.entries) == set("aef")
    assert table.dirty_count == 3
    assert [change[:2] for change in table.take_dirty()] == [("e", (1, 4)), ("f", (1, 5)), ("a", (2, 6))]
    assert table.dirty_count == 0


def test_entries_that_their_flush_uses_stay_in_the_cache() -> None:
    table = counted_keys("abcdef")

    def flush(changes: Any) -> None:
        if "b" in [change[0] for change in changes]:
            table.entries["b"][USED] = True

    table.evict(3, flush)
    assert set(table.entries) == {"b", "e", "f"}


def test_changes_are_selected() -> None:
    table = counted_keys("abc")
    table.putter(RecordContext(), pytest.fail)("b", None)
    changes = table.take_dirty()
    assert [change[0] for change in changes] == ["a", "c", "b"]
    assert changes.deleted() == {"b"}
    assert "b" not in table.entries
    kept, olds = changes.effective([None, "old", None])
    assert ([change[0] for change in kept], olds) == (["a", "c"], [None, "old"])
    kept, olds = changes.effective([None, None, "old"])
    assert (list(kept), olds) == (list(changes), [None, None, "old"])
    assert list(changes.only([2, 0])) == [changes[2], changes[0]]
    for place in (-1, 3):
        with pytest.raises(IndexError):
            changes.only([place])


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
