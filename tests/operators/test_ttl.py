"""Rows with a ttl: when they end, that they are not read afterwards, and what tables behind them see."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    Materialized,
    Processor,
    Punctuation,
    Record,
    Serdes,
    Stores,
    StreamsBuilder,
    TimeWindows,
    Topology,
    Ttl,
    agg,
)
from penstock.testing import TopologyTestDriver
from penstock.topology.errors import TopologyError
from tests.goldens.crash import Committed, CrashingDriver

TEXTS: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
WALL = Punctuation.WALL_CLOCK_TIME


def output(driver: TopologyTestDriver, topic: str = "out", serde: Any = None) -> list[tuple[Any, Any, int]]:
    found = driver.create_output_topic(topic, Serdes.string(), serde or Serdes.string()).read_records_to_list()
    return [(record.key, record.value, record.timestamp) for record in found]


def test_a_row_ends_before_the_record_that_reaches_its_time() -> None:
    builder = StreamsBuilder()
    kept = Materialized("counts", ttl=timedelta(milliseconds=100))
    counts = builder.stream("in", **TEXTS).group_by_key().count(store=kept)
    counts.to_stream().to("out", key_serde=Serdes.string(), value_serde=Serdes.int64())
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        store = driver.get_key_value_store("counts")
        topic.pipe_input("a", "x", 0)
        topic.pipe_input("b", "x", 50)
        topic.pipe_input("a", "x", 60)  # refreshed
        topic.pipe_input("c", "x", 149)
        assert [key for key, _ in store.all()] == ["a", "b", "c"]
        topic.pipe_input("b", "x", 150)
        assert store.get("b") == 1
        topic.pipe_input("c", "x", 160)
        assert store.get("a") is None
        assert output(driver, "out", Serdes.int64()) == [
            ("a", 1, 0),
            ("b", 1, 50),
            ("a", 2, 60),
            ("c", 1, 149),
            ("b", None, 150),
            ("b", 1, 150),
            ("a", None, 160),
            ("c", 2, 160),
        ]
        log = output(driver, "app-counts-changelog".replace("app", driver.task.application_id), Serdes.int64())
        assert ("b", None, 150) in log
        assert ("a", None, 160) in log


def test_tables_behind_it_see_the_deletion() -> None:
    builder = StreamsBuilder()
    table = builder.table("users", **TEXTS, store=Materialized("users", ttl=100))
    table.group_by(lambda key, value: (value, key), **TEXTS).count(store="cities")
    builder.stream("clicks", **TEXTS).left_join(table, "{}-{}".format).to("out", **TEXTS)
    with TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": 0}) as driver:
        users = driver.create_input_topic("users", Serdes.string(), Serdes.string())
        clicks = driver.create_input_topic("clicks", Serdes.string(), Serdes.string())
        users.pipe_input("ann", "Oslo", 0)
        users.pipe_input("bob", "Oslo", 20)
        clicks.pipe_input("ann", "1", 99)
        clicks.pipe_input("ann", "2", 100)  # the clock of the join's task is that of both topics
        clicks.pipe_input("bob", "3", 100)
        assert [value for _, value, _ in output(driver)] == ["1-Oslo", "2-None", "3-Oslo"]
        assert list(driver.get_key_value_store("cities").all()) == [("Oslo", 1)]
        clicks.pipe_input("bob", "4", 120)
        assert list(driver.get_key_value_store("cities").all()) == [("Oslo", 0)]


class Keeper(Processor[str, str, str, str]):
    """Puts, deletes, or with "?" reads."""

    def process(self, record: Record[str, str]) -> None:
        store = self.context.get_state_store("kept")
        if record.value == "?":
            self.context.forward(Record(record.key, str(store.get(record.key)), record.timestamp))
        else:
            store.put(record.key, None if record.value == "-" else record.value)


def keeper(ttl: Any, in_memory: bool = False) -> Topology:
    supplier = Stores.in_memory_key_value_store if in_memory else Stores.persistent_key_value_store
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value_store_builder(supplier("kept", ttl=ttl), Serdes.string(), Serdes.string()))
    builder.stream("in", **TEXTS).process(Keeper, stores=["kept"]).to("out", **TEXTS)
    return builder.build()


@pytest.mark.parametrize("clock", [Punctuation.STREAM_TIME, WALL])
@pytest.mark.parametrize("aggregation", ["count", "function", "agg", "reduce", "cogroup"])
def test_the_number_of_rows_is_counted(aggregation: str, clock: Punctuation) -> None:
    """Without a cache, Kafka Streams subtracts the initializer's value of a new row; here it does not."""
    builder = StreamsBuilder()
    grouped: Any = builder.stream("in", **TEXTS).group_by_key()
    kept: Any = {"store": Materialized("rows", ttl=Ttl(100, clock))}
    rows = {
        "count": lambda: grouped.count(**kept),
        "function": lambda: grouped.aggregate(list, lambda key, value, values: [*values, value], **kept),
        "agg": lambda: grouped.aggregate({"n": agg.count()}, **kept),
        "reduce": lambda: grouped.reduce(lambda one, other: other, **kept),
        "cogroup": lambda: grouped.cogroup({"n": agg.count()}).aggregate(**kept),
    }[aggregation]()
    all_rows = rows.group_by(lambda key, row: ("all", row), key_serde=Serdes.string(), value_serde=Serdes.json())
    all_rows.count().to_stream().to("out", key_serde=Serdes.string(), value_serde=Serdes.int64())
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        now_ms = 0
        for key, at, number in (("a", 0, 1), ("b", 10, 2), ("a", 20, 2), ("c", 110, 2), ("d", 119, 3), ("e", 300, 1)):
            driver.advance_wall_clock_time(at - now_ms)
            now_ms = at
            topic.pipe_input(key, "x", at)
            assert output(driver, "out", Serdes.int64())[-1][1] == number


@pytest.mark.parametrize("clock", [Punctuation.STREAM_TIME, WALL])
@pytest.mark.parametrize("left", [False, True])
def test_foreign_key_joins_behind_it_see_the_deletion(clock: Punctuation, left: bool) -> None:
    builder = StreamsBuilder()
    users = builder.table("users", **TEXTS, store=Materialized("users", ttl=Ttl(100, clock)))
    cities = builder.table("cities", **TEXTS)
    join = users.left_join if left else users.join
    join(cities, "{} {}".format, foreign_key=lambda city: city).to_stream().to("out", **TEXTS)
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("cities", Serdes.string(), Serdes.string()).pipe_input("Oslo", "NO", 0)
        topic = driver.create_input_topic("users", Serdes.string(), Serdes.string())
        topic.pipe_input("ann", "Oslo", 0)
        driver.advance_wall_clock_time(timedelta(milliseconds=100))
        topic.pipe_input("bob", "Oslo", 100)
        assert [pair[:2] for pair in output(driver)] == [("ann", "Oslo NO"), ("ann", None), ("bob", "Oslo NO")]


def test_a_row_ends_by_the_wall_clock_without_records() -> None:
    with TopologyTestDriver(keeper(Ttl(timedelta(seconds=1), WALL))) as driver:
        topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        topic.pipe_input("a", "x", 10_000_000)
        driver.advance_wall_clock_time(999)
        assert driver.get_key_value_store("kept").get("a") == "x"
        driver.advance_wall_clock_time(1)
        assert driver.get_key_value_store("kept").get("a") is None


def test_a_read_lets_a_row_live_on() -> None:
    with TopologyTestDriver(keeper(Ttl(100, refreshed_on_read=True))) as driver:
        topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        store = driver.get_key_value_store("kept")
        topic.pipe_input("a", "x", 0)
        topic.pipe_input("b", "y", 0)
        topic.pipe_input("a", "?", 60)
        topic.pipe_input("c", "z", 100)
        assert [key for key, _ in store.all()] == ["a", "c"]
        topic.pipe_input("c", "z", 160)
        assert [key for key, _ in store.all()] == ["c"]


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: Ttl(0), "A ttl must be at least a millisecond"),
        (lambda: Ttl(5, "wall"), "The clock of a ttl must be Punctuation.STREAM_TIME or WALL_CLOCK_TIME"),  # type: ignore[arg-type]
        (
            lambda: StreamsBuilder().global_table("in", **TEXTS, store=Materialized("in", ttl=5)),
            "Global table in cannot have a ttl",
        ),
        (
            lambda: StreamsBuilder().add_global_store(
                Stores.key_value_store_builder(Stores.in_memory_key_value_store("all", ttl=5)), "in", Keeper
            ),
            "The global store all cannot have a ttl",
        ),
        (
            lambda: (
                StreamsBuilder()
                .stream("in")
                .group_by_key()
                .windowed_by(TimeWindows.of_size_with_no_grace(5))
                .count(store=Materialized("windows", ttl=5))
            ),
            "A windowed aggregation has no ttl: its windows end after their retention",
        ),
        (
            lambda: StreamsBuilder().table(
                "in", store=Materialized(Stores.persistent_versioned_key_value_store("v", 10), ttl=5)
            ),
            '"v": versioned, LRU and headers stores have no ttl',
        ),
    ],
)
def test_where_there_is_no_ttl(declare: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        declare()


# -- beside a model, with crashes


class Model:
    """Rows, with a loop over all of them for each record."""

    def __init__(self, ttl: Ttl) -> None:
        self.ttl = ttl
        self.rows: dict[str, tuple[Any, int]] = {}
        self.out: list[tuple[str, Any]] = []
        self.stream_time, self.wall = -1, 0

    def copy(self) -> Model:
        made = Model(self.ttl)
        made.rows, made.out, made.stream_time, made.wall = dict(self.rows), list(self.out), self.stream_time, self.wall
        return made

    @property
    def now(self) -> int:
        return self.wall if self.ttl.clock is WALL else self.stream_time

    def advance(self, timestamp: int) -> None:
        self.stream_time = max(self.stream_time, timestamp)
        self.expire()

    def expire(self) -> None:
        ended = sorted((due, key) for key, (_, due) in self.rows.items() if due <= self.now)
        for _, key in ended:
            del self.rows[key]
            self.ended(key)

    def ended(self, key: str) -> None:
        """A hook for tables."""

    def put(self, key: str, value: Any, timestamp: int) -> None:
        from_ms = self.wall if self.ttl.clock is WALL else timestamp
        self.rows[key] = value, from_ms + self.ttl.duration_ms

    def record(self, key: str, value: str, timestamp: int) -> None:
        self.advance(timestamp)
        value_before, due = self.rows.get(key, (None, 0))
        if value == "?":
            if self.ttl.refreshed_on_read and value_before is not None:
                now = self.wall if self.ttl.clock is WALL else timestamp
                if (now + self.ttl.duration_ms - due) * 10 > self.ttl.duration_ms:
                    self.rows[key] = value_before, now + self.ttl.duration_ms
            self.out.append((key, str(value_before)))
        elif value == "-":
            self.rows.pop(key, None)
        else:
            self.put(key, value, timestamp)
        self.expire()


STEPS = st.one_of(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["x", "y", "?", "-"]), st.integers(0, 200)),
    st.sampled_from(["commit", "crash", "crash and wipe"]),
    st.builds("advance {}".format, st.integers(1, 40)),
)
TTLS = st.builds(Ttl, st.integers(1, 50), st.sampled_from(list(Punctuation)), refreshed_on_read=st.booleans())


@given(st.lists(STEPS, max_size=40), TTLS, st.booleans(), st.booleans())
def test_a_processor_reads_what_is_alive(steps: list[Any], ttl: Ttl, in_memory: bool, compacts: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        number, model, committed = 0, Model(ttl), Committed()
        at_commit = model.copy()
        driver = CrashingDriver(keeper(ttl, in_memory), {}, Path(folder, "0"), committed, compacts)
        for step in [*steps, "commit"]:
            if isinstance(step, tuple):
                driver.create_input_topic("in", Serdes.string(), Serdes.string()).pipe_input(*step)
                model.record(*step)
            elif step == "commit":
                committed, at_commit = driver.commit(), model.copy()
            elif step.startswith("advance"):
                driver.advance_wall_clock_time(int(step.split()[1]))
                model.wall += int(step.split()[1])
                model.expire()
            else:
                number += "wipe" in step
                driver.crash()
                driver = CrashingDriver(keeper(ttl, in_memory), {}, Path(folder, str(number)), committed, compacts)
                model = at_commit.copy()
            alive = list(driver.get_key_value_store("kept").all())
            assert alive == [(key, value) for key, (value, _) in sorted(model.rows.items())]
        records = committed.produced.get("out", [])
        assert [((record.key or b"").decode(), (record.value or b"").decode()) for record in records] == model.out
        driver.crash()


class CountModel(Model):
    """A count, and what a table behind it sees."""

    def ended(self, key: str) -> None:
        self.out.append((key, None))

    def record(self, key: str, value: str, timestamp: int) -> None:
        self.advance(timestamp)
        count, due = self.rows.get(key, (0, 0))
        newest = max(timestamp, due - self.ttl.duration_ms) if count else timestamp
        self.put(key, count + 1, newest)
        self.out.append((key, count + 1))
        self.expire()


@pytest.mark.parametrize("cache_bytes", [10 << 20, 300, 0])
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.just("x"), st.integers(0, 200)), max_size=40), st.integers(1, 50))
def test_a_count_starts_again_after_its_row_has_ended(cache_bytes: int, inputs: list[Any], ttl_ms: int) -> None:
    builder = StreamsBuilder()
    counts = builder.stream("in", **TEXTS).group_by_key().count(store=Materialized("counts", ttl=ttl_ms))
    counts.to_stream().to("out", key_serde=Serdes.string(), value_serde=Serdes.int64())
    counts.filter(lambda key, value: value > 1, store="more")
    model = CountModel(Ttl(ttl_ms))
    with TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": cache_bytes}) as driver:
        topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        for record in inputs:
            topic.pipe_input(*record)
            model.record(*record)
        assert [row[:2] for row in output(driver, "out", Serdes.int64())] == model.out
        alive = {key: value for key, (value, _) in sorted(model.rows.items())}
        assert dict(driver.get_key_value_store("counts").all()) == alive
        assert dict(driver.get_key_value_store("more").all()) == {k: v for k, v in alive.items() if v > 1}
