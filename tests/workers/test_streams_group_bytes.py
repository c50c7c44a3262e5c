"""A stream thread's encoded bytes as values of a streams group, and back."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.clients.group.streams_values import NO_LAG, HostPartitions, Report, Tasks, TasksAssigned
from penstock.topology.errors import StreamsError
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.group.assignment.assignment_info import AssignmentInfo
from penstock.workers.group.assignment.streams_group_bytes import StreamsGroupBytes
from penstock.workers.group.assignment.subscription_info import (
    LATEST_OFFSET,
    UNKNOWN_OFFSET_SUM,
    AssignorError,
    SubscriptionInfo,
)

A, B, C = TaskId(0, 0), TaskId(0, 1), TaskId(1, 0)
NO_HOSTS = HostPartitions({}, {})


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
    assert StreamsGroupBytes().report(info.encode()) == expected
    with pytest.raises(StreamsError, match="this member"):
        StreamsGroupBytes().report(b"\0")


@pytest.mark.parametrize(("taken", "next_ms"), [(True, 0), (False, None)])
@pytest.mark.parametrize(("shutdown", "error"), [(True, AssignorError.SHUTDOWN_REQUESTED), (False, AssignorError.NONE)])
def test_an_assignment_equals_that_of_a_classic_groups_leader(
    taken: bool, next_ms: int | None, shutdown: bool, error: AssignorError
) -> None:
    partitions = {task: frozenset({TopicPartition("in", task.partition)}) for task in (A, B)}
    assigned = TasksAssigned(3, Tasks(frozenset({A}), frozenset({B})), NO_HOSTS, taken, shutdown)
    hosts = HostPartitions({"host:1": partitions[A]}, {"host:2": partitions[B]})
    data = StreamsGroupBytes().assignment(assigned, {A: partitions[A]}, {B: partitions[B]}, hosts)
    found = AssignmentInfo.decode(data, partitions[A])
    assert (found.active, found.standby) == ({A: partitions[A]}, {B: partitions[B]})
    assert (found.partitions_by_host, found.standby_partitions_by_host) == (hosts.active, hosts.standby)
    assert (found.error, found.next_rebalance_ms) == (error, next_ms)
