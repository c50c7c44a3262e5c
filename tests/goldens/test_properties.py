"""Properties of any topology and input, without a recording: random cases by seed, and random inputs.

A failing seed is replayed with ``pytest tests/goldens/test_properties.py -k 'seed17'``.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock import (
    KTable,
    PenstockError,
    Record,
    Serdes,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    Windowed,
)
from penstock.testing import TopologyTestDriver
from tests.examples import examples
from tests.goldens import interpreter
from tests.goldens.compare import WALL_CLOCK_START_MS, _bytes, _headers, case_config
from tests.goldens.crash import Committed, CrashingDriver, Log, rows
from tests.goldens.generator import generate
from tests.goldens.lineage import Same, derived_from, same_with_cache, stores_of

Case = dict[str, Any]

CACHE_SEEDS = range(100)
CRASH_SEEDS = range(500, 600)
#: Restored from changelogs alone, or also from disk, which takes longer.
DISK_SEEDS = range(600, 625)

#: Longer than any case: rows that have expired in a store but not in its cache would differ by design.
RETENTION_MS = 100_000


def seed_id(seed: int) -> str:
    return f"seed{seed}"


def feed(driver: TopologyTestDriver, step: dict[str, Any]) -> None:
    """Do one input step of a case."""
    if "advance_wall_clock_ms" in step:
        driver.advance_wall_clock_time(step["advance_wall_clock_ms"])
        return
    record = Record(_bytes(step["key"]), _bytes(step["value"]), step["timestamp"], _headers(step))
    driver.create_input_topic(step["topic"], Serdes.bytes(), Serdes.bytes()).pipe_input(record)


# -- a cache changes which updates are visible, but not the final ones


def run_with_cache(case: Case, cache_bytes: int, commit_every: int) -> dict[str, Log] | str:
    """Return the records of each topic, or how the run failed."""
    config = {**case_config(case), "statestore.cache.max.bytes": cache_bytes}
    try:
        driver = CrashingDriver(interpreter.build(case), config, None, Committed(wall_clock_ms=WALL_CLOCK_START_MS))
    except PenstockError as error:
        return type(error).__name__
    try:
        for number, step in enumerate(case["inputs"], start=1):
            feed(driver, step)
            if number % commit_every == 0:
                driver.commit()
        return driver.commit().produced
    except PenstockError as error:
        return type(error).__name__
    finally:
        driver.crash()


def for_cache(case: Case) -> Case:
    """Return a case in which nothing expires, and nothing is emitted by the wall clock."""
    case = copy.deepcopy(case)
    windowed = derived_from(case["topology"], lambda op: op["op"] == "windowed_by")
    for op in case["topology"]:
        if op.get("from") in windowed and op["op"] in ("count", "reduce", "aggregate"):
            op["retention_ms"] = RETENTION_MS
    case["config"].pop("emit.interval.ms", None)
    return case


def last_values(log: Iterable[Any], without_zeros: bool) -> dict[bytes | None, bytes]:
    """Return the last value of each key, without tombstones."""
    last = {record.key: record.value for record in log}
    nothing = (None, bytes(8)) if without_zeros else (None,)
    return {key: value for key, value in last.items() if value not in nothing}


@pytest.mark.parametrize("seed", CACHE_SEEDS, ids=seed_id)
def test_cache_on_and_off_give_the_same_final_tables(seed: int) -> None:
    case = for_cache(generate(seed))
    uncached = run_with_cache(case, 0, 1)
    for cache_bytes, commit_every in ((1_000_000, 1), (1_000_000, 7), (400, 5)):
        cached = run_with_cache(case, cache_bytes, commit_every)
        if isinstance(uncached, str) or isinstance(cached, str):
            assert cached == uncached
            continue
        for result, same in same_with_cache(case["topology"]).items():
            log, cached_log = (topics.get(f"out-{result}", []) for topics in (uncached, cached))
            if same is Same.RECORDS:
                assert cached_log == log, result
            elif same is not Same.NOTHING:
                sums = same is Same.SUMS
                assert last_values(cached_log, sums) == last_values(log, sums), (result, same.value)


# -- a crash does not change committed results


def in_order(case: Case) -> Case:
    """Return a case that a crash cannot change: no late records, because operators keep stream time in memory only.

    Kafka Streams does so too. All stores are logged, and nothing is emitted by the wall clock.
    """
    case = copy.deepcopy(case)
    for op in case["topology"]:
        op.pop("logging", None)
    case["config"].pop("emit.interval.ms", None)
    time = 0
    for step in case["inputs"]:
        if "timestamp" in step:
            time = step["timestamp"] = max(time, step["timestamp"])
    return case


def feels_a_crash(op: Mapping[str, Any]) -> bool:
    """Return True if an entry keeps something only in memory, as in Kafka Streams.

    A stream-time punctuation is due at once after a restart. A left or outer join keeps in memory since when records
    wait, and finds those from before the restart only once another one waits.
    """
    if op["op"] == "stream_stream_join":
        return bool(op["type"] != "inner")
    return str(op.get("processor", "")).startswith("tally")


def run_with_crashes(
    case: Case, crashes: Iterable[int], directory: Path | None, compacts: bool
) -> tuple[dict[str, Any], dict[str, Log]] | str:
    """Return rows by store and records by topic, or how the run failed; crashes: the numbers of inputs before each
    crash.

    It commits after every fourth input, and restarts there after a crash, with the rows of that commit.
    """
    pending = sorted(crashes, reverse=True)
    committed, committed_inputs, done = Committed(wall_clock_ms=WALL_CLOCK_START_MS), 0, 0
    committed_rows: dict[str, Any] = {}
    try:
        driver = CrashingDriver(interpreter.build(case), case_config(case), directory, committed)
    except PenstockError as error:
        return type(error).__name__
    try:
        while done < len(case["inputs"]):
            feed(driver, case["inputs"][done])
            done += 1
            if done % 4 == 0:
                committed, committed_inputs = driver.commit(), done
                committed_rows = rows(driver) if pending else {}
            if pending and done == pending[-1]:
                pending.pop()
                driver.crash()
                driver = CrashingDriver(interpreter.build(case), case_config(case), directory, committed, compacts)
                done = committed_inputs
                assert not done or rows(driver) == committed_rows
        driver.commit()
        return rows(driver), driver.topics()
    except PenstockError as error:
        return type(error).__name__
    finally:
        driver.crash()


def assert_crashes_are_not_seen(case: Case, directory: Path | None, compacts: bool) -> None:
    inputs = len(case["inputs"])
    expected = run_with_crashes(case, (), None, compacts)
    actual = run_with_crashes(case, (inputs // 3, 2 * inputs // 3), directory, compacts)
    feeling = derived_from(case["topology"], feels_a_crash)
    if isinstance(expected, str) or isinstance(actual, str) or not feeling:
        assert actual == expected
    else:
        stores = {op["store"] for op in case["topology"] if "store" in op} - stores_of(case["topology"], feeling)
        assert {s: actual[0].get(s) for s in stores} == {s: expected[0].get(s) for s in stores}
        results = set(same_with_cache(case["topology"])) - feeling
        assert {r: actual[1].get(f"out-{r}") for r in results} == {r: expected[1].get(f"out-{r}") for r in results}


@pytest.mark.parametrize("seed", CRASH_SEEDS, ids=seed_id)
def test_a_crash_and_a_restore_give_the_same_tables_and_topics(seed: int) -> None:
    assert_crashes_are_not_seen(in_order(generate(seed)), None, compacts=seed % 2 == 0)


@pytest.mark.parametrize("seed", DISK_SEEDS, ids=seed_id)
def test_stores_on_disk_continue_from_their_last_commit(seed: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        assert_crashes_are_not_seen(in_order(generate(seed)), Path(directory), compacts=False)


# -- subtracted values were added before


def zero() -> int:
    return 0


def add(key: Any, value: int, total: int) -> int:
    return total + value


def subtract(key: Any, value: int, total: int) -> int:
    return total - value


WINDOWS: list[Any] = [
    TimeWindows(10, grace=20),
    TimeWindows(10, grace=20, advance=3),
    SlidingWindows(10, grace=20),
    SessionWindows(5, grace=20),
]

cached = st.sampled_from([0, 1_000_000])
#: (key, value, ms since the previous record; negative: late)
events = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-5, 5), st.integers(-15, 12)), min_size=1, max_size=30)


@settings(max_examples=examples(60), derandomize=True, deadline=None)
@given(st.sampled_from(WINDOWS), events, cached, st.sampled_from([1, 4]))
def test_retracted_and_added_window_values_sum_to_the_last_one(
    windows: Any, events: list[tuple[str, int, int]], cache_bytes: int, commit_every: int
) -> None:
    """Each window's updates are summed: added minus retracted is its last value, 0 for merged sessions."""
    times = [50 + max(-50, sum(step for *_, step in events[: number + 1])) for number in range(len(events))]
    # Kafka Streams, and so Penstock, updates these windows twice without retracting the first: where a record's left
    # window is the right one of the previous record, and where a session of zero length gets another record with the
    # same timestamp.
    assume(cache_bytes or not isinstance(windows, SlidingWindows))
    assume(cache_bytes or not isinstance(windows, SessionWindows) or len(set(times)) == len(times))
    builder = StreamsBuilder()
    numbers = builder.stream("in", key_serde=Serdes.string(), value_serde=Serdes.int64())
    table: KTable[Windowed, int] = (
        numbers.group_by_key().windowed_by(windows).reduce(lambda total, value: total + value)
    )
    table.to_stream().map(lambda window, total: (str(window), total)).to("windows", value_serde=Serdes.int64())
    balances = table.group_by(lambda window, total: (str(window), total), value_serde=Serdes.int64())
    balances.aggregate(zero, add, subtract, value_serde=Serdes.int64()).to_stream().to("balances")
    config = {"statestore.cache.max.bytes": cache_bytes, "default.key.serde": "string"}
    driver = CrashingDriver(builder.build(), config, None)
    try:
        source = driver.create_input_topic("in")
        for number, ((key, value, _), time) in enumerate(zip(events, times, strict=True), start=1):
            source.pipe_input(key, value, time)
            if number % commit_every == 0:
                driver.commit()
        driver.commit()
        last = driver.create_output_topic("windows").read_key_values_to_map()
        balance = driver.create_output_topic("balances").read_key_values_to_map()
        assert balance == {window: total or 0 for window, total in last.items() if window in balance}
        assert all(not total for window, total in last.items() if window not in balance)
    finally:
        driver.crash()


@settings(max_examples=examples(60), derandomize=True, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.tuples(st.sampled_from("xyz"), st.integers(-5, 5)))),
    cached,
)
def test_rows_that_change_groups_are_counted_in_their_current_group(
    updates: list[tuple[str, tuple[str, int] | None]], cache_bytes: int
) -> None:
    """The sums by group equal those of the current rows; after all rows are deleted, all are 0."""
    builder = StreamsBuilder()
    table = builder.table("in", key_serde=Serdes.string(), value_serde=Serdes.json())
    groups = table.group_by(lambda key, row: (row[0], row[1]), key_serde=Serdes.string(), value_serde=Serdes.int64())
    groups.aggregate(zero, add, subtract, store="sums", value_serde=Serdes.int64())
    groups.count(store="counts")
    with TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": cache_bytes}) as driver:
        source, current = driver.create_input_topic("in"), {}
        for key, row in updates:
            source.pipe_input(key, row)
            current[key] = row
        rows = [row for row in current.values() if row is not None]
        for group in "xyz":
            of_group = [number for name, number in rows if name == group]
            assert (driver.get_key_value_store("sums").get(group) or 0) == sum(of_group)
            assert (driver.get_key_value_store("counts").get(group) or 0) == len(of_group)
        for key in current:
            source.pipe_input(key, None)
        assert not any(total for _, total in driver.get_key_value_store("sums").all())
        assert not any(count for _, count in driver.get_key_value_store("counts").all())
