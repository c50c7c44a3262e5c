"""The member of a streams group (KIP-1071) against a real broker: joining, moving tasks, leaving, rejoining."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

from penstock.clients.cluster.topics import ClusterDescription, TopicDescription, described
from penstock.clients.errors import BrokerError, ErrorCode, UnreachableError
from penstock.clients.group import streams_messages, streams_protocol
from penstock.clients.group.membership import Assigned, Fatal, FencedInstanceIdError, Lost, Rebalance
from penstock.clients.group.streams_values import NO_LAG, InternalTopic, StreamsSubtopology, StreamsTopology
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.group.assignment.subscription_info import LATEST_OFFSET, UNKNOWN_OFFSET_SUM, AssignorError
from tests.clients.streams_group_stage import (
    HEARTBEAT_MS,
    PARTITIONS,
    PROMPT_SECONDS,
    SHORT_SESSION_MS,
    Group,
    ThreadDouble,
)
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.broker


# Joining


def test_one_member_gets_all_tasks_and_the_broker_creates_the_changelog(group: Group) -> None:
    thread = group.add()
    group.settle()
    assert thread.active == group.tasks
    assert thread.standby == frozenset()
    partitions = frozenset(TopicPartition(group.topic, number) for number in range(PARTITIONS))
    assert frozenset().union(*thread.assignment.active.values()) == partitions
    (assigned,) = (event for event in thread.events if isinstance(event, Assigned))
    assert assigned.active == partitions
    assert assigned.generation > 0
    described = group.admin.list_topics(group.changelog, timeout=PATIENCE_SECONDS).topics[group.changelog]
    assert len(described.partitions) == PARTITIONS
    resource = ConfigResource(ResourceType.TOPIC, group.changelog)
    config = group.admin.describe_configs([resource])[resource].result(PATIENCE_SECONDS)
    assert config["cleanup.policy"].value == "compact"


def test_sub_topologies_with_a_repartition_topic(group: Group) -> None:
    repartition, changelog = f"{group.group_id}-by-key-repartition", f"{group.group_id}-store-changelog"
    topology = StreamsTopology(
        (
            StreamsSubtopology(0, (group.topic,), repartition_sink_topics=(repartition,)),
            StreamsSubtopology(
                1,
                (),
                repartition_source_topics=(InternalTopic(repartition, 2, 1, {"segment.bytes": "52428800"}),),
                changelog_topics=(InternalTopic(changelog),),
            ),
        )
    )
    thread = group.add(topology=topology)
    group.run_until(lambda: thread.active)
    assert thread.active == group.tasks | {TaskId(1, 0), TaskId(1, 1)}
    assert thread.assignment.active[TaskId(1, 1)] == {TopicPartition(repartition, 1)}
    topics = group.admin.list_topics(timeout=PATIENCE_SECONDS).topics
    assert (len(topics[repartition].partitions), len(topics[changelog].partitions)) == (2, 2)


def test_a_task_reads_only_existing_partitions(group: Group) -> None:
    narrow = group.make_topic("narrow", partitions=1)
    sources = tuple(sorted((group.topic, narrow)))
    thread = group.add(topology=StreamsTopology((StreamsSubtopology(0, sources),)))
    group.run_until(lambda: thread.active)
    assert thread.active == group.tasks
    assert thread.assignment.active[TaskId(0, 0)] == {TopicPartition(group.topic, 0), TopicPartition(narrow, 0)}
    assert thread.assignment.active[TaskId(0, 3)] == {TopicPartition(group.topic, 3)}


def test_a_broker_that_learns_of_partitions_late_is_asked_again(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[Any] = []

    def without_last(topic: TopicDescription) -> TopicDescription:
        return replace(topic, partitions=dict(list(topic.partitions.items())[:-1]))

    def outdated(answer: SimpleNamespace, asked: Collection[str]) -> ClusterDescription:
        found = described(answer, asked)
        if not late:
            late.append(found)
            return replace(found, topics={name: without_last(topic) for name, topic in found.topics.items()})
        return found

    monkeypatch.setattr(streams_protocol, "described", outdated)
    thread = group.add()
    group.settle()
    assert late
    assert thread.active == group.tasks


# Moving tasks


def test_a_second_member_takes_half_of_the_tasks_and_the_first_keeps_the_rest(group: Group) -> None:
    first = group.add()
    group.settle()
    second = group.add()
    group.settle()
    kept, moved = first.active, second.active
    assert kept | moved == group.tasks
    assert all(kept <= before for before in first.history)  # tasks that stay are never closed
    assert first.count(Lost) == second.count(Lost) == 0
    group.run_for(5 * HEARTBEAT_MS / 1000)
    rebalances = first.count(Rebalance)
    group.run_for(5 * HEARTBEAT_MS / 1000)
    assert first.count(Rebalance) == rebalances  # and then the group is stable
    epochs = {thread.member._protocol.identity.generation for thread in (first, second)}
    assert len(epochs) == 1


def test_a_member_that_leaves_releases_its_tasks_at_once(group: Group) -> None:
    first, second = group.add(), group.add()
    group.settle()
    second.close(leave=True)
    assert group.settle() < PROMPT_SECONDS
    assert first.active == group.tasks


def test_a_silent_member_is_removed_after_the_session_timeout(group: Group) -> None:
    group.configure(session_timeout_ms=SHORT_SESSION_MS)
    first, second = group.add(), group.add()
    group.settle()
    second.close(leave=False)  # how a SIGKILL looks to the broker
    assert SHORT_SESSION_MS / 1000 - 0.5 < group.settle() < PROMPT_SECONDS
    assert first.active == group.tasks


@pytest.mark.parametrize("slots", [(None, None), (0, 1)], ids=["dynamic", "static"])
def test_the_tasks_of_a_lost_host_move_before_its_session_times_out(
    group: Group, slots: Collection[int | None]
) -> None:
    living, elsewhere = (on_host(name, group, slot) for name, slot in zip(("one", "three"), slots, strict=True))
    lost = [on_host("two", group, slot) for slot in slots]
    group.settle()
    for thread in lost:
        thread.closed = True
        thread.member._connection.close()  # without a leave request
    for thread in (living, elsewhere):
        thread.member.release_host("two.example:1")
    assert group.settle() < PROMPT_SECONDS
    assert living.count(Lost) == elsewhere.count(Lost) == 0


@pytest.mark.parametrize("slot", [None, 0], ids=["dynamic", "static"])
def test_a_host_wrongly_considered_lost_rejoins(group: Group, slot: int | None) -> None:
    living, frozen = on_host("one", group, slot), on_host("two", group, slot)
    group.settle()
    group.watches = False  # it learns only from its next heartbeat that its tasks have moved
    living.member.release_host("two.example:1")
    group.run_until(lambda: frozen.count(Lost))
    group.settle()
    assert frozen.active
    assert frozen.count(Fatal) == 0


def on_host(name: str, group: Group, slot: int | None) -> ThreadDouble:
    """Add a member, a static one if it has a slot."""
    config = group.config if slot is None else replace(group.config, instance_id=f"{name}-{slot}")
    return group.add(config, endpoint=f"{name}.example:1")


def test_tasks_do_not_move_before_their_owner_has_released_them(group: Group) -> None:
    first = group.add()
    group.settle()
    first.rejoins = False  # its thread is in the middle of a batch
    second = group.add()
    group.run_for(8 * HEARTBEAT_MS / 1000)
    assert first.active == group.tasks
    assert second.active == frozenset()
    first.rejoins = True
    first.join()
    group.settle()


def test_standby_tasks_are_on_other_members(group: Group) -> None:
    group.configure(num_standby_replicas=1)
    first, second = group.add(), group.add()
    group.run_until(lambda: group.settled() and first.standby | second.standby == group.tasks)
    assert (first.standby, second.standby) == (second.active, first.active)
    partitions = first.assignment.standby[min(first.standby)]
    assert partitions == {TopicPartition(group.topic, min(first.standby).partition)}
    second.close(leave=True)
    group.run_until(lambda: first.active == group.tasks and not first.standby)


def test_the_broker_receives_task_offsets(group: Group) -> None:
    thread = group.add(join=False)
    thread.member.report_task_offsets({}, {TaskId(0, 0): 42})
    thread.offset_sums = {TaskId(0, 0): 41, TaskId(0, 1): LATEST_OFFSET, TaskId(0, 2): UNKNOWN_OFFSET_SUM}
    thread.join()
    group.settle()
    group.run_for(3 * HEARTBEAT_MS / 1000)
    coordinator = thread.protocol._coordinator
    described = thread.member._connection.submit(coordinator.offsets, streams_messages.describe(group.group_id))
    (member,) = described.result(PATIENCE_SECONDS).groups[0].members
    assert {(o.subtopology_id, o.partition, o.offset) for o in member.task_offsets} == {("0", 0, 41), ("0", 1, NO_LAG)}
    assert [(o.subtopology_id, o.partition, o.offset) for o in member.task_end_offsets] == [("0", 0, 42)]


# Leaving and coming back


def static(group: Group, slot: int = 0) -> ThreadDouble:
    return group.add(replace(group.config, instance_id=f"slot-{slot}"))


@pytest.mark.parametrize("killed", [False, True])
def test_a_replaced_static_member_gets_its_tasks_back_without_a_rebalance(
    group: Group, killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    other, old = static(group, 0), static(group, 1)
    group.settle()
    tasks = old.active
    group.run_for(3 * HEARTBEAT_MS / 1000)
    rebalances = other.count(Rebalance)
    if killed:
        old.closed = True
        old.member._connection.close()  # without a leave request
    else:
        old.close(leave=False)
    successor = static(group, 1)
    assert group.settle() < PROMPT_SECONDS
    assert successor.active == tasks
    assert other.count(Rebalance) == rebalances
    assert ("UNRELEASED_INSTANCE_ID" in caplog.text) is killed  # the successor must request the slot of a killed member


def test_a_static_member_may_leave_permanently(group: Group) -> None:
    first, second = static(group, 0), static(group, 1)
    group.settle()
    second.close(leave=True)
    assert group.settle() < PROMPT_SECONDS
    assert first.active == group.tasks


def test_the_later_of_two_processes_with_the_same_instance_id_wins(group: Group) -> None:
    old = static(group)
    group.settle()
    new = static(group)
    old_tasks = old.active
    group.watches = False  # until it learns of it, the fenced member keeps its tasks
    group.run_until(lambda: old.count(Fatal))
    assert isinstance(old.fatal, FencedInstanceIdError)
    assert "slot-0" in str(old.fatal)
    old.close()
    group.settle()
    assert new.active == old_tasks


def test_a_fenced_member_that_only_learns_of_its_epoch_does_not_take_the_slot_back(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = static(group)
    group.settle()
    protocol = old.protocol
    ask = protocol._ask

    async def ask_earlier(request: Any) -> Any:
        """Respond as the broker does after the successor has left under the old one's name, and before it joins."""
        try:
            return await ask(request)
        except streams_protocol._RefusedError as error:
            if error.refusal.code is ErrorCode.FENCED_INSTANCE_ID:
                raise streams_protocol._RefusedError(BrokerError(ErrorCode.FENCED_MEMBER_EPOCH)) from error
            raise

    monkeypatch.setattr(protocol, "_ask", ask_earlier)
    new = static(group)
    group.watches = False
    group.run_until(lambda: old.count(Fatal) or new.count(Fatal))
    assert old.count(Lost) == 1
    assert isinstance(old.fatal, FencedInstanceIdError)
    old.close()
    group.settle()
    assert new.count(Fatal) == new.count(Lost) == 0


def test_a_static_member_that_lost_its_membership_gets_its_own_slot_back(group: Group) -> None:
    thread = static(group)
    group.settle()
    protocol = thread.protocol

    async def lose() -> None:
        protocol._emit_all(protocol._membership.lose("a commit was rejected"))

    thread.member._connection.submit(lose).result(PATIENCE_SECONDS)
    group.run_until(lambda: thread.count(Lost))
    assert group.settle() < PROMPT_SECONDS
    assert thread.count(Fatal) == 0


# The whole application


def test_one_member_ends_the_application_for_all(group: Group) -> None:
    first, second = group.add(), group.add()
    group.settle()
    first.rejoins = second.rejoins = False
    first.error = AssignorError.SHUTDOWN_REQUESTED
    first.join()
    group.run_until(lambda: first.assignment.error is second.assignment.error is AssignorError.SHUTDOWN_REQUESTED)


def test_all_members_know_the_host_of_each_partition(group: Group) -> None:
    first, second = group.add(endpoint="one.example:1"), group.add(endpoint="two.example:65535", tags={"zone": "z"})
    group.settle()

    def where() -> list[dict[str, frozenset[TopicPartition]]]:
        return [dict(thread.assignment.partitions_by_host) for thread in (first, second)]

    expected = {
        "one.example:1": frozenset().union(*first.assignment.active.values()),
        "two.example:65535": frozenset().union(*second.assignment.active.values()),
    }
    group.run_until(lambda: where() == [expected, expected])
    joins = first.count(Assigned)
    group.run_for(5 * HEARTBEAT_MS / 1000)
    assert first.count(Assigned) == joins  # reported once


def test_an_endpoint_that_the_broker_normalizes_causes_no_rejoins(group: Group) -> None:
    thread = group.add(endpoint="one.example:0080")
    group.settle()
    group.run_for(3 * HEARTBEAT_MS / 1000)
    joins = thread.count(Assigned)
    group.run_for(5 * HEARTBEAT_MS / 1000)
    assert thread.count(Assigned) == joins
    everything = frozenset().union(*thread.assignment.active.values())
    assert thread.assignment.partitions_by_host == {"one.example:80": everything}


# Connections that break


def test_tasks_in_a_lost_response_are_assigned_again(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = group.add(), group.add()
    group.settle()
    protocol = first.protocol
    exchange = protocol._ask
    lost: list[Any] = []

    async def lossy(request: Any) -> Any:
        response = await exchange(request)
        if response.active_tasks is not None and not lost:
            lost.append(response)
            raise UnreachableError("the answer got lost")
        return response

    monkeypatch.setattr(protocol, "_ask", lossy)
    second.close(leave=True)
    group.settle()
    assert lost
    assert first.active == group.tasks
    assert first.count(Lost) == 0
