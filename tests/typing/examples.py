"""Checked by mypy --strict and by pyright, not run: the types that follow from a user's declarations."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

from penstock import (
    BranchedKStream,
    CogroupedKStream,
    EmitStrategy,
    FixedKeyProcessor,
    JoinWindows,
    KGroupedStream,
    KStream,
    KTable,
    Processor,
    Record,
    Serdes,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindowedKStream,
    TimeWindows,
    ValueTransformerWithKey,
    Windowed,
    agg,
)
from penstock.testing import TestOutputTopic, TopologyTestDriver

builder = StreamsBuilder()
text = builder.stream("text", key_serde=Serdes.string(), value_serde=Serdes.string())
table = builder.table("table", key_serde=Serdes.string(), value_serde=Serdes.string())
prices = builder.global_table("prices", key_serde=Serdes.int64(), value_serde=Serdes.float64())


def annotated(documents: KStream[str, dict[str, int]]) -> None:
    """JSON has any type: an annotation declares the contents."""
    assert_type(documents.map_values(len), KStream[str, int])
    assert_type(documents.filter(lambda key, value: value["a"] > 1), KStream[str, dict[str, int]])
    assert_type(documents.select_key(lambda key, value: value["a"]), KStream[int, dict[str, int]])


def from_serdes() -> None:
    assert_type(text, KStream[str, str])
    assert_type(table, KTable[str, str])
    assert_type(builder.stream("any"), KStream[Any, Any])


def stateless() -> None:
    assert_type(text.map_values(len), KStream[str, int])
    assert_type(text.map_values(lambda key, value: (key, len(value)), with_key=True), KStream[str, tuple[str, int]])
    assert_type(text.map(lambda key, value: (len(key), value)), KStream[int, str])
    assert_type(text.flat_map(lambda key, value: [(c, len(value)) for c in value]), KStream[str, int])
    assert_type(text.flat_map_values(str.split), KStream[str, str])
    assert_type(text.peek(print).merge(text).repartition(), KStream[str, str])
    assert_type(text.split(), BranchedKStream[str, str])
    assert_type(text.split({"long": lambda key, value: len(value) > 9})["long"], KStream[str, str])
    assert_type(text.to_table(), KTable[str, str])


def add_length(key: str, value: str, total: int) -> int:
    return total + len(value)


def aggregations() -> None:
    grouped = text.group_by_key()
    assert_type(grouped, KGroupedStream[str, str])
    assert_type(grouped.count(), KTable[str, int])
    assert_type(grouped.reduce(lambda one, other: one + other), KTable[str, str])
    assert_type(grouped.aggregate(lambda: 0, add_length), KTable[str, int])
    assert_type(grouped.aggregate(int, lambda key, value, total: total + len(value)), KTable[str, int])
    assert_type(grouped.cogroup(add_length), CogroupedKStream[str, int])
    assert_type(grouped.cogroup(add_length).aggregate(int), KTable[str, int])
    assert_type(text.group_by(lambda key, value: len(value)).count(), KTable[int, int])
    assert_type(table.group_by(lambda key, value: (len(value), key)).count(), KTable[int, int])


def windows() -> None:
    grouped = text.group_by_key()
    hours = grouped.windowed_by(TimeWindows(timedelta(hours=1))).emit_strategy(EmitStrategy.ON_WINDOW_CLOSE)
    assert_type(hours.aggregate(int, add_length), KTable[Windowed[str], int])
    assert_type(hours.count().suppress(Suppressed.until_window_closes()).to_stream(), KStream[Windowed[str], int])
    sessions = grouped.windowed_by(SessionWindows(timedelta(minutes=5)))
    assert_type(sessions.reduce(lambda one, other: one + other), KTable[Windowed[str], str])
    assert_type(grouped.cogroup(add_length).windowed_by(TimeWindows(5)).aggregate(int), KTable[Windowed[str], int])


def tables() -> None:
    assert_type(table.filter(lambda key, value: bool(value), store="kept"), KTable[str, str])
    assert_type(table.map_values(len), KTable[str, int])
    assert_type(table.to_stream(), KStream[str, str])
    assert_type(table.to_stream(lambda key, value: len(key)), KStream[int, str])
    assert_type(table.transform_values(Lengths), KTable[str, int])


def joins() -> None:
    assert_type(text.join(table, lambda left, right: len(left) + len(right)), KStream[str, int])
    assert_type(text.left_join(text, lambda left, right: 1.5, JoinWindows(5)), KStream[str, float])
    assert_type(text.join(prices, lambda left, right: b"", key_selector=lambda key, value: 1), KStream[str, bytes])
    assert_type(table.outer_join(table, lambda left, right: 1), KTable[str, int])


class CountWords(Processor[str, str, int, str]):
    def process(self, record: Record[str, str]) -> None:
        assert_type(record.value, str)
        self.context.forward(record.with_key(len(record.value.split())))


class Shout(FixedKeyProcessor[str, str, bytes]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record.with_value(record.value.upper().encode()))


class Lengths(ValueTransformerWithKey[str, str, int]):
    def transform(self, key: str, value: str | None) -> int | None:
        return None if value is None else len(value)


def made_for_each_task() -> CountWords:
    return CountWords()


def processors() -> None:
    assert_type(text.process(CountWords), KStream[int, str])
    assert_type(text.process(made_for_each_task), KStream[int, str])
    assert_type(text.process_values(Shout), KStream[str, bytes])


def driver() -> None:
    with TopologyTestDriver(builder.build()) as test_driver:
        assert_type(test_driver, TopologyTestDriver)
        assert_type(test_driver.create_output_topic("out"), TestOutputTopic)
        assert_type(test_driver.produced_topic_names(), set[str])


def aggregates() -> None:
    grouped = text.group_by_key()
    assert_type(grouped.aggregate(agg.count()), KTable[str, int])
    assert_type(grouped.aggregate(agg.mean(len), store="mean"), KTable[str, float | None])
    assert_type(grouped.aggregate({"n": agg.count(), "mean": agg.mean(len)}), KTable[str, dict[str, Any]])
    windowed = grouped.windowed_by(TimeWindows(10))
    assert_type(windowed.aggregate(agg.collect(3)), KTable[Windowed[str], list[Any]])
    sessions = grouped.windowed_by(SessionWindows(10))
    assert_type(sessions.aggregate({"ids": agg.distinct()}), KTable[Windowed[str], dict[str, Any]])
    by_value = table.group_by(lambda key, value: (value, len(key)))
    assert_type(by_value.aggregate(agg.sum()), KTable[str, float])
    both = grouped.cogroup({"n": agg.count()}).cogroup(text.group_by_key(), {"mean": agg.mean(len)})
    assert_type(both, CogroupedKStream[str, dict[str, Any]])
    assert_type(both.aggregate(store="both"), KTable[str, dict[str, Any]])
    assert_type(both.windowed_by(TimeWindows(10)).aggregate(), KTable[Windowed[str], dict[str, Any]])
    assert_type(both.windowed_by(SessionWindows(10)).aggregate(), KTable[Windowed[str], dict[str, Any]])
    assert_type(hours_of(grouped).count(), KTable[Windowed[str], int])


def hours_of(grouped: KGroupedStream[str, str]) -> TimeWindowedKStream[str, str]:
    hour = timedelta(hours=1)
    return grouped.windowed_by(TimeWindows(hour)).emit_strategy(EmitStrategy.ON_WINDOW_CLOSE, wall_clock=hour)
