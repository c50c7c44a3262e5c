"""The classic group member against a real broker: joining, staying, leaving, being removed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count

import pytest
from confluent_kafka import Consumer

from penstock.clients.clock import SystemClock
from penstock.clients.cluster.cluster import Cluster
from penstock.clients.cluster.coordinators import CoordinatorKind
from penstock.clients.group import requests
from penstock.clients.group.classic_protocol import ClassicProtocol
from penstock.clients.group.group_member import GroupMember
from penstock.clients.group.member_state import MemberState
from penstock.clients.group.membership import (
    Assign,
    Assigned,
    Event,
    Fatal,
    FencedInstanceIdError,
    Lost,
    MemberAssignment,
    MemberSubscription,
    Rebalance,
)
from penstock.clients.group.requests import GroupMemberConfig
from penstock.clients.network_settings import network_settings
from penstock.topology.errors import StreamsError, TaskAssignmentError
from penstock.topology.records import TopicPartition
from tests.clients.joining import joining
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.broker

PARTITIONS = 4
PAUSE_SECONDS = 0.01
#: Above any patience: what a test waits for is never the end of a session. A process that gets no CPU keeps its own.
NEVER_MS = 1_800_000
#: The shortest session that brokers allow.
SESSION_TIMEOUT_MS = 6_000


def split(partitions: list[TopicPartition]) -> Assign:
    """Return an assign function that distributes the partitions in the order of instance and member ids."""

    def assign(members: Mapping[str, MemberSubscription]) -> dict[str, MemberAssignment]:
        order = sorted(members, key=lambda member: (members[member].instance_id or "", member))
        parts = {member: partitions[index :: len(order)] for index, member in enumerate(order)}
        return {member: MemberAssignment(parts[member], members[member].user_data) for member in members}

    return assign


def _host_of(user_data: bytes) -> tuple[str, str]:
    """Return the host and the process of "host/process17"."""
    name = user_data.decode().rstrip("0123456789")
    return name.partition("/")[0], name


class Driver:
    """One member, and a stream thread's handling of its events: it rejoins whenever required.

    host: the start of the user data, which replaces that of a stream thread.
    """

    def __init__(
        self, config: GroupMemberConfig, bootstrap_servers: str, assign: Assign, topic: str, host: str = ""
    ) -> None:
        network = network_settings({"bootstrap.servers": bootstrap_servers})
        self.member = GroupMember(
            config, network, SystemClock(), partial(ClassicProtocol, assign=assign, host_of=_host_of)
        )
        self.topic = topic
        self.host = host
        self.events: list[Event] = []
        self.rejoins = True
        self.closed = False
        self._unique = count()

    def join(self) -> None:
        user_data = f"{self.host}{next(self._unique)}".encode()
        self.member.join(joining(MemberSubscription(user_data, frozenset({self.topic}))), "test")

    def step(self) -> None:
        for event in self.member.poll():
            self.events.append(event)
            if self.rejoins and isinstance(event, Rebalance | Lost):
                self.join()

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)

    def last(self, kind: type[Event]) -> Event:
        return next(event for event in reversed(self.events) if isinstance(event, kind))

    @property
    def assigned(self) -> Assigned:
        last = self.last(Assigned)
        assert isinstance(last, Assigned)
        return last

    def close(self, leave: bool = True) -> None:
        if not self.closed:
            self.closed = True
            self.member.close(leave)


class Group:
    """Members of one group, polled by one thread."""

    def __init__(self, group_id: str, topic: str, bootstrap_servers: str) -> None:
        self.topic = topic
        self.partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        self.bootstrap_servers = bootstrap_servers
        self.config = GroupMemberConfig(
            group_id,
            session_timeout_ms=NEVER_MS,
            heartbeat_interval_ms=100,
            max_poll_interval_ms=30_000,
            api_timeout_ms=10_000,
        )
        self.drivers: list[Driver] = []

    def add(
        self, instance_id: str | None = None, assign: Assign | None = None, host: str = "", **settings: int
    ) -> Driver:
        config = replace(self.config, instance_id=instance_id, **settings)  # type: ignore[arg-type]
        driver = Driver(config, self.bootstrap_servers, assign or split(self.partitions), self.topic, host)
        self.drivers.append(driver)
        driver.join()
        return driver

    def run_until(self, condition: Callable[[], object]) -> float:
        """Poll all members until the condition holds; return the seconds that took."""
        started = time.monotonic()
        while not condition():
            assert time.monotonic() - started < PATIENCE_SECONDS, [(d.member.member_id, d.events) for d in self.drivers]
            for driver in self.drivers:
                if not driver.closed:
                    driver.step()
            time.sleep(PAUSE_SECONDS)
        return time.monotonic() - started

    def run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.run_until(lambda: time.monotonic() >= end)

    def settled(self) -> bool:
        """Return True if all live members have their share in the same generation, and together have all partitions."""
        live = [driver for driver in self.drivers if not driver.closed]
        if any(driver.member.join_pending or not driver.count(Assigned) for driver in live):
            return False
        parts = [driver.assigned for driver in live]
        taken = sorted(partition for part in parts for partition in part.active)
        return len({part.generation for part in parts}) == 1 and taken == self.partitions

    def settle(self) -> float:
        return self.run_until(self.settled)


@pytest.fixture
def group(unique_name: Callable[[str], str], make_topic: Callable[..., str], bootstrap_servers: str) -> Iterator[Group]:
    made = Group(unique_name("group"), make_topic("in", partitions=PARTITIONS), bootstrap_servers)
    yield made
    for driver in made.drivers:
        driver.close()


def evict(group: Group, member_id: str) -> None:
    """Remove a member without its knowledge, as an operator's tool can."""
    connection = Cluster(network_settings({"bootstrap.servers": group.bootstrap_servers}))

    async def leave() -> list[int]:
        offsets = await connection.find_coordinator(CoordinatorKind.GROUP, group.config.group_id)
        return requests.leave_errors(
            await connection.send(offsets, requests.leave_group(group.config.group_id, member_id, None, ""))
        )

    try:
        assert connection.submit(leave).result(PATIENCE_SECONDS) == []
    finally:
        connection.close()


def test_a_single_member_leads_and_gets_all_partitions_with_its_user_data(group: Group) -> None:
    driver = group.add()
    group.settle()
    assert driver.assigned == Assigned(1, b"0", frozenset(group.partitions))
    assert driver.count(Rebalance) == 0
    assert driver.member.member_id


def test_a_second_member_causes_a_rebalance_and_both_share(group: Group) -> None:
    first = group.add()
    group.settle()
    second = group.add()
    group.settle()
    assert first.count(Rebalance) >= 1
    assert len(first.assigned.active) == len(second.assigned.active) == PARTITIONS // 2
    assert second.assigned.generation > 1


def test_members_with_long_work_between_polls_converge(group: Group) -> None:
    """kafka-python's KafkaConsumer never converges: it drops a join that finishes between two polls."""
    for _ in range(3):
        group.add()

    def slow() -> bool:
        time.sleep(0.3)
        return group.settled()

    group.run_until(slow)
    assert sorted(len(driver.assigned.active) for driver in group.drivers) == [1, 1, 2]


def test_join_starts_a_rebalance_at_any_time(group: Group) -> None:
    """Kafka Streams does this with enforceRebalance: for a probing rebalance, or after it revoked a task."""
    for _ in range(2):
        group.add()
    group.settle()
    generations = [driver.assigned.generation for driver in group.drivers]
    follower = min(group.drivers, key=lambda driver: driver.count(Rebalance))
    follower.join()
    group.run_until(lambda: all(driver.assigned.generation > max(generations) for driver in group.drivers))


def test_a_second_concurrent_join_is_refused(group: Group) -> None:
    driver = group.add()
    assert driver.member.join_pending
    with pytest.raises(StreamsError, match="is already pending"):
        driver.join()
    group.settle()
    assert not driver.member.join_pending


def test_a_rebalance_that_a_join_already_answers_is_not_reported(group: Group) -> None:
    first, second = group.add(), group.add()
    group.settle()
    told, generation = first.count(Rebalance), first.assigned.generation
    second.join()
    deadline = time.monotonic() + PATIENCE_SECONDS
    protocol = first.member._protocol
    assert isinstance(protocol, ClassicProtocol)
    while protocol.state is not MemberState.REBALANCE:  # the event waits for a poll
        assert time.monotonic() < deadline
        time.sleep(PAUSE_SECONDS)
    first.join()
    group.run_until(lambda: first.assigned.generation > generation)
    assert first.count(Rebalance) == told


def test_a_member_that_leaves_is_replaced_before_its_session_ends(group: Group) -> None:
    first, second = group.add(), group.add()
    group.settle()
    second.close()
    group.settle()
    assert first.assigned.active == frozenset(group.partitions)


@pytest.mark.slow
def test_a_member_that_dies_is_replaced_when_its_session_ends(group: Group) -> None:
    first, second = group.add(), group.add(session_timeout_ms=SESSION_TIMEOUT_MS)
    group.settle()
    second.close(leave=False)
    assert group.settle() > SESSION_TIMEOUT_MS / 1000 / 2
    assert first.assigned.active == frozenset(group.partitions)


@pytest.mark.parametrize("static", [False, True])
def test_the_members_of_a_lost_host_are_replaced_before_their_session_ends(group: Group, static: bool) -> None:
    def on(host: str, *slots: int) -> list[Driver]:
        ids = [f"{host}-{slot}" if static else None for slot in slots]
        return [group.add(instance_id, host=host, heartbeat_interval_ms=3_000) for instance_id in ids]

    living, lost = on("one", 1), on("two", 1, 2)
    group.settle()
    for driver in lost:
        driver.closed = True
        driver.member._connection.close()  # without a LeaveGroup request
    living[0].member.release_host("two")
    group.settle()
    assert living[0].count(Lost) == 0


def test_hosts_with_the_same_address_are_distinguished(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    living, same = group.add(host="one"), [group.add(host=f"two/{process}") for process in "ab"]
    group.settle()
    living.member.release_host("two")
    group.run_until(lambda: "Several hosts have application.server=two" in caplog.text)
    group.run_for(0.5)
    assert [driver.count(Lost) for driver in (living, *same)] == [0, 0, 0]


def test_a_replaced_static_member_gets_its_partitions_back_without_a_rebalance(group: Group) -> None:
    drivers = [group.add(instance_id=f"slot-{number}") for number in range(2)]
    group.settle()
    generation, parts = drivers[0].assigned.generation, [driver.assigned.active for driver in drivers]
    events = len(drivers[0].events)
    drivers[1].close(leave=False)
    replacement = group.add(instance_id="slot-1")
    group.settle()
    assert replacement.assigned.active == parts[1]
    assert replacement.assigned.generation == generation
    group.run_for(0.5)
    assert drivers[0].events[events:] == []


def test_a_replaced_static_leader_does_not_assign_again(group: Group) -> None:
    """JoinGroup v9's skip_assignment: the broker keeps the stored assignment."""
    asked: list[int] = []

    def assign(members: Mapping[str, MemberSubscription]) -> Mapping[str, MemberAssignment]:
        asked.append(len(members))
        return split(group.partitions)(members)

    drivers = [group.add(instance_id="slot-0", assign=assign)]
    group.settle()
    drivers.append(group.add(instance_id="slot-1", assign=assign))
    group.settle()
    rounds = len(asked)
    drivers[0].close(leave=False)
    leader = group.add(instance_id="slot-0", assign=assign)
    group.settle()
    assert len(asked) == rounds
    assert leader.assigned.active
    drivers[1].join()
    group.run_until(lambda: len(asked) > rounds)  # it is still the leader


def test_a_static_member_can_leave_for_scale_down(group: Group) -> None:
    first, second = (group.add(instance_id=f"slot-{number}") for number in range(2))
    group.settle()
    second.close(leave=True)
    group.settle()
    assert first.assigned.active == frozenset(group.partitions)


def test_a_member_whose_instance_id_was_taken_ends_with_an_error(group: Group) -> None:
    first = group.add(instance_id="slot-0")
    group.settle()
    second = group.add(instance_id="slot-0")
    group.run_until(lambda: first.count(Fatal) and second.count(Assigned))
    fatal = first.last(Fatal)
    assert isinstance(fatal, Fatal)
    assert isinstance(fatal.error, FencedInstanceIdError)
    assert "group.instance.id=slot-0" in str(fatal.error)
    with pytest.raises(StreamsError, match="has failed; create a new one"):
        first.join()


def test_a_member_fenced_between_join_and_sync_rejoins_once(group: Group) -> None:
    """A coordinator that cannot write takes back a member id that it has just assigned.

    Here another member takes the slot.
    """
    rounds: list[int] = []
    taken = threading.Event()

    def assign(members: Mapping[str, MemberSubscription]) -> Mapping[str, MemberAssignment]:
        rounds.append(len(members))
        if len(rounds) == 1:  # the first member's, before its SyncGroup
            group.add(instance_id="slot-0", assign=assign)
            assert taken.wait(PATIENCE_SECONDS)
        else:
            taken.set()
        return split(group.partitions)(members)

    first = group.add(instance_id="slot-0", assign=assign)
    group.run_until(lambda: first.count(Assigned))
    second = group.drivers[1]
    group.run_until(lambda: second.count(Fatal))
    fatal = second.last(Fatal)
    assert isinstance(fatal, Fatal)
    assert isinstance(fatal.error, FencedInstanceIdError)
    assert not first.count(Fatal)
    assert first.assigned.active == frozenset(group.partitions)


def test_a_thread_that_does_not_poll_loses_its_tasks_to_the_others(group: Group) -> None:
    slow, other = group.add(max_poll_interval_ms=1_000), group.add()
    group.settle()
    group.drivers.remove(slow)  # it stops polling
    group.run_until(lambda: other.assigned.active == frozenset(group.partitions))
    group.drivers.append(slow)
    group.settle()
    lost = slow.last(Lost)
    assert isinstance(lost, Lost)
    assert "max.poll.interval.ms=1000" in lost.reason
    assert len(slow.assigned.active) == PARTITIONS // 2


def test_a_member_removed_from_the_group_learns_of_it_and_rejoins(group: Group) -> None:
    driver = group.add()
    group.settle()
    member_id = driver.member.member_id
    evict(group, member_id)
    group.run_until(lambda: driver.count(Lost) and driver.count(Assigned) == 2)
    assert driver.member.member_id != member_id


def test_a_subscription_from_before_a_loss_is_not_sent(group: Group) -> None:
    """It would claim tasks that other members own by now."""
    driver = group.add()
    group.settle()
    driver.rejoins = False
    evict(group, driver.member.member_id)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while driver.member.member_id:  # the IO thread knows of the loss; the events are not polled yet
        assert time.monotonic() < deadline
        time.sleep(PAUSE_SECONDS)
    driver.join()
    group.run_until(lambda: driver.count(Lost))
    group.run_for(0.5)
    assert driver.count(Assigned) == 1
    assert not driver.member.join_pending
    driver.join()
    group.settle()
    assert driver.count(Assigned) == 2


def test_a_failing_assignor_ends_the_leader_with_its_error(group: Group) -> None:
    error = TaskAssignmentError("no topology")

    def assign(members: Mapping[str, MemberSubscription]) -> Mapping[str, MemberAssignment]:
        raise error

    driver = group.add(assign=assign)
    group.run_until(lambda: driver.events)
    assert driver.events == [Fatal(error)]


def test_an_assignor_that_omits_a_member_ends_the_leader(group: Group) -> None:
    driver = group.add(assign=lambda members: {})
    group.run_until(lambda: driver.events)
    fatal = driver.last(Fatal)
    assert isinstance(fatal, Fatal)
    assert "The assignor returned assignments of []" in str(fatal.error)


def test_the_error_names_members_of_another_protocol(group: Group) -> None:
    consumer = Consumer({"bootstrap.servers": group.bootstrap_servers, "group.id": group.config.group_id})
    try:
        consumer.subscribe([group.topic])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not consumer.assignment():
            assert time.monotonic() < deadline
            consumer.poll(0.1)
        driver = group.add()
        group.run_until(lambda: driver.events)
    finally:
        consumer.close()
    fatal = driver.last(Fatal)
    assert isinstance(fatal, Fatal)
    assert "has members of another kind" in str(fatal.error)


def test_the_error_names_a_setting_that_the_broker_refuses(group: Group) -> None:
    driver = group.add(session_timeout_ms=1)
    group.run_until(lambda: driver.events)
    fatal = driver.last(Fatal)
    assert isinstance(fatal, Fatal)
    assert "session.timeout.ms is not between" in str(fatal.error)


def test_closing_during_a_join_leaves_the_group_too(group: Group) -> None:
    """LeaveGroup uses a second connection. Behind the pending JoinGroup it would wait until the rebalance ends."""
    first = group.add()
    group.settle()
    first.rejoins = False  # so that the rebalance cannot end
    second = group.add()
    group.run_until(lambda: first.count(Rebalance))
    started = time.monotonic()
    second.close()
    assert time.monotonic() - started < SESSION_TIMEOUT_MS / 1000
    first.rejoins = True
    first.join()
    group.settle()
    assert first.assigned.active == frozenset(group.partitions)


def test_a_normal_life_leaves_no_warnings_in_the_log(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            group.add()
        group.settle()
        for driver in group.drivers:
            driver.rejoins = False  # so that the join of the next member is pending when it closes
        late = group.add()
        group.run_until(lambda: late.member.member_id)
        for driver in group.drivers:
            driver.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "unavailable" not in caplog.text
    assert "FATAL" not in caplog.text
