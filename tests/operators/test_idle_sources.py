"""Idle timeouts of sources and of windows: windows close, rows end and timers fire although no record comes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    EmitStrategy,
    IdleTimeout,
    JoinWindows,
    KStream,
    Materialized,
    Serdes,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from penstock.testing import TopologyTestDriver
from penstock.topology.errors import TopologyError

TEXTS: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
STORES: Any = {f"{name}_serde": Serdes.string() for name in ("key", "value", "other_value")}
SIZE = timedelta(seconds=10)
ON_CLOSE = EmitStrategy.ON_WINDOW_CLOSE
Stream = KStream[str, str]
IMMEDIATELY = {
    "__emit.interval.ms.kstreams.windowed.aggregation__": 0,
    "__emit.interval.ms.kstreams.outer.join.spurious.results.fix__": 0,
}


def suppressed(builder: StreamsBuilder, stream: Stream) -> Any:
    windows = stream.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(SIZE))
    return windows.count().suppress(Suppressed.until_window_closes()).to_stream()


def emitted(windows: Any) -> Callable[[StreamsBuilder, Stream], Any]:
    def declare(builder: StreamsBuilder, stream: Stream) -> Any:
        return stream.group_by_key().windowed_by(windows).emit_strategy(ON_CLOSE).count().to_stream()

    return declare


def left_joined(builder: StreamsBuilder, stream: Stream) -> Any:
    other = builder.stream("other", **TEXTS, idle_timeout=timedelta(seconds=5))
    return stream.left_join(other, lambda one, two: 1, JoinWindows.of_time_difference_with_no_grace(SIZE), **STORES)


def table_with_a_ttl(builder: StreamsBuilder, stream: Stream) -> Any:
    return stream.group_by_key().count(store=Materialized("counts", ttl=SIZE)).filter(lambda k, v: v > 5).to_stream()


def join_with_grace(builder: StreamsBuilder, stream: Stream) -> Any:
    kept = Materialized(Stores.persistent_versioned_key_value_store("versions", timedelta(hours=1)))
    table = builder.table("other", **TEXTS, store=kept, idle_timeout=timedelta(seconds=5))
    return stream.left_join(table, lambda one, two: 1, grace=SIZE)


CASES: dict[str, Any] = {
    "suppressed": suppressed,
    "tumbling": emitted(TimeWindows.of_size_with_no_grace(SIZE)),
    "sliding": emitted(SlidingWindows.of_time_difference_and_grace(SIZE, SIZE)),
    "sessions": emitted(SessionWindows.of_inactivity_gap_with_no_grace(SIZE)),
    "left_joined": left_joined,
    "join_with_grace": join_with_grace,
}


def suppressed_by(windows: Any, between: Callable[[Any], Any] = lambda table: table) -> Callable[..., Any]:
    """Return a declaration with a suppress() with its own timeout."""

    def declare(builder: StreamsBuilder, stream: Stream) -> Any:
        table = between(stream.group_by_key().windowed_by(windows).count())
        return table.suppress(Suppressed.until_window_closes(wall_clock=timedelta(seconds=5))).to_stream()

    return declare


def emitted_by(windows: Any) -> Callable[..., Any]:
    def declare(builder: StreamsBuilder, stream: Stream) -> Any:
        timed = stream.group_by_key().windowed_by(windows)
        return timed.emit_strategy(ON_CLOSE, wall_clock=timedelta(seconds=5)).count().to_stream()

    return declare


#: Windows of 10 s and no grace, the timeout being theirs.
CLOSING: dict[str, Any] = {
    "tumbling": suppressed_by(TimeWindows.of_size_with_no_grace(SIZE)),
    "sliding": suppressed_by(SlidingWindows.of_time_difference_and_grace(SIZE, SIZE)),
    "sessions": suppressed_by(SessionWindows.of_inactivity_gap_with_no_grace(SIZE)),
    "filtered": suppressed_by(TimeWindows(SIZE), lambda table: table.filter(lambda key, count: count > 0)),
    "renamed": suppressed_by(TimeWindows(SIZE), lambda table: table.map_values(lambda count: -count, store="kept")),
    "tumbling on close": emitted_by(TimeWindows.of_size_with_no_grace(SIZE)),
    "sliding on close": emitted_by(SlidingWindows.of_time_difference_and_grace(SIZE, SIZE)),
    "sessions on close": emitted_by(SessionWindows.of_inactivity_gap_with_no_grace(SIZE)),
}


def results(driver: TopologyTestDriver) -> int:
    """Return how many results there are, whatever their keys and values."""
    return len(driver.create_output_topic("out", Serdes.bytes(), Serdes.bytes()).read_records_to_list())


@pytest.mark.parametrize("declare", CASES.values(), ids=CASES)
def test_results_come_when_the_input_is_idle(declare: Any) -> None:
    builder = StreamsBuilder()
    declare(builder, builder.stream("in", **TEXTS, idle_timeout=timedelta(seconds=5))).to("out")
    with TopologyTestDriver(builder.build(), IMMEDIATELY) as driver:
        driver.create_input_topic("in", Serdes.string(), Serdes.string()).pipe_input("a", "x", 100_000)
        driver.advance_wall_clock_time(timedelta(seconds=4))
        assert results(driver) == 0
        driver.advance_wall_clock_time(timedelta(seconds=1))
        assert driver.task.stream_time_ms == 105_000
        assert results(driver) == 0
        driver.advance_wall_clock_time(timedelta(seconds=16))
        assert driver.task.stream_time_ms == 121_000
        assert results(driver) == 1
        driver.advance_wall_clock_time(timedelta(seconds=100))
        assert results(driver) == 0


@pytest.mark.parametrize("declare", CASES.values(), ids=CASES)
def test_results_wait_without_the_option(declare: Any) -> None:
    builder = StreamsBuilder()
    declare(builder, builder.stream("in", **TEXTS)).to("out")
    with TopologyTestDriver(builder.build(), IMMEDIATELY) as driver:
        driver.create_input_topic("in", Serdes.string(), Serdes.string()).pipe_input("a", "x", 100_000)
        driver.advance_wall_clock_time(timedelta(hours=1))
        assert driver.task.stream_time_ms == 100_000
        assert results(driver) == 0


def test_a_late_record_is_dropped_after_its_window_has_closed() -> None:
    """The price: to the operators it is as late as after a record with a later timestamp."""
    builder = StreamsBuilder()
    suppressed(builder, builder.stream("in", **TEXTS, idle_timeout=timedelta(seconds=5))).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        topic.pipe_input("a", "x", 100_000)
        driver.advance_wall_clock_time(timedelta(seconds=30))
        assert results(driver) == 1
        topic.pipe_input("a", "x", 101_000)
        topic.pipe_input("a", "x", 200_000)
        assert results(driver) == 0
        assert list(driver.dropped_records().values()) == [1]


@pytest.mark.parametrize("declare", CLOSING.values(), ids=CLOSING)
def test_windows_with_a_timeout_close_and_stay_closed(declare: Any) -> None:
    builder = StreamsBuilder()
    declare(builder, builder.stream("in", **TEXTS)).to("out")
    with TopologyTestDriver(builder.build(), IMMEDIATELY) as driver:
        topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        topic.pipe_input("a", "x", 100_000)
        driver.advance_wall_clock_time(timedelta(milliseconds=4_999))
        assert driver.task.stream_time_ms == 100_000
        driver.advance_wall_clock_time(timedelta(milliseconds=1))
        assert driver.task.stream_time_ms == 105_000
        assert results(driver) == 0
        driver.advance_wall_clock_time(timedelta(seconds=16))
        assert results(driver) == 1
        topic.pipe_input("a", "x", 100_000)
        driver.advance_wall_clock_time(timedelta(hours=1))
        assert results(driver) == 0
        assert list(driver.dropped_records().values()) == [1]


def test_each_record_starts_the_timeout_again() -> None:
    builder = StreamsBuilder()
    suppressed(builder, builder.stream("in", **TEXTS, idle_timeout=timedelta(seconds=5))).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        for _ in range(10):
            topic.pipe_input("a", "x", 100_000)
            driver.advance_wall_clock_time(timedelta(seconds=4))
        assert driver.task.stream_time_ms == 100_000


def test_rows_with_a_ttl_end() -> None:
    builder = StreamsBuilder()
    table_with_a_ttl(builder, builder.stream("in", **TEXTS, idle_timeout=timedelta(seconds=5)))
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", Serdes.string(), Serdes.string()).pipe_input("a", "x", 100_000)
        driver.advance_wall_clock_time(timedelta(seconds=9))
        assert driver.get_key_value_store("counts").get("a") == 1
        driver.advance_wall_clock_time(timedelta(seconds=1))
        assert driver.get_key_value_store("counts").get("a") is None


@pytest.mark.parametrize("topic", ["in", "repartitioned"])
def test_in_a_test_each_sub_topology_has_its_own_timeout(topic: str) -> None:
    """As in stream threads, where they are tasks."""
    builder = StreamsBuilder()
    idle = builder.stream("in", **TEXTS, idle_timeout=timedelta(seconds=5))
    if topic == "repartitioned":
        idle = idle.select_key(lambda key, value: value).repartition(**TEXTS)
    suppressed(builder, idle).to("out")
    suppressed(builder, builder.stream("other", **TEXTS)).to("others")
    with TopologyTestDriver(builder.build()) as driver:
        first, other = (driver.create_input_topic(name, Serdes.string(), Serdes.string()) for name in ("in", "other"))
        first.pipe_input("a", "x", 100_000)
        for _ in range(10):
            other.pipe_input("a", "x", 500_000)
            driver.advance_wall_clock_time(timedelta(seconds=3))
        assert results(driver) == 1
        driver.advance_wall_clock_time(timedelta(hours=1))
        assert not driver.create_output_topic("others", Serdes.bytes(), Serdes.bytes()).read_records_to_list()
        first.pipe_input("a", "x", 100_000)
        driver.advance_wall_clock_time(timedelta(hours=1))
        assert results(driver) == 0


def idle_timeouts(declare: Callable[[StreamsBuilder], Any]) -> list[int | None]:
    """Return the idle timeouts of the sub-topologies, in ms."""
    builder = StreamsBuilder()
    declare(builder)
    parts = builder.build().internal_builder.build_subtopologies()
    return [None if part.idle_timeout is None else part.idle_timeout.duration_ms for part in parts]


def test_a_task_needs_a_timeout_for_each_of_its_topics() -> None:
    def one(builder: StreamsBuilder) -> None:
        left_joined(builder, builder.stream("in", **TEXTS)).to("out")

    def both(builder: StreamsBuilder) -> None:
        left_joined(builder, builder.stream("in", **TEXTS, idle_timeout=7_000)).to("out")

    assert idle_timeouts(one) == [None]
    assert idle_timeouts(both) == [7_000]


def test_behind_a_repartition_topic_it_is_that_of_the_input() -> None:
    def declare(builder: StreamsBuilder, timeout: Any) -> None:
        stream = builder.stream("in", **TEXTS, idle_timeout=timeout)
        counts = stream.select_key(lambda key, value: value).repartition(name="by-value", **TEXTS)
        counts.group_by_key().count().to_stream().select_key(lambda key, value: "all").repartition(
            name="all", key_serde=Serdes.string(), value_serde=Serdes.int64()
        ).to("out")

    assert idle_timeouts(lambda builder: declare(builder, 5)) == [5, 5, 5]
    assert idle_timeouts(lambda builder: declare(builder, None)) == [None] * 3


def closing(stream: Any, wall_clock: Any) -> Any:
    counts = stream.group_by_key().windowed_by(TimeWindows(SIZE)).count()
    return counts.suppress(Suppressed.until_window_closes(wall_clock=wall_clock))


def test_windows_give_their_timeout_to_their_own_sub_topology() -> None:
    def declare(builder: StreamsBuilder, between: Any) -> None:
        stream = builder.stream("in", **TEXTS).select_key(lambda key, value: value).repartition(name="before", **TEXTS)
        counts = closing(stream, 5).to_stream().select_key(lambda window, count: window.key)
        closing(counts.repartition(name="after", key_serde=Serdes.string(), value_serde=Serdes.int64()), between)

    assert idle_timeouts(lambda builder: declare(builder, None)) == [None, 5, None]
    assert idle_timeouts(lambda builder: declare(builder, 7)) == [None, 5, 7]


def test_of_several_timeouts_the_longest_counts() -> None:
    def declare(builder: StreamsBuilder, source: Any, *windows: Any) -> None:
        stream = builder.stream("in", **TEXTS, idle_timeout=source)
        for wall_clock in windows:
            closing(stream, wall_clock)

    assert idle_timeouts(lambda builder: declare(builder, None, 5, None)) == [5]
    assert idle_timeouts(lambda builder: declare(builder, None, 5, 7)) == [7]
    assert idle_timeouts(lambda builder: declare(builder, 9, 5, 7)) == [9]
    assert idle_timeouts(lambda builder: declare(builder, 6, 5, 7)) == [7]


def test_a_source_without_a_timeout_does_not_keep_windows_open() -> None:
    def declare(builder: StreamsBuilder, first: Any, second: Any) -> None:
        streams = [builder.stream(topic, **TEXTS, idle_timeout=each) for topic, each in (("1", first), ("2", second))]
        closing(streams[0].merge(streams[1]), 5)

    assert idle_timeouts(lambda builder: declare(builder, None, None)) == [5]
    assert idle_timeouts(lambda builder: declare(builder, 7, None)) == [7]


def test_the_wall_clock_is_followed_if_one_timeout_follows_it() -> None:
    builder = StreamsBuilder()
    closing(builder.stream("in", **TEXTS, idle_timeout=IdleTimeout(7, "others")), 5)
    assert builder.build().internal_builder.build_subtopologies()[0].idle_timeout == IdleTimeout(7, "wall_clock")


def test_a_suppress_that_is_renamed_keeps_its_timeout() -> None:
    assert Suppressed.until_window_closes(wall_clock=5).with_name("final").idle_timeout == IdleTimeout(5)


def test_the_sides_of_a_foreign_key_join_have_the_timeout_of_both_tables() -> None:
    def declare(builder: StreamsBuilder, left: Any, right: Any) -> None:
        users = builder.table("users", **TEXTS, idle_timeout=left)
        cities = builder.table("cities", **TEXTS, idle_timeout=right)
        users.join(cities, "{}-{}".format, foreign_key=lambda value: value).to_stream().to("out")

    assert idle_timeouts(lambda builder: declare(builder, 5, 7)) == [7, 7]
    assert idle_timeouts(lambda builder: declare(builder, 5, None)) == [None, None]
    assert idle_timeouts(lambda builder: declare(builder, None, 7)) == [None, None]


def test_a_foreign_key_join_of_a_table_with_an_aggregate_of_itself_has_the_timeout_of_the_table() -> None:
    def declare(builder: StreamsBuilder) -> None:
        users = builder.table("users", **TEXTS, idle_timeout=5)
        sizes = users.group_by(lambda user, city: (city, user), **TEXTS).count()
        users.join(sizes, "{}-{}".format, foreign_key=lambda city: city).to_stream().to("out")

    assert idle_timeouts(declare) == [5, 5]


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda builder: builder.stream("in", idle_timeout=0), "An idle timeout must be at least a millisecond"),
        (
            lambda builder: builder.stream("in", idle_timeout=IdleTimeout(5, "both")),  # type: ignore[arg-type]
            'An idle timeout follows "wall_clock" or "others", got \'both\'',
        ),
        (
            lambda builder: (builder.stream("in", idle_timeout=5), builder.stream("in"), builder.build()),
            "with different idle timeouts; give both the same",
        ),
        (
            lambda builder: Suppressed.until_window_closes(wall_clock=timedelta(0)),
            "An idle timeout must be at least a millisecond",
        ),
        (
            lambda builder: (
                builder.stream("in")
                .group_by_key()
                .windowed_by(TimeWindows(5))
                .emit_strategy(EmitStrategy.ON_WINDOW_UPDATE, wall_clock=5)
            ),
            r"emit_strategy\(\): wall_clock= is for ON_WINDOW_CLOSE",
        ),
    ],
)
def test_wrong_timeouts(declare: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        declare(StreamsBuilder())
