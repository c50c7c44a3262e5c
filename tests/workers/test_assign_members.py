"""The assignor and the group member together on a real broker: stream threads without tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
from confluent_kafka.admin import AdminClient

from penstock.clients.clock import SystemClock
from penstock.clients.group.membership import Assigned, Fatal, Lost, Rebalance
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.errors import TaskAssignmentError
from penstock.topology.records import TaskId
from penstock.workers.group.assignment.assignment_info import AssignmentInfo
from penstock.workers.group.assignment.changelog_offsets import ChangelogOffsets
from penstock.workers.group.assignment.streams_partition_assignor import StreamsPartitionAssignor
from penstock.workers.group.assignment.subscription_info import LATEST_OFFSET, LATEST_SUPPORTED_VERSION
from penstock.workers.group.assignment.topics_info import topics_infos
from penstock.workers.group.internal_topic_manager import InternalTopicManager
from penstock.workers.thread.client_supplier import KafkaClientSupplier, static_instance_id
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.broker

PARTITIONS = 6
TASKS = {TaskId(subtopology, partition) for subtopology in (0, 1) for partition in range(PARTITIONS)}
PAUSE_SECONDS = 0.01
#: After so many looks without a change the group is settled: several heartbeat intervals.
QUIET_LOOKS = 50


class Thread:
    """A stream thread that owns tasks but does nothing with them."""

    def __init__(self, config: StreamsConfig, source: str, process: int, slot: int, version: int) -> None:
        log, clock, process_id = PrefixedLogger("test", f"{slot} "), SystemClock(), UUID(int=process)
        supplier = KafkaClientSupplier(config, clock)
        self.admin = supplier.get_admin(f"admin-{slot}")
        self.answers: list[AssignmentInfo] = []
        self.topics = InternalTopicManager(self.admin, config, clock, log)
        self.offsets_reader = supplier.get_offsets_reader(f"offsets-{slot}", 10_000)
        offsets = ChangelogOffsets(self.admin, self.offsets_reader)
        self.assignor = StreamsPartitionAssignor(config, process_id, offsets, clock, log, latest_version=version)
        builder = StreamsBuilder()
        builder.stream(source).group_by(lambda key, value: value).count(store="counts")
        topology = builder.build(config).internal_builder.build_subtopologies(config)
        self.infos = topics_infos(config["application.id"], topology)
        instance_id = static_instance_id(config, process_id, slot)
        self.member = supplier.get_group_member(f"member-{slot}", self.assignor.assign, instance_id)
        self.active: set[TaskId] = set()
        self.standby: set[TaskId] = set()
        self.wants_rebalance = True
        self.lost = 0

    def close(self, leave: bool) -> None:
        self.member.close(leave)
        self.offsets_reader.close()
        self.admin.close()

    def step(self) -> None:
        for event in self.member.poll():
            if isinstance(event, Fatal):
                raise event.error
            if isinstance(event, Lost):
                self.active = set()
                self.lost += 1
            if isinstance(event, Assigned):
                self.take(event)
            else:
                self.wants_rebalance = True
        if self.wants_rebalance and not self.member.join_pending:
            self.join()

    def take(self, event: Assigned) -> None:
        self.answers.append(AssignmentInfo.decode(event.user_data, event.active))
        part = self.assignor.on_assignment(event)
        assert event.active == {partition for partitions in part.active.values() for partition in partitions}
        self.wants_rebalance = bool(self.active - part.active.keys()) or part.next_rebalance_in_ms == 0
        self.active, self.standby = set(part.active), set(part.standby)

    def join(self) -> None:
        self.wants_rebalance = False
        self.assignor.update_topics(self.infos, self.topics.make_ready(self.infos))
        offsets = dict.fromkeys((task for task in self.active if task.subtopology == 1), LATEST_OFFSET)
        self.member.join(self.assignor.joining(self.active, self.standby, offsets), "test")


class Application:
    """Threads of one application; each check asserts that no task is owned twice."""

    def __init__(self, config: StreamsConfig, source: str) -> None:
        self.config = config
        self.source = source
        self.threads: list[Thread] = []

    def start(self, process: int, slot: int, version: int = LATEST_SUPPORTED_VERSION) -> Thread:
        thread = Thread(self.config, self.source, process, slot, version)
        self.threads.append(thread)
        return thread

    def stop(self, thread: Thread, leave: bool) -> None:
        self.threads.remove(thread)
        thread.close(leave)

    def settle(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        quiet = 0
        while quiet < QUIET_LOOKS:
            assert time.monotonic() < deadline, [sorted(thread.active) for thread in self.threads]
            for thread in self.threads:
                thread.step()
                owned = [task for each in self.threads for task in each.active]
                assert len(owned) == len(set(owned)), "a task is owned twice"
            changing = set(owned) != TASKS or any(t.member.join_pending or t.wants_rebalance for t in self.threads)
            quiet = 0 if changing else quiet + 1
            time.sleep(PAUSE_SECONDS)


@pytest.fixture
def start_application(
    application_id: str, make_topic: Callable[..., str], admin: AdminClient, bootstrap_servers: str
) -> Iterator[Callable[..., Application]]:
    made: list[Application] = []

    def start(**values: object) -> Application:
        config = StreamsConfig(
            {
                "application.id": application_id,
                "bootstrap.servers": bootstrap_servers,
                "heartbeat.interval.ms": 100,
                "replication.factor": 1,
                **{name.replace("__", "."): value for name, value in values.items()},
            }
        )
        made.append(Application(config, make_topic("in", partitions=PARTITIONS)))
        return made[-1]

    yield start
    for application in made:
        for thread in application.threads:
            thread.close(leave=True)


def test_no_task_is_owned_twice_while_threads_join_and_leave(start_application: Callable[..., Application]) -> None:
    application = start_application()
    first = application.start(process=1, slot=1)
    application.settle()
    assert first.active == TASKS
    second, third = application.start(process=1, slot=2), application.start(process=2, slot=1)
    application.settle()
    assert sorted(len(thread.active) for thread in application.threads) == [4, 4, 4]
    application.stop(second, leave=True)
    application.settle()
    assert sorted(len(thread.active) for thread in application.threads) == [6, 6]
    application.stop(first, leave=True)
    application.settle()
    assert third.active == TASKS


def test_a_replaced_process_gets_its_tasks_back_without_a_rebalance(
    start_application: Callable[..., Application],
) -> None:
    application = start_application()
    first, second = (application.start(process=1, slot=slot) for slot in (1, 2))
    application.settle()
    kept, before = set(first.active), set(second.active)
    rebalances: list[object] = []
    poll = first.member.poll
    first.member.poll = lambda: [rebalances.append(e) or e for e in poll()]  # type: ignore[method-assign, func-returns-value]
    application.stop(second, leave=False)
    replacement = application.start(process=1, slot=2)
    application.settle()
    assert (first.active, replacement.active) == (kept, before)
    assert not any(isinstance(event, Rebalance) for event in rebalances)


def test_standbys_of_another_process_take_over(start_application: Callable[..., Application]) -> None:
    application = start_application(num__standby__replicas=1)
    first, second = application.start(process=1, slot=1), application.start(process=2, slot=1)
    application.settle()
    stateful = {task for task in TASKS if task.subtopology == 1}
    assert first.standby | second.standby == stateful
    assert first.standby == second.active & stateful
    application.stop(second, leave=True)
    application.settle()
    assert first.active == TASKS
    assert first.standby == set()


@pytest.mark.parametrize("versions", [(10, 11), (11, 10)], ids=["old leader", "new leader"])
def test_two_encoding_versions_share_a_group_until_the_old_member_leaves(
    start_application: Callable[..., Application], versions: tuple[int, int]
) -> None:
    """KIP-268, on a real broker: version 11 has client tags, which version 10 cannot read."""
    application = start_application()
    first, second = (application.start(number, number, version) for number, version in enumerate(versions, start=1))
    application.settle()
    assert len(first.active) == len(second.active) == len(TASKS) / 2
    assert first.answers[-1].version == second.answers[-1].version == 10
    old, new = sorted((first, second), key=lambda thread: thread.assignor.latest_version)
    assert new.answers[-1].commonly_supported_version == 10
    application.stop(old, leave=True)
    application.settle()
    assert new.active == TASKS
    assert new.answers[-1].version == 11


def test_another_topology_under_the_same_id_is_reported_and_the_application_continues(
    start_application: Callable[..., Application], make_topic: Callable[..., str]
) -> None:
    application = start_application()
    right = application.start(1, 1)
    application.settle()
    builder = StreamsBuilder()
    builder.stream(make_topic("foreign", partitions=2)).group_by_key().count(store="others")
    wrong = application.start(2, 2)
    config = application.config
    wrong.infos = topics_infos(
        config["application.id"], builder.build(config).internal_builder.build_subtopologies(config)
    )
    with pytest.raises(TaskAssignmentError, match="Two applications have the same"):
        application.settle()
    application.stop(wrong, leave=True)
    application.settle()
    assert right.active == TASKS
