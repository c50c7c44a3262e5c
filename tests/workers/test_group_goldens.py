"""The assignments of our leader for seeded groups with members on Java, against Kafka Streams' own leader (4.3.1).

See group_goldens/README.md.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Mapping
from math import ceil
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from penstock.clients.group.membership import MemberSubscription
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.group.assignment.client_state import AssignmentConfigs
from penstock.workers.group.assignment.group_assignment import GroupMembers, GroupSubscriptions
from penstock.workers.group.assignment.rack_aware import RackAwareOptimizer, rack_aware_optimizer
from penstock.workers.group.assignment.subscription_info import LATEST_SUPPORTED_VERSION, SubscriptionInfo
from penstock.workers.group.assignment.task_assignors import (
    HighAvailabilityTaskAssignor,
    StickyTaskAssignor,
    validate_task_assignment,
)
from penstock.workers.group.assignment.thread_assignment import Role, assign_as_kafka_streams

pytestmark = pytest.mark.medium

GOLDENS = Path(__file__).parent / "group_goldens"
LOG = PrefixedLogger("test", "")
END_OFFSET_SUM = 1_000
ACCEPTABLE_LAG = 100
#: How many of the recorded groups are also assigned as groups of Penstock alone.
PENSTOCK_ALONE = 300

Group = dict[str, Any]
Placed = dict[str, tuple[set[TaskId], set[TaskId]]]


def ids(names: Collection[str]) -> set[TaskId]:
    return {TaskId.parse(name) for name in names}


def partition(task: TaskId) -> TopicPartition:
    return TopicPartition(f"in-{task.subtopology}", task.partition)


def partitions(read: Mapping[str, Mapping[str, Any]]) -> dict[TaskId, list[TopicPartition]]:
    """Return the partitions that the tasks read, from a group's sources or changelogs."""
    return {
        (task := TaskId.parse(name)): [TopicPartition(topic, task.partition) for topic in topics]
        for name, topics in read.items()
    }


def partition_racks(group: Group) -> dict[TopicPartition, frozenset[str]]:
    """Return the known racks."""
    return {
        TopicPartition(topic, TaskId.parse(task).partition): frozenset(racks)
        for read in (group["sources"], group["changelogs"])
        for task, topics in read.items()
        for topic, racks in topics.items()
        if None not in racks
    }


def subscriptions(group: Group) -> dict[str, MemberSubscription]:
    found = {}
    for process_id, client in group["clients"].items():
        for member, thread in client["threads"].items():
            info = SubscriptionInfo(
                LATEST_SUPPORTED_VERSION,
                LATEST_SUPPORTED_VERSION,
                UUID(process_id),
                offset_sums={TaskId.parse(task): offset for task, offset in thread["sums"].items()},
                client_tags={"zone": client["zone"]},
                is_penstock=False,
            )
            owned = frozenset(map(partition, ids(thread["owned"])))
            found[member] = MemberSubscription(info.encode(), owned=owned, rack=thread.get("rack") or "")
    return found


def optimizer(group: Group, members: GroupMembers) -> RackAwareOptimizer | None:
    if "strategy" not in group:
        return None
    sources, changelogs = partitions(group["sources"]), partitions(group["changelogs"]) if group["standbys"] else {}
    return rack_aware_optimizer(group["strategy"], members.clients, sources, changelogs, partition_racks(group), LOG)


def assigned(group: Group, assignor: Any, spread: bool) -> tuple[bool, GroupMembers]:
    """Return whether a probing rebalance is needed, and the members with their clients' tasks."""
    tasks, stateful = ids(group["tasks"]), ids(group["stateful"])
    read = {task: frozenset({partition(task)}) for task in tasks}
    members = GroupMembers(GroupSubscriptions.decode(subscriptions(group), LATEST_SUPPORTED_VERSION), read)
    for client in members.clients.values():
        client.compute_task_lags(dict.fromkeys(stateful, END_OFFSET_SUM))
    traffic_cost, non_overlap_cost = group.get("costs", (None, None))
    configs = AssignmentConfigs(
        ACCEPTABLE_LAG,
        group["warmups"],
        group["standbys"],
        rack_aware_assignment_tags=tuple(group["tags"]),
        rack_aware_assignment_traffic_cost=traffic_cost,
        rack_aware_assignment_non_overlap_cost=non_overlap_cost,
        spread=spread,
    )
    probing = assignor().assign(members.clients, tasks, stateful, configs, optimizer(group, members))
    validate_task_assignment(members.clients, tasks)
    return probing, members


def ours(group: Group, assignor: Any) -> tuple[bool, Placed]:
    """Return whether a probing rebalance is needed, and each member's active and standby tasks, with a member on
    Java.
    """
    probing, members = assigned(group, assignor, spread=False)
    assert not members.all_penstock
    stateful = ids(group["stateful"])
    placed: Placed = {}
    for client in members.clients.values():
        load: dict[str, int] = {}
        active, standby = client.active_tasks, client.standby_tasks
        dealt = [
            assign_as_kafka_streams(given, client, load, role)
            for given, role in (
                (active & stateful, Role.STATEFUL),
                (standby, Role.STANDBY),
                (active - stateful, Role.STATELESS),
            )
        ]
        for member in client.consumers:
            placed[member] = ({*dealt[0][member], *dealt[2][member]}, set(dealt[1][member]))
    return probing, placed


def kafkas(group: Group) -> tuple[bool, Placed]:
    threads: Mapping[str, Any] = {
        name: t for client in group["clients"].values() for name, t in client["threads"].items()
    }
    return group["probing"], {name: (ids(t["active"]), ids(t["standby"])) for name, t in threads.items()}


def kafkas_clients(group: Group) -> dict[UUID, tuple[set[TaskId], set[TaskId]]]:
    placed = kafkas(group)[1]
    return {
        UUID(process_id): (
            {task for thread in client["threads"] for task in placed[thread][0]},
            {task for thread in client["threads"] for task in placed[thread][1]},
        )
        for process_id, client in group["clients"].items()
    }


def recorded(name: str) -> list[Group]:
    return [json.loads(line) for line in gzip.decompress((GOLDENS / f"{name}.jsonl.gz").read_bytes()).splitlines()]


@pytest.mark.parametrize(
    ("name", "assignor", "at_least"),
    [
        ("high_availability", HighAvailabilityTaskAssignor, 2_000),
        ("sticky", StickyTaskAssignor, 2_000),
        pytest.param("high_availability_racks", HighAvailabilityTaskAssignor, 500, marks=pytest.mark.slow),
        pytest.param("sticky_racks", StickyTaskAssignor, 500, marks=pytest.mark.slow),
    ],
)
def test_our_leader_places_every_task_where_kafka_streams_would(
    name: str, assignor: type[Any], at_least: int, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = recorded(name)
    different = [number for number, group in enumerate(groups) if ours(group, assignor) != kafkas(group)]
    with capsys.disabled():
        print(f"\n{name}: {len(groups) - len(different)} of {len(groups)} groups as with Kafka Streams")
    assert len(groups) >= at_least
    assert not different


# A group of Penstock alone, which keeps tasks where they are and spreads them: see spread.py


@pytest.mark.parametrize("name", ["high_availability", "high_availability_racks"])
def test_stateful_tasks_standbys_and_warmups_are_where_kafka_streams_puts_them(name: str) -> None:
    for group in recorded(name)[:PENSTOCK_ALONE]:
        stateful = ids(group["stateful"])
        probing, members = assigned(group, HighAvailabilityTaskAssignor, spread=True)
        assert probing == group["probing"]
        for process_id, (active, standby) in kafkas_clients(group).items():
            assert members.clients[process_id].active_tasks & stateful == active & stateful
            assert members.clients[process_id].standby_tasks == standby


def test_stateless_tasks_are_balanced_as_kafka_streams_balances_them() -> None:
    """Which tasks a client gets differs: Kafka Streams redistributes them, Penstock leaves them where they are."""
    for group in recorded("high_availability")[:PENSTOCK_ALONE]:
        clients = assigned(group, HighAvailabilityTaskAssignor, spread=True)[1].clients
        kafka = kafkas_clients(group)
        loads = [len(active) / clients[process_id].capacity for process_id, (active, _) in kafka.items()]
        assert max(client.active_task_load for client in clients.values()) <= ceil(max(loads))
        if not any(client.previous_active_tasks for client in clients.values()):
            assert {i: client.active_tasks for i, client in clients.items()} == {i: a for i, (a, _) in kafka.items()}


def test_the_sticky_assignor_is_as_sticky_and_as_balanced_as_kafka_streams() -> None:
    """Ties between tasks and between clients are broken by a hash table's order in Kafka Streams, by sorting in
    Penstock.
    """
    stayed = {"Penstock": 0, "Kafka Streams": 0}
    for group in recorded("sticky")[:PENSTOCK_ALONE]:
        probing, members = assigned(group, StickyTaskAssignor, spread=True)
        kafka, clients = kafkas_clients(group), members.clients
        for process_id, client in clients.items():
            stayed["Penstock"] += len(client.previous_active_tasks & client.active_tasks)
            stayed["Kafka Streams"] += len(client.previous_active_tasks & kafka[process_id][0])
        loads = [len(active) / clients[process_id].capacity for process_id, (active, _) in kafka.items()]
        assert max(client.active_task_load for client in clients.values()) <= max(loads) + 1
        assert sum(len(client.standby_tasks) for client in clients.values()) == sum(len(s) for _, s in kafka.values())
        assert not probing
    assert stayed["Penstock"] >= stayed["Kafka Streams"]
