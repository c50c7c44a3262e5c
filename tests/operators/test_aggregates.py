from __future__ import annotations

from typing import Any

import pytest

from penstock import Materialized

Options = dict[str, Any]
CACHES = pytest.mark.parametrize("cache", [0, 1_000_000])


def _collect(key: str, value: Any, aggregate: list[Any]) -> list[Any]:
    aggregate.append(value["n"])
    return aggregate


@CACHES
def test_an_aggregate_may_be_changed_in_place(start: Any, documents: Options, cache: int) -> None:
    def declare(builder: Any) -> None:
        grouped = builder.stream("in", **documents).group_by_key()
        grouped.aggregate(list, _collect, store="lists", **documents).to_stream().to("out", **documents)

    flow = start(declare, {"statestore.cache.max.bytes": cache})
    assert flow.read_after("in", "k", {"n": 1}, 5) == [("k", [1], 5)]
    assert flow.read_after("in", "k", {"n": 2}, 3) == [("k", [1, 2], 5)], "the highest timestamp stays"
    assert flow.driver.get_key_value_store("lists").get("k") == [1, 2]


def test_the_old_value_is_unaffected_by_an_aggregator_that_changes_it_in_place(start: Any, documents: Options) -> None:
    """Summing the lengths again downstream would be wrong if old and new value were the same list."""

    def declare(builder: Any) -> None:
        lists = builder.stream("in", **documents).group_by_key().aggregate(list, _collect, store="lists", **documents)
        total = lists.group_by(lambda key, value: ("all", value), **documents).aggregate(
            lambda: 0,
            lambda key, value, aggregate: aggregate + len(value),
            lambda key, value, aggregate: aggregate - len(value),
            store="total",
            **documents,
        )
        total.to_stream().to("out", **documents)

    flow = start(declare)
    for number in range(3):
        flow.pipe("in", "k", {"n": number})
    assert flow.driver.get_key_value_store("total").get("all") == 3


@CACHES
def test_two_stores_do_not_share_the_record_that_is_their_first_aggregate(
    start: Any, documents: Options, cache: int
) -> None:
    def add(aggregate: dict[str, int], value: dict[str, int]) -> dict[str, int]:
        aggregate["n"] += value["n"]
        return aggregate

    def declare(builder: Any) -> None:
        grouped = builder.stream("in", **documents).group_by_key()
        grouped.reduce(add, store="one")
        grouped.reduce(add, store="two")

    flow = start(declare, {"statestore.cache.max.bytes": cache}).pipe("in", "k", {"n": 1}).pipe("in", "k", {"n": 2})
    assert [flow.driver.get_key_value_store(name).get("k") for name in ("one", "two")] == [{"n": 3}, {"n": 3}]


def test_records_without_key_or_value_are_dropped_and_counted(start: Any, numbers: Options) -> None:
    flow = start(lambda builder: builder.stream("in", **numbers).group_by_key().count(name="counting", store="c"))
    flow.pipe("in", None, 1).pipe("in", "k", None).pipe("in", "k", 1)
    assert list(flow.driver.get_key_value_store("c").all()) == [("k", 1)]
    assert flow.driver.dropped_records() == {("counting", "null key or value"): 2}


def test_reducing_skips_records_without_key_or_value(start: Any, numbers: Options) -> None:
    flow = start(
        lambda builder: builder.stream("in", **numbers).group_by_key().reduce(lambda a, v: a + v, name="sum", store="r")
    )
    flow.pipe("in", "k", 1).pipe("in", None, 2).pipe("in", "k", None).pipe("in", "k", 4)
    assert list(flow.driver.get_key_value_store("r").all()) == [("k", 5)]
    assert flow.driver.dropped_records() == {("sum", "null key or value"): 2}


def test_a_reduction_is_summed_again_with_its_old_values(start: Any, numbers: Options) -> None:
    def declare(builder: Any) -> None:
        sums = builder.stream("in", **numbers).group_by_key().reduce(lambda a, v: a + v, store="sums")
        everything = sums.group_by(lambda key, value: ("all", value), **numbers)
        everything.reduce(lambda a, v: a + v, lambda a, v: a - v, store="total")

    flow = start(declare)
    for key, value in (("a", 1), ("a", 2), ("b", 4), ("a", 8)):
        flow.pipe("in", key, value)
    assert flow.driver.get_key_value_store("total").get("all") == 15


def test_a_reduced_table_follows_deletions(start: Any, text: Options) -> None:
    def declare(builder: Any) -> None:
        grouped = builder.table("in", store="t", **text).group_by(lambda key, value: (value[0], value), **text)
        reduced = grouped.reduce(lambda a, v: a + v, lambda a, v: a.replace(v, "", 1) or None, store="r")
        reduced.to_stream().to("out", **text)

    flow = start(declare)
    for key, value, timestamp in (("1", "ax", 5), ("2", "ay", 3), ("1", None, 9), ("2", "bz", 4), ("2", None, 1)):
        flow.pipe("in", key, value, timestamp)
    assert flow.read() == [
        ("a", "ax", 5),
        ("a", "axay", 5),
        ("a", "ay", 9),
        ("a", None, 9),
        ("b", "bz", 4),
        ("b", None, 4),
    ]
    assert list(flow.driver.get_key_value_store("r").all()) == []


def test_a_reducer_that_returns_none_deletes_and_starts_again(start: Any, numbers: Options) -> None:
    def declare(builder: Any) -> None:
        reduced = (
            builder.stream("in", **numbers).group_by_key().reduce(lambda a, v: None if v == 0 else a + v, store="r")
        )
        reduced.to_stream().to("out", **numbers)

    flow = start(declare)
    for value, timestamp in ((1, 9), (0, 5), (4, 2)):
        flow.pipe("in", "k", value, timestamp)
    assert flow.read() == [("k", 1, 9), ("k", None, 9), ("k", 4, 2)]


@CACHES
def test_a_grouped_table_subtracts_before_it_adds(start: Any, text: Options, cache: int) -> None:
    steps: list[str] = []

    def add(key: str, value: str, aggregate: str) -> str:
        steps.append(f"+{value}")
        return aggregate + value

    def remove(key: str, value: str, aggregate: str) -> str:
        steps.append(f"-{value}")
        return aggregate.replace(value, "", 1)

    def declare(builder: Any) -> None:
        grouped = builder.table("in", store=Materialized("t", caching=False), **text).group_by(
            lambda key, value: ("all", value), **text
        )
        grouped.aggregate(str, add, remove, store="a", **text).to_stream().to("out", **text)

    flow = start(declare, {"statestore.cache.max.bytes": cache}).pipe("in", "1", "a").pipe("in", "2", "b")
    flow.pipe("in", "1", "c").pipe("in", "2", None)
    assert steps == ["+a", "+b", "-a", "+c", "-b"]
    assert [value for _, value, _ in flow.read()] == ["a", "ab", "bc", "c"]


def test_an_older_kafka_streams_gets_two_updates_instead_of_one(start: Any, text: Options) -> None:
    """upgrade.from: versions before 3.5 cannot read one update with both values (KIP-904)."""

    def declare(builder: Any) -> None:
        grouped = builder.table("in", store="t", **text).group_by(lambda key, value: ("all", value), **text)
        grouped.reduce(lambda a, v: a + v, lambda a, v: a.replace(v, "", 1), store="r")

    topic = "topology-test-driver-r-repartition"
    for config, expected in (({}, 2), ({"upgrade.from": "3.4"}, 3), ({"upgrade.from": "3.5"}, 2)):
        flow = start(declare, config).pipe("in", "k", "a").pipe("in", "k", "b")
        assert flow.driver.create_output_topic(topic).queue_size() == expected
