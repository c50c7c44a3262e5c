"""The tasks of a new member are spread over sub-topologies, for the threads of a host and for hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.topology.records import TaskId
from penstock.workers.group.assignment.spread import interleaved
from penstock.workers.group.assignment.subscription_info import LATEST_OFFSET
from penstock.workers.group.assignment.task_assignors import (
    HighAvailabilityTaskAssignor,
    StickyTaskAssignor,
    TaskAssignor,
)
from penstock.workers.group.assignment.thread_assignment import spread_over_threads
from tests.examples import examples
from tests.workers.test_assign_tasks import again, client, run


def all_tasks(partitions: Collection[int]) -> set[TaskId]:
    """Return the tasks of sub-topologies 0, 1, …; partitions: the number of tasks of each."""
    return {TaskId(number, partition) for number, count in enumerate(partitions) for partition in range(count)}


def spread(tasks: Collection[TaskId]) -> Counter[int]:
    return Counter(task.subtopology for task in tasks)


def assert_spread(shares: Collection[Collection[TaskId]], partitions: Collection[int], slack: int = 1) -> None:
    """Check that all shares have about the same number of tasks of each sub-topology."""
    for number in range(len(partitions)):
        counts = [spread(share)[number] for share in shares]
        assert max(counts) - min(counts) <= slack, f"sub-topology {number} of {partitions}: {counts}"


def join_one_by_one(
    partitions: Collection[int], threads: int, loads: Mapping[TaskId, int] | None = None
) -> list[list[TaskId]]:
    """Return the tasks of the threads of one host after they have joined one after the other."""
    dealt: dict[str, list[TaskId]] = {}
    for count in range(1, threads + 1):
        host = client(1, count, lags=dict.fromkeys(all_tasks(partitions), LATEST_OFFSET), loads=loads or {})
        host.previous_tasks.update({consumer: set(tasks) for consumer, tasks in dealt.items()})
        before = {task: consumer for consumer, tasks in dealt.items() for task in tasks}
        dealt = spread_over_threads(all_tasks(partitions), host, {})
        moved = [task for consumer, tasks in dealt.items() for task in tasks if before.get(task, consumer) != consumer]
        assert set(moved) <= set(dealt[f"1-{count - 1}"]), "only to the new one"
    return list(dealt.values())


@pytest.mark.parametrize("partitions", [(4, 4), (3, 3), (2, 2), (1, 1, 1, 1), (4, 8), (8, 2), (6, 4, 2), (1, 7)])
def test_the_second_thread_of_a_host_gets_its_share_of_each_subtopology(partitions: tuple[int, ...]) -> None:
    assert_spread(join_one_by_one(partitions, 2), partitions)


@given(partitions=st.lists(st.integers(1, 12), min_size=1, max_size=5), threads=st.integers(2, 6))
@settings(max_examples=examples(200), deadline=None)
def test_threads_that_join_one_by_one_get_several_subtopologies(partitions: list[int], threads: int) -> None:
    shares = join_one_by_one(partitions, threads)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for number, count in enumerate(partitions):
        if count >= threads * 3:
            assert all(spread(share)[number] for share in shares), f"a thread without sub-topology {number}: {shares}"


@pytest.mark.parametrize("assignor", [HighAvailabilityTaskAssignor(), StickyTaskAssignor()], ids=["balanced", "sticky"])
@pytest.mark.parametrize("stateful", [True, False])
@pytest.mark.parametrize("partitions", [(4, 4), (3, 3), (6, 4, 2)])
def test_a_host_that_joins_gets_its_share_of_each_subtopology(
    assignor: TaskAssignor, stateful: bool, partitions: tuple[int, ...]
) -> None:
    tasks = all_tasks(partitions)
    kinds: tuple[Any, Any] = (tasks, ()) if stateful else ((), tasks)
    alone, _ = run([client(1)], *kinds, assignor)
    placed, _ = run([*again(alone), client(2)], *kinds, assignor, acceptable_recovery_lag=2**63 - 1)
    assert_spread([each.active_tasks for each in placed.values()], partitions)


@given(st.sets(st.builds(TaskId, st.integers(0, 4), st.integers(0, 20)), min_size=1))
def test_the_first_interleaved_tasks_include_each_subtopology(tasks: set[TaskId]) -> None:
    ordered = interleaved(tasks, {})
    assert sorted(ordered) == sorted(tasks)
    totals = spread(tasks)
    for length in range(len(ordered) + 1):
        found = spread(ordered[:length])
        for number, total in totals.items():
            assert abs(found[number] - total * length / len(tasks)) <= len(totals) / 2 + 0.5


def work(tasks: Collection[TaskId], loads: Mapping[TaskId, int]) -> int:
    return sum(loads[task] for task in tasks)


def test_the_second_thread_of_a_host_gets_half_of_the_work() -> None:
    """One sub-topology whose first partitions are hot. Assigned by number alone, one thread would keep all of them."""
    loads = {TaskId(0, partition): 300 if partition < 2 else 20 for partition in range(8)}
    first, second = join_one_by_one([8], 2, loads)
    assert (len(first), len(second)) == (4, 4)
    assert work(first, loads) == work(second, loads) == 360


@given(
    loads=st.lists(st.integers(0, 1000), min_size=8, max_size=40),
    partitions=st.integers(1, 4),
    threads=st.integers(2, 4),
)
@settings(max_examples=examples(300), deadline=None)
def test_threads_that_join_get_about_as_much_work_as_the_others(
    loads: list[int], partitions: int, threads: int
) -> None:
    """Task counts stay even, as in Kafka Streams. So the work may differ by the heaviest tasks, but not by more."""
    tasks = [TaskId(number % partitions, number // partitions) for number in range(len(loads))]
    measured = dict(zip(tasks, loads, strict=True))
    counts = Counter(task.subtopology for task in tasks)
    shares = join_one_by_one([counts[number] for number in range(partitions)], threads, measured)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    worked = [work(share, measured) for share in shares]
    assert max(worked) <= sum(worked) / threads + 2 * max(loads)


@pytest.mark.parametrize("assignor", [HighAvailabilityTaskAssignor(), StickyTaskAssignor()], ids=["balanced", "sticky"])
def test_a_host_that_joins_gets_its_share_of_stateless_work(assignor: TaskAssignor) -> None:
    tasks = all_tasks([8])
    loads = {task: 300 if task.partition < 2 else 20 for task in tasks}
    hosts = [client(1, previous_active_tasks=set(tasks), loads=loads), client(2, loads=loads)]
    placed, _ = run(hosts, (), tasks, assignor)
    assert [work(each.active_tasks, loads) for each in placed.values()] == [360, 360]


def test_an_unmeasured_task_counts_as_the_average_of_the_others() -> None:
    loads = {TaskId(0, 0): 500, TaskId(0, 1): 100}
    tasks = [TaskId(0, partition) for partition in range(4)]
    assert interleaved(tasks, loads) == [TaskId(0, 2), TaskId(0, 3), TaskId(0, 1), TaskId(0, 0)]
