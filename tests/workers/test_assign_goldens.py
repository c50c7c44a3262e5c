"""Our assignors against Kafka Streams' own (4.3.1), recorded once for seeded groups; see assignor_goldens/README.md."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from math import ceil
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from penstock.topology.records import TaskId
from penstock.workers.assignment.client_state import AssignmentConfigs, Clients, ClientState, sorted_clients
from penstock.workers.assignment.rack_aware import Costs, RackAwareOptimizer
from penstock.workers.assignment.task_assignors import (
    HighAvailabilityTaskAssignor,
    StickyTaskAssignor,
    validate_task_assignment,
)

GOLDENS = Path(__file__).parent / "assignor_goldens"
#: What a client lags behind with a task of which it has nothing.
NO_COPY_LAG = 1_000

TRAFFIC = Costs(traffic=1, non_overlap=0)

Case = dict[str, Any]


def recorded(assignor: str) -> list[Case]:
    found: list[Case] = json.loads((GOLDENS / f"{assignor}.json").read_text())
    return found


def ids(names: Collection[str]) -> set[TaskId]:
    return {TaskId.parse(name) for name in names}


def stateful(case: Case) -> set[TaskId]:
    return ids(case["changelog_racks"])


def everything(case: Case) -> set[TaskId]:
    return ids(case["source_racks"])


def clients(case: Case) -> Clients:
    made = []
    for number, given in case["clients"].items():
        client = ClientState(
            UUID(int=int(number)),
            {"zone": given["rack"]},
            given["rack"],
            {f"{number}-{thread}" for thread in range(given["threads"])},
            ids(given["active"]),
            ids(given["standby"]),
        )
        lags = {TaskId.parse(name): lag for name, lag in given["lags"].items()}
        client.lags = {task: lags.get(task, NO_COPY_LAG) for task in stateful(case)}
        made.append(client)
    return sorted_clients(made)


def partition_racks(racks: Mapping[str, list[list[str]]]) -> dict[TaskId, tuple[frozenset[str], ...]]:
    return {TaskId.parse(task): tuple(map(frozenset, partitions)) for task, partitions in racks.items()}


def optimizer(case: Case) -> RackAwareOptimizer:
    return RackAwareOptimizer(
        case["strategy"],
        {UUID(int=int(number)): given["rack"] for number, given in case["clients"].items()},
        partition_racks(case["source_racks"]),
        partition_racks(case["changelog_racks"]),
    )


def assigned(case: Case, assignor: HighAvailabilityTaskAssignor | StickyTaskAssignor) -> tuple[Clients, bool]:
    group = clients(case)
    configs = AssignmentConfigs(
        case["acceptable_recovery_lag"],
        case["max_warmup_replicas"],
        case["num_standby_replicas"],
        rack_aware_assignment_tags=tuple(case["tags"]),
        rack_aware_assignment_strategy=case["strategy"],
    )
    racks = optimizer(case) if case["rack_aware"] else None
    probing = assignor.assign(group, everything(case), stateful(case), configs, racks)
    validate_task_assignment(group, everything(case))
    return group, probing


def theirs(case: Case, kind: str) -> dict[UUID, set[TaskId]]:
    return {UUID(int=int(number)): ids(given[kind]) for number, given in case["assignment"].items()}


def counts(assignment: Mapping[UUID, set[TaskId]]) -> list[int]:
    return [len(tasks) for _, tasks in sorted(assignment.items())]


HIGH_AVAILABILITY = recorded("high_availability")
STICKY = recorded("sticky")


def seed(case: Case) -> str:
    return str(case["seed"])


@pytest.mark.parametrize("case", [c for c in HIGH_AVAILABILITY if not c["rack_aware"]], ids=seed)
def test_stateful_tasks_standbys_and_warmups_are_where_kafka_streams_puts_them(case: Case) -> None:
    group, probing = assigned(case, HighAvailabilityTaskAssignor())
    tasks = stateful(case)
    active, standby = theirs(case, "active"), theirs(case, "standby")
    assert {i: c.active_tasks & tasks for i, c in group.items()} == {i: each & tasks for i, each in active.items()}
    assert {i: c.standby_tasks for i, c in group.items()} == standby
    assert probing == case["probing"]


@pytest.mark.parametrize("case", [c for c in HIGH_AVAILABILITY if not c["rack_aware"]], ids=seed)
def test_stateless_tasks_are_balanced_as_kafka_streams_balances_them(case: Case) -> None:
    """Which ones a client gets differs: Kafka Streams deals them out anew, we leave them where they were."""
    group, _ = assigned(case, HighAvailabilityTaskAssignor())
    load = [client.active_task_load for client in group.values()]
    kafka = [
        len(each) / client.capacity
        for each, client in zip(theirs(case, "active").values(), group.values(), strict=True)
    ]
    assert max(load) <= ceil(max(kafka))
    if not any(given["active"] for given in case["clients"].values()):
        assert {i: client.active_tasks for i, client in group.items()} == theirs(case, "active")


@pytest.mark.parametrize("case", [c for c in HIGH_AVAILABILITY if "optimizer" in c], ids=seed)
def test_the_traffic_between_racks_costs_what_it_costs_with_kafka_streams(case: Case) -> None:
    racks = optimizer(case)
    for recorded_run in case["optimizer"]:
        group = clients(case)
        order = list(group.values())
        tasks = sorted(everything(case))
        for turn, task in enumerate(tasks):
            order[turn % len(order)].assign_active(task)
        before = {task: client.process_id for client in order for task in client.active_tasks}
        sizes = [len(client.active_tasks) for client in order]
        costs = Costs(*recorded_run["costs"])
        assert racks.active_cost(tasks, group, before, costs) == recorded_run["before"]
        assert racks.optimize_active(tasks, group, costs) == recorded_run["after"]
        assert [len(client.active_tasks) for client in order] == sizes
        validate_task_assignment(group, tasks)


def has_past(case: Case) -> bool:
    return any(given["active"] or given["standby"] for given in case["clients"].values())


@pytest.mark.parametrize("case", [c for c in HIGH_AVAILABILITY if c["rack_aware"]], ids=seed)
def test_with_racks_a_new_group_is_as_balanced_and_as_cheap_as_kafka_streams(case: Case) -> None:
    """Which of the cheapest assignments it is may differ, and with it, in a group with a past, what has to warm up."""
    group, probing = assigned(case, HighAvailabilityTaskAssignor())
    if has_past(case):
        return
    active, standby = theirs(case, "active"), theirs(case, "standby")
    assert [len(client.active_tasks) for client in group.values()] == counts(active)
    assert sum(len(client.standby_tasks) for client in group.values()) == sum(counts(standby))
    assert probing == case["probing"]
    racks, before = optimizer(case), dict.fromkeys(stateful(case), UUID(int=0))
    ours = racks.active_cost(stateful(case), group, before, TRAFFIC)
    for process_id, client in group.items():
        client.active_tasks = active[process_id]
    assert ours == racks.active_cost(stateful(case), group, before, TRAFFIC)


def test_standby_tasks_cause_no_more_traffic_between_racks_than_with_kafka_streams(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Both exchange them pair by pair, from actives that may differ; so this holds for all cases together."""
    ours = kafka = 0
    for case in (case for case in HIGH_AVAILABILITY if case["rack_aware"] and not has_past(case)):
        group, _ = assigned(case, HighAvailabilityTaskAssignor())
        ours += optimizer(case).standby_cost(group, TRAFFIC)
        for process_id, client in group.items():
            client.standby_tasks = theirs(case, "standby")[process_id]
        kafka += optimizer(case).standby_cost(group, TRAFFIC)
    with capsys.disabled():
        print(f"\nchangelog partitions read in another rack: {ours}, by Kafka Streams {kafka}")
    assert 0 < ours <= 1.05 * kafka


def stayed(group: Mapping[UUID, set[TaskId]], case: Case) -> int:
    return sum(len(ids(given["active"]) & group[UUID(int=int(i))]) for i, given in case["clients"].items())


@pytest.mark.parametrize("case", [c for c in STICKY if not c["rack_aware"]], ids=seed)
def test_the_sticky_assignor_is_as_sticky_and_as_balanced_as_kafka_streams(case: Case) -> None:
    """Which of equal tasks and clients come first is the order of a hash table there, a sorted one here."""
    group, probing = assigned(case, StickyTaskAssignor())
    active, standby = theirs(case, "active"), theirs(case, "standby")
    assert stayed({i: client.active_tasks for i, client in group.items()}, case) >= stayed(active, case)
    ours = [len(client.active_tasks) / client.capacity for client in group.values()]
    kafka = [len(active[i]) / client.capacity for i, client in group.items()]
    assert max(ours) <= max(kafka) + 1
    assert sum(len(client.standby_tasks) for client in group.values()) == sum(counts(standby))
    assert probing is case["probing"] is False
