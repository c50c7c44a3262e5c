from __future__ import annotations

import random
from typing import Any

import pytest

from penstock import (
    EmitStrategy,
    Serdes,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    TopologyError,
    UnlimitedWindows,
    Window,
    Windows,
)
from penstock.testing import TopologyTestDriver

Options = dict[str, Any]
Result = tuple[str, int, int, Any, int]


def counting(windows: Any, numbers: Options, emit: EmitStrategy | None = None) -> Any:
    def declare(builder: Any) -> None:
        windowed = builder.stream("in", **numbers).group_by_key().windowed_by(windows)
        if emit is not None:
            windowed = windowed.emit_strategy(emit)
        serde = Serdes.session_windowed if isinstance(windows, SessionWindows) else Serdes.time_windowed
        arguments = () if isinstance(windows, SessionWindows) else (10,)
        out = windowed.count(name="counting", store="w").to_stream()
        out.to("out", key_serde=serde(Serdes.string(), *arguments), value_serde=Serdes.int64())

    return declare


def results(flow: Any) -> list[Result]:
    return [(key.key, key.start, key.end, value, timestamp) for key, value, timestamp in flow.read()]


def test_a_tumbling_window_includes_its_start_and_excludes_its_end(start: Any, numbers: Options) -> None:
    flow = start(counting(TimeWindows(10), numbers))
    for timestamp in (0, 9, 10, 19, 20):
        flow.pipe("in", "k", 1, timestamp)
    assert [(begin, value) for _, begin, _, value, _ in results(flow)] == [(0, 1), (0, 2), (10, 1), (10, 2), (20, 1)]


def test_a_window_accepts_late_records_until_grace_after_its_end(start: Any, numbers: Options) -> None:
    flow = start(counting(TimeWindows(10, grace=5), numbers))
    for timestamp in (0, 14, 1, 15, 2):
        flow.pipe("in", "k", 1, timestamp)
    assert [(begin, value) for _, begin, _, value, _ in results(flow)] == [(0, 1), (10, 1), (0, 2), (10, 2)]
    assert flow.driver.dropped_records() == {("counting", "expired window"): 1}


def test_a_result_carries_the_highest_timestamp_of_its_window(start: Any, numbers: Options) -> None:
    flow = start(counting(TimeWindows(10), numbers)).pipe("in", "k", 1, 7).pipe("in", "k", 1, 3)
    assert results(flow) == [("k", 0, 10, 1, 7), ("k", 0, 10, 2, 7)]


def test_a_record_is_in_each_hopping_window_that_holds_it(start: Any, numbers: Options) -> None:
    flow = start(counting(TimeWindows(10, advance=4), numbers)).pipe("in", "k", 1, 12)
    assert [(begin, end) for _, begin, end, _, _ in results(flow)] == [(4, 14), (8, 18), (12, 22)]


def test_a_hopping_window_accepts_late_records_until_grace_after_its_end(start: Any, numbers: Options) -> None:
    flow = start(counting(TimeWindows(10, advance=5, grace=5), numbers)).pipe("in", "k", 1, 22)
    assert [begin for _, begin, *_ in results(flow)] == [15, 20]
    flow.pipe("in", "k", 1, 9)  # stream time minus grace is 17: both windows of this record are closed
    assert results(flow) == []
    flow.pipe("in", "k", 1, 14)
    assert [begin for _, begin, *_ in results(flow)] == [10]
    assert flow.driver.dropped_records() == {("counting", "expired window"): 3}


def test_custom_windows_are_computed_for_each_record(start: Any, numbers: Options) -> None:
    class EndsAtTen(Windows):
        size_ms, grace_ms = 10, 0

        def windows_for(self, timestamp: int) -> dict[int, Window]:
            return {0: Window(0, 10)} if timestamp < 10 else {}

    flow = start(counting(EndsAtTen(), numbers)).pipe("in", "k", 1, 3).pipe("in", "k", 1, 30)
    assert [value for *_, value, _ in results(flow)] == [1]


def test_custom_windows_may_end_before_their_size(start: Any, numbers: Options) -> None:
    class EndsEarly(Windows):
        size_ms, grace_ms = 10, 0

        def windows_for(self, timestamp: int) -> dict[int, Window]:
            return {0: Window(0, 5), 3: Window(3, 9)}

    def declare(builder: Any) -> None:
        counts = builder.stream("in", **numbers).group_by_key().windowed_by(EndsEarly()).count(store="w")
        counts.to_stream(lambda key, value: f"{key.start} to {key.end}").to("out", **numbers)

    flow = start(declare, {"statestore.cache.max.bytes": 0}).pipe("in", "k", 1, 4).pipe("in", "k", 1, 6)
    assert [key for key, *_ in flow.read()] == ["0 to 5", "3 to 9", "3 to 9"]


def test_an_unlimited_window_never_ends(start: Any, numbers: Options) -> None:
    flow = start(counting(UnlimitedWindows(start=5), numbers))
    for timestamp in (4, 5, 10**12):
        flow.pipe("in", "k", 1, timestamp)
    assert [(begin, value) for _, begin, _, value, _ in results(flow)] == [(5, 1), (5, 2)]


def test_emit_on_close_needs_windows_with_a_size(start: Any, numbers: Options) -> None:
    with pytest.raises(TopologyError, match="ON_WINDOW_CLOSE"):
        start(counting(UnlimitedWindows(), numbers, EmitStrategy.ON_WINDOW_CLOSE))


def brute_force(timestamps: list[int], difference: int) -> dict[int, int]:
    """Count the records of each sliding window: one ends at each record, one starts just after each but the last."""
    counts: dict[int, int] = {}
    for timestamp in timestamps:
        for begin in (max(0, timestamp - difference), timestamp + 1):
            inside = sum(begin <= other <= begin + difference for other in timestamps)
            if inside:
                counts[begin] = inside
    return counts


@pytest.mark.parametrize(
    "timestamps",
    [[10, 15, 20, 40], [40, 20, 15, 10], [20, 20, 25, 19], [30, 25, 28, 31, 29, 40], [13, 25, 24, 14, 23, 15, 35]],
)
@pytest.mark.parametrize("cache", [0, 1_000_000])
def test_sliding_windows_count_as_if_all_records_arrived_at_once(
    start: Any, numbers: Options, timestamps: list[int], cache: int
) -> None:
    flow = start(counting(SlidingWindows(10, grace=1000), numbers), {"statestore.cache.max.bytes": cache})
    for timestamp in timestamps:
        flow.pipe("in", "k", 1, timestamp)
    counts = {windowed.start: row.value for windowed, row in flow.driver.get_timestamped_window_store("w").all()}
    assert counts == brute_force(timestamps, 10)


def test_records_before_the_first_whole_sliding_window_share_the_one_at_0(start: Any, numbers: Options) -> None:
    flow = start(counting(SlidingWindows(10, grace=1000), numbers))
    for timestamp in (3, 8, 5):
        flow.pipe("in", "k", 1, timestamp)
    counts = {windowed.start: row.value for windowed, row in flow.driver.get_timestamped_window_store("w").all()}
    assert counts == {0: 3, 4: 2, 6: 1}


@pytest.mark.parametrize("seed", range(40))
def test_random_sliding_windows_near_0_count_as_if_all_records_arrived_at_once(
    start: Any, numbers: Options, seed: int
) -> None:
    timestamps = random.Random(seed).choices(range(26), k=8)
    flow = start(counting(SlidingWindows(10, grace=1000), numbers))
    for timestamp in timestamps:
        flow.pipe("in", "k", 1, timestamp)
    counts = {windowed.start: row.value for windowed, row in flow.driver.get_timestamped_window_store("w").all()}
    assert counts == brute_force(timestamps, 10)


def test_sliding_windows_do_not_share_aggregates_changed_in_place(start: Any, documents: Options) -> None:
    def collect(key: str, value: int, aggregate: list[int]) -> list[int]:
        aggregate.append(value)
        return aggregate

    def declare(builder: Any) -> None:
        windowed = builder.stream("in", **documents).group_by_key().windowed_by(SlidingWindows(10, grace=1000))
        windowed.aggregate(list, collect, store="w", **documents)

    for cache in (0, 1_000_000):
        flow = start(declare, {"statestore.cache.max.bytes": cache})
        for value, timestamp in enumerate((20, 25, 22, 40)):
            flow.pipe("in", "k", value, timestamp)
        found = {key.start: sorted(row.value) for key, row in flow.driver.get_timestamped_window_store("w").all()}
        assert found == {10: [0], 12: [0, 2], 15: [0, 1, 2], 21: [1, 2], 23: [1], 30: [3]}


def test_a_record_merges_the_sessions_that_it_connects(start: Any, numbers: Options) -> None:
    flow = start(counting(SessionWindows(10, grace=100), numbers))
    for timestamp in (0, 20, 10):
        flow.pipe("in", "k", 1, timestamp)
    assert results(flow) == [
        ("k", 0, 0, 1, 0),
        ("k", 20, 20, 1, 20),
        ("k", 0, 0, None, 0),
        ("k", 20, 20, None, 20),
        ("k", 0, 20, 3, 20),
    ]
    assert [key.end for key, _ in flow.driver.get_session_store("w").fetch("k")] == [20]


def test_a_session_restarts_after_the_gap_and_closes_after_gap_and_grace(start: Any, numbers: Options) -> None:
    flow = start(counting(SessionWindows(10, grace=5), numbers))
    for timestamp in (0, 11, 15, 16, 0):
        flow.pipe("in", "k", 1, timestamp)
    assert ("k", 0, 0, 1, 0) in results(flow)
    assert flow.driver.dropped_records() == {("counting", "expired window"): 1}


def test_sessions_changed_in_place_keep_their_old_values(start: Any, documents: Options) -> None:
    def declare(builder: Any) -> None:
        windowed = builder.stream("in", **documents).group_by_key().windowed_by(SessionWindows(10, grace=100))
        sessions = windowed.aggregate(
            list,
            lambda key, value, aggregate: (aggregate.append(value), aggregate)[1],
            lambda key, one, other: (one.extend(other), one)[1],
            store="s",
            **documents,
        )
        grouped = sessions.group_by(lambda key, value: (key.key, value), **documents)
        grouped.aggregate(
            list,
            lambda key, value, aggregate: [*aggregate, *value],
            lambda key, value, aggregate: [item for item in aggregate if item not in value],
            store="all",
            **documents,
        )

    flow = start(declare)
    for value, timestamp in enumerate((0, 20, 10)):
        flow.pipe("in", "k", value, timestamp)
    assert sorted(flow.driver.get_key_value_store("all").get("k")) == [0, 1, 2]


@pytest.mark.parametrize(
    ("windows", "timestamps", "closing", "final"),
    [
        (TimeWindows(10), (20, 20, 29), 30, ("k", 20, 30, 3, 29)),
        (TimeWindows(10, grace=5), (20, 30, 24, 34), 35, ("k", 20, 30, 2, 24)),
        (TimeWindows(10, advance=5), (20, 24), 25, ("k", 15, 25, 2, 24)),
        (SlidingWindows(10), (20, 20), 21, ("k", 10, 20, 2, 20)),
        (SessionWindows(10), (20, 25, 29, 39), 50, ("k", 20, 39, 4, 39)),
    ],
)
def test_final_results_are_emitted_once_when_the_window_closes(
    start: Any, numbers: Options, windows: Any, timestamps: Any, closing: int, final: Result
) -> None:
    flow = start(counting(windows, numbers, EmitStrategy.ON_WINDOW_CLOSE))
    for timestamp in timestamps:
        flow.pipe("in", "k", 1, timestamp)
    assert results(flow) == []
    flow.pipe("in", "k", 1, closing)
    assert results(flow) == [final]
    flow.pipe("in", "x", 1, closing)
    assert results(flow) == []


def test_final_results_wait_for_the_wall_clock_emit_interval(numbers: Options, start: Any) -> None:
    interval = {"__emit.interval.ms.kstreams.windowed.aggregation__": 1000}
    flow = start(counting(TimeWindows(10, grace=1000), numbers, EmitStrategy.ON_WINDOW_CLOSE), interval)
    flow.pipe("in", "k", 1, 0).pipe("in", "k", 1, 1010)
    assert results(flow) == []
    flow.driver.advance_wall_clock_time(1000)
    flow.pipe("in", "k", 1, 1011)
    assert [(begin, value) for _, begin, _, value, _ in results(flow)] == [(0, 1)]


def test_the_progress_of_final_results_is_committed_with_the_task(numbers: Options) -> None:
    from penstock import StreamsBuilder

    builder = StreamsBuilder()
    counting(TimeWindows(10), numbers, EmitStrategy.ON_WINDOW_CLOSE)(builder)
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        for timestamp in (0, 25):
            topic.pipe_input("k", 1, timestamp)
        assert driver.task.processor_metadata == {"w": 25}


def test_windows_overlap() -> None:
    assert Window(0, 10).overlap(Window(9, 19))
    assert not Window(0, 10).overlap(Window(10, 20))
    assert Window(0, 10).overlap(Window(10, 20), inclusive=True)
    assert not Window(11, 20).overlap(Window(0, 10), inclusive=True)
