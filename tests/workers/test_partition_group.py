"""The order of records: PartitionGroup against a plain model, and when a task waits for an empty partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clients.log_context import PrefixedLogger
from penstock.topology.records import Message, RawRecord, TopicPartition
from penstock.workers.tasks.partition_group import MAX_TASK_IDLE_MS_DISABLED, PartitionGroup
from tests.examples import examples

LOG = PrefixedLogger("penstock.test", "")
A, B, C = (TopicPartition(topic, 0) for topic in "abc")


class Stamped(NamedTuple):
    message: Message
    timestamp: int


class Source:
    """Takes records. With extract, timestamps come from an extractor, and negative ones drop the record."""

    def __init__(self, seen: list[tuple[str, int]], extract: Callable[[Message], int] | None = None) -> None:
        self.seen = seen
        self.extract = extract
        self.extracts_timestamps = extract is not None
        self.partition_time_ms = -1
        self.batches: list[int] = []

    def process_batch(self, messages: Iterable[Message]) -> None:
        messages = list(messages)
        self.batches.append(len(messages))
        self.seen += [(message.topic(), message.offset()) for message in messages]

    def stamped(self, messages: Iterable[Message]) -> Iterator[Stamped]:
        for message in messages:
            timestamp = self.extract(message) if self.extract else message.timestamp()[1]
            if timestamp >= 0:
                yield Stamped(message, timestamp)

    def process_stamped(self, records: Iterable[Any]) -> None:
        self.seen += [(record.message.topic(), record.message.offset()) for record in records]


class Bench:
    """A group, the records it returned, and the lags reported to it."""

    def __init__(self, partitions: Iterable[TopicPartition], idle_ms: int = 0, **extract: Any) -> None:
        self.seen: list[tuple[str, int]] = []
        self.sources = {p.topic: Source(self.seen, extract.get(p.topic)) for p in partitions}
        self.lags: dict[TopicPartition, int | None] = {}
        self.enforced = 0
        self.next_offset: dict[TopicPartition, int] = {}
        self.group = PartitionGroup(list(partitions), self.sources, self.lags.get, self._enforce, idle_ms, LOG)

    def _enforce(self) -> None:
        self.enforced += 1

    def add(self, partition: TopicPartition, *timestamps: int) -> None:
        first = self.next_offset.get(partition, 0)
        self.next_offset[partition] = first + len(timestamps)
        messages = [
            RawRecord(partition.topic, partition.partition, first + number, timestamp, b"k", b"v")
            for number, timestamp in enumerate(timestamps)
        ]
        self.group.add_raw_records(partition, messages)

    def drain(self, limit: int = 1000) -> list[tuple[str, int]]:
        while self.group.process_next(limit):
            pass
        return self.seen


def model(queues: dict[TopicPartition, list[int]]) -> list[tuple[str, int]]:
    """One record at a time: the lowest head timestamp; among equal ones the queue that has waited longest."""
    heads = {partition: 0 for partition in sorted(queues) if queues[partition]}
    waiting = {partition: turn for turn, partition in enumerate(p for p in queues if queues[p])}
    turn = len(waiting)
    order = []
    while heads:
        chosen = min(heads, key=lambda p: (queues[p][heads[p]], waiting[p]))
        order.append((chosen.topic, heads[chosen]))
        heads[chosen] += 1
        turn += 1
        waiting[chosen] = turn
        if heads[chosen] == len(queues[chosen]):
            del heads[chosen]
    return order


timestamps = st.lists(st.integers(0, 12), max_size=12)


@given(st.fixed_dictionaries({A: timestamps, B: timestamps, C: timestamps}), st.integers(1, 5))
@settings(max_examples=examples(300), deadline=None)
def test_runs_have_the_order_of_single_records(queues: dict[TopicPartition, list[int]], limit: int) -> None:
    bench = Bench([A, B, C])
    for partition, found in queues.items():
        if found:
            bench.add(partition, *found)
    expected = model(queues)
    if limit >= 5:  # a smaller limit cuts a run; then the other of two equal queues is due
        assert bench.drain() == expected
    else:
        assert sorted(bench.drain(limit)) == sorted(expected)


@given(st.fixed_dictionaries({A: timestamps, B: timestamps}))
@settings(max_examples=examples(100), deadline=None)
def test_extracted_timestamps_order_records_like_message_timestamps(queues: dict[TopicPartition, list[int]]) -> None:
    own, extracted = Bench([A, B]), Bench([A, B], a=lambda message: message.timestamp()[1])
    for bench in (own, extracted):
        for partition, found in queues.items():
            bench.add(partition, *found)
    assert own.drain() == extracted.drain()


@given(timestamps, timestamps)
@settings(deadline=None)
def test_partition_time_is_the_highest_processed_timestamp(first: list[int], second: list[int]) -> None:
    bench = Bench([A, B])
    bench.add(A, *first)
    bench.add(B, *second)
    bench.drain()
    assert bench.group.partition_time(A) == max(first, default=-1)
    assert bench.group.partition_time(B) == max(second, default=-1)


def test_a_single_partition_is_passed_on_unchanged() -> None:
    bench = Bench([A])
    bench.add(A, 5, 3, 9)
    assert bench.drain() == [("a", 0), ("a", 1), ("a", 2)]
    assert bench.sources["a"].batches == [3]


def test_a_limit_cuts_a_batch_and_the_head_is_the_next_record() -> None:
    bench = Bench([A])
    bench.add(A, 1, 2, 3)
    processed = bench.group.process_next(2)
    assert processed == (A, 2)
    assert bench.group.head_offset(A) == 2
    bench.add(A, 4)
    assert bench.group.num_buffered(A) == 2
    assert bench.drain() == [("a", n) for n in range(4)]
    assert bench.group.head_offset(A) is None


def test_dropped_records_are_not_waited_for() -> None:
    bench = Bench([A, B], a=lambda message: -1)
    bench.add(A, 1, 2)
    assert bench.group.num_buffered() == 0
    assert not bench.group.ready_to_process(0)


def test_restored_partition_time_advances() -> None:
    bench = Bench([A, B])
    bench.group.set_partition_time(A, 50)
    bench.add(A, 10)
    bench.add(B, 11)
    bench.drain()
    assert bench.group.partition_time(A) == 50
    assert bench.sources["a"].partition_time_ms == 50


class TestIdling:
    """max.task.idle.ms (KIP-695)."""

    def test_a_task_is_ready_when_all_partitions_are_buffered(self) -> None:
        bench = Bench([A, B])
        bench.add(A, 1)
        bench.add(B, 1)
        assert bench.group.ready_to_process(0)
        assert bench.enforced == 0

    @pytest.mark.parametrize("lag", [None, 1])
    def test_a_partition_with_a_lag_is_waited_for(self, lag: int | None) -> None:
        bench = Bench([A, B], idle_ms=0)
        bench.add(A, 1)
        bench.lags[B] = lag
        assert not bench.group.ready_to_process(0)
        assert not bench.group.ready_to_process(10**9)

    def test_an_empty_partition_is_waited_for_until_the_configured_time(self) -> None:
        bench = Bench([A, B], idle_ms=100)
        bench.add(A, 1)
        bench.lags[B] = 0
        assert not bench.group.ready_to_process(1000)
        assert not bench.group.ready_to_process(1099)
        assert bench.group.ready_to_process(1100)
        assert bench.enforced == 1

    @pytest.mark.parametrize(
        ("partitions", "idle_ms", "idle"), [([A], 100, True), ([A, B], 0, True), ([A, B], 100, False)]
    )
    def test_a_group_without_records_is_idle_unless_it_has_started_waiting(
        self, partitions: list[TopicPartition], idle_ms: int, idle: bool
    ) -> None:
        bench = Bench(partitions, idle_ms=idle_ms)
        assert bench.group.is_idle is idle
        bench.add(A, 1)
        assert not bench.group.is_idle

    def test_the_wait_restarts_after_data(self) -> None:
        bench = Bench([A, B], idle_ms=100)
        bench.add(A, 1, 5)
        bench.lags[B] = 0
        assert not bench.group.ready_to_process(1000)
        bench.add(B, 2)
        assert bench.group.ready_to_process(1050)
        bench.group.process_next(1)
        bench.group.process_next(1)
        assert not bench.group.ready_to_process(1110)
        assert bench.group.ready_to_process(1210)

    def test_the_wait_continues_while_nothing_is_buffered(self) -> None:
        bench = Bench([A, B], idle_ms=100)
        bench.lags |= {A: 0, B: 0}
        assert not bench.group.ready_to_process(1000)
        bench.add(A, 1)
        assert bench.group.ready_to_process(1100)

    def test_a_disabled_wait_never_waits(self) -> None:
        bench = Bench([A, B], idle_ms=MAX_TASK_IDLE_MS_DISABLED)
        assert not bench.group.ready_to_process(0)
        bench.add(A, 1)
        assert bench.group.ready_to_process(0)

    def test_a_suspended_task_forgets_its_records(self) -> None:
        bench = Bench([A, B])
        bench.add(A, 1)
        bench.group.clear()
        assert bench.group.num_buffered() == 0
        assert bench.group.process_next(1) is None
