"""A Cluster against real brokers: which of them it asks, and what it is told."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.clients.clock import SystemClock
from penstock.clients.cluster.brokers import KafkaBrokers
from penstock.clients.cluster.cluster import Cluster
from penstock.clients.cluster.coordinators import CoordinatorKind
from penstock.clients.errors import ErrorCode, RetriableError, UnreachableError
from penstock.clients.group.group_member import GroupMember
from penstock.clients.group.membership import Assigned, MemberAssignment, MemberSubscription, RetriableCommitError
from penstock.clients.group.requests import GroupMemberConfig
from penstock.clients.network_settings import network_settings
from penstock.clients.protocol.messages import FIND_COORDINATOR, HEARTBEAT, METADATA
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.dev.dev_broker import DevBroker
from penstock.topology.records import TopicPartition
from tests.brokers import LedBroker
from tests.clients.conftest import Open

pytestmark = pytest.mark.broker
DEADLINE_SECONDS = 60.0
#: Two brokers beside others on one machine take their time.
START_SECONDS = 180.0
PRODUCE = 0


def until_answered(ask: Callable[[], Future[Any]]) -> Any:
    """Return an answer that is no retriable error: a broker that has just started makes its internal topics first."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            answer = ask().result(DEADLINE_SECONDS)
            if not ErrorCode(getattr(answer, "error_code", 0)).retriable:
                return answer
        except RetriableError:
            assert time.monotonic() < deadline
        time.sleep(0.05)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_leaders_come_with_epochs_and_the_topics_ids(bootstrap_servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic("in", 3)
    done = threading.Event()
    brokers = KafkaBrokers(network_settings({"bootstrap.servers": bootstrap_servers}))
    try:
        found = brokers.leaders([topic, "no-such-topic"], done.set).result(DEADLINE_SECONDS)
        assert found.by_partition.keys() == {TopicPartition(topic, number) for number in range(3)}
        assert all(leader.node >= 0 and leader.epoch >= 0 for leader in found.by_partition.values())
        assert found.errors == {"no-such-topic": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert [len(topic_id) for topic_id in found.ids.values()] == [16]
        assert done.wait(DEADLINE_SECONDS)
        first = until_answered(lambda: brokers.producer_id(done.set))
        assert until_answered(lambda: brokers.producer_id(done.set)).id > first.id
    finally:
        brokers.close()


def test_a_connection_is_its_owners_alone(bootstrap_servers: str, opened: Open) -> None:
    cluster = opened(Cluster, bootstrap_servers)
    cluster.submit(cluster.metadata, []).result(DEADLINE_SECONDS)
    questions = [cluster.submit(cluster.metadata, []) for _ in range(3)]
    taken = cluster.submit(cluster.open, 1).result(DEADLINE_SECONDS)
    assert all(question.result(DEADLINE_SECONDS).brokers for question in questions)
    taken.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        taken.socket.recv(1)
    assert taken.versions[PRODUCE][1] >= 9
    assert taken.features["metadata.version"] > 0
    taken.socket.close()
    with pytest.raises(UnreachableError, match="broker 77 is no longer"):
        cluster.submit(cluster.open, 77).result(DEADLINE_SECONDS)


def test_all_clients_of_a_process_share_one_thread(bootstrap_servers: str, opened: Open) -> None:
    def io_threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-")]

    assert io_threads() == []
    clusters = [opened(Cluster, bootstrap_servers) for _ in range(4)]
    for cluster in clusters:
        cluster.submit(cluster.metadata, []).result(DEADLINE_SECONDS)
    assert io_threads() == ["penstock-io"]
    for cluster in clusters:
        cluster.close()
    assert io_threads() == []


def test_a_coordinator_is_asked_and_a_refusal_is_the_callers(bootstrap_servers: str, opened: Open) -> None:
    cluster = opened(Cluster, bootstrap_servers)
    request = HEARTBEAT(group_id="nobody's", generation_id=1, member_id="nobody")
    code = ErrorCode.NONE
    deadline = time.monotonic() + DEADLINE_SECONDS
    while code is ErrorCode.NONE:  # a coordinator that still loads the group says yes to every heartbeat
        assert time.monotonic() < deadline
        asked = until_answered(
            lambda: cluster.submit(cluster.ask_coordinator, CoordinatorKind.GROUP, "nobody's", request)
        )
        code = ErrorCode(asked.error_code)
    assert code is ErrorCode.UNKNOWN_MEMBER_ID


def test_closing_ends_what_still_waits(opened: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cluster = opened(Cluster, f"127.0.0.1:{silent.getsockname()[1]}")
        waiting = cluster.submit(cluster.metadata, [])
        accepted, _ = silent.accept()
        cluster.close()
        assert waiting.cancelled()
        accepted.settimeout(DEADLINE_SECONDS)
        while accepted.recv(1_000):
            continue  # what it has asked; then the end
        accepted.close()


def test_what_takes_long_may_ask_the_cluster_itself_and_is_waited_for(bootstrap_servers: str, opened: Open) -> None:
    """A group's leader asks for offsets while it assigns; on the loop itself it would wait for its own answer."""
    cluster, other = opened(Cluster, bootstrap_servers), opened(Cluster, bootstrap_servers)
    may_end, ended = threading.Event(), threading.Event()

    def ask() -> int:
        return len(other.submit(other.metadata, []).result(DEADLINE_SECONDS).brokers)

    def linger() -> None:
        may_end.wait(DEADLINE_SECONDS)
        ended.set()

    assert cluster.submit(cluster.run, ask).result(DEADLINE_SECONDS) == 1
    lingering = cluster.submit(cluster.run, linger)
    closing = threading.Thread(target=cluster.close)
    closing.start()
    assert ask() == 1
    assert not ended.is_set()
    may_end.set()
    closing.join()
    assert ended.is_set()
    assert lingering.cancelled()


def test_a_broker_that_comes_back_elsewhere_is_found_by_the_bootstrap_servers(tmp_path: Path, opened: Open) -> None:
    """None of the brokers that are known can be reached any more (KIP-899)."""
    old, new = free_port(), free_port()
    with DevBroker("moving", tmp_path / "broker", port=old):
        cluster = opened(Cluster, f"127.0.0.1:{new},127.0.0.1:{old}")
        before = cluster.submit(cluster.metadata, []).result(DEADLINE_SECONDS)
        assert [broker.port for broker in before.brokers] == [old]
    with pytest.raises(UnreachableError):
        cluster.submit(cluster.metadata, []).result(DEADLINE_SECONDS)
    with DevBroker("moving", tmp_path / "broker", port=new):
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                after = cluster.submit(cluster.metadata, []).result(DEADLINE_SECONDS)
                break
            except UnreachableError:  # it backs off
                assert time.monotonic() < deadline
        assert [broker.port for broker in after.brokers] == [new]


@pytest.fixture
def two_brokers(tmp_path: Path) -> Iterator[LedBroker]:
    """The second of two brokers: it may go, the controller is the first one's."""
    config = {
        "offsets.topic.replication.factor": "2",
        "offsets.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        "broker.session.timeout.ms": "6000",
    }
    first = DevBroker("first", tmp_path / "first", config=config)
    first.start(START_SECONDS)
    try:
        second = LedBroker(first, "second", tmp_path / "second", config)
        second.start(START_SECONDS)
        try:
            admin = AdminClient({"bootstrap.servers": second.bootstrap_servers})
            admin.create_topics([NewTopic("in", 1, 2)])["in"].result(DEADLINE_SECONDS)
            yield second
        finally:
            second.stop()
    finally:
        first.stop()


@pytest.mark.slow
def test_the_coordinator_is_found_although_the_bootstrap_server_is_gone_for_good(
    two_brokers: LedBroker, opened: Open
) -> None:
    second = two_brokers
    cluster = opened(Cluster, second.bootstrap_servers)
    group_id = group_coordinated_by(second, cluster)
    config = GroupMemberConfig(group_id, heartbeat_interval_ms=500, api_timeout_ms=2_000)
    network = network_settings({"bootstrap.servers": second.bootstrap_servers, "connections.max.idle.ms": 0})
    member = GroupMember(
        config, network, lambda members: {name: MemberAssignment((), b"") for name in members}, SystemClock()
    )
    try:
        member.join(MemberSubscription(b"", frozenset({"in"})))
        wait_for_assignment(member)
        member.commit({TopicPartition("in", 0): OffsetAndMetadata(1)})
        second.kill()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                member.commit({TopicPartition("in", 0): OffsetAndMetadata(2)})
                break
            except RetriableCommitError:
                assert time.monotonic() < deadline
        assert member.committed([TopicPartition("in", 0)]) == {TopicPartition("in", 0): OffsetAndMetadata(2)}
    finally:
        member.close(leave=False)


def group_coordinated_by(broker: DevBroker, cluster: Cluster) -> str:
    """Return a group's id that this broker coordinates."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    port = int(broker.bootstrap_servers.rpartition(":")[2])
    number = 0
    while time.monotonic() < deadline:
        number += 1
        found = cluster.submit(cluster.ask_any, FIND_COORDINATOR(key=f"g{number}", coordinator_keys=[f"g{number}"]))
        coordinator = found.result(DEADLINE_SECONDS).coordinators[0]
        topics = cluster.submit(cluster.ask_any, METADATA(topics=[{"name": "__consumer_offsets"}]))
        partitions = topics.result(DEADLINE_SECONDS).topics[0].partitions
        if coordinator.port == port and all(len(partition.isr_nodes) == 2 for partition in partitions):
            return f"g{number}"
    raise AssertionError("no group is coordinated by the second broker")


def wait_for_assignment(member: GroupMember) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not any(isinstance(event, Assigned) for event in member.poll()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
