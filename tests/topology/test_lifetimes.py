"""Serdes, topologies and test drivers are freed when a program no longer uses them."""

from __future__ import annotations

import gc
import linecache
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    CalendarWindows,
    CountWindows,
    KGroupedStream,
    KTable,
    Serdes,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    UnlimitedWindows,
    agg,
)
from penstock.testing import TopologyTestDriver
from penstock.topology.operators.foreign_key_serdes import (
    CombinedKeySchema,
    SubscriptionResponseWrapperSerde,
    SubscriptionWrapperSerde,
)
from penstock.topology.serdes.count_windows_serde import CountWindowsSerde
from penstock.topology.serdes.serdes import PlainSerde, deserializer_for, serializer_for
from penstock.topology.serdes.typed_json_serde import TypedJsonSerde
from penstock.topology.serdes.windowed_serdes import ChangedSerde, TimeWindowedSerde

MINUTE = timedelta(minutes=1)


@dataclass
class Point:
    x: int


class Own:
    """A user's serde."""

    def serialize(self, topic: str, value: str | None) -> bytes | None:
        return None if value is None else value.encode()

    def deserialize(self, topic: str, data: bytes | None) -> str | None:
        return None if data is None else data.decode()


INNER: dict[str, Callable[[], Any]] = {
    "text": Serdes.string,
    "bytes": Serdes.bytes,
    "json": Serdes.json,
    "typed": lambda: TypedJsonSerde(Point),
    "own": Own,
    "list": lambda: Serdes.list(Serdes.int64()),
}
OUTER: dict[str, Callable[[Any], Any]] = {
    "time": lambda inner: Serdes.time_windowed(inner, MINUTE),
    "calendar": lambda inner: TimeWindowedSerde(inner, None, lambda start: start + 1),
    "session": Serdes.session_windowed,
    "nested": lambda inner: Serdes.session_windowed(Serdes.time_windowed(inner, MINUTE)),
    "change": ChangedSerde,
    "count": CountWindowsSerde,
    "list": Serdes.list,
    "subscription": lambda inner: SubscriptionWrapperSerde("t", inner),
    "response": SubscriptionResponseWrapperSerde,
    "combined": lambda inner: CombinedKeySchema("f", inner, "p", inner),
    "plain": lambda inner: PlainSerde("p", lambda value: inner and b"", lambda data: inner),
    "inner": lambda inner: inner if isinstance(inner, TypedJsonSerde) else Serdes.list(inner),
}


def is_freed(make: Callable[[], object]) -> bool:
    """Return whether an object is freed when it is no longer used."""
    reference = weakref.ref(make())
    gc.collect()
    return reference() is None


def leaves_nothing(make: Callable[[], object]) -> bool:
    """Return whether the parts of objects are freed with them."""
    before = _objects()
    for _ in range(10):
        make()
    return _objects() - before < 10  # less than one each


def _objects() -> int:
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("outer", OUTER)
def test_a_serde_is_freed(outer: str, inner: str) -> None:
    def make() -> object:
        serde = OUTER[outer](INNER[inner]())
        if hasattr(serde, "topic_serializer"):
            serializer_for(serde, "t")
            deserializer_for(serde, "t")
        return serde

    assert is_freed(make)


def summed(key: str, value: str, total: int) -> int:
    return total + len(value)


AGGREGATIONS: dict[str, Callable[[KGroupedStream[str, str]], KTable[Any, Any]]] = {
    "no window": lambda grouped: grouped.count(),
    "agg": lambda grouped: grouped.aggregate({"n": agg.count()}),
    "tumbling": lambda grouped: grouped.windowed_by(TimeWindows(MINUTE)).count(),
    "hopping": lambda grouped: grouped.windowed_by(TimeWindows(MINUTE, advance=MINUTE / 2)).aggregate(int, summed),
    "sliding": lambda grouped: grouped.windowed_by(SlidingWindows.of_time_difference_with_no_grace(MINUTE)).reduce(min),
    "session": lambda grouped: grouped.windowed_by(SessionWindows(MINUTE)).count(),
    "unlimited": lambda grouped: grouped.windowed_by(UnlimitedWindows()).count(),
    "calendar": lambda grouped: grouped.windowed_by(CalendarWindows("day", "UTC")).count(),
    "count": lambda grouped: grouped.windowed_by(CountWindows(3)).aggregate(int, summed).to_table(),
}


def built(aggregate: Callable[[KGroupedStream[str, str]], KTable[Any, Any]]) -> StreamsBuilder:
    builder = StreamsBuilder()
    source = builder.stream("in", key_serde=Serdes.string(), value_serde=Serdes.string())
    aggregate(source.group_by_key()).to_stream().map_values(str).to("out", value_serde=Serdes.string())
    return builder


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_topology_and_its_driver_are_freed(aggregation: str) -> None:
    def make_topology() -> object:
        return built(AGGREGATIONS[aggregation]).build()

    def make_driver() -> object:
        with TopologyTestDriver(built(AGGREGATIONS[aggregation]).build()) as driver:
            driver.create_input_topic("in", Serdes.string(), Serdes.string()).pipe_input("a", "b")
        return driver

    assert is_freed(make_topology)
    assert is_freed(make_driver)
    assert leaves_nothing(make_topology)


def test_a_foreign_key_join_is_freed() -> None:
    def make() -> object:
        builder = StreamsBuilder()
        left = builder.table("left", key_serde=Serdes.string(), value_serde=Serdes.string())
        right = builder.table("right", key_serde=Serdes.string(), value_serde=Serdes.string())
        left.join(right, lambda one, other: one + other, foreign_key=lambda value: value)
        return builder.build()

    assert is_freed(make)
    assert leaves_nothing(make)


def test_drivers_leave_no_source_code() -> None:
    """Generated code in linecache would grow with each test of a user's suite."""
    before = set(linecache.cache)
    for number in range(60):
        aggregate = AGGREGATIONS[list(AGGREGATIONS)[number % len(AGGREGATIONS)]]
        with TopologyTestDriver(built(aggregate).build()):
            pass
    assert set(linecache.cache) <= before
