"""Punctuation: each schedule against a model, missed intervals, cancelling from within."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.topology.context.punctuation_queue import PunctuationQueue, first_due_ms
from penstock.topology.processor_api import Punctuation


@given(st.integers(0, 50), st.integers(1, 20), st.lists(st.integers(0, 30), max_size=20))
def test_a_schedule_fires_once_per_due_time(start: int, interval: int, steps: list[int]) -> None:
    queue, fired = PunctuationQueue(), list[int]()
    queue.schedule(start, interval, fired.append)
    expected, due, now = [], start, 0
    for step in steps:
        now += step
        queue.maybe_punctuate(now)
        if now >= due:
            expected.append(now)
            while due <= now:  # missed intervals are skipped; the schedule keeps its phase
                due += interval
    assert fired == expected


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=6), st.lists(st.integers(0, 9), max_size=9))
def test_schedules_do_not_affect_each_other(schedules: list[tuple[int, int]], steps: list[int]) -> None:
    together = PunctuationQueue()
    fired: list[list[int]] = [[] for _ in schedules]
    for (start, interval), seen in zip(schedules, fired, strict=True):
        together.schedule(start, interval, seen.append)
    alone_fired = []
    for start, interval in schedules:
        queue, seen = PunctuationQueue(), list[int]()
        queue.schedule(start, interval, seen.append)
        now = 0
        for step in steps:
            now += step
            queue.maybe_punctuate(now)
        alone_fired.append(seen)
    now = total = 0
    for step in steps:
        now += step
        total += together.maybe_punctuate(now)
    assert fired == alone_fired
    assert total == sum(map(len, fired))


def test_due_schedules_fire_in_the_order_of_their_times() -> None:
    queue, order = PunctuationQueue(), list[str]()
    for name, due in (("late", 3), ("early", 1), ("middle", 2)):
        queue.schedule(due, 100, lambda _, name=name: order.append(name))  # type: ignore[misc]
    queue.maybe_punctuate(5)
    assert order == ["early", "middle", "late"]


#: Seven schedules at 0, with these intervals; at 40 or later "c" cancels "b" and adds "h". The schedules that fired at
#: each time, as recorded from Kafka Streams 4.3.1.
INTERVALS = {"a": 10, "b": 10, "c": 20, "d": 10, "e": 5, "f": 20, "g": 10}
RECORDED = {
    0: "agbdecf",
    5: "e",
    10: "beagd",
    20: "edgfbac",
    21: "",
    40: "eagdbchf",
    45: "e",
    50: "haedg",
    90: "efgahdc",
    100: "ecdgfha",
}


def test_schedules_due_at_the_same_time_fire_in_kafka_streams_order() -> None:
    queue, order = PunctuationQueue(), list[str]()
    schedules: dict[str, Any] = {}

    def fire(now: int, name: str) -> None:
        order.append(name)
        if name == "c" and now >= 40 and "b" in schedules:
            schedules.pop("b").cancel()
            queue.schedule(0, 10, partial(fire, name="h"))

    for name, interval in INTERVALS.items():
        schedules[name] = queue.schedule(0, interval, partial(fire, name=name))
    fired = {}
    for now in RECORDED:
        order.clear()
        queue.maybe_punctuate(now)
        fired[now] = "".join(order)
    assert fired == RECORDED


def test_a_cancelled_schedule_does_not_fire() -> None:
    queue, fired = PunctuationQueue(), list[int]()
    schedule = queue.schedule(0, 1, fired.append)
    queue.maybe_punctuate(0)
    schedule.cancel()
    assert queue.maybe_punctuate(10) == 0
    assert fired == [0]


def test_a_schedule_can_cancel_itself_and_add_others() -> None:
    queue, fired = PunctuationQueue(), list[str]()

    def once(now: int) -> None:
        first.cancel()
        fired.append(f"once {now}")
        queue.schedule(now, 5, lambda at: fired.append(f"again {at}"))

    first = queue.schedule(0, 1, once)
    queue.maybe_punctuate(3)
    queue.maybe_punctuate(4)
    assert fired == ["once 3", "again 3"]
    queue.close()
    assert queue.maybe_punctuate(100) == 0


def test_an_interval_must_be_positive() -> None:
    with pytest.raises(ValueError, match="minimum supported scheduling interval"):
        PunctuationQueue().schedule(0, 0, lambda _: None)


@given(st.integers(1, 20), st.integers(0, 200), st.integers(0, 200))
def test_an_anchor_in_the_past_keeps_the_phase_of_the_schedule(interval: int, now: int, start: int) -> None:
    """Kafka: StreamTask.getInitialSchedule and PunctuationSchedule.next (KIP-1146)."""
    expected = start
    while expected < now or expected == now != start:
        expected += interval
    for punctuation in Punctuation:
        assert first_due_ms(punctuation, interval, now, start) == expected


def test_without_an_anchor_a_schedule_starts_at_the_current_time() -> None:
    assert first_due_ms(Punctuation.STREAM_TIME, 10, 95, None) == 0, "with the next record"
    assert first_due_ms(Punctuation.WALL_CLOCK_TIME, 10, 95, None) == 105
