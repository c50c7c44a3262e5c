"""The classic group of the in-memory broker: the delay of its first rebalance, silent static members, and outages."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.clients.protocol.messages import HEARTBEAT, JOIN_GROUP, SYNC_GROUP
from penstock.clients.protocol.schema import Request
from penstock.testing.broker import Cluster
from penstock.testing.broker.cluster import Connection

SESSION_MS, REBALANCE_MS, DELAY_MS = 6_000, 10_000, 50


class Client:
    """A static member's connection. now_ms: the time of its requests."""

    def __init__(self, cluster: Cluster, instance_id: str) -> None:
        self.cluster, self.instance_id = cluster, instance_id
        self.member_id = ""
        self.generation = -1
        self._connection: Connection | None = None
        self._request: Request | None = None

    def join(self, now_ms: int) -> None:
        protocols = [{"name": "range", "metadata": b""}]
        timeouts = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": REBALANCE_MS}
        self._send(JOIN_GROUP(**self._who(), **timeouts, protocol_type="consumer", protocols=protocols), 5, now_ms)

    def joined(self) -> Any:
        """Return the response to the join, None if there is none yet."""
        answer = self._answer(5)
        if answer is not None:
            self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer

    def sync(self, now_ms: int) -> Any:
        self._send(SYNC_GROUP(**self._who(), generation_id=self.generation, assignments=[]), 3, now_ms)
        return self._answer(3)

    def heartbeat(self, now_ms: int) -> int:
        self._send(HEARTBEAT(**self._who(), generation_id=self.generation), 3, now_ms)
        return int(self._answer(3).error_code)

    def _who(self) -> dict[str, Any]:
        return {"group_id": "g", "member_id": self.member_id, "group_instance_id": self.instance_id}

    def _send(self, request: Request, version: int, now_ms: int) -> None:
        self._connection, self._request = self.cluster.connect(1), request
        self.cluster.receive(self._connection, request.encode(version, 0, self.instance_id), now_ms)

    def _answer(self, version: int) -> Any:
        assert self._connection is not None
        assert self._request is not None
        if not self._connection.outbox:
            return None
        return self._request.api.decode(self._connection.outbox.popleft(), version)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(config={"group.initial.rebalance.delay.ms": str(DELAY_MS)})


def started(cluster: Cluster, *instances: str) -> list[Client]:
    """Return members of a stable group, which exists since DELAY_MS."""
    members = [Client(cluster, instance) for instance in instances]
    for member in members:
        member.join(0)
    cluster.advance(DELAY_MS)
    cluster.advance(2 * DELAY_MS)
    for member in members:
        assert member.joined() is not None
    leader = cluster.groups.classic("g").leader
    for member in sorted(members, key=lambda one: one.member_id == leader):  # the leader last
        member.sync(2 * DELAY_MS)
    return members


def test_the_first_rebalance_is_delayed_and_once_more_for_new_members(cluster: Cluster) -> None:
    first, second = Client(cluster, "a"), Client(cluster, "b")
    first.join(0)
    second.join(10)
    assert first.joined() is None, "all have joined, and others may come"
    cluster.advance(DELAY_MS - 1)
    assert first.joined() is None
    cluster.advance(DELAY_MS)
    assert first.joined() is None, "one has come since"
    assert cluster.deadline_ms() == 2 * DELAY_MS
    cluster.advance(2 * DELAY_MS)
    generations = {answer.generation_id for answer in (first.joined(), second.joined())}
    assert generations == {1}


def test_a_member_that_has_not_rejoined_does_not_lead(cluster: Cluster) -> None:
    leader, other = started(cluster, "a", "b")
    third = Client(cluster, "c")
    third.join(1_000)
    other.join(1_000)
    assert leader.heartbeat(1_000) != 0, "it is to join again, and does not"
    for now_ms in range(2_000, REBALANCE_MS + 1_000, 1_000):
        leader.heartbeat(now_ms)
    cluster.advance(REBALANCE_MS + 1_000)
    answers = [other.joined(), third.joined()]
    assert {answer.generation_id for answer in answers} == {2}
    assert {answer.leader for answer in answers} <= {other.member_id, third.member_id}
    assert leader.member_id in cluster.groups.classic("g").members, "it is a static member"


def test_a_rebalance_that_no_static_member_has_joined_completes(cluster: Cluster) -> None:
    (only,) = started(cluster, "a")
    group = cluster.groups.classic("g")
    group.prepare()
    for now_ms in range(1_000, REBALANCE_MS + 2_000, 1_000):
        only.heartbeat(now_ms)
        cluster.advance(now_ms)
    assert group.generation == 1
    only.join(REBALANCE_MS + 2_000)
    answer = only.joined()
    assert (answer.generation_id, answer.leader) == (2, only.member_id)


def test_sessions_do_not_end_while_brokers_are_down_and_restart_with_them(cluster: Cluster) -> None:
    started(cluster, "a")
    members = cluster.groups.classic("g").members
    cluster.stop_node(1)
    assert cluster.deadline_ms() is None
    cluster.advance(10 * SESSION_MS)
    assert members
    cluster.start_node(1)
    back_ms = cluster.now_ms
    cluster.advance(back_ms + SESSION_MS - 1)
    assert members
    cluster.advance(back_ms + SESSION_MS)
    assert not members


@pytest.mark.parametrize("stopped", [1, 2])
def test_sessions_do_not_restart_if_the_coordinator_stays(stopped: int) -> None:
    cluster = Cluster(2)
    Client(cluster, "a").join(0)
    before = cluster.coordinator("g")
    (member,) = cluster.groups.classic("g").members.values()
    cluster.advance(1_000)
    cluster.stop_node(stopped)
    moved = cluster.coordinator("g") is not before
    assert moved == (before.id == stopped)
    assert member.heard_ms == (1_000 if moved else 0)
