"""What a stream thread reports to a streams group (KIP-1071), and what it takes from one."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.clients.group.membership import Assigned
from penstock.clients.group.streams_values import NO_LAG, HostPartitions, Report, TasksGiven
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.group.assignment.streams_partition_assignor import Assignment
from penstock.workers.group.assignment.subscription_info import (
    LATEST_OFFSET,
    UNKNOWN_OFFSET_SUM,
    AssignorError,
    SubscriptionInfo,
)
from tests.workers.test_assign_group import TASKS, assignor

A, B, C = sorted(TASKS)[:3]


def test_a_report_has_the_contents_of_the_subscription() -> None:
    info = SubscriptionInfo(
        11,
        11,
        UUID(int=7),
        frozenset({A}),
        frozenset({B}),
        {A: LATEST_OFFSET, B: 7, C: UNKNOWN_OFFSET_SUM},
        "host:1",
        {"zone": "z"},
        error=AssignorError.SHUTDOWN_REQUESTED,
    )
    expected = Report(
        UUID(int=7), frozenset({A}), frozenset({B}), {A: NO_LAG, B: 7}, "host:1", {"zone": "z"}, requests_shutdown=True
    )
    assert info.report() == expected


def given(task: TaskId, taken: bool = False, shutdown: bool = False) -> Assigned:
    partitions = {task: frozenset({TopicPartition("a", task.partition)})}
    hosts = HostPartitions({"host:01": partitions[task]}, {"[::1]:2": partitions[task]})
    return Assigned(3, b"", partitions[task], TasksGiven(partitions, {}, hosts, taken, shutdown))


@pytest.mark.parametrize(("taken", "next_ms"), [(True, 0), (False, None)])
def test_the_brokers_assignment_is_taken_as_it_is(taken: bool, next_ms: int | None) -> None:
    part = given(A, taken)
    assert part.tasks is not None
    active = part.tasks.active
    expected = Assignment(active, {}, {"host:1": active[A]}, {"::1:2": active[A]}, next_ms)
    assert assignor().on_assignment(part) == expected


def test_a_shutdown_of_the_application_is_taken_from_the_broker() -> None:
    assert assignor().on_assignment(given(A, shutdown=True)) == Assignment(error=AssignorError.SHUTDOWN_REQUESTED)


def test_the_brokers_task_of_another_topology_is_refused() -> None:
    assert assignor().on_assignment(given(TaskId(99, 0))) == Assignment(next_rebalance_in_ms=0)
