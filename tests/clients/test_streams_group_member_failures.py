"""The member of a streams group against a real broker: fenced, refused, slow, late, and its committed offsets."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as RdTopicPartition

from penstock.clients.clock import SystemClock
from penstock.clients.group import streams_messages, streams_protocol
from penstock.clients.group.classic_protocol import ClassicProtocol
from penstock.clients.group.group_member import GroupMember
from penstock.clients.group.membership import (
    Assigned,
    Fatal,
    Lost,
    MemberAssignment,
    MemberSubscription,
    RetriableCommitError,
)
from penstock.clients.group.requests import Identity
from penstock.clients.group.streams_values import StreamsSubtopology, StreamsTopology
from penstock.clients.librdkafka.group_metadata import encode_group_metadata
from penstock.clients.network_settings import network_settings
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.clients.protocol.streams_messages import STREAMS_GROUP_HEARTBEAT
from penstock.dev.dev_broker import DevBroker
from penstock.topology.errors import MissingSourceTopicError, StreamsError, TaskMigratedError
from penstock.topology.records import TopicPartition
from tests.clients.joining import joining
from tests.clients.streams_group_stage import (
    HEARTBEAT_MS,
    PROMPT_SECONDS,
    Group,
    ThreadDouble,
)
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.broker


@pytest.fixture
def first(group: Group) -> TopicPartition:
    return TopicPartition(group.topic, 0)


def fatal_error(group: Group, thread: ThreadDouble) -> Exception:
    group.run_until(lambda: thread.count(Fatal))
    return thread.fatal


def evict(thread: ThreadDouble) -> None:
    """Remove a member without its knowledge, as the end of its session does."""
    protocol, connection = thread.protocol, thread.member._connection
    config, member_id = protocol._config, thread.member.member_id
    request = streams_messages.leave(config.group_id, member_id, config.instance_id, False, protocol._version)
    response = connection.submit(protocol._coordinator.offsets, request).result(PATIENCE_SECONDS)
    assert response.error_code == 0


# Removed


def test_a_removed_member_loses_its_tasks_and_rejoins(group: Group) -> None:
    first, second = group.add(), group.add()
    group.settle()
    group.watches = False  # until it learns of it, the removed member keeps its tasks
    evict(second)
    group.run_until(lambda: second.count(Lost))
    group.settle()
    assert (first.count(Lost), second.count(Lost)) == (0, 1)
    lost = next(event for event in second.events if isinstance(event, Lost))
    assert "UNKNOWN_MEMBER_ID" in lost.reason


def test_tasks_of_a_thread_that_does_not_poll_move_to_others(group: Group) -> None:
    slow = group.add(replace(group.config, max_poll_interval_ms=500))
    group.settle()
    slow.closed = True  # its thread is busy
    other = group.add()
    group.settle()
    assert other.active == group.tasks
    slow.closed, group.watches = False, False
    group.run_until(lambda: slow.count(Lost))
    group.settle()
    lost = next(event for event in slow.events if isinstance(event, Lost))
    assert "max.poll.interval.ms=500" in lost.reason


def test_a_static_member_that_does_not_poll_gets_its_tasks_back(group: Group) -> None:
    other = group.add()
    slow = group.add(replace(group.config, instance_id="slot-0", max_poll_interval_ms=500))
    group.settle()
    tasks, others = slow.active, other.active
    slow.closed = True  # its thread is busy
    group.run_for(0.8)
    assert other.active == others
    slow.closed = False
    group.run_until(lambda: slow.count(Lost))
    assert group.settle() < PROMPT_SECONDS
    assert slow.active == tasks
    assert "max.poll.interval.ms=500" in next(event.reason for event in slow.events if isinstance(event, Lost))


# Refused


def test_the_error_names_missing_source_topics(group: Group) -> None:
    missing = f"{group.group_id}-missing"
    thread = group.add(topology=StreamsTopology((StreamsSubtopology(0, (missing,)),)))
    error = fatal_error(group, thread)
    assert isinstance(error, MissingSourceTopicError)
    assert missing in str(error)
    assert thread.count(Assigned) == 0


def test_source_topics_may_appear_a_little_late(group: Group) -> None:
    late = f"{group.group_id}-late"
    topology = StreamsTopology((StreamsSubtopology(0, (late,)),))
    thread = group.add(topology=topology, endpoint="late.example:1")
    group.run_for(4 * HEARTBEAT_MS / 1000)
    group.make_topic("late")
    group.settle()
    assert thread.active == group.tasks


def test_joined_topics_with_different_partition_counts_are_an_error(group: Group) -> None:
    narrow = group.make_topic("narrow", partitions=1)
    sources = tuple(sorted((group.topic, narrow)))
    subtopology = StreamsSubtopology(0, sources, copartition_groups=(sources,))
    error = fatal_error(group, group.add(topology=StreamsTopology((subtopology,))))
    assert isinstance(error, StreamsError)
    assert narrow in str(error)
    assert "repartition()" in str(error)


def test_another_topology_is_refused(group: Group) -> None:
    group.add()
    group.settle()
    own = group.topology.subtopologies[0]
    changelogs = (replace(own.changelog_topics[0], config={"cleanup.policy": "delete"}),)
    topology = replace(
        group.topology,
        subtopologies=(replace(own, changelog_topics=changelogs), StreamsSubtopology(1, (group.topic,))),
    )
    error = fatal_error(group, group.add(topology=topology))
    assert "Topology updates are not supported yet" in str(error)
    changelog, source = changelogs[0].name, group.topic
    for difference in (
        f"Sub-topology 0 has {changelog} with cleanup.policy=compact in the group, with cleanup.policy=delete in this",
        f"Sub-topology 1 reads nothing in the group, {source} in this topology. The members of",
    ):
        assert difference in str(error)
    assert "delete the group" in str(error)


def classic_member(group: Group) -> GroupMember:
    def assign(members: Mapping[str, MemberSubscription]) -> dict[str, MemberAssignment]:
        return {member: MemberAssignment((), b"") for member in members}

    connection = network_settings({"bootstrap.servers": group.bootstrap_servers})
    member = GroupMember(
        replace(group.config, session_timeout_ms=1_800_000),
        connection,
        SystemClock(),
        partial(ClassicProtocol, assign=assign),
    )
    member.join(joining(MemberSubscription(b"", frozenset({group.topic}))))
    return member


def test_a_classic_group_accepts_no_streams_member_until_it_is_empty(group: Group, first: TopicPartition) -> None:
    classic = classic_member(group)
    group.run_until(lambda: any(isinstance(event, Assigned) for event in classic.poll()))
    refused = group.add()
    error = fatal_error(group, refused)
    assert "is not a streams group" in str(error)
    assert "group of another protocol" in str(error)
    refused.close()
    classic.commit({first: OffsetAndMetadata(7, "kept")})
    classic.close(leave=True)
    thread = group.add()
    group.settle()
    assert thread.member.committed([first]) == {first: OffsetAndMetadata(7, "kept")}


def test_the_error_names_a_broker_that_is_too_old(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = replace(STREAMS_GROUP_HEARTBEAT, key=32_000)  # no broker has this version
    monkeypatch.setattr(streams_protocol, "STREAMS_GROUP_HEARTBEAT", unknown)
    error = fatal_error(group, group.add())
    assert "group.protocol=streams needs brokers of Kafka 4.2" in str(error)


@pytest.mark.slow
def test_the_error_names_a_broker_without_the_protocol(unusual_broker: str, unique_name: Callable[[str], str]) -> None:
    with closing(Group(unique_name("group"), unusual_broker)) as group:
        error = fatal_error(group, group.add())
    assert "group.protocol=streams needs brokers of Kafka 4.2" in str(error)


@pytest.mark.slow
def test_members_survive_a_coordinator_restart(stoppable_broker: DevBroker, unique_name: Callable[[str], str]) -> None:
    with closing(Group(unique_name("group"), stoppable_broker.bootstrap_servers)) as group:
        group.configure(session_timeout_ms=60_000)
        config = replace(group.config, max_poll_interval_ms=300_000, api_timeout_ms=5_000)
        first, second = group.add(config), group.add(config)
        group.settle()
        tasks = first.active, second.active
        stoppable_broker.stop()
        with pytest.raises(RetriableCommitError):
            first.member.commit({TopicPartition(group.topic, 0): OffsetAndMetadata(1)})
        stoppable_broker.start()

        def commit() -> bool:
            with suppress(RetriableCommitError):
                first.member.commit({TopicPartition(group.topic, 0): OffsetAndMetadata(2)})
                return True
            return False

        group.run_until(commit)
        group.run_for(10 * HEARTBEAT_MS / 1000)
        assert (first.active, second.active) == tasks
        assert first.count(Lost) == second.count(Lost) == 0
        second.close(leave=True)
        group.settle()
    gc.collect()


# Offsets


def test_offsets_are_committed_with_the_member_epoch(group: Group, first: TopicPartition) -> None:
    member = group.add().member
    second = TopicPartition(group.topic, 1)
    with pytest.raises(TaskMigratedError, match="Not a member"):
        member.commit({first: OffsetAndMetadata(3)})
    group.settle()
    member.commit({first: OffsetAndMetadata(3, "text")})
    member.commit_async({second: OffsetAndMetadata(4)}).result(PATIENCE_SECONDS)
    assert member.committed([first, second]) == {first: OffsetAndMetadata(3, "text"), second: OffsetAndMetadata(4)}


def test_commits_continue_while_tasks_move(group: Group, first: TopicPartition) -> None:
    thread = group.add()
    group.settle()
    group.add()
    committed = 0

    def commit() -> bool:
        nonlocal committed
        committed += 1
        mine = {TopicPartition(group.topic, task.partition): OffsetAndMetadata(committed) for task in thread.active}
        thread.member.commit(mine)
        return group.settled()

    group.run_until(commit)
    assert committed > 3
    assert thread.count(Lost) == 0


def test_a_commit_of_a_removed_member_is_refused(group: Group, first: TopicPartition) -> None:
    thread = group.add()
    group.settle()
    evict(thread)
    with pytest.raises(TaskMigratedError):
        thread.member.commit({first: OffsetAndMetadata(3)})
    with pytest.raises(TaskMigratedError):
        thread.member.group_metadata()
    group.run_until(lambda: thread.count(Lost))
    group.settle()
    assert thread.member.committed([first]) == {first: None}
    thread.member.commit({first: OffsetAndMetadata(3)})


def test_a_commit_with_another_epoch_than_the_members_is_refused(
    group: Group, first: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = group.add()
    group.settle()
    membership = thread.protocol._membership
    group.configure(heartbeat_interval_ms=5_000, session_timeout_ms=45_000)
    group.run_until(lambda: membership._heartbeat_interval_ms == 5_000)  # otherwise a heartbeat fixes it
    identity = membership.identity
    monkeypatch.setattr(membership, "identity", Identity(identity.generation + 1, identity.member_id))
    with pytest.raises(TaskMigratedError):
        thread.member.commit({first: OffsetAndMetadata(3)})
    group.run_until(lambda: thread.count(Lost))
    lost = next(event for event in thread.events if isinstance(event, Lost))
    assert "STALE_MEMBER_EPOCH" in lost.reason


def test_a_transaction_is_fenced_by_the_member_epoch(
    group: Group, first: TopicPartition, unique_name: Callable[[str], str]
) -> None:
    thread = group.add()
    group.settle()
    member: GroupMember = thread.member
    producer = Producer({"bootstrap.servers": group.bootstrap_servers, "transactional.id": unique_name("tx")})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [RdTopicPartition(*first, 8)], encode_group_metadata(member.group_metadata()), PATIENCE_SECONDS
    )
    producer.commit_transaction(PATIENCE_SECONDS)
    assert member.committed([first]) == {first: OffsetAndMetadata(8)}
    evicted = member.group_metadata()
    evict(thread)
    producer.begin_transaction()
    with pytest.raises(KafkaException, match="UNKNOWN_MEMBER_ID"):
        producer.send_offsets_to_transaction(
            [RdTopicPartition(*first, 9)], encode_group_metadata(evicted), PATIENCE_SECONDS
        )
    producer.abort_transaction(PATIENCE_SECONDS)
