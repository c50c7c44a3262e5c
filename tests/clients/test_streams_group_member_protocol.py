"""The streams group protocol without a broker: a member's next heartbeat, and the effect of
a response on its thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from penstock.clients.errors import BrokerError, ErrorCode
from penstock.clients.group.member_state import MemberState
from penstock.clients.group.membership import Fatal, FencedInstanceIdError, Lost, Rebalance
from penstock.clients.group.requests import GroupMemberConfig, Identity
from penstock.clients.group.streams_membership import (
    MISSING_TOPICS_GRACE_MS,
    REFUSAL_RETRY_MS,
    GroupStatuses,
    StreamsEvent,
    StreamsMembership,
)
from penstock.clients.group.streams_values import (
    NO_LAG,
    Heartbeat,
    HeartbeatResponse,
    HostPartitions,
    Report,
    Status,
    TaskOffsets,
    Tasks,
    TasksAssigned,
)
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.errors import MissingSourceTopicError, StreamsError
from penstock.topology.records import TaskId, TopicPartition

INTERVAL_MS = 5_000
OFFSET_INTERVAL_MS = 60_000
PROCESS_ID = UUID(int=7)

A, B, C = TaskId(0, 0), TaskId(0, 1), TaskId(1, 0)


def report(
    active: tuple[TaskId, ...] = (),
    standby: tuple[TaskId, ...] = (),
    offsets: Mapping[TaskId, int] | None = None,
    requests_shutdown: bool = False,
) -> Report:
    tasks = (frozenset(active), frozenset(standby))
    return Report(PROCESS_ID, *tasks, offsets or {}, requests_shutdown=requests_shutdown)


def tasks(*active: TaskId, standby: tuple[TaskId, ...] = (), warmup: tuple[TaskId, ...] = ()) -> Tasks:
    return Tasks(frozenset(active), frozenset(standby), frozenset(warmup))


@dataclass
class Member:
    """A membership, its clock, and a coordinator whose responses the test chooses."""

    membership: StreamsMembership
    now_ms: int = 1_000_000
    epoch: int = 1

    def join(self, owned: Report | None = None, losses_seen: int | None = None) -> None:
        seen = self.membership.losses if losses_seen is None else losses_seen
        self.membership.join(owned or report(), seen)

    def send(self) -> Heartbeat:
        return self.membership.next_heartbeat(self.now_ms)

    def receive(
        self,
        heartbeat: Heartbeat,
        given: Tasks | None = None,
        statuses: Mapping[int, str] | None = None,
        hosts: HostPartitions | None = None,
    ) -> list[StreamsEvent]:
        answer = HeartbeatResponse(self.epoch, INTERVAL_MS, OFFSET_INTERVAL_MS, 100, statuses or {}, given, 3, hosts)
        return self.membership.on_response(heartbeat, answer, self.now_ms)

    def beat(self, given: Tasks | None = None, statuses: Mapping[int, str] | None = None) -> list[StreamsEvent]:
        return self.receive(self.send(), given, statuses)

    def refuse(self, code: int, message: str = "") -> list[StreamsEvent]:
        return self.membership.on_refusal(self.send(), BrokerError(code, message), self.now_ms)

    def due(self) -> int | None:
        return self.membership.ms_until_heartbeat(self.now_ms)


def make_member(instance_id: str | None = None) -> Member:
    config = GroupMemberConfig("g", instance_id)
    return Member(StreamsMembership(config, "me", (0, 1), PrefixedLogger(__name__, "test ")))


@pytest.fixture
def member() -> Member:
    return make_member()


@pytest.fixture
def joined(member: Member) -> Member:
    """A member that runs task A."""
    member.join()
    member.beat(tasks(A))
    return member


# Joining


def test_no_heartbeat_is_sent_before_the_thread_joins(member: Member) -> None:
    assert member.due() is None
    assert member.membership.identity == Identity(-1, "me")


def test_the_first_heartbeat_has_all_fields_and_its_response_assigns(member: Member) -> None:
    subscription = report(offsets={A: 5})
    member.join(subscription)
    assert member.due() == 0
    heartbeat = member.send()
    assert heartbeat == Heartbeat(0, 0, -1, subscription, Tasks(), {A: 5}, {})
    assert member.receive(heartbeat, tasks(A)) == [TasksAssigned(1, tasks(A), HostPartitions({}, {}), taken=False)]
    assert member.membership.identity == Identity(1, "me")
    assert member.membership.state is MemberState.STABLE
    assert member.due() == INTERVAL_MS


def test_later_heartbeats_have_only_changes(joined: Member) -> None:
    heartbeat = joined.send()
    assert heartbeat.owned == tasks(A)  # the thread may have opened what it was assigned
    assert heartbeat.offsets == {}  # once more: Kafka 4.4 may have forgotten them
    assert joined.beat() == []
    assert joined.send() == Heartbeat(0, 1, 3)


def test_a_heartbeat_is_due_after_the_brokers_interval(joined: Member) -> None:
    joined.now_ms += INTERVAL_MS - 1
    assert joined.due() == 1
    joined.now_ms += 10
    assert joined.due() == 0


def test_a_join_waits_for_a_group_that_is_not_ready(member: Member) -> None:
    member.join()
    assert member.beat(Tasks(), {Status.ASSIGNMENT_DELAYED: "later"}) == []
    assert member.membership.state is MemberState.JOINING
    assert member.due() == INTERVAL_MS
    assert member.beat(None, {Status.MISSING_INTERNAL_TOPICS: "soon"}) == []
    assert member.beat(tasks(A)) == [TasksAssigned(1, tasks(A), HostPartitions({}, {}), taken=False)]


def test_a_member_with_tasks_gets_its_assignment_from_a_group_that_is_not_ready(joined: Member) -> None:
    joined.join(report((A,)))
    assert joined.beat(None, {Status.ASSIGNMENT_DELAYED: "later"}) == [
        TasksAssigned(1, tasks(A), HostPartitions({}, {}), taken=False)
    ]


def test_a_ready_group_may_have_no_task_for_a_member(member: Member) -> None:
    member.join()
    assert member.beat(Tasks()) == [TasksAssigned(1, Tasks(), HostPartitions({}, {}), taken=False)]


# Tasks that move


def test_new_tasks_arrive_by_a_rebalance(joined: Member) -> None:
    assert joined.beat(tasks(A, B)) == [Rebalance()]
    assert joined.beat() == []  # once
    joined.join(report((A,)))
    assert joined.due() == 0
    heartbeat = joined.send()
    assert joined.receive(heartbeat) == [TasksAssigned(1, tasks(A, B), HostPartitions({}, {}), taken=False)]


def test_a_task_is_released_only_when_the_thread_reports_it(joined: Member) -> None:
    joined.beat()
    assert joined.beat(Tasks()) == [Rebalance()]
    joined.join(report((A,)))
    heartbeat = joined.send()
    assert heartbeat.owned == tasks(A)  # still
    assert joined.receive(heartbeat) == [TasksAssigned(1, Tasks(), HostPartitions({}, {}), taken=True)]
    assert joined.send().owned is None
    joined.join(report())
    assert joined.due() == 0
    heartbeat = joined.send()
    assert heartbeat.owned == Tasks()
    joined.epoch = 2
    assert joined.receive(heartbeat) == [TasksAssigned(2, Tasks(), HostPartitions({}, {}), taken=False)]


def test_a_task_revoked_before_the_thread_saw_it_is_released_without_the_thread(joined: Member) -> None:
    joined.beat()
    joined.beat(tasks(A, B))
    joined.beat(tasks(A))
    assert joined.send().owned == tasks(A)  # the coordinator waits for this


@pytest.mark.parametrize(
    ("before", "after", "taken"),
    [
        (tasks(A), tasks(B), True),
        (tasks(A), tasks(standby=(A,)), True),
        (tasks(standby=(A,)), tasks(), True),
        (tasks(warmup=(A,)), tasks(), True),
        (tasks(standby=(A,)), tasks(A), False),
        (tasks(standby=(A,)), tasks(warmup=(A,)), False),
        (tasks(A), tasks(A, B), False),
    ],
)
def test_the_thread_learns_whether_the_group_waits_for_it(before: Tasks, after: Tasks, taken: bool) -> None:
    member = make_member()
    member.join()
    member.beat(before)
    member.beat(after)
    member.join(report(tuple(before.active), tuple(before.replicas)))
    (assigned,) = member.beat()
    assert isinstance(assigned, TasksAssigned)
    assert assigned.taken is taken


def test_the_response_to_an_earlier_heartbeat_does_not_answer_a_join(joined: Member) -> None:
    earlier = joined.send()
    joined.join(report((A,)))
    assert joined.receive(earlier, tasks(A, B)) == []
    assert joined.due() == 0
    assert joined.beat() == [TasksAssigned(1, tasks(A, B), HostPartitions({}, {}), taken=False)]


def test_warmup_tasks_are_reported_separately_although_the_thread_does_not_distinguish_them(member: Member) -> None:
    member.join()
    member.beat(tasks(standby=(A,), warmup=(B, C)))
    member.beat(tasks(standby=(A, C)))  # B is revoked, C becomes a standby task
    member.join(report((), (A, B, C)))
    heartbeat = member.send()
    assert heartbeat.owned == tasks(standby=(A, C), warmup=(B,))


def test_tasks_of_an_unknown_subtopology_end_the_membership(member: Member) -> None:
    member.join()
    (fatal,) = member.beat(tasks(TaskId(9, 0)))
    assert isinstance(fatal, Fatal)
    assert "sub-topologies [9]" in str(fatal.error)
    assert member.due() is None


# Lost responses


def test_after_a_lost_response_all_fields_are_sent_again(joined: Member) -> None:
    joined.beat()
    joined.membership.offsets.update(TaskOffsets({A: 3}, {A: 4}))
    joined.now_ms += OFFSET_INTERVAL_MS
    lost = joined.send()
    assert (lost.owned, lost.offsets, lost.end_offsets) == (None, {A: 3}, {A: 4})
    joined.membership.on_no_response(lost)
    assert joined.due() == 0
    again = joined.send()
    assert (again.owned, again.offsets, again.end_offsets) == (tasks(A), {A: 3}, {A: 4})


def test_a_task_that_the_thread_may_have_opened_is_never_reported_as_released(joined: Member) -> None:
    joined.beat(tasks(A, B))
    joined.join(report((A,)))
    joined.beat()  # assigns B, which the thread opens without a report
    lost = joined.send()
    joined.membership.on_no_response(lost)  # the coordinator may have just revoked B
    assert joined.send().owned == tasks(A, B)


def test_a_response_to_a_former_membership_is_ignored(joined: Member) -> None:
    old = joined.send()
    joined.membership.lose("test")
    joined.join()
    assert joined.receive(old, tasks(B)) == []
    assert joined.membership.on_refusal(old, BrokerError(ErrorCode.UNKNOWN_MEMBER_ID), joined.now_ms) == []
    heartbeat = joined.send()
    joined.membership.on_no_response(old)
    assert (heartbeat.epoch, heartbeat.owned) == (0, Tasks())
    assert joined.due() == INTERVAL_MS


def test_a_member_that_has_ended_sends_nothing(joined: Member) -> None:
    heartbeat = joined.send()
    assert joined.membership.end()
    assert joined.receive(heartbeat, tasks(B)) == []
    assert joined.due() is None


def test_a_member_that_never_joined_sends_no_leave_request(member: Member) -> None:
    assert not member.membership.end()


# Refusals


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH])
def test_a_fenced_member_starts_over(joined: Member, error: ErrorCode) -> None:
    (lost,) = joined.refuse(error, "because")
    assert isinstance(lost, Lost)
    assert "because" in lost.reason
    assert joined.due() is None
    assert joined.membership.identity == Identity(-1, "me")
    joined.join(report(), losses_seen=0)  # created before the thread knew
    assert joined.due() is None
    joined.join(report())
    heartbeat = joined.send()
    assert (heartbeat.membership, heartbeat.epoch, heartbeat.endpoint_epoch) == (1, 0, -1)
    assert (heartbeat.owned, heartbeat.joining) == (Tasks(), report())


def test_a_deleted_group_is_rejoined_but_a_group_of_another_type_is_an_error(member: Member) -> None:
    member.join()
    (fatal,) = member.refuse(ErrorCode.GROUP_ID_NOT_FOUND, "Group g is not a streams group.")
    assert isinstance(fatal, Fatal)
    assert "group of another protocol" in str(fatal.error)
    other = make_member()
    other.join()
    other.beat(tasks(A))
    assert isinstance(other.refuse(ErrorCode.GROUP_ID_NOT_FOUND)[0], Lost)


@pytest.mark.parametrize(
    ("error", "patience_ms", "kind", "says"),
    [
        (ErrorCode.UNRELEASED_INSTANCE_ID, 90_000, FencedInstanceIdError, "group.instance.id=slot-0"),
        (ErrorCode.UNKNOWN_SERVER_ERROR, 5_000, StreamsError, "Check that all source topics exist"),
    ],
)
def test_retriable_errors_are_retried_for_a_while(
    error: ErrorCode, patience_ms: int, kind: type[Exception], says: str
) -> None:
    member = make_member("slot-0")
    member.join()
    assert member.refuse(error) == []
    assert member.due() == REFUSAL_RETRY_MS
    member.now_ms += patience_ms - 1
    assert member.refuse(error) == []
    member.now_ms += 1
    (fatal,) = member.refuse(error)
    assert isinstance(fatal, Fatal)
    assert type(fatal.error) is kind
    assert says in str(fatal.error)


@pytest.mark.parametrize(
    ("error", "message", "kind", "says"),
    [
        (ErrorCode.FENCED_INSTANCE_ID, "", FencedInstanceIdError, "group.instance.id=slot-0"),
        (ErrorCode.UNSUPPORTED_VERSION, "", StreamsError, "Kafka 4.2 or later"),
        (ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.", StreamsError, "delete the group"),
        (ErrorCode.INVALID_REQUEST, "RackId can't be empty.", StreamsError, "RackId can't be empty."),
        (ErrorCode.STREAMS_TOPOLOGY_FENCED, "old", StreamsError, "STREAMS_TOPOLOGY_FENCED: old"),
        (999, "", StreamsError, "999"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "", StreamsError, "READ on the group"),
    ],
)
def test_fatal_errors_say_what_to_do(error: Any, message: str, kind: type[Exception], says: str) -> None:
    member = make_member("slot-0")
    member.join()
    (fatal,) = member.refuse(error, message)
    assert isinstance(fatal, Fatal)
    assert type(fatal.error) is kind
    assert says in str(fatal.error)
    assert "group g" in str(fatal.error)
    assert member.membership.state is MemberState.FATAL
    member.join()
    assert member.due() is None


# The group's statuses


def test_missing_source_topics_are_an_error_after_two_heartbeats(member: Member) -> None:
    missing: Mapping[int, str] = {Status.MISSING_SOURCE_TOPICS: "Source topics x are missing."}
    member.join()
    assert member.beat(Tasks(), missing) == []
    member.now_ms += INTERVAL_MS
    assert member.beat(None, missing) == []
    assert member.beat(tasks(A)) != []  # the topics exist now
    member.now_ms += INTERVAL_MS
    assert member.beat(None, missing) == []
    member.now_ms += 2 * INTERVAL_MS
    (fatal,) = member.beat(None, missing)
    assert isinstance(fatal, Fatal)
    assert isinstance(fatal.error, MissingSourceTopicError)
    assert "Source topics x are missing." in str(fatal.error)


def test_a_topic_that_was_just_created_is_not_reported_missing() -> None:
    missing: Mapping[int, str] = {Status.MISSING_SOURCE_TOPICS: "Source topics x are missing."}
    statuses = GroupStatuses("g", PrefixedLogger(__name__, ""))
    assert statuses.update(missing, now_ms=0, heartbeat_interval_ms=100) is None
    assert statuses.update(missing, now_ms=MISSING_TOPICS_GRACE_MS - 1, heartbeat_interval_ms=100) is None
    assert statuses.update(missing, now_ms=MISSING_TOPICS_GRACE_MS, heartbeat_interval_ms=100) is not None


def test_mismatched_partition_counts_are_an_error_at_once(member: Member) -> None:
    member.join()
    (fatal,) = member.beat(Tasks(), {Status.INCORRECTLY_PARTITIONED_TOPICS: "a has 2, b has 3."})
    assert isinstance(fatal, Fatal)
    assert "a has 2, b has 3." in str(fatal.error)


def test_the_shutdown_of_the_application_is_announced_once(joined: Member) -> None:
    ending: Mapping[int, str] = {Status.SHUTDOWN_APPLICATION: "me too"}
    (assigned,) = joined.beat(None, ending)
    assert assigned == TasksAssigned(1, tasks(A), HostPartitions({}, {}), taken=False, shutdown_application=True)
    assert joined.beat(None, ending) == []


def test_a_thread_may_request_the_shutdown_of_the_application(joined: Member) -> None:
    assert not joined.send().shutdown_application
    joined.join(report((A,), requests_shutdown=True))
    assert joined.send().shutdown_application
    assert joined.send().shutdown_application  # until all members have received it


def test_changed_hosts_are_reported_to_the_thread(joined: Member) -> None:
    hosts = HostPartitions({"h:1": frozenset({TopicPartition("t", 0)})}, {})
    assert joined.receive(joined.send(), hosts=hosts) == [TasksAssigned(1, tasks(A), hosts, taken=False)]
    assert joined.receive(joined.send(), hosts=hosts) == []
    assert joined.send().endpoint_epoch == 3


def test_a_status_is_logged_when_it_changes(joined: Member, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for text in ("old", "old", "older"):
            joined.beat(None, {Status.STALE_TOPOLOGY: text, 99: "a later broker's"})
    lines = [record.getMessage() for record in caplog.records if "in status" in record.getMessage()]
    assert [line.partition("status ")[2] for line in lines] == [
        "STALE_TOPOLOGY: old",
        "99: a later broker's",
        "STALE_TOPOLOGY: older",
    ]


# Offsets


def test_offset_sums_are_sent_when_they_matter(joined: Member) -> None:
    joined.beat()
    joined.join(report((A,), (), {A: NO_LAG, B: 7}))
    assert joined.send().offsets is None  # no task has changed, and the interval has not passed
    joined.now_ms += OFFSET_INTERVAL_MS
    assert joined.send().offsets == {A: NO_LAG, B: 7}
    joined.membership.offsets.update(TaskOffsets({B: 8}, {B: 8}))
    joined.beat(tasks(A, B))
    heartbeat = joined.send()
    assert heartbeat.owned == tasks(A, B)  # offsets matter when tasks change
    assert (heartbeat.offsets, heartbeat.end_offsets) == ({B: 8}, {B: 8})
    joined.now_ms += OFFSET_INTERVAL_MS
    assert joined.send().offsets is None  # unchanged


@pytest.mark.parametrize(("lag", "caught_up"), [(101, False), (100, True)])
def test_a_warmup_task_that_has_caught_up_is_reported_at_once(lag: int, caught_up: bool) -> None:
    member = make_member()
    member.join()
    member.beat(tasks(warmup=(A,)))
    member.beat()
    member.membership.offsets.update(TaskOffsets({A: 1_000, B: 0}, {A: 1_000 + lag}))
    heartbeat = member.send()
    assert (heartbeat.offsets is not None) is caught_up


def test_heartbeats_of_successive_memberships_are_distinguished(member: Member) -> None:
    numbers = count()
    for _ in range(3):
        member.join()
        assert member.send().membership == next(numbers)
        member.membership.lose("test")
