from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import StreamsError

Options = dict[str, Any]


class Table:
    """Iterates over the names of its columns, like a DataFrame."""

    columns = ("a", "b")

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


def test_filter_keeps_matching_records_and_filter_not_the_others(start: Any, numbers: Options) -> None:
    def declare(builder: Any) -> None:
        stream = builder.stream("in", **numbers)
        stream.filter(lambda key, value: value > 1).to("out", **numbers)
        stream.filter_not(lambda key, value: value > 1).to("rest", **numbers)

    flow = start(declare).pipe("in", "a", 1, 5).pipe("in", "b", 2, 6)
    assert flow.read() == [("b", 2, 6)]
    assert flow.read("rest") == [("a", 1, 5)]


def test_functions_get_key_and_value_as_in_kafka_streams(start: Any, text: Options) -> None:
    def declare(builder: Any) -> None:
        stream = builder.stream("in", **text)
        stream.map(lambda key, value: (value, key)).to("map", **text)
        stream.select_key(lambda key, value: key + value).to("select", **text)
        stream.map_values(str.upper).to("values", **text)
        stream.map_values(lambda key, value: key + value, with_key=True).to("with-key", **text)
        stream.flat_map(lambda key, value: [(key, c) for c in value]).to("flat", **text)
        stream.flat_map_values(list).to("flat-values", **text)
        stream.flat_map_values(lambda key, value: [key, value], with_key=True).to("flat-with-key", **text)

    flow = start(declare).pipe("in", "k", "xy", 3)
    assert flow.read("map") == [("xy", "k", 3)]
    assert flow.read("select") == [("kxy", "xy", 3)]
    assert flow.read("values") == [("k", "XY", 3)]
    assert flow.read("with-key") == [("k", "kxy", 3)]
    assert flow.read("flat") == flow.read("flat-values") == [("k", "x", 3), ("k", "y", 3)]
    assert flow.read("flat-with-key") == [("k", "k", 3), ("k", "xy", 3)]


@pytest.mark.parametrize(
    ("operation", "function", "found"),
    [
        ("map", lambda key, value: 7, "a pair (key, value), not a int"),
        ("map", lambda key, value: (1, 2, 3), "a pair (key, value), not a tuple of length 3"),
        ("map", lambda key, value: None, "a pair (key, value), not a NoneType"),
        ("flat_map", lambda key, value: 7, "an iterable, not a int"),
        ("flat_map", lambda key, value: None, "an iterable, not a NoneType"),
        ("flat_map", lambda key, value: [7], "a pair (key, value), not a int"),
        ("flat_map_values", lambda value: None, "an iterable, not a NoneType"),
        ("flat_map_values", lambda value: "text", "an iterable of results, not a str of length 4"),
        ("flat_map_values", lambda value: bytearray(b"text"), "an iterable of results, not a bytearray"),
        ("flat_map_values", lambda value: {"a": 1}, "an iterable of results, not a dict"),
        ("flat_map_values", lambda value: Table(), "an iterable of results, not a Table"),
        ("flat_map", lambda key, value: {("a", 1): 2}, "an iterable of results, not a dict"),
    ],
)
def test_the_error_for_a_result_of_the_wrong_shape_names_operator_and_type(
    start: Any, text: Options, operation: str, function: Any, found: str
) -> None:
    flow = start(
        lambda builder: getattr(builder.stream("in", **text), operation)(function, name="mine").to("out", **text)
    )
    with pytest.raises(StreamsError, match="mine") as caught:
        flow.pipe("in", "k", "v")
    assert found in str(caught.value)


def test_unmatched_records_are_dropped_without_a_default_branch(start: Any, numbers: Options) -> None:
    def declare(builder: Any) -> None:
        branches = builder.stream("in", **numbers).split(name="by-")
        found = branches.branch(lambda key, value: value < 10, name="small").no_default_branch()
        found["by-small"].to("out", **numbers)

    flow = start(declare).pipe("in", "k", 1).pipe("in", "k", 10)
    assert [value for _, value, _ in flow.read()] == [1]


def test_a_branch_gets_the_records_that_no_earlier_branch_matched(start: Any, numbers: Options) -> None:
    def declare(builder: Any) -> None:
        branches = builder.stream("in", **numbers).split(name="by-")
        small = branches.branch(lambda key, value: value < 10, name="small")
        found = small.branch(lambda key, value: value < 100, name="medium").default_branch(name="large")
        for name, stream in found.items():
            stream.to(name, **numbers)

    flow = start(declare)
    for value in (5, 50, 500):
        flow.pipe("in", "k", value)
    assert [flow.read(name) for name in ("small", "medium", "large")] == [
        [("k", 5, 0)],
        [("k", 50, 0)],
        [("k", 500, 0)],
    ]


def test_a_record_passes_depth_first_through_the_children(start: Any, text: Options) -> None:
    seen: list[str] = []

    def declare(builder: Any) -> None:
        stream = builder.stream("in", **text)
        for name in ("first", "second", "third"):
            step = stream.peek(lambda key, value, name=name: seen.append(name))
            step.foreach(lambda key, value, name=name: seen.append(name + " child"))

    start(declare).pipe("in", "k", "v")
    assert seen == ["first", "first child", "second", "second child", "third", "third child"]


def test_merged_streams_keep_the_order_of_arrival(start: Any, text: Options) -> None:
    def declare(builder: Any) -> None:
        builder.stream("one", **text).merge(builder.stream("two", **text)).to("out", **text)

    flow = start(declare).pipe("one", "k", "1").pipe("two", "k", "2").pipe("one", "k", "3")
    assert [value for _, value, _ in flow.read()] == ["1", "2", "3"]
