"""Groups, windows, suppression and cogroups; branches."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

from penstock import (
    BranchedKStream,
    BufferConfig,
    CogroupedKStream,
    EmitStrategy,
    KGroupedStream,
    KGroupedTable,
    KStream,
    KTable,
    Materialized,
    Serdes,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    Windowed,
)
from penstock.testing import TopologyTestDriver

TEXT, NUMBER = Serdes.string(), Serdes.int64()


def add(key: str, value: int, total: float) -> float:
    return total + value


def none_seen() -> list[int]:
    return []


def see(key: str, value: int, seen: list[int]) -> list[int]:
    return [*seen, value]


def merge(key: str, one: float, other: float) -> float:
    return one + other


def topology() -> Topology:
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key_serde=TEXT, value_serde=NUMBER)
    grouped = numbers.group_by_key()
    assert_type(grouped, KGroupedStream[str, int])
    assert_type(grouped.count(store=Materialized("counts", caching=False)), KTable[str, int])
    assert_type(grouped.reduce(max, name="highest"), KTable[str, int])
    assert_type(grouped.aggregate(lambda: 0.0, add, value_serde=Serdes.float64()), KTable[str, float])
    assert_type(grouped.aggregate(none_seen, see), KTable[str, list[int]])
    assert_type(numbers.group_by(lambda key, value: value % 10, key_serde=NUMBER).count(), KTable[int, int])

    hours = grouped.windowed_by(TimeWindows(timedelta(hours=1), grace=0)).emit_strategy(EmitStrategy.ON_WINDOW_CLOSE)
    assert_type(hours.count(), KTable[Windowed[str], int])
    sliding = grouped.windowed_by(SlidingWindows(timedelta(minutes=5), grace=0))
    assert_type(sliding.aggregate(lambda: 0.0, add), KTable[Windowed[str], float])
    sessions = grouped.windowed_by(SessionWindows(timedelta(minutes=5), grace=0))
    assert_type(sessions.aggregate(lambda: 0.0, add, merge), KTable[Windowed[str], float])
    closed = sessions.count(store="visits").suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    assert_type(closed, KTable[Windowed[str], int])
    starts = closed.to_stream(lambda windowed, count: f"{windowed.key} at {windowed.start}")
    assert_type(starts, KStream[str, int])
    starts.to("visits", key_serde=TEXT, value_serde=NUMBER)

    cogrouped = grouped.cogroup(add).cogroup(
        builder.stream("texts", key_serde=TEXT, value_serde=TEXT).group_by_key(),
        lambda key, value, total: total + len(value),
    )
    assert_type(cogrouped, CogroupedKStream[str, float])
    assert_type(cogrouped.aggregate(float), KTable[str, float])
    assert_type(cogrouped.windowed_by(TimeWindows(5)).aggregate(float), KTable[Windowed[str], float])
    assert_type(cogrouped.windowed_by(SessionWindows(5)).aggregate(float, merge), KTable[Windowed[str], float])

    table = numbers.to_table(store="latest")
    assert_type(table, KTable[str, int])
    tens = table.group_by(lambda key, value: (value // 10, value), key_serde=NUMBER)
    assert_type(tens, KGroupedTable[int, int])
    assert_type(tens.reduce(lambda one, other: one + other, lambda one, other: one - other), KTable[int, int])
    assert_type(table.suppress(Suppressed.until_time_limit(1000, BufferConfig.max_records(10))), KTable[str, int])

    branches = numbers.split(name="by-").branch(lambda key, value: value > 9, "large").default_branch("small")
    assert_type(branches, BranchedKStream[str, int])
    assert_type(branches["large"].map(lambda key, value: (value, key)), KStream[int, str])
    assert_type(branches["small"].flat_map(lambda key, value: [(c, value) for c in key]), KStream[str, int])
    assert_type(numbers.select_key(lambda key, value: None), KStream[None, int])
    return builder.build()


def try_it() -> None:
    with TopologyTestDriver(topology()) as driver:
        numbers = driver.create_input_topic("numbers")
        numbers.pipe_key_value_list([("a", 1), ("a", 600_000), ("a", 2)], start_timestamp=0, advance=timedelta(hours=1))
        output = driver.create_output_topic("visits")
        assert_type(output.read_key_value(), tuple[Any, Any])
        assert output.read_key_value() == ("a at 3600000", 1)
