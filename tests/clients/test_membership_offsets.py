"""Commits of a group member against a real broker, and the same member's offsets in a producer's transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as RdTopicPartition

from penstock.clients.clock import SystemClock
from penstock.clients.cluster.cluster import Cluster
from penstock.clients.cluster.coordinators import CoordinatorKind
from penstock.clients.group import requests
from penstock.clients.group.classic_protocol import ClassicProtocol
from penstock.clients.group.group_member import GroupMember
from penstock.clients.group.membership import (
    Assigned,
    Event,
    Fatal,
    FencedInstanceIdError,
    Lost,
    MemberAssignment,
    MemberSubscription,
    Rebalance,
    RetriableCommitError,
)
from penstock.clients.group.offsets import GroupOffsets
from penstock.clients.group.offsets_reader import GroupOffsetsReader
from penstock.clients.group.requests import GroupMemberConfig
from penstock.clients.librdkafka.group_metadata import encode_group_metadata
from penstock.clients.network_settings import network_settings
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.topology.errors import BrokerUnavailableError, StreamsError, TaskMigratedError
from penstock.topology.records import TopicPartition
from tests.clients.joining import joining
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.broker

PAUSE_SECONDS = 0.01


def echo(members: Mapping[str, MemberSubscription]) -> dict[str, MemberAssignment]:
    return {member: MemberAssignment((), subscription.user_data) for member, subscription in members.items()}


class Members:
    """Makes members of one group and closes them."""

    def __init__(self, group_id: str, topic: str, bootstrap_servers: str) -> None:
        self.config = GroupMemberConfig(
            group_id, session_timeout_ms=1_800_000, heartbeat_interval_ms=100, api_timeout_ms=60_000
        )
        self.topic = topic
        self.bootstrap_servers = bootstrap_servers
        self.servers = network_settings({"bootstrap.servers": bootstrap_servers})
        self.made: list[GroupMember] = []

    def stranger(self) -> GroupMember:
        """A member that has not joined."""
        member = GroupMember(self.config, self.servers, SystemClock(), partial(ClassicProtocol, assign=echo))
        self.made.append(member)
        return member

    def join(self, instance_id: str | None = None, heartbeat_interval_ms: int = 100) -> GroupMember:
        config = replace(
            self.config,
            instance_id=instance_id,
            heartbeat_interval_ms=heartbeat_interval_ms,
            eager_heartbeat_interval_ms=heartbeat_interval_ms,
        )
        member = GroupMember(config, self.servers, SystemClock(), partial(ClassicProtocol, assign=echo))
        self.made.append(member)
        member.join(joining(MemberSubscription(b"", frozenset({self.topic}))))
        return member

    def joined(self, instance_id: str | None = None, heartbeat_interval_ms: int = 100) -> GroupMember:
        member = self.join(instance_id, heartbeat_interval_ms)
        wait_for(member, Assigned)
        return member

    def evict(self, member: GroupMember) -> None:
        connection = Cluster(self.servers)

        async def leave() -> list[int]:
            offsets = await connection.find_coordinator(CoordinatorKind.GROUP, self.config.group_id)
            request = requests.leave_group(self.config.group_id, member.member_id, self.config.instance_id, "")
            return requests.leave_errors(await connection.send(offsets, request))

        try:
            assert connection.submit(leave).result(PATIENCE_SECONDS) == []
        finally:
            connection.close()


def wait_for(member: GroupMember, kind: type[Event]) -> Event:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for event in member.poll():
            if isinstance(event, kind):
                return event
        time.sleep(PAUSE_SECONDS)
    raise AssertionError(f"no {kind.__name__}")


@pytest.fixture
def members(
    unique_name: Callable[[str], str], make_topic: Callable[..., str], bootstrap_servers: str
) -> Iterator[Members]:
    made = Members(unique_name("group"), make_topic("in", partitions=3), bootstrap_servers)
    yield made
    for member in made.made:
        member.close(leave=True)


@pytest.fixture
def first(members: Members) -> TopicPartition:
    return TopicPartition(members.topic, 0)


def transactional_producer(members: Members) -> Producer:
    producer = Producer({"bootstrap.servers": members.bootstrap_servers, "transactional.id": members.config.group_id})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    return producer


def test_a_response_that_arrives_after_the_next_assignment_is_discarded(
    members: Members, first: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the meantime another member may have owned the partition, and may have committed."""
    members.config = replace(members.config, committed_wait_ms=100)
    member = members.joined()
    member.commit({first: OffsetAndMetadata(3)})
    fetch, told = GroupOffsets.fetch, threading.Event()

    async def late(self: GroupOffsets, partitions: Collection[TopicPartition]) -> Any:
        found = await fetch(self, partitions)
        while not told.is_set():
            await self._coordinator.pause()
        return found

    monkeypatch.setattr(GroupOffsets, "fetch", late)
    with pytest.raises(BrokerUnavailableError, match="are not available yet"):
        member.committed([first])
    member.commit({first: OffsetAndMetadata(9)})
    told.set()
    member.join(joining(MemberSubscription(b"again", frozenset({members.topic}))))
    wait_for(member, Assigned)
    found = None
    while found is None:
        with suppress(BrokerUnavailableError):
            found = member.committed([first])
    assert found == {first: OffsetAndMetadata(9)}


def test_committed_offsets_are_read_by_this_member_and_by_librdkafka(members: Members, first: TopicPartition) -> None:
    member = members.joined()
    second, third = (TopicPartition(members.topic, number) for number in (1, 2))
    member.commit({first: OffsetAndMetadata(5, "one", leader_epoch=0), second: OffsetAndMetadata(0)})
    assert member.committed([first, second, third]) == {
        first: OffsetAndMetadata(5, "one", 0),
        second: OffsetAndMetadata(0),
        third: None,
    }
    group_id = members.config.group_id
    consumer = Consumer({"bootstrap.servers": members.bootstrap_servers, "group.id": group_id})
    try:
        (read,) = consumer.committed([RdTopicPartition(*first)], timeout=PATIENCE_SECONDS)
    finally:
        consumer.close()
    assert read.offset == 5  # its metadata is not compared: librdkafka reads past the end of a text without a NUL


def test_an_asynchronous_commit_completes_its_future(members: Members, first: TopicPartition) -> None:
    member = members.joined()
    future = member.commit_async({first: OffsetAndMetadata(7)})
    future.result(PATIENCE_SECONDS)
    assert member.committed([first]) == {first: OffsetAndMetadata(7, "")}


def test_reading_offsets_needs_no_membership(members: Members, first: TopicPartition) -> None:
    members.joined().commit({first: OffsetAndMetadata(3)})
    stranger = members.stranger()
    assert stranger.committed([first]) == {first: OffsetAndMetadata(3, "")}


def test_offsets_can_be_read_without_joining_the_group(
    members: Members, first: TopicPartition, bootstrap_servers: str
) -> None:
    text = "a text that is long enough to end behind its bytes if its length is not known: " + "x" * 200
    members.joined().commit({first: OffsetAndMetadata(5, text)})
    second = TopicPartition(members.topic, 1)
    with GroupOffsetsReader(
        members.config.group_id, network_settings({"bootstrap.servers": bootstrap_servers})
    ) as reader:
        assert reader.committed([first, second]) == {first: OffsetAndMetadata(5, text), second: None}
        assert reader.committed([]) == {}
        reader.close()
        assert reader.committed([first]) == {first: OffsetAndMetadata(5, text)}  # opens another connection


def test_a_commit_without_membership_is_refused_before_it_is_sent(members: Members, first: TopicPartition) -> None:
    """The broker would accept it while the group is empty."""
    stranger = members.stranger()
    with pytest.raises(TaskMigratedError, match="Not a member"):
        stranger.commit({first: OffsetAndMetadata(3)})
    with pytest.raises(TaskMigratedError, match="Not a member"):
        stranger.group_metadata()
    assert stranger.committed([first]) == {first: None}


def test_a_removed_member_cannot_commit_and_learns_of_its_removal(members: Members, first: TopicPartition) -> None:
    member = members.joined(heartbeat_interval_ms=5_000)  # the commit detects it, before a heartbeat does
    members.evict(member)
    with pytest.raises(TaskMigratedError):
        member.commit({first: OffsetAndMetadata(3)})
    lost = wait_for(member, Lost)
    assert lost == Lost("the coordinator responded with UNKNOWN_MEMBER_ID")
    assert member.committed([first]) == {first: None}


def test_a_member_may_commit_during_a_rebalance_until_it_joins(members: Members, first: TopicPartition) -> None:
    member = members.joined()
    newcomer = members.join()
    wait_for(member, Rebalance)
    member.commit({first: OffsetAndMetadata(3)})
    member.join(joining(MemberSubscription(b"again", frozenset({members.topic}))))
    wait_for(newcomer, Assigned)
    wait_for(member, Assigned)
    members.join()
    wait_for(member, Rebalance)
    # This join gets no response, because the newcomer does not join again.
    member.join(joining(MemberSubscription(b"once more", frozenset({members.topic}))))
    with pytest.raises(RetriableCommitError, match="rebalancing"):
        member.commit({first: OffsetAndMetadata(4)})
    newcomer.join(joining(MemberSubscription(b"too", frozenset({members.topic}))))
    wait_for(member, Assigned)
    member.commit({first: OffsetAndMetadata(5)})
    assert member.committed([first]) == {first: OffsetAndMetadata(5, "")}


def test_a_fenced_member_cannot_commit(members: Members, first: TopicPartition) -> None:
    member = members.joined("slot-0", heartbeat_interval_ms=5_000)
    members.joined("slot-0")
    with pytest.raises(FencedInstanceIdError, match=r"group\.instance\.id=slot-0"):
        member.commit({first: OffsetAndMetadata(3)})
    assert isinstance(wait_for(member, Fatal), Fatal)


def test_too_large_metadata_is_refused_with_a_fatal_error(members: Members, first: TopicPartition) -> None:
    member = members.joined()
    with pytest.raises(StreamsError, match="OFFSET_METADATA_TOO_LARGE"):
        member.commit({first: OffsetAndMetadata(3, "x" * 10_000)})
    with pytest.raises(StreamsError, match="100000 bytes"):  # longer than the protocol's maximum for strings
        member.commit({first: OffsetAndMetadata(3, "x" * 100_000)})
    member.commit({first: OffsetAndMetadata(3, "x")})


def test_a_failed_commit_has_the_brokers_error(members: Members) -> None:
    members.config = replace(members.config, api_timeout_ms=2_000)
    member = members.joined()
    with pytest.raises(RetriableCommitError, match=r"not accepted within 2000 ms .*UNKNOWN_TOPIC_OR_PARTITION"):
        member.commit({TopicPartition("no-such-topic", 0): OffsetAndMetadata(3)})


@pytest.mark.parametrize("instance_id", [None, "slot-0"])
def test_a_transaction_commits_offsets_for_the_member(
    members: Members, first: TopicPartition, instance_id: str | None
) -> None:
    member = members.joined(instance_id)
    producer = transactional_producer(members)
    metadata = encode_group_metadata(member.group_metadata())
    producer.send_offsets_to_transaction([RdTopicPartition(*first, 9, "eos")], metadata, PATIENCE_SECONDS)
    producer.commit_transaction(PATIENCE_SECONDS)
    assert member.committed([first]) == {first: OffsetAndMetadata(9, "eos")}  # without the NUL that librdkafka stores


def test_a_transaction_of_an_old_generation_is_fenced(members: Members, first: TopicPartition) -> None:
    member = members.joined()
    stale = member.group_metadata()
    member.join(joining(MemberSubscription(b"changed", frozenset({members.topic}))))
    wait_for(member, Assigned)
    producer = transactional_producer(members)
    with pytest.raises(KafkaException, match="ILLEGAL_GENERATION"):
        producer.send_offsets_to_transaction(
            [RdTopicPartition(*first, 9)], encode_group_metadata(stale), PATIENCE_SECONDS
        )
    producer.abort_transaction(PATIENCE_SECONDS)
    assert member.committed([first]) == {first: None}


def test_reading_offsets_waits_for_an_open_transaction(members: Members, first: TopicPartition) -> None:
    member = members.joined()
    producer = transactional_producer(members)
    producer.send_offsets_to_transaction(
        [RdTopicPartition(*first, 9)], encode_group_metadata(member.group_metadata()), PATIENCE_SECONDS
    )
    reader = members.stranger()
    future = reader._connection.submit(reader._protocol.committed, [first])
    with pytest.raises(TimeoutError):
        future.result(0.5)
    producer.commit_transaction(PATIENCE_SECONDS)
    assert future.result(PATIENCE_SECONDS) == {first: OffsetAndMetadata(9, "")}
