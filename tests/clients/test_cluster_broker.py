"""A Cluster against real brokers: the broker it chooses for each request, and the responses."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.clients.clock import SystemClock
from penstock.clients.cluster.brokers import KafkaBrokers
from penstock.clients.cluster.cluster import Cluster
from penstock.clients.cluster.coordinators import CoordinatorKind
from penstock.clients.errors import ErrorCode, RetriableError, UnreachableError
from penstock.clients.group.classic_protocol import ClassicProtocol
from penstock.clients.group.group_member import GroupMember
from penstock.clients.group.membership import Assigned, MemberAssignment, MemberSubscription, RetriableCommitError
from penstock.clients.group.requests import GroupMemberConfig
from penstock.clients.network_settings import network_settings
from penstock.clients.protocol.messages import FIND_COORDINATOR, HEARTBEAT, METADATA
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.testing.broker import EmbeddedKafka
from penstock.topology.records import TopicPartition
from tests.brokers import FIRST, IDS, SECOND, THIRD, ThreeBrokers
from tests.clients.conftest import Open
from tests.clients.joining import joining
from tests.free_port import free_ports
from tests.topics import create_topics
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker
PRODUCE = 0


def until_answered(ask: Callable[[], Future[Any]]) -> Any:
    """Return the result once there is no retriable error: a broker that has just started creates its internal topics
    first.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            answer = ask().result(PATIENCE_SECONDS)
            if not ErrorCode(getattr(answer, "error_code", 0)).retriable:
                return answer
        except RetriableError:
            assert time.monotonic() < deadline
        time.sleep(0.05)


def test_leaders_have_epochs_and_topics_have_ids(bootstrap_servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic("in", 3)
    done = threading.Event()
    brokers = KafkaBrokers(network_settings({"bootstrap.servers": bootstrap_servers}))
    try:
        found = brokers.leaders([topic, "no-such-topic"], done.set).result(PATIENCE_SECONDS)
        assert found.by_partition.keys() == {TopicPartition(topic, number) for number in range(3)}
        assert all(leader.node >= 0 and leader.epoch >= 0 for leader in found.by_partition.values())
        assert found.errors == {"no-such-topic": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert [len(topic_id) for topic_id in found.ids.values()] == [16]
        assert done.wait(PATIENCE_SECONDS)
        first = until_answered(lambda: brokers.producer_id(done.set))
        assert until_answered(lambda: brokers.producer_id(done.set)).id > first.id
    finally:
        brokers.close()


def test_an_opened_connection_is_not_used_by_other_requests(bootstrap_servers: str, opened: Open) -> None:
    cluster = opened(Cluster, bootstrap_servers)
    cluster.submit(cluster.metadata, []).result(PATIENCE_SECONDS)
    questions = [cluster.submit(cluster.metadata, []) for _ in range(3)]
    taken = cluster.submit(cluster.open, 1).result(PATIENCE_SECONDS)
    assert all(question.result(PATIENCE_SECONDS).brokers for question in questions)
    taken.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        taken.socket.recv(1)
    assert taken.versions[PRODUCE][1] >= 9
    assert taken.features["metadata.version"] > 0
    taken.socket.close()
    with pytest.raises(UnreachableError, match="broker 77 is no longer"):
        cluster.submit(cluster.open, 77).result(PATIENCE_SECONDS)


def test_all_clients_of_a_process_share_one_thread(bootstrap_servers: str, opened: Open) -> None:
    def io_threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-")]

    eventually(lambda: io_threads() == [], "those of earlier tests have ended")
    clusters = [opened(Cluster, bootstrap_servers) for _ in range(4)]
    for cluster in clusters:
        cluster.submit(cluster.metadata, []).result(PATIENCE_SECONDS)
    assert io_threads() == ["penstock-io"]
    for cluster in clusters:
        cluster.close()
    assert io_threads() == []


def test_a_coordinator_gets_the_request_and_the_caller_gets_its_error(bootstrap_servers: str, opened: Open) -> None:
    cluster = opened(Cluster, bootstrap_servers)
    request = HEARTBEAT(group_id="nobody's", generation_id=1, member_id="nobody")
    code = ErrorCode.NONE
    deadline = time.monotonic() + PATIENCE_SECONDS
    while code is ErrorCode.NONE:  # a coordinator that still loads the group accepts every heartbeat
        assert time.monotonic() < deadline
        asked = until_answered(
            lambda: cluster.submit(cluster.ask_coordinator, CoordinatorKind.GROUP, "nobody's", request)
        )
        code = ErrorCode(asked.error_code)
    assert code is ErrorCode.UNKNOWN_MEMBER_ID


def test_close_ends_pending_requests(opened: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cluster = opened(Cluster, f"127.0.0.1:{silent.getsockname()[1]}")
        waiting = cluster.submit(cluster.metadata, [])
        accepted, _ = silent.accept()
        cluster.close()
        assert waiting.cancelled()
        accepted.settimeout(PATIENCE_SECONDS)
        while accepted.recv(1_000):
            continue  # the requests it has sent; then the end
        accepted.close()


def test_long_work_may_use_the_cluster_and_is_waited_for(bootstrap_servers: str, opened: Open) -> None:
    """A group's leader requests offsets during the assignment. On the event loop it would block its own response."""
    cluster, other = opened(Cluster, bootstrap_servers), opened(Cluster, bootstrap_servers)
    may_end, ended = threading.Event(), threading.Event()

    def ask() -> int:
        return len(other.submit(other.metadata, []).result(PATIENCE_SECONDS).brokers)

    def linger() -> None:
        may_end.wait(PATIENCE_SECONDS)
        ended.set()

    assert cluster.submit(cluster.run, ask).result(PATIENCE_SECONDS) == 1
    lingering = cluster.submit(cluster.run, linger)
    closing = threading.Thread(target=cluster.close)
    closing.start()
    assert ask() == 1
    assert not ended.is_set()
    may_end.set()
    closing.join()
    assert ended.is_set()
    assert lingering.cancelled()


def test_a_broker_that_moved_is_found_through_the_bootstrap_servers(opened: Open) -> None:
    """None of the known brokers is reachable any more (KIP-899)."""
    old, new = free_ports(2)
    with EmbeddedKafka(port=old):
        cluster = opened(Cluster, f"127.0.0.1:{new},127.0.0.1:{old}")
        before = cluster.submit(cluster.metadata, []).result(PATIENCE_SECONDS)
        assert [broker.port for broker in before.brokers] == [old]
    with pytest.raises(UnreachableError):
        cluster.submit(cluster.metadata, []).result(PATIENCE_SECONDS)
    with EmbeddedKafka(port=new):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                after = cluster.submit(cluster.metadata, []).result(PATIENCE_SECONDS)
                break
            except UnreachableError:  # it backs off
                assert time.monotonic() < deadline
        assert [broker.port for broker in after.brokers] == [new]


@pytest.mark.slow
def test_the_coordinator_is_found_after_the_bootstrap_server_is_gone(
    three_brokers: ThreeBrokers, opened: Open, unique_name: Callable[[str], str]
) -> None:
    """The coordinator is the bootstrap server, one of the two brokers that may be killed."""
    topic, others = unique_name("in"), {SECOND: three_brokers.second, THIRD: three_brokers.third}
    cluster = opened(Cluster, three_brokers.bootstrap_servers)
    group_id, node = group_coordinated_by(others.keys(), cluster, unique_name("group"))
    coordinator = others[node]
    admin = AdminClient({"bootstrap.servers": three_brokers.bootstrap_servers})
    create_topics(admin, NewTopic(topic, 1, replica_assignment=[[node, FIRST]]))
    config = GroupMemberConfig(group_id, heartbeat_interval_ms=500, api_timeout_ms=2_000)
    network = network_settings({"bootstrap.servers": coordinator.bootstrap_servers, "connections.max.idle.ms": 0})
    protocol = partial(ClassicProtocol, assign=lambda members: {name: MemberAssignment((), b"") for name in members})
    member = GroupMember(config, network, SystemClock(), protocol)
    try:
        member.join(joining(MemberSubscription(b"", frozenset({topic}))))
        wait_for_assignment(member)
        member.commit({TopicPartition(topic, 0): OffsetAndMetadata(1)})
        coordinator.kill()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                member.commit({TopicPartition(topic, 0): OffsetAndMetadata(2)})
                break
            except RetriableCommitError:
                assert time.monotonic() < deadline
        assert member.committed([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): OffsetAndMetadata(2)}
    finally:
        member.close(leave=False)


def group_coordinated_by(nodes: Collection[int], cluster: Cluster, name: str) -> tuple[str, int]:
    """Return the id of a group that one of these brokers coordinates, the name with a number; and the broker's id."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    number = 0
    while time.monotonic() < deadline:
        number += 1
        group = f"{name}-{number}"
        found = cluster.submit(cluster.ask_any, FIND_COORDINATOR(key=group, coordinator_keys=[group]))
        coordinator = found.result(PATIENCE_SECONDS).coordinators[0]
        topics = cluster.submit(cluster.ask_any, METADATA(topics=[{"name": "__consumer_offsets"}]))
        partitions = topics.result(PATIENCE_SECONDS).topics[0].partitions
        if coordinator.node_id in nodes and all(len(partition.isr_nodes) == len(IDS) for partition in partitions):
            return group, coordinator.node_id
    raise AssertionError(f"no group is coordinated by one of {nodes}")


def wait_for_assignment(member: GroupMember) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not any(isinstance(event, Assigned) for event in member.poll()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
