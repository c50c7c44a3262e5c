"""Compiled nodes of joins, windows, sessions and steps of tables give the results of functions over the stores."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock import EmitStrategy, JoinWindows, Serdes, SessionWindows, SlidingWindows, StreamsBuilder, TimeWindows
from penstock.testing import TopologyTestDriver
from penstock.testing.driver_task import DriverOutput
from tests.topology.only_functions import only_functions

TEXTS: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
STORES: Any = {f"{name}_serde": Serdes.string() for name in ("key", "value", "other_value")}
GAP = timedelta(milliseconds=20)
WINDOWS = JoinWindows.of_time_difference_and_grace(GAP, GAP).after(timedelta(milliseconds=5))
Declare = Callable[[StreamsBuilder], None]


def text(*parts: object) -> str:
    return "-".join(map(str, parts))


def stream_joins(builder: StreamsBuilder) -> None:
    """All kinds, with a joiner for which sides and keys matter."""
    left, right = builder.stream("left", **TEXTS), builder.stream("right", **TEXTS)
    left.join(right, text, WINDOWS, **STORES).to("inner")
    left.left_join(right, text, WINDOWS, with_key=True, **STORES).to("left-joined")
    left.outer_join(right, text, WINDOWS, **STORES).to("outer")
    joined = left.select_key(lambda key, value: f"{key}2").repartition(name="by-other", **TEXTS)
    joined.join(right, text, WINDOWS, with_key=True, **STORES).to("other-keys")


def self_joins(builder: StreamsBuilder) -> None:
    """Joins of a stream with itself, in one store each."""
    left = builder.stream("left", **TEXTS)
    left.join(left, text, WINDOWS, **STORES).to("joined")
    left.join(left, text, JoinWindows.of_time_difference_with_no_grace(GAP), with_key=True, **STORES).to("with-keys")


def table_joins(builder: StreamsBuilder) -> None:
    """All kinds, stored and not, and steps before and after them."""
    left, right = builder.table("left", **TEXTS), builder.table("right", **TEXTS)
    left.join(right, text).to_stream().to("inner-joined", **TEXTS)
    left.left_join(right, text, store="stored").filter(lambda key, value: "1" in value).to_stream().to(
        "left-joined", **TEXTS
    )
    left.outer_join(right, text).map_values(lambda value: value[::-1]).to_stream().to("outer", **TEXTS)
    kept = left.filter_not(lambda key, value: key == "k1" or value == "v2", store="kept")
    mapped = right.map_values(text, with_key=True, store="mapped")
    kept.join(mapped, text).to_stream().to("steps", **TEXTS)
    kept.group_by(lambda key, value: (value, key), **TEXTS).count(store="counted").to_stream().to("groups")


def sessions(builder: StreamsBuilder) -> None:
    """Counts, lists that change in place and are deleted, texts."""

    def add(_key: str, value: str, values: list[str]) -> Any:
        values.append(value)
        return None if value == "v5" else values

    def merge(_key: str, one: list[str], other: list[str]) -> list[str]:
        one.extend(other)
        return one

    grouped = (
        builder.stream("left", **TEXTS).group_by_key().windowed_by(SessionWindows.of_inactivity_gap_and_grace(GAP, GAP))
    )
    grouped.count(store="counts").to_stream().to("counts")
    listed = grouped.aggregate(list, add, merge, store="lists", value_serde=Serdes.json())
    listed.filter(lambda key, value: len(value) < 4).to_stream().to("lists")
    grouped.reduce(text, store="all").to_stream().to("all")


def windows(builder: StreamsBuilder) -> None:
    """Counts, lists that change in place and are deleted, texts; tumbling and hopping."""

    def add(key: str, value: str, values: list[str]) -> Any:
        values.append(text(key, value))
        return None if value == "v5" else values

    grouped = builder.stream("left", **TEXTS).group_by_key()
    tumbling = grouped.windowed_by(TimeWindows.of_size_with_no_grace(GAP))
    hopping = grouped.windowed_by(TimeWindows.of_size_and_grace(GAP, GAP).advance_by(timedelta(milliseconds=7)))
    tumbling.count(store="counts").to_stream().to("counts")
    hopping.count(store="hopping-counts").filter(lambda key, value: value > 1).to_stream().to("hopping-counts")
    listed = hopping.aggregate(list, add, store="lists", value_serde=Serdes.json())
    listed.map_values(len).to_stream().to("lists")
    hopping.reduce(text, store="all").to_stream(lambda key, value: text(*key)).to("all", **TEXTS)


def sliding_windows(builder: StreamsBuilder) -> None:
    """Counts, lists that change in place and are deleted, texts."""

    def add(key: str, value: str, values: list[str]) -> Any:
        values.append(text(key, value))
        return None if value == "v5" else values

    sliding = (
        builder.stream("left", **TEXTS)
        .group_by_key()
        .windowed_by(SlidingWindows.of_time_difference_and_grace(GAP, GAP))
    )
    sliding.count(store="counts").filter(lambda key, value: value > 1).to_stream().to("counts")
    listed = sliding.aggregate(list, add, store="lists", value_serde=Serdes.json())
    listed.map_values(len).to_stream().to("lists")
    sliding.reduce(text, store="all").to_stream(lambda key, value: text(*key)).to("all", **TEXTS)


def window_groups(builder: StreamsBuilder) -> None:
    """Windows whose old values are needed, because they are grouped again."""
    grouped = builder.stream("left", **TEXTS).group_by_key()
    kinds: dict[str, Any] = {
        "hopping": TimeWindows.of_size_and_grace(GAP, GAP).advance_by(timedelta(milliseconds=7)),
        "sliding": SlidingWindows.of_time_difference_and_grace(GAP, GAP),
        "sessions": SessionWindows.of_inactivity_gap_and_grace(GAP, GAP),
    }
    for name, windows in kinds.items():
        groups = grouped.windowed_by(windows).reduce(text, store=name).group_by(lambda k, v: (k.key, v), **TEXTS)
        groups.reduce(text, lambda old, gone: f"{old}/{gone}", store=f"{name}-groups").to_stream().to(name, **TEXTS)


def closing_windows(builder: StreamsBuilder) -> None:
    """Windows of all kinds that are emitted as they close."""

    def add(_key: str, value: str, values: list[str]) -> Any:
        values.append(value)
        return None if value == "v5" else values

    grouped = builder.stream("left", **TEXTS).group_by_key()
    kinds: dict[str, Any] = {
        "tumbling": TimeWindows.of_size_with_no_grace(GAP),
        "hopping": TimeWindows.of_size_and_grace(GAP, GAP).advance_by(timedelta(milliseconds=7)),
        "sliding": SlidingWindows.of_time_difference_and_grace(GAP, GAP),
        "sessions": SessionWindows.of_inactivity_gap_and_grace(GAP, GAP),
    }
    for name, windows in kinds.items():
        closing: Any = grouped.windowed_by(windows).emit_strategy(EmitStrategy.ON_WINDOW_CLOSE)
        closing.count(store=name).to_stream().to(name)
        texts = closing.reduce(text, store=f"{name}-texts")
        texts.to_stream(lambda key, value: text(*key)).to(f"{name}-texts", **TEXTS)
        merger = (lambda key, one, other: one + other,) if name == "sessions" else ()
        lists = closing.aggregate(list, add, *merger, store=f"{name}-lists", value_serde=Serdes.json())
        lists.filter(lambda key, value: len(value) < 4).to_stream().to(f"{name}-lists")


def results(monkeypatch: pytest.MonkeyPatch, declare: Declare, config: dict[str, Any]) -> list[Any]:
    """Process records in any order; return all written records, and those that were dropped."""
    seen: list[Any] = []
    send, log_change = DriverOutput.send, DriverOutput.log_change

    def send_and_note(output: DriverOutput, *record: Any) -> None:
        seen.append(("send", *record))
        send(output, *record)

    def log_and_note(output: DriverOutput, *change: Any) -> None:
        seen.append(("log", *change))
        log_change(output, *change)

    builder = StreamsBuilder()
    declare(builder)
    draw = random.Random(7)
    with monkeypatch.context() as patch:
        patch.setattr(DriverOutput, "send", send_and_note)
        patch.setattr(DriverOutput, "log_change", log_and_note)
        with TopologyTestDriver(builder.build(config), config) as driver:
            names = ("left", "right") if declare in (stream_joins, table_joins) else ("left",)
            topics = [driver.create_input_topic(name, Serdes.string(), Serdes.string()) for name in names]
            for number in range(600):
                topic = draw.choice(topics)
                key = None if number % 60 == 9 else f"k{draw.randrange(4)}"
                value = draw.choice([None, "v1", "v2", "v3", "v4", "v5"])
                headers = [("n", b"%d" % number)]
                topic.pipe_input(key, value, number * 2 + draw.randrange(60), headers=headers)
                if number % 40 == 39:
                    driver.advance_wall_clock_time(timedelta(seconds=2))
            seen.append(driver.task.dropped.total())
    return seen


SELF_JOINS = {"topology.optimization": "single.store.self.join"}
#: Of a small cache, windows evict rows at other moments than functions do: they keep rows that they have only read.
UNCACHED, SMALL, CACHED = 0, 2_000, 1_000_000
RUNS = [
    *(
        (declare, cache)
        for declare in (stream_joins, table_joins, sessions, sliding_windows)
        for cache in (UNCACHED, SMALL, CACHED)
    ),
    *((declare, cache) for declare in (windows, closing_windows, window_groups) for cache in (UNCACHED, CACHED)),
    (self_joins, UNCACHED),
]


@pytest.mark.parametrize("store_format", ["DEFAULT", "HEADERS"])
@pytest.mark.parametrize(("declare", "cache"), RUNS, ids=[f"{run[0].__name__}-{run[1]}" for run in RUNS])
def test_compiled_nodes_and_python_functions_give_the_same_results(
    monkeypatch: pytest.MonkeyPatch, declare: Declare, store_format: str, cache: int
) -> None:
    config = {"statestore.cache.max.bytes": cache, "dsl.store.format": store_format, **SELF_JOINS}
    found = results(monkeypatch, declare, config)
    only_functions(monkeypatch)
    assert found == results(monkeypatch, declare, config)
    assert {"send", "log"} <= {row[0] for row in found[:-1]}
    assert found[-1], "no record was dropped"
