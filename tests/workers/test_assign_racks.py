"""Rack-aware assignment (KIP-925): properties of the optimizer, and the leader's knowledge of racks."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import islice, permutations
from math import ceil
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clients.clock import SystemClock
from penstock.clients.cluster.admin import NewTopic
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.group.assignment import cycle_canceling
from penstock.workers.group.assignment.assignment_info import AssignmentInfo
from penstock.workers.group.assignment.client_state import Clients, ClientState, sorted_clients
from penstock.workers.group.assignment.cycle_canceling import cancel_negative_cycles
from penstock.workers.group.assignment.rack_aware import Costs, PartitionRacks, RackAwareOptimizer
from penstock.workers.group.assignment.standby_task_assignors import ClientTagAwareStandbyTaskAssignor
from penstock.workers.group.assignment.streams_partition_assignor import StreamsPartitionAssignor
from penstock.workers.group.assignment.task_groups import TaskGroup, fill_shares
from penstock.workers.group.internal_topic_manager import InternalTopicManager
from penstock.workers.thread.client_supplier import KafkaClientSupplier
from tests.brokers import UNUSUAL
from tests.examples import examples
from tests.workers.test_assign_group import (
    COUNTS,
    TASKS,
    TOPICS,
    FixedClock,
    FixedOffsets,
    rebalance,
    subscribed,
    topics_info,
)

pytestmark = pytest.mark.medium

LOG = PrefixedLogger("test", "")
RACKS = ("red", "green", "blue")
COSTS = st.sampled_from([Costs(10, 1), Costs(1, 10), Costs(1, 0)])
STRATEGIES = ("min_traffic", "balance_subtopology")


def optimizer(strategy: str, clients: Clients, tasks: list[TaskId], chance: random.Random) -> RackAwareOptimizer:
    """Return an optimizer for partitions with replicas in random racks; the clients are in random racks too."""

    def anywhere() -> tuple[frozenset[str], ...]:
        return tuple(frozenset(chance.sample(RACKS, chance.randint(1, 2))) for _ in range(chance.randint(1, 2)))

    racks = {process_id: chance.choice(RACKS) for process_id in clients}
    return RackAwareOptimizer(
        strategy, racks, {task: anywhere() for task in tasks}, {task: anywhere() for task in tasks}
    )


def dealt(clients: int, tasks: list[TaskId], chance: random.Random) -> Clients:
    made = sorted_clients(ClientState(UUID(int=n + 1), consumers={str(n)}) for n in range(clients))
    for task in tasks:
        chance.choice(list(made.values())).assign_active(task)
    return made


def misses(partitions: PartitionRacks, rack: str) -> int:
    return sum(rack not in racks for racks in partitions)


def active_cost(racks: RackAwareOptimizer, clients: Clients, before: Mapping[TaskId, UUID], costs: Costs) -> int:
    """Return the cost of the active tasks where they are now, compared with the former assignment."""
    return sum(
        misses(racks.source_racks[task], racks.client_racks[process_id]) * costs.traffic
        + (process_id != before[task]) * costs.non_overlap
        for task, process_id in owners(clients).items()
    )


def standby_cost(racks: RackAwareOptimizer, clients: Clients) -> int:
    """Return the number of partitions that standby tasks read from another rack."""
    return sum(
        misses(racks.changelog_racks[task], racks.client_racks[client.process_id])
        for client in clients.values()
        for task in client.standby_tasks
    )


def owners(clients: Clients) -> dict[TaskId, UUID]:
    return {task: client.process_id for client in clients.values() for task in client.active_tasks}


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(
    st.integers(1, 6), st.lists(st.integers(0, 12), min_size=1, max_size=4), COSTS, st.randoms(use_true_random=False)
)
@settings(max_examples=examples(80), deadline=None)
def test_tasks_are_exchanged_only_if_that_is_cheaper(
    strategy: str, size: int, partitions: list[int], costs: Costs, chance: random.Random
) -> None:
    tasks = [TaskId(subtopology, n) for subtopology, count in enumerate(partitions) for n in range(count)]
    clients = dealt(size, tasks, chance)
    racks = optimizer(strategy, clients, tasks, chance)
    before, sizes = owners(clients), [len(client.active_tasks) for client in clients.values()]
    cost_before = active_cost(racks, clients, before, costs)
    racks.optimize_active(tasks, clients, costs)
    assert sorted(owners(clients)) == tasks
    assert [len(client.active_tasks) for client in clients.values()] == sizes
    if strategy == "min_traffic":
        assert active_cost(racks, clients, before, costs) <= cost_before
        settled = owners(clients)
        racks.optimize_active(tasks, clients, costs)
        assert owners(clients) == settled  # the assignment of an unchanged group stays
    else:
        shares = Counter(
            (client.process_id, task.subtopology) for client in clients.values() for task in client.active_tasks
        )
        for (process_id, subtopology), share in shares.items():
            fair = len(clients[process_id].active_tasks) / len(tasks) * partitions[subtopology]
            assert share <= ceil(fair + 1e-9)


@given(st.integers(2, 3), st.integers(1, 6), COSTS, st.randoms(use_true_random=False))
@settings(max_examples=examples(60), deadline=None)
def test_no_other_assignment_is_cheaper(size: int, count: int, costs: Costs, chance: random.Random) -> None:
    tasks = [TaskId(0, n) for n in range(count)]
    clients = dealt(size, tasks, chance)
    racks = optimizer("min_traffic", clients, tasks, chance)
    before = owners(clients)
    racks.optimize_active(tasks, clients, costs)
    cost = active_cost(racks, clients, before, costs)
    for places in set(permutations(before.values())):
        for client in clients.values():
            client.active_tasks = {
                task for task, place in zip(tasks, places, strict=True) if place == client.process_id
            }
        assert cost <= active_cost(racks, clients, before, costs)


@given(st.integers(2, 6), st.integers(1, 16), COSTS, st.randoms(use_true_random=False))
@settings(max_examples=examples(80), deadline=None)
def test_standby_tasks_are_exchanged_but_not_to_the_client_of_their_active_task(
    size: int, count: int, costs: Costs, chance: random.Random
) -> None:
    tasks = [TaskId(0, n) for n in range(count)]
    clients = dealt(size, tasks, chance)
    racks = optimizer("min_traffic", clients, tasks, chance)
    for task in tasks:
        chance.choice([c for c in clients.values() if task not in c.active_tasks]).assign_standby(task)
    sizes, cost_before = [len(c.standby_tasks) for c in clients.values()], standby_cost(racks, clients)
    racks.optimize_standby(clients, costs, lambda source, destination, task: True)
    assert standby_cost(racks, clients) <= cost_before
    assert [len(c.standby_tasks) for c in clients.values()] == sizes
    assert sorted(task for c in clients.values() for task in c.standby_tasks) == tasks
    assert not any(c.active_tasks & c.standby_tasks for c in clients.values())
    kept = [set(c.standby_tasks) for c in clients.values()]
    racks.optimize_standby(clients, costs, lambda source, destination, task: False)
    assert [c.standby_tasks for c in clients.values()] == kept


def groups_with_shares(chance: random.Random) -> list[TaskGroup]:
    """Return tasks of some sub-topologies. Many of them leave a client no room, so that their distances fall apart."""
    clients = chance.randint(2, 6)
    racks = [number % 3 for number in range(clients)]
    counts = [clients * chance.randint(1, 3) if chance.random() < 0.6 else chance.randint(1, 9) for _ in range(3)]
    homes = iter([number % clients for number in range(sum(counts))])
    sizes = [len(range(client, sum(counts), clients)) for client in range(clients)]
    groups = []
    for count in counts:
        traffic = [[chance.choice((0, 1, 2, 10)) for _ in range(count)] for _ in RACKS]
        shares = [ceil(size / sum(counts) * count) for size in sizes]
        groups.append(TaskGroup(list(islice(homes, count)), racks, traffic, chance.choice((0, 1, 5)), shares))
    fill_shares(groups, sizes)
    return groups


def test_passes_that_are_skipped_would_have_changed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def owners_of_groups() -> list[list[list[int]]]:
        found = []
        for seed in range(100):
            groups = groups_with_shares(random.Random(seed))
            cancel_negative_cycles(groups)
            found.append([group.owners for group in groups])
        return found

    skipping = owners_of_groups()
    monkeypatch.setattr(cycle_canceling._CycleSearch, "_skip", lambda search, done, last: done)
    assert owners_of_groups() == skipping


@pytest.mark.parametrize(
    ("strategy", "size", "subtopologies", "most_s"),
    [
        ("min_traffic", 20, 1, 1.0),
        ("balance_subtopology", 20, 1, 2.0),
        ("balance_subtopology", 20, 5, 4.0),
        ("min_traffic", 100, 5, 5.0),
    ],
)
def test_ten_tasks_of_each_of_many_clients_take_seconds(
    strategy: str, size: int, subtopologies: int, most_s: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured in seconds of CPU. For each cycle Kafka Streams goes through all edges once per node."""
    chance, costs = random.Random(1), Costs(10, 1)
    tasks = [TaskId(s, n) for s in range(subtopologies) for n in range(10 * size // subtopologies)]
    clients = dealt(size, tasks, chance)
    racks = optimizer(strategy, clients, tasks, chance)
    for task in tasks:
        chance.choice([c for c in clients.values() if task not in c.active_tasks]).assign_standby(task)
    homes = owners(clients)
    before = active_cost(racks, clients, homes, costs)
    started = time.process_time()
    racks.optimize_active(tasks, clients, costs)
    active = time.process_time() - started
    racks.optimize_standby(clients, costs, lambda source, destination, task: True)
    both = time.process_time() - started
    after = active_cost(racks, clients, homes, costs)
    with capsys.disabled():
        print(
            f"\n{strategy}, {len(tasks)} tasks of {subtopologies} sub-topologies, {size} clients: cost {before} to "
            f"{after} in {active:.2f} s of CPU, standby tasks in {both - active:.2f} s"
        )
    assert after < before
    assert both < most_s


# The leader's knowledge of racks


def racks_of(*, without: str = "") -> dict[TopicPartition, frozenset[str]]:
    """Return racks of partitions, in turn one and the other; those of one topic are left out."""
    topics = {**COUNTS, "a-changelog": 6}
    return {
        TopicPartition(topic, n): frozenset({("red", "green")[n % 2]})
        for topic, count in topics.items()
        if topic != without
        for n in range(count)
    }


def member(
    process: int, rack: str, racks: Mapping[TopicPartition, frozenset[str]], standbys: int = 0
) -> StreamsPartitionAssignor:
    config = StreamsConfig({"rack.aware.assignment.strategy": "min_traffic", "num.standby.replicas": standbys})
    made = StreamsPartitionAssignor(config, UUID(int=process), FixedOffsets(), FixedClock(), LOG, rack=rack)
    made.update_topics(TOPICS, COUNTS, racks)
    return made


def assigned(members: Mapping[str, StreamsPartitionAssignor]) -> dict[str, set[TaskId]]:
    leader = next(iter(members.values()))
    parts = rebalance(leader, {name: subscribed(assignor, (), (), {}) for name, assignor in members.items()})
    return {name: set(AssignmentInfo.decode(part.user_data, part.active).active) for name, part in parts.items()}


def test_members_read_from_brokers_of_their_own_rack() -> None:
    placed = assigned({"m-1": member(1, "red", racks_of()), "m-2": member(2, "green", racks_of())})
    assert {task.partition % 2 for task in placed["m-1"]} == {0}
    assert placed["m-1"] | placed["m-2"] == TASKS


@pytest.mark.parametrize(
    ("rack", "without", "standbys", "message"),
    [
        ("", "", 0, "members of client 00000000-0000-0000-0000-000000000002 have no client.rack"),
        ("green", "b", 0, "for 4 partitions, among them b-0, the brokers have no rack"),
        ("green", "a-changelog", 1, "for 6 partitions, among them a-changelog-0, the brokers have no rack"),
        ("green", "a-changelog", 0, None),
    ],
)
def test_without_all_racks_tasks_are_assigned_anyway_and_the_log_names_the_missing_ones(
    rack: str, without: str, standbys: int, message: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    racks = racks_of(without=without)
    with caplog.at_level(logging.ERROR):
        placed = assigned({"m-1": member(1, "red", racks, standbys), "m-2": member(2, rack, racks, standbys)})
    assert placed["m-1"] | placed["m-2"] == TASKS
    assert (message in caplog.text) if message else not caplog.text


def test_threads_of_one_client_in_different_racks_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    assigned({"m-1": member(1, "red", racks_of()), "m-2": member(1, "green", racks_of())})
    assert (
        "members of client 00000000-0000-0000-0000-000000000001 have no client.rack, or different ones" in caplog.text
    )


@pytest.mark.broker
@pytest.mark.slow
def test_the_brokers_report_the_racks(unusual_broker: str, unique_name: Callable[[str], str]) -> None:
    application, topic = unique_name("app"), unique_name("in")
    config = StreamsConfig(
        {
            "application.id": application,
            "bootstrap.servers": unusual_broker,
            "rack.aware.assignment.strategy": "min_traffic",
        }
    )
    changelog = f"{application}-counts-changelog"
    infos = {0: topics_info(0, topic, changelogs=[changelog])}
    with closing(KafkaClientSupplier(config).get_admin("admin")) as admin:
        manager = InternalTopicManager(admin, config, SystemClock(), LOG)
        assert admin.create_topics([NewTopic(topic, 2, 1)], 30_000) == {topic: None}
        manager.make_ready(infos)
    assert manager.partition_racks == {
        TopicPartition(name, n): frozenset({UNUSUAL["broker.rack"]}) for name in (topic, changelog) for n in range(2)
    }


def test_spread_over_tags_takes_precedence_over_rack_traffic() -> None:
    """KIP-708 takes precedence over KIP-925. Copies of 0_0 are in zones x (active), y and z; a second client is
    in x.
    """
    clients = sorted_clients(
        ClientState(UUID(int=number), {"zone": zone}, consumers={str(number)})
        for number, zone in enumerate(("x", "y", "z", "x"), start=1)
    )
    active, first, second, spare = clients.values()
    task = TaskId(0, 0)
    active.assign_active(task)
    first.assign_standby(task)
    second.assign_standby(task)
    assignor = ClientTagAwareStandbyTaskAssignor()
    assert not assignor.may_move(clients, first, spare, task)
    active.client_tags = {"zone": "z"}
    assert assignor.may_move(clients, first, spare, task)
