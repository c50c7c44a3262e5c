"""When the inputs of a task count as idle, by what the brokers say."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from datetime import timedelta

import pytest

from penstock.clients.errors import UnreachableError
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.context.idle_time import Follows, IdleTimeout
from penstock.topology.records import TopicPartition
from penstock.workers.tasks.idle_inputs import IdleInputs

HERE, THERE = TopicPartition("in", 0), TopicPartition("in", 1)
LOG = PrefixedLogger("penstock.test", "")


class Brokers:
    """Their ends and newest timestamps; None: not known yet."""

    def __init__(self) -> None:
        self.end: int | Exception | None = 10
        self.newest: int | None = None
        self.asked = 0

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Future[int]]:
        self.asked += 1
        self.answer = Future[int]()
        if isinstance(self.end, Exception):
            self.answer.set_exception(self.end)
        elif self.end is not None:
            self.answer.set_result(self.end)
        return dict.fromkeys(partitions, self.answer)

    def newest_elsewhere(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Future[int]]:
        future = Future[int]()
        future.set_result(-1 if self.newest is None else self.newest)
        return {THERE: future}


def inputs(brokers: Brokers, follows: Follows = "wall_clock") -> IdleInputs:
    return IdleInputs(IdleTimeout(timedelta(seconds=5), follows), brokers, 0, LOG)


def advanced(idle: IdleInputs, now_ms: int, position: int = 10) -> int:
    """Ask twice: the first time the brokers are asked."""
    idle.advanced({HERE: position}, 1_000, now_ms)
    return idle.advanced({HERE: position}, 1_000, now_ms)


def test_stream_time_advances_by_the_wall_clock_since_the_last_record() -> None:
    brokers = Brokers()
    idle = inputs(brokers)
    assert advanced(idle, 4_999) == 1_000
    assert not brokers.asked
    assert advanced(idle, 5_000) == 6_000
    assert advanced(idle, 5_999) == 1_000  # a second has not passed
    assert advanced(idle, 6_500) == 2_500
    idle.record_came(7_000)
    assert advanced(idle, 11_999) == 1_000
    assert advanced(idle, 12_000) == 6_000


def test_records_that_have_not_been_read_start_the_timeout_again() -> None:
    brokers = Brokers()
    idle = inputs(brokers)
    assert advanced(idle, 5_000, position=9) == 1_000
    assert advanced(idle, 9_999) == 1_000
    assert advanced(idle, 10_000) == 6_000


@pytest.mark.parametrize("end", [None, UnreachableError("the broker went away")])
def test_brokers_that_do_not_answer_advance_nothing(end: Exception | None) -> None:
    brokers = Brokers()
    brokers.end = end
    idle = inputs(brokers)
    assert advanced(idle, 60_000) == 1_000
    if end is None:
        brokers.answer.set_result(10)
    else:
        brokers.end = 10
        idle.advanced({HERE: 10}, 1_000, 60_000)
    assert idle.advanced({HERE: 10}, 1_000, 60_000) == 61_000


def test_a_record_that_comes_before_the_answer_counts() -> None:
    brokers = Brokers()
    brokers.end = None
    idle = inputs(brokers)
    idle.advanced({HERE: 10}, 1_000, 5_000)
    idle.record_came(5_001)
    brokers.answer.set_result(10)
    assert advanced(idle, 5_002) == 1_000


def test_others_are_followed_but_never_backwards() -> None:
    brokers = Brokers()
    idle = inputs(brokers, "others")
    assert advanced(idle, 5_000) == 1_000
    brokers.newest = 700
    assert advanced(idle, 6_000) == 1_000
    brokers.newest = 90_000
    assert advanced(idle, 7_000) == 90_000
