"""Windows of a number of records: when they are full, what they have, and that a crash changes nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import CountWindows, Materialized, Serdes, Stores, StreamsBuilder, Topology, agg
from penstock.testing import TopologyTestDriver
from penstock.topology.errors import TopologyError
from penstock.topology.serdes.count_windows_serde import CountWindow
from tests.examples import one_of
from tests.goldens.crash import Committed, CrashingDriver

NUMBERS: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.int64()}
CACHES = [10 << 20, 300, 0]


def declared(declare: Any, value_serde: Any = None) -> Topology:
    builder = StreamsBuilder()
    declare(builder.stream("in", **NUMBERS).group_by_key()).to("out", value_serde=value_serde)
    return builder.build()


def collected(windows: CountWindows, aggregate: Any = None) -> Topology:
    wanted = {"values": agg.collect(9), "total": agg.sum()} if aggregate is None else aggregate
    return declared(lambda grouped: grouped.windowed_by(windows).aggregate(wanted, store="open"), Serdes.json())


def results(driver: TopologyTestDriver, value_serde: Any = None) -> list[Any]:
    key_serde = Serdes.session_windowed(Serdes.string())
    found = driver.create_output_topic("out", key_serde, value_serde or Serdes.json()).read_records_to_list()
    return [(*record.key, record.value, record.timestamp) for record in found]


def pipe(driver: TopologyTestDriver, *records: tuple[str | None, int | None, int]) -> None:
    topic = driver.create_input_topic("in", Serdes.string(), Serdes.int64())
    for record in records:
        topic.pipe_input(*record)


def test_a_full_window_is_sent_once_with_the_times_of_its_records() -> None:
    with TopologyTestDriver(collected(CountWindows(3))) as driver:
        pipe(driver, ("a", 1, 50), ("b", 5, 60), ("a", 2, 40), (None, 7, 70), ("a", None, 70))
        pipe(driver, ("a", 3, 45), ("a", 4, 90))
        assert results(driver) == [("a", 40, 50, {"values": [1, 2, 3], "total": 6}, 50)]
        store = driver.get_key_value_store("open")
        assert store.get("a") == [CountWindow(1, 90, 90, {"values": [4], "total": 4})]
        assert store.get("b") == [CountWindow(1, 60, 60, {"values": [5], "total": 5})]


def test_with_an_advance_windows_overlap() -> None:
    with TopologyTestDriver(collected(CountWindows(3, advance=2), agg.collect(3))) as driver:
        pipe(driver, *[("a", number, number) for number in range(8)])
        assert [found for _, _, _, found, _ in results(driver)] == [[0, 1, 2], [2, 3, 4], [4, 5, 6]]


@pytest.mark.parametrize(
    ("declare", "serde", "expected"),
    [
        (lambda windowed: windowed.count(), Serdes.int64(), 2),
        (lambda windowed: windowed.reduce(lambda one, other: one * other), Serdes.int64(), 12),
        (lambda windowed: windowed.aggregate(agg.mean(), value_serde=Serdes.json()), Serdes.json(), 3.5),
        (
            lambda windowed: windowed.aggregate(lambda: "", "{2}{0}{1}".format, value_serde=Serdes.string()),
            Serdes.string(),
            "a3a4",
        ),
    ],
)
def test_all_aggregations(declare: Any, serde: Any, expected: object) -> None:
    with TopologyTestDriver(declared(lambda grouped: declare(grouped.windowed_by(CountWindows(2))))) as driver:
        pipe(driver, ("a", 3, 1), ("a", 4, 2), ("a", 5, 3))
        assert results(driver, serde) == [("a", 1, 2, expected, 2)]


def test_windows_of_a_key_that_is_no_longer_written_end() -> None:
    topology = declared(lambda grouped: grouped.windowed_by(CountWindows(2)).count(store=Materialized("open", ttl=100)))
    with TopologyTestDriver(topology) as driver:
        pipe(driver, ("a", 1, 0), ("b", 1, 100), ("a", 1, 110), ("a", 1, 120))
        assert results(driver, Serdes.int64()) == [("a", 110, 120, 2, 120)]


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: CountWindows(0), "CountWindows need a size of at least 1 record, got 0"),
        (lambda: CountWindows(3, 4), "The advance of CountWindows is a number of records from 1 to 3, got 4"),
        (lambda: CountWindows(3, 0), "The advance of CountWindows is a number of records from 1 to 3, got 0"),
        (
            lambda: (
                StreamsBuilder()
                .stream("in", **NUMBERS)
                .group_by_key()
                .windowed_by(CountWindows(3))
                .count(store=Materialized(Stores.persistent_versioned_key_value_store("v", 10)))
            ),
            'Store "v": windows of a number of records have no versions',
        ),
    ],
)
def test_what_is_refused(declare: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        declare()


# -- beside a model, with crashes


class Model:
    """All records of each key; a window is full when the record comes that is its last one."""

    def __init__(self, windows: CountWindows) -> None:
        self.windows = windows
        self.records: dict[str, list[tuple[int, int]]] = {}
        self.out: list[Any] = []

    def copy(self) -> Model:
        made = Model(self.windows)
        made.records = {key: list(records) for key, records in self.records.items()}
        made.out = list(self.out)
        return made

    def record(self, key: str, value: int, timestamp: int) -> None:
        records = self.records.setdefault(key, [])
        records.append((value, timestamp))
        first = len(records) - self.windows.size
        if first >= 0 and first % self.windows.advance == 0:
            values, times = zip(*records[first:], strict=True)
            found = {"values": list(values), "total": sum(values)}
            self.out.append((key, min(times), max(times), found, max(times)))


WINDOWS = st.integers(1, 5).flatmap(lambda size: st.builds(CountWindows, st.just(size), st.integers(1, size)))
STEPS = st.one_of(
    st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 200)),
    st.sampled_from(["commit", "crash", "crash and wipe"]),
)


@pytest.mark.parametrize("cache_bytes", one_of(3, CACHES))
@given(st.lists(STEPS, min_size=10, max_size=40), WINDOWS, st.booleans())
def test_full_windows_beside_a_model(cache_bytes: int, steps: list[Any], windows: CountWindows, compacts: bool) -> None:
    topology, config = collected(windows), {"statestore.cache.max.bytes": cache_bytes}
    with tempfile.TemporaryDirectory() as folder:
        number, model, committed = 0, Model(windows), Committed()
        at_commit = model.copy()
        driver = CrashingDriver(topology, config, Path(folder, "0"), committed, compacts)
        for step in [*steps, "commit"]:
            if isinstance(step, tuple):
                pipe(driver, step)
                model.record(*step)
            elif step == "commit":
                committed, at_commit = driver.commit(), model.copy()
            else:
                number += "wipe" in step
                driver.crash()
                driver = CrashingDriver(topology, config, Path(folder, str(number)), committed, compacts)
                model = at_commit.copy()
        assert results(driver) == model.out
        driver.crash()
