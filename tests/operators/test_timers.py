"""Timers of keys: when they fire, in which order, and once for each that was set, after any crash."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import FixedKeyProcessor, Processor, Punctuation, Record, Serdes, Stores, StreamsBuilder, Topology
from penstock.testing import MockProcessorContext, TopologyTestDriver
from penstock.topology.errors import StreamsError, TopologyError
from penstock.topology.stores.timer import Timer
from tests.goldens.crash import Committed, CrashingDriver

STREAM, WALL = Punctuation.STREAM_TIME, Punctuation.WALL_CLOCK_TIME
CLOCKS = {"stream": STREAM, "wall": WALL}
TEXTS: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


class Alarms(Processor[str, str, str, str]):
    """Takes "stream 30", "wall 30" or "cancel"; "stream 30 +5" sets another one 5 ms after each that fires, twice."""

    def process(self, record: Record[str, str]) -> None:
        clock, *rest = record.value.split()
        if clock == "cancel":
            self.context.cancel_timer(record.key)
        elif clock in CLOCKS:
            key = record.key if len(rest) == 1 else f"{record.key}{rest[1]}"
            self.context.timer(key, int(rest[0]), CLOCKS[clock])
        self.context.forward(Record(record.key, f"record {record.value}", record.timestamp))

    def on_timer(self, key: str, at: int) -> None:
        self.context.forward(Record(key, f"fired {at}", at))
        name, plus, step = key.partition("+")
        if plus and not name.endswith("!!"):
            self.context.timer(f"{name}!+{step}", at + int(step), STREAM)


def alarms(in_memory: bool = False) -> Topology:
    supplier = (Stores.in_memory_key_value_store if in_memory else Stores.persistent_key_value_store)("alarms")
    builder = StreamsBuilder().add_state_store(Stores.timer_store_builder(supplier, Serdes.string()))
    builder.stream("in", **TEXTS).process(Alarms, stores=["alarms"]).to("out", **TEXTS)
    return builder.build()


def fired(driver: TopologyTestDriver) -> list[tuple[str, str]]:
    found = driver.create_output_topic("out", Serdes.string(), Serdes.string()).read_records_to_list()
    return [(record.key, record.value) for record in found]


def test_timers_fire_in_order_before_the_record_that_reaches_their_time() -> None:
    with TopologyTestDriver(alarms()) as driver:
        topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        topic.pipe_input("b", "stream 30", 0)
        topic.pipe_input("a", "stream 20", 1)
        topic.pipe_input("c", "stream 31", 2)
        assert [value for _, value in fired(driver)] == ["record stream 30", "record stream 20", "record stream 31"]
        topic.pipe_input("d", "-", 30)
        assert fired(driver) == [("a", "fired 20"), ("b", "fired 30"), ("d", "record -")]
        topic.pipe_input("d", "-", 29)  # stream time stays
        assert fired(driver) == [("d", "record -")]
        driver.advance_wall_clock_time(1000)
        assert fired(driver) == []


def test_a_record_may_have_the_highest_timestamp() -> None:
    """It is the time at which nothing is due, with and without stores of timers."""
    highest = 2**63 - 1
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).to("out", **TEXTS)
    for topology, found in ((builder.build(), [("a", "-")]), (alarms(), [("b", "fired 30"), ("a", "record -")])):
        with TopologyTestDriver(topology) as driver:
            topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
            topic.pipe_input("b", "stream 30", 0)
            fired(driver)
            topic.pipe_input("a", "-", highest)
            assert fired(driver) == found


def test_a_batch_gives_what_single_records_give() -> None:
    with TopologyTestDriver(alarms()) as driver:
        topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        values = [("a", "stream 5", 0), ("b", "stream 3", 1), ("a", "-", 4), ("a", "-", 9)]
        topic.pipe_record_list([Record(*value) for value in values])
        assert fired(driver)[2:] == [("b", "fired 3"), ("a", "record -"), ("a", "fired 5"), ("a", "record -")]


def test_a_timer_is_replaced_and_cancelled_by_its_key() -> None:
    with TopologyTestDriver(alarms()) as driver:
        topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        timers = driver.get_key_value_store("alarms")
        topic.pipe_input("a", "stream 10", 0)
        topic.pipe_input("a", "wall 500", 0)
        topic.pipe_input("b", "wall 100", 0)
        assert list(timers.all()) == [("a", Timer(500, WALL)), ("b", Timer(100, WALL))]
        topic.pipe_input("b", "cancel", 0)
        topic.pipe_input("b", "cancel", 20)
        fired(driver)
        driver.advance_wall_clock_time(499)
        assert fired(driver) == []
        driver.advance_wall_clock_time(1)
        assert fired(driver) == [("a", "fired 500")]
        assert list(timers.all()) == []


def test_on_timer_sets_the_next_one() -> None:
    with TopologyTestDriver(alarms()) as driver:
        topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        topic.pipe_input("a", "stream 10 +5", 0)
        topic.pipe_input("b", "stream 13", 0)
        topic.pipe_input("z", "-", 100)
        assert [row for row in fired(driver) if row[1].startswith("fired")] == [
            ("a+5", "fired 10"),
            ("b", "fired 13"),
            ("a!+5", "fired 15"),
            ("a!!+5", "fired 20"),
        ]


def test_a_moment_is_a_datetime_too() -> None:
    class Setter(FixedKeyProcessor[str, str, str]):
        def process(self, record: Record[str, str]) -> None:
            self.context.timer(record.key, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), WALL)

        def on_timer(self, key: str, at: int) -> None:
            self.context.forward(Record(key, str(at), at))

    builder = StreamsBuilder()
    store = Stores.timer_store_builder(Stores.persistent_key_value_store("alarms"), Serdes.string())
    builder.add_state_store(store).stream("in", **TEXTS).process_values(Setter, stores=["alarms"]).to("out", **TEXTS)
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", Serdes.string(), Serdes.string()).pipe_input("a", "", 5)
        driver.advance_wall_clock_time(1000)
        assert fired(driver) == [("a", "1000")]


class Silent(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        self.context.timer(record.key, 10, STREAM)


class Endless(Silent):
    def on_timer(self, key: str, at: int) -> None:
        self.context.timer(key, at, STREAM)


class Failing(Silent):
    def on_timer(self, key: str, at: int) -> None:
        raise ValueError(f"no {key}")


def declared(processor: Any, *stores: str) -> Topology:
    builder = StreamsBuilder()
    for name in stores:
        builder.add_state_store(Stores.timer_store_builder(Stores.persistent_key_value_store(name), Serdes.string()))
    builder.stream("in", **TEXTS).process(processor, stores=stores, name="alarm").to("out", **TEXTS)
    return builder.build()


def pipe(topology: Topology, config: Any = None) -> dict[tuple[str, str], int]:
    with TopologyTestDriver(topology, config) as driver:
        topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        topic.pipe_input("a", "", 5)
        topic.pipe_input("b", "", 50)
        return driver.dropped_records()


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (lambda: declared(Silent), "alarm has no timers. Connect a store of Stores.timer_store_builder"),
        (lambda: declared(Alarms, "one", "two"), "alarm is connected to two stores of timers"),
        (lambda: declared(Silent, "one"), r"Silent sets timers, but has no on_timer\(key, at\)"),
        (lambda: declared(Endless, "one"), "set a later time, or timers would fire without an end"),
        (lambda: declared(Failing, "one"), "while punctuating processor 'alarm': ValueError: no a"),
    ],
)
def test_errors_say_what_to_do(topology: Any, message: str) -> None:
    with pytest.raises(StreamsError, match=message):
        pipe(topology())


def test_a_handler_may_drop_a_timer_that_fails() -> None:
    dropped = pipe(declared(Failing, "one"), {"processing.exception.handler": "log_and_continue"})
    assert dropped == {("alarm", "punctuation error"): 2}


def test_two_processors_cannot_share_timers() -> None:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.timer_store_builder(Stores.persistent_key_value_store("one"), Serdes.string()))
    stream = builder.stream("in", **TEXTS)
    stream.process(Alarms, stores=["one"])
    stream.process(Alarms, stores=["one"])
    with pytest.raises(StreamsError, match="The timers one are connected to two processors"):
        pipe(builder.build())


@pytest.mark.parametrize(
    "supplier",
    [
        lambda: Stores.persistent_key_value_store("one", ttl=5),
        lambda: Stores.lru_map("one", 5),
        lambda: Stores.persistent_timestamped_key_value_store_with_headers("one"),
    ],
)
def test_timers_need_a_plain_store(supplier: Any) -> None:
    with pytest.raises(TopologyError, match='The timers "one" need a plain store'):
        Stores.timer_store_builder(supplier(), Serdes.string())


def test_the_mock_context_has_the_timers() -> None:
    context, processor = MockProcessorContext(), Alarms()
    processor.init(context)
    processor.process(Record("a", "stream 30", 0))
    processor.process(Record("b", "wall 40", 0))
    processor.process(Record("a", "cancel", 0))
    assert context.timers() == {"b": Timer(40, WALL)}
    processor.on_timer("b", 40)
    assert [captured.record.value for captured in context.forwarded()][-1] == "fired 40"


# -- beside a model, with crashes


@dataclass
class Model:
    """What should happen, without any concern for speed."""

    timers: dict[str, tuple[int, str]]
    out: list[tuple[str, str]]
    stream_time: int = -1
    wall: int = 0

    def copy(self) -> Model:
        return Model(dict(self.timers), list(self.out), self.stream_time, self.wall)

    def record(self, key: str, value: str, timestamp: int) -> None:
        self.stream_time = max(self.stream_time, timestamp)
        self.fire("stream", self.stream_time)
        clock, *rest = value.split()
        if clock == "cancel":
            self.timers.pop(key, None)
        elif clock in CLOCKS:
            self.timers[key if len(rest) == 1 else f"{key}{rest[1]}"] = int(rest[0]), clock
        self.out.append((key, f"record {value}"))
        self.fire("stream", self.stream_time)

    def fire(self, clock: str, now: int) -> None:
        while due := sorted((at, key) for key, (at, its) in self.timers.items() if its == clock and at <= now):
            at, key = due[0]
            del self.timers[key]
            self.out.append((key, f"fired {at}"))
            name, plus, step = key.partition("+")
            if plus and not name.endswith("!!"):
                self.timers[f"{name}!+{step}"] = at + int(step), "stream"
            if clock == "wall":  # what it has set by stream time waits for a record
                continue


STEPS = st.one_of(
    st.tuples(
        st.sampled_from("abc"),
        st.one_of(
            st.builds("{} {}".format, st.sampled_from(["stream", "wall"]), st.integers(0, 60)),
            st.builds("stream {} +{}".format, st.integers(0, 40), st.integers(1, 9)),
            st.sampled_from(["cancel", "-"]),
        ),
        st.integers(0, 60),
    ),
    st.sampled_from(["commit", "crash", "crash and wipe"]),
    st.builds("advance {}".format, st.integers(1, 20)),
)


@given(st.lists(STEPS, max_size=40), st.booleans(), st.booleans())
def test_each_timer_fires_once_after_any_crash(steps: list[Any], in_memory: bool, compacts: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory, number = Path(folder), 0
        model, at_commit, committed = Model({}, []), Model({}, []), Committed()
        driver = CrashingDriver(alarms(in_memory), {}, directory / "0", committed, compacts)
        for step in [*steps, "commit"]:
            if isinstance(step, tuple):
                driver.create_input_topic("in", Serdes.string(), Serdes.string()).pipe_input(*step)
                model.record(*step)
            elif step == "commit":
                committed, at_commit = driver.commit(), model.copy()
            elif step.startswith("advance"):
                driver.advance_wall_clock_time(int(step.split()[1]))
                model.wall += int(step.split()[1])
                model.fire("wall", model.wall)
            else:
                number += "wipe" in step
                driver.crash()
                driver = CrashingDriver(alarms(in_memory), {}, directory / str(number), committed, compacts)
                model = at_commit.copy()
        records = committed.produced.get("out", [])
        assert [((record.key or b"").decode(), (record.value or b"").decode()) for record in records] == model.out
        left = {key: (timer.at_ms, timer.clock) for key, timer in driver.get_key_value_store("alarms").all()}
        assert left == {key: (at, CLOCKS[clock]) for key, (at, clock) in model.timers.items()}
        driver.crash()
