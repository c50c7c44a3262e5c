from __future__ import annotations

from typing import Any

import pytest

from penstock import Materialized, Serdes, Stores

Options = dict[str, Any]
METHODS = {"inner": "join", "left": "left_join", "outer": "outer_join"}


def pair(one: Any, other: Any) -> str:
    return f"{one}+{other}"


def tables(kind: str, text: Options, **more: Any) -> Any:
    def declare(builder: Any) -> None:
        left, right = builder.table("left", **text), builder.table("right", **text)
        getattr(left, METHODS[kind])(right, pair, **more).to_stream().to("out", **text)

    return declare


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("inner", ["L+R", None]),
        ("left", ["L+None", "L+R", None]),
        ("outer", ["L+None", "L+R", "None+R"]),
    ],
)
@pytest.mark.parametrize("store", [None, "joined"])
def test_tables_are_joined_as_their_rows_change(
    start: Any, text: Options, kind: str, expected: list[Any], store: str | None
) -> None:
    more = {} if store is None else {"store": Materialized(store, **text)}
    flow = start(tables(kind, text, **more))
    flow.pipe("left", "k", "L", 5).pipe("right", "k", "R", 3).pipe("left", "k", None, 4)
    assert [value for _, value, _ in flow.read()] == expected
    if store is not None:
        assert flow.driver.get_key_value_store(store).get("k") == expected[-1]


def test_a_joined_row_has_the_later_timestamp(start: Any, text: Options) -> None:
    flow = start(tables("inner", text)).pipe("left", "k", "L", 5).pipe("right", "k", "R", 3).pipe("right", "k", "S", 9)
    assert [timestamp for *_, timestamp in flow.read()] == [5, 9]


@pytest.mark.parametrize("kind", ["inner", "left", "outer"])
def test_a_table_joined_on_the_fly_can_be_joined_again(start: Any, text: Options, kind: str) -> None:
    """The join's rows are not stored: the second join computes them when it reads."""

    def declare(builder: Any) -> None:
        left, right, third = (builder.table(name, **text) for name in ("left", "right", "third"))
        joined = getattr(left, METHODS[kind])(right, pair)
        third.left_join(joined, pair).to_stream().to("out", **text)

    flow = start(declare)
    read = []
    for topic, value in (("left", "L"), ("third", "T"), ("right", "R"), ("third", "U"), ("left", None), ("third", "V")):
        read += [value for _, value, _ in flow.read_after(topic, "k", value)]
    last = {"inner": "V+None", "left": "V+None", "outer": "V+None+R"}[kind]
    assert read[-1] == last
    assert "U+L+R" in read


def test_a_row_joined_on_the_fly_has_the_later_timestamp(start: Any, text: Options) -> None:
    def declare(builder: Any) -> None:
        left, right, third = (builder.table(name, **text) for name in ("left", "right", "third"))
        third.join(left.join(right, pair), pair).to_stream().to("out", **text)

    flow = start(declare).pipe("left", "k", "L", 5).pipe("right", "k", "R", 9).pipe("third", "k", "T", 1)
    assert flow.read() == [("k", "T+L+R", 9)]


def test_a_joined_table_can_be_aggregated_with_its_old_values(start: Any, text: Options) -> None:
    def declare(builder: Any) -> None:
        joined = builder.table("left", **text).outer_join(builder.table("right", **text), pair)
        grouped = joined.group_by(lambda key, value: ("all", value), **text)
        grouped.aggregate(str, lambda k, v, a: f"{a}({v})", lambda k, v, a: a.replace(f"({v})", ""), store="a", **text)

    flow = start(declare)
    for topic, key, value in (("left", "1", "L"), ("right", "1", "R"), ("left", "2", "M"), ("right", "1", None)):
        flow.pipe(topic, key, value)
    assert flow.driver.get_key_value_store("a").get("all") == "(M+None)(L+None)"


@pytest.mark.parametrize(("kind", "expected"), [("inner", ["S+T"]), ("left", ["S+None", "S+T"])])
def test_a_stream_is_joined_with_the_current_row(start: Any, text: Options, kind: str, expected: list[str]) -> None:
    def declare(builder: Any) -> None:
        stream, table = builder.stream("stream", **text), builder.table("table", **text)
        getattr(stream, METHODS[kind])(table, pair, **text).to("out", **text)

    flow = (
        start(declare)
        .pipe("stream", "k", "S")
        .pipe("table", "k", "T")
        .pipe("stream", "k", "S")
        .pipe("stream", "k", None)
    )
    assert [value for _, value, _ in flow.read()] == expected


@pytest.mark.parametrize(("kind", "expected"), [("inner", ["a1+G"]), ("left", ["a1+G", "none+None", "b1+None"])])
def test_a_global_table_is_found_by_a_key_of_the_streams_value(
    start: Any, text: Options, kind: str, expected: list[str]
) -> None:
    def key_of(key: str, value: str) -> str | None:
        return None if value == "none" else value[0]

    def declare(builder: Any) -> None:
        table = builder.global_table("global", **text)
        getattr(builder.stream("stream", **text), METHODS[kind])(table, key_of, pair).to("out", **text)

    flow = start(declare).pipe("global", "a", "G")
    for value in ("a1", "none", "b1"):
        flow.pipe("stream", "k", value)
    assert [value for _, value, _ in flow.read()] == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("inner", ["k/a/a1/G", "None/a/a2/G"]), ("left", ["k/a/a1/G", "k/None/none/None", "k/b/b1/None", "None/a/a2/G"])],
)
@pytest.mark.parametrize("selector_first", [True, False])
def test_a_joiner_gets_the_streams_key_and_the_selected_one(
    start: Any, text: Options, kind: str, expected: list[str], selector_first: bool
) -> None:
    def key_of(key: str, value: str) -> str | None:
        return value and (None if value == "none" else value[0])

    def joined(key: str | None, selected: str | None, left: str, right: str | None) -> str:
        return f"{key}/{selected}/{left}/{right}"

    def declare(builder: Any) -> None:
        table, stream = builder.global_table("global", **text), builder.stream("stream", **text)
        functions: Any = (key_of, joined) if selector_first else (joined,)
        named: Any = {} if selector_first else {"key_selector": key_of}
        result = getattr(stream, METHODS[kind])(table, *functions, with_mapped_key=True, **named)
        result.to("out", **text)

    flow = start(declare).pipe("global", "a", "G")
    for key, value in (("k", "a1"), ("k", "none"), ("k", "b1"), (None, "a2"), ("k", None)):
        flow.pipe("stream", key, value)
    assert [value for _, value, _ in flow.read()] == expected


def versioned(builder: Any, topic: str, text: Options) -> Any:
    supplier = Stores.persistent_versioned_key_value_store(topic + "-store", 1000)
    return builder.table(topic, store=Materialized(supplier, **text), **text)


def test_a_versioned_table_is_read_as_of_the_records_time(start: Any, text: Options) -> None:
    def declare(builder: Any) -> None:
        builder.stream("stream", **text).join(versioned(builder, "table", text), pair, **text).to("out", **text)

    flow = start(declare).pipe("table", "k", "old", 10).pipe("table", "k", "new", 20).pipe("stream", "k", "S", 15)
    assert flow.read() == [("k", "S+old", 15)]


def test_with_grace_a_record_waits_for_late_rows(start: Any, text: Options) -> None:
    def declare(builder: Any) -> None:
        table = versioned(builder, "table", text)
        builder.stream("stream", **text).join(table, pair, grace=10, name="wait", **text).to("out", **text)

    flow = start(declare).pipe("table", "k", "old", 1).pipe("stream", "k", "S", 15)
    assert flow.read() == []
    flow.pipe("table", "k", "late", 12).pipe("stream", "x", "other", 25)
    assert flow.read() == [("k", "S+late", 15)]
    flow.pipe("stream", "k", "too late", 2)
    assert flow.read() == [("k", "too late+old", 2)]


def test_out_of_order_updates_of_a_versioned_table_are_not_joined(start: Any, text: Options) -> None:
    def declare(builder: Any) -> None:
        left, right = versioned(builder, "left", text), versioned(builder, "right", text)
        left.join(right, pair).to_stream().to("out", **text)

    flow = start(declare).pipe("left", "k", "L", 10).pipe("right", "k", "R", 10).pipe("left", "k", "late", 5)
    assert [value for _, value, _ in flow.read()] == ["L+R"]


def test_a_row_without_update_is_not_deleted_twice_if_old_values_are_known(start: Any, text: Options) -> None:
    """A stored table knows its old rows; one that is not stored sends a tombstone for each row it rejects."""

    def declare(store: str | None) -> Any:
        def declared(builder: Any) -> None:
            table = builder.table("in", store=store, **text)
            table.filter(lambda key, value: value == "yes").to_stream().to("out", **text)

        return declared

    for store, expected in ((None, [None, "yes", None, None]), ("stored", ["yes", None])):
        flow = start(declare(store))
        for value in ("no", "yes", "no", "no"):
            flow.pipe("in", "k", value)
        assert [value for _, value, _ in flow.read()] == expected


@pytest.mark.parametrize("cache", [0, 1_000_000])
@pytest.mark.parametrize("store", [None, "mapped"])
def test_a_mapped_table_can_be_aggregated_with_its_old_values(
    start: Any, text: Options, cache: int, store: str | None
) -> None:
    def declare(builder: Any) -> None:
        mapped = builder.table("in", **text).map_values(str.upper, store=store, **({} if store is None else text))
        grouped = mapped.group_by(lambda key, value: ("all", value), **text)
        grouped.reduce(lambda a, v: a + v, lambda a, v: a.replace(v, "", 1), store="r")

    flow = start(declare, {"statestore.cache.max.bytes": cache})
    for key, value in (("1", "a"), ("2", "b"), ("1", "c"), ("2", None)):
        flow.pipe("in", key, value)
    assert flow.driver.get_key_value_store("r").get("all") == "C"


def test_the_rows_of_a_mapped_table_are_computed_when_they_are_read(start: Any, text: Options) -> None:
    def declare(builder: Any) -> None:
        table = builder.table("table", **text).filter(lambda key, value: value != "no").map_values(str.upper)
        builder.stream("in", **text).left_join(table, pair, **text).to("out", **text)

    flow = start(declare)
    for value in ("yes", "no", None):
        flow.pipe("table", "k", value).pipe("in", "k", "S")
    assert [value for _, value, _ in flow.read()] == ["S+YES", "S+None", "S+None"]


FOREIGN = [
    ("right", "r1", "R1"),
    ("left", "a", "r1:A"),
    ("left", "a", "r2:A"),
    ("right", "r2", "R2"),
    ("left", "a", "none"),
    ("left", "a", None),
]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("inner", ["r1:A+R1", None, "r2:A+R2", None]),
        ("left", ["r1:A+R1", "r2:A+None", "r2:A+R2", "none+None", None]),
    ],
)
def test_a_foreign_key_join_follows_both_tables(start: Any, text: Options, kind: str, expected: list[Any]) -> None:
    def declare(builder: Any) -> None:
        left, right = builder.table("left", **text), builder.table("right", **text)

        def foreign_key(value: str) -> str | None:
            return value.partition(":")[0] if ":" in value else None

        joined = getattr(left, METHODS[kind])(right, pair, foreign_key=foreign_key)
        joined.to_stream().to("out", **text)

    flow = start(declare)
    for topic, key, value in FOREIGN:
        flow.pipe(topic, key, value)
    assert [value for _, value, _ in flow.read()] == expected


def test_a_foreign_key_join_has_the_later_timestamp_for_a_left_update_and_otherwise_that_of_the_right_row(
    start: Any, text: Options
) -> None:
    def declare(builder: Any) -> None:
        left, right = builder.table("left", **text), builder.table("right", **text)
        left.join(right, pair, foreign_key=lambda value: value[:1]).to_stream().to("out", **text)

    flow = start(declare).pipe("right", "r", "R", 9).pipe("left", "a", "r1", 3).pipe("left", "a", "r2", 12)
    flow.pipe("right", "r", "S", 4)
    assert flow.read() == [("a", "r1+R", 9), ("a", "r2+R", 12), ("a", "r2+S", 4)]


def test_an_older_kafka_streams_gets_subscriptions_without_a_partition(start: Any, text: Options) -> None:
    """upgrade.from: versions before 3.4 refuse subscriptions of version 1 (KIP-775)."""

    def declare(builder: Any) -> None:
        left, right = builder.table("left", store="l", **text), builder.table("right", store="r", **text)
        left.join(right, pair, foreign_key=lambda value: value[:1]).to_stream().to("out", **text)

    topic = "topology-test-driver-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000004-topic"
    for config, version in (
        ({}, 1),
        ({"upgrade.from": "2.4"}, 0),
        ({"upgrade.from": "3.3"}, 0),
        ({"upgrade.from": "3.4"}, 1),
    ):
        flow = start(declare, config).pipe("right", "a", "x").pipe("left", "k", "a1")
        sent = flow.driver.create_output_topic(topic, Serdes.bytes(), Serdes.bytes()).read_record().value
        assert sent[0] == version
        assert flow.read()[0][1] == "a1+x"


def test_a_table_with_grace_must_be_versioned(start: Any, text: Options) -> None:
    from penstock import PenstockError

    def declare(builder: Any) -> None:
        table = builder.table("table", **text)
        builder.stream("stream", **text).join(table, pair, grace=10, **text).to("out", **text)

    with pytest.raises(PenstockError, match="versioned"):
        start(declare)


def test_a_grouped_tables_pair_without_key_is_skipped(start: Any, text: Options) -> None:
    def declare(builder: Any) -> None:
        stream = builder.stream("in", **text).to_table(store="t", **text)
        stream.group_by(lambda key, value: (None, value), **text).count(store="c")

    flow = start(declare).pipe("in", "k", "v")
    assert list(flow.driver.get_key_value_store("c").all()) == []
