"""Serdes.json(type): JSON as objects of a type, checked when it is read."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest

from penstock import ConfigError, Serdes, SerializationError, StreamsBuilder, StreamsError
from penstock.testing import TopologyTestDriver


class Color(Enum):
    RED = "red"


class Purchase(msgspec.Struct):
    user: str
    amount: int
    color: Color | None = None


class Frozen(msgspec.Struct, frozen=True):
    at: datetime


class Basket(msgspec.Struct):
    purchases: list[Purchase]


class Pair(NamedTuple):
    a: int
    b: str


class Row(TypedDict):
    a: int


@dataclass
class Point:
    x: float


VALUES = [
    (Purchase, Purchase("u", 3, Color.RED), b'{"user":"u","amount":3,"color":"red"}'),
    (Frozen, Frozen(datetime(2026, 1, 2, tzinfo=UTC)), b'{"at":"2026-01-02T00:00:00Z"}'),
    (Basket, Basket([Purchase("u", 3)]), b'{"purchases":[{"user":"u","amount":3,"color":null}]}'),
    (Pair, Pair(1, "x"), b'[1,"x"]'),
    (Row, {"a": 1}, b'{"a":1}'),
    (Point, Point(1.5), b'{"x":1.5}'),
    (list[int], [1, 2], b"[1,2]"),
]


@pytest.mark.parametrize(("kind", "value", "data"), VALUES, ids=lambda value: getattr(value, "__name__", None))
def test_values_are_objects_of_the_type(kind: Any, value: Any, data: bytes) -> None:
    serde = Serdes.json(kind)
    assert serde.serialize("topic", value) == serde.serializer(value) == data  # type: ignore[misc]
    found = serde.deserialize("topic", data)
    assert found == serde.deserializer(data) == value  # type: ignore[misc]
    assert type(found) is type(value)
    assert serde.serialize("topic", None) is serde.serializer(None) is None  # type: ignore[misc]
    assert serde.deserialize("topic", None) is serde.deserializer(None) is None  # type: ignore[misc]
    assert Serdes.json(kind) is serde
    assert pickle.loads(pickle.dumps(serde)) is serde


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"user":"u","amount":"3"}', r"Expected `int`, got `str` - at `\$.amount`"),
        (b'{"user":"u"}', "missing required field `amount`"),
        (b'{"user":', "truncated"),
        (b"null", "Expected `object`, got `null`"),
    ],
)
def test_json_of_another_type_is_reported(data: bytes, reason: str) -> None:
    with pytest.raises(SerializationError, match=reason):
        Serdes.json(Purchase).deserialize("topic", data)


def test_types_that_cannot_be_read_are_refused_at_declaration() -> None:
    class Other:
        pass

    with pytest.raises(ConfigError, match=r"Serdes.json\(Other\): msgspec cannot create such objects. Use a"):
        Serdes.json(Other)
    with pytest.raises(ConfigError, match=r"Serdes.json\(5\): Type '5' is not supported"):
        Serdes.json(5)  # type: ignore[call-overload]


@pytest.mark.parametrize("cache", ["0", "1000000"])
def test_tables_joins_and_aggregates_support_them(cache: str) -> None:
    builder = StreamsBuilder()
    names = builder.table("names", value_serde=Serdes.json(Pair))
    purchases = builder.stream("in", value_serde=Serdes.json(Purchase))

    def add(_key: str, purchase: Purchase, total: Purchase) -> Purchase:
        total.amount += purchase.amount  # in place, as an aggregator may
        return total

    totals = purchases.group_by_key().aggregate(
        lambda: Purchase("all", 0), add, store="totals", value_serde=Serdes.json(Purchase)
    )
    totals.to_stream().to("totals", value_serde=Serdes.json(Purchase))
    joined = purchases.join(names, lambda purchase, name: Purchase(name.b, purchase.amount))
    joined.to("out", value_serde=Serdes.json(Purchase))
    with TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": cache}) as driver:
        driver.create_input_topic("names", value_serde=Serdes.json(Pair)).pipe_input("k", Pair(1, "Ann"))
        source = driver.create_input_topic("in", value_serde=Serdes.json(Purchase))
        for amount in (3, 4):
            source.pipe_input("k", Purchase("u", amount))
        found = driver.create_output_topic("out", value_serde=Serdes.json(Purchase)).read_values_to_list()
        assert found == [Purchase("Ann", 3), Purchase("Ann", 4)]
        sums = driver.create_output_topic("totals", value_serde=Serdes.json(Purchase)).read_values_to_list()
        assert sums[-1] == Purchase("all", 7)
        read = driver.get_key_value_store("totals").get("k")
        assert read == Purchase("all", 7)
        read.amount = 0
        assert driver.get_key_value_store("totals").get("k") == Purchase("all", 7), "what is read is a copy"


def test_a_record_of_another_type_goes_to_the_deserialization_handler() -> None:
    builder = StreamsBuilder()
    builder.stream("in", value_serde=Serdes.json(Purchase)).to("out", value_serde=Serdes.json(Purchase))
    for config, fails in (({}, True), ({"deserialization.exception.handler": "log_and_continue"}, False)):
        with TopologyTestDriver(builder.build(), config) as driver:
            source = driver.create_input_topic("in", value_serde=Serdes.json())
            if fails:
                with pytest.raises(StreamsError, match=r"Expected `int`, got `str` - at `\$.amount`"):
                    source.pipe_input("k", {"user": "u", "amount": "3"})
                continue
            source.pipe_input("k", {"user": "u", "amount": "3"})
            source.pipe_input("k", {"user": "u", "amount": 3})
            out = driver.create_output_topic("out", value_serde=Serdes.json(Purchase))
            assert out.read_values_to_list() == [Purchase("u", 3)]
