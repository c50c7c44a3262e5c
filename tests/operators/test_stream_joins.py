from __future__ import annotations

from typing import Any

import pytest

from penstock import JoinWindows

Options = dict[str, Any]


def joined(kind: str, windows: Any, text: Options, **more: Any) -> Any:
    def declare(builder: Any) -> None:
        left, right = builder.stream("left", **text), builder.stream("right", **text)
        join = getattr(left, {"inner": "join", "left": "left_join", "outer": "outer_join"}[kind])
        result = join(
            right, lambda one, other: f"{one}+{other}", windows, other_value_serde=text["value_serde"], **text, **more
        )
        result.to("out", **text)

    return declare


def values(flow: Any) -> list[tuple[str, int]]:
    return [(value, timestamp) for _, value, timestamp in flow.read()]


def test_a_pair_is_joined_in_either_order_with_the_later_timestamp(start: Any, text: Options) -> None:
    flow = start(joined("inner", JoinWindows(10), text))
    flow.pipe("left", "k", "L", 0).pipe("right", "k", "R", 10).pipe("left", "k", "M", 5)
    assert values(flow) == [("L+R", 10), ("M+R", 10)]


@pytest.mark.parametrize(("timestamp", "matches"), [(94, False), (95, True), (100, True), (120, True), (121, False)])
@pytest.mark.parametrize("right_first", [False, True])
def test_a_right_record_joins_within_before_and_after_of_the_left_one(
    start: Any, text: Options, timestamp: int, matches: bool, right_first: bool
) -> None:
    flow = start(joined("inner", JoinWindows(before=5, after=20, grace=1000), text))
    records = [("left", "k", "L", 100), ("right", "k", "R", timestamp)]
    for record in records[::-1] if right_first else records:
        flow.pipe(*record)
    assert values(flow) == ([("L+R", max(100, timestamp))] if matches else [])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("inner", []), ("left", [("L+None", 0)]), ("outer", [("L+None", 0), ("None+R", 1)])],
)
def test_an_unjoined_record_is_emitted_when_its_window_closes(
    start: Any, text: Options, kind: str, expected: list[Any]
) -> None:
    flow = start(joined(kind, JoinWindows(10, grace=5), text))
    flow.pipe("left", "a", "L", 0).pipe("right", "b", "R", 1).pipe("left", "c", "x", 15)
    assert values(flow) == []
    flow.pipe("left", "c", "x", 17)
    assert values(flow) == expected


def test_a_joined_record_is_not_emitted_alone(start: Any, text: Options) -> None:
    flow = start(joined("outer", JoinWindows(10), text))
    flow.pipe("left", "k", "L", 0).pipe("right", "k", "R", 5).pipe("left", "x", "end", 100)
    assert values(flow) == [("L+R", 5)]


def test_a_record_beyond_its_own_window_is_emitted_at_once(start: Any, text: Options) -> None:
    flow = start(joined("left", JoinWindows(10), text)).pipe("right", "z", "R", 100).pipe("left", "k", "late", 50)
    assert values(flow) == [("late+None", 50)]


@pytest.mark.parametrize(("kind", "expected"), [("inner", []), ("left", [("L+None", 0)])])
def test_a_record_without_key_joins_nothing(start: Any, text: Options, kind: str, expected: list[Any]) -> None:
    flow = (
        start(joined(kind, JoinWindows(10), text))
        .pipe("left", None, "L")
        .pipe("right", None, "R")
        .pipe("left", "k", None)
    )
    assert values(flow) == expected
    assert sum(flow.driver.dropped_records().values()) == (3 if kind == "inner" else 2)


def test_closed_windows_are_checked_at_wall_clock_intervals(start: Any, text: Options) -> None:
    interval = {"__emit.interval.ms.kstreams.outer.join.spurious.results.fix__": 1000}
    flow = start(joined("left", JoinWindows(10), text), interval).pipe("left", "a", "L", 0).pipe("left", "b", "x", 50)
    assert values(flow) == []
    flow.driver.advance_wall_clock_time(1000)
    flow.pipe("left", "c", "y", 51)
    assert values(flow) == [("L+None", 0)]


def test_two_drivers_of_one_topology_do_not_share_time(text: Options) -> None:
    from penstock import StreamsBuilder
    from penstock.testing import TopologyTestDriver

    builder = StreamsBuilder()
    joined("left", JoinWindows(10), text)(builder)
    topology = builder.build()
    for _ in range(2):
        with TopologyTestDriver(topology) as driver:
            driver.create_input_topic("left").pipe_input("k", "L", 5)
            assert driver.create_output_topic("out").is_empty(), "the window of the first record is open"
            driver.create_input_topic("left").pipe_input("k", "L", 1000)
            assert driver.create_output_topic("out").read_value() == "L+None"


def test_the_interval_does_not_start_while_the_oldest_window_is_open(start: Any, text: Options) -> None:
    interval = {"__emit.interval.ms.kstreams.outer.join.spurious.results.fix__": 1000}
    flow = start(joined("left", JoinWindows(10, grace=5), text), interval).pipe("left", "a", "L", 0)
    flow.driver.advance_wall_clock_time(1000)
    flow.pipe("left", "b", "x", 15).pipe("left", "b", "y", 16)
    assert values(flow) == [("L+None", 0)]


@pytest.mark.parametrize(("difference", "grace", "found"), [(0, 0, True), (0, 1, False), (1, 0, False)])
def test_the_interval_starts_without_waiting_records_if_the_sum_overflows(
    start: Any, text: Options, difference: int, grace: int, found: bool
) -> None:
    """Kafka Streams adds after and grace to Long.MAX_VALUE where no record waits."""
    interval = {"__emit.interval.ms.kstreams.outer.join.spurious.results.fix__": 1000}
    flow = start(joined("left", JoinWindows(difference, grace=grace), text), interval)
    flow.pipe("right", "z", "R", 0).driver.advance_wall_clock_time(1000)
    flow.pipe("right", "z", "R", 1)
    flow.pipe("left", "a", "L", 2).pipe("left", "b", "x", 50)
    assert (values(flow) != []) == found


def test_a_self_join_skips_records_without_key_or_value(start: Any, text: Options) -> None:
    def declare(builder: Any) -> None:
        stream = builder.stream("in", **text)
        stream.join(stream, lambda one, other: one + other, JoinWindows(5), other_value_serde=text["value_serde"]).to(
            "out", **text
        )

    flow = start(declare, {"topology.optimization": "all"})
    flow.pipe("in", None, "a").pipe("in", "k", None).pipe("in", "k", "b")
    assert values(flow) == [("bb", 0)]


def test_a_self_join_gives_the_results_of_two_sides(text: Options) -> None:
    from penstock import StreamsBuilder
    from penstock.testing import TopologyTestDriver

    outputs = []
    for optimization in ("none", "all"):
        config = {"topology.optimization": optimization}
        builder = StreamsBuilder(config)
        stream = builder.stream("in", **text)
        join = stream.join(
            stream,
            lambda one, other: one + other,
            JoinWindows(before=3, after=8, grace=20),
            other_value_serde=text["value_serde"],
            **text,
        )
        join.to("out", **text)
        with TopologyTestDriver(builder.build(config), config) as driver:
            topic = driver.create_input_topic("in")
            for value, timestamp in (("a", 10), ("b", 12), ("c", 18), ("d", 11), ("e", 30), ("f", 15)):
                topic.pipe_input("k", value, timestamp)
            outputs.append([(r.value, r.timestamp) for r in driver.create_output_topic("out").read_records_to_list()])
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 6
