"""Functions that must return (key, value): no other object with two parts counts as a pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from penstock import Serdes, StreamsBuilder, StreamsError
from penstock.testing import TopologyTestDriver

Function = Callable[[Any, Any], Any]


def mapped(builder: StreamsBuilder, function: Function) -> None:
    builder.stream("in").map(function, name="op").to("out", value_serde=Serdes.json())


def flat_mapped(builder: StreamsBuilder, function: Function) -> None:
    builder.stream("in").flat_map(lambda k, v: [function(k, v)], name="op").to("out", value_serde=Serdes.json())


def grouped(builder: StreamsBuilder, function: Function) -> None:
    table = builder.table("in").group_by(function, name="op", key_serde="string", value_serde="json")
    table.reduce(lambda a, v: v, lambda a, v: a, store="s").to_stream().to("out")


OPERATORS = [mapped, flat_mapped, grouped]


class Pair(NamedTuple):
    key: str
    value: int


def run(declare: Callable[[StreamsBuilder, Function], None], found: Any) -> Any:
    builder = StreamsBuilder()
    declare(builder, lambda key, value: found)
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_input("k", "v")
        return driver.create_output_topic("out", "string", "json").read_key_values_to_list()


@pytest.mark.parametrize("declare", OPERATORS)
@pytest.mark.parametrize("found", [("a", 1), ["a", 1], Pair("a", 1)], ids=repr)
def test_a_pair_is_a_tuple_or_a_list(declare: Any, found: Any) -> None:
    assert run(declare, found) == [("a", 1)]


@pytest.mark.parametrize("declare", OPERATORS)
@pytest.mark.parametrize(
    "found", ["US", b"US", {"a": 1, "b": 2}, {1, 2}, ("a",), ("a", 1, 2), [], None, 5, range(2)], ids=repr
)
def test_nothing_else_is_a_pair(declare: Any, found: Any) -> None:
    with pytest.raises(StreamsError, match=r"The function of operator .*op.* must return a pair \(key, value\), not a"):
        run(declare, found)


@pytest.mark.parametrize("given", [["ab"], [("a",)], [{"a": 1, "b": 2}]], ids=repr)
def test_the_driver_accepts_pairs_too(given: Any) -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(TypeError, match=r"takes \(key, value\) pairs, not"):
            topic.pipe_key_value_list(given)
