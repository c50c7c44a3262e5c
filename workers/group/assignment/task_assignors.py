"""Assign tasks to clients: pure functions of the clients' reports.

Kafka Streams: HighAvailabilityTaskAssignor (the default, KIP-441), StickyTaskAssignor, FallbackPriorTaskAssignor. All
visit clients and tasks in a fixed order, so that every leader decides the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from itertools import cycle
from typing import Protocol
from uuid import UUID

from typing_extensions import override

from penstock.topology.errors import TaskAssignmentError
from penstock.topology.records import TaskId

from .client_state import AssignmentConfigs, Clients, ClientState
from .rack_aware import STATELESS_COSTS, Costs, RackAwareOptimizer
from .standby_task_assignors import create_standby_task_assignor, warn_of_missing_standbys
from .sticky_assignment import (
    StickyAssignment,
    StickyAssignmentOfKafkaStreams,
    has_unfulfilled_quota,
    previous_active_tasks,
)
from .task_movement import TaskMovements


class TaskAssignor(Protocol):
    """Assigns tasks to clients; ``task.assignor.class`` names one."""

    def assign(
        self,
        clients: Clients,
        all_tasks: Collection[TaskId],
        stateful_tasks: Collection[TaskId],
        configs: AssignmentConfigs,
    ) -> bool:
        """Fill active_tasks and standby_tasks of the clients, which are empty.

        Return True if a probing rebalance is needed, to move tasks when copies have caught up.
        """


class HighAvailabilityTaskAssignor(TaskAssignor):
    """Balances first, then leaves each task where its state is until the planned client has caught up (KIP-441).

    racks: reduces traffic between racks, without changing the balance (KIP-925).
    """

    TRAFFIC_COST = 10
    NON_OVERLAP_COST = 1

    @override
    def assign(
        self,
        clients: Clients,
        all_tasks: Collection[TaskId],
        stateful_tasks: Collection[TaskId],
        configs: AssignmentConfigs,
        racks: RackAwareOptimizer | None = None,
    ) -> bool:
        for task, client in zip(sorted(stateful_tasks), cycle(clients.values()), strict=False):
            client.assign_active(task)
        _balance(clients, lambda client: client.active_tasks, lambda source, destination: True)
        costs = _costs(configs, self.TRAFFIC_COST, self.NON_OVERLAP_COST)
        if racks is not None:
            racks.optimize_active(stateful_tasks, clients, costs)
        if configs.num_standby_replicas:
            standby_assignor = create_standby_task_assignor(configs)
            standby_assignor.assign(clients, stateful_tasks, configs)
            _balance(clients, lambda client: client.standby_tasks, standby_assignor.is_allowed_task_movement)
            if racks is not None:
                racks.optimize_standby(clients, costs, partial(standby_assignor.may_move, clients))
        movements = TaskMovements(clients, stateful_tasks, configs)
        active, standby = movements.move_active_tasks(), movements.move_standby_tasks()
        stateless = set(all_tasks) - set(stateful_tasks)
        if configs.spread:
            _assign_stateless(clients, set(stateless))
        else:
            _deal_out(clients, stateless)
        if racks is not None:
            racks.optimize_active(stateless, clients, STATELESS_COSTS)
        return active + standby > 0


def _assign_stateless(clients: Clients, tasks: set[TaskId]) -> None:
    """Leave each stateless task with its client, up to a fair share, and assign the rest to the least loaded clients.

    Kafka Streams redistributes them each time; here each moved task would cost two rounds of the group.
    """
    active = sum(len(client.active_tasks) for client in clients.values()) + len(tasks)
    tasks_per_thread, extra = divmod(active, sum(client.capacity for client in clients.values()))
    owners = {task: client for client in clients.values() for task in client.previous_active_tasks & tasks}
    kept_first = previous_active_tasks(clients, tasks)
    for quota, count in ((tasks_per_thread, len(tasks)), (tasks_per_thread + 1, extra)):
        for task in kept_first:
            if task in tasks and count and has_unfulfilled_quota(owners[task], quota):
                owners[task].assign_active(task)
                tasks.discard(task)
                count -= 1
    _deal_out(clients, tasks)


def _deal_out(clients: Clients, tasks: Collection[TaskId]) -> None:
    """Assign each task to the client with the fewest tasks per thread."""
    for task in sorted(tasks):
        min(clients.values(), key=lambda client: client.active_task_load).assign_active(task)


def _costs(configs: AssignmentConfigs, traffic: int, non_overlap: int) -> Costs:
    """Return the configured costs, or an assignor's defaults."""
    given = configs.rack_aware_assignment_traffic_cost, configs.rack_aware_assignment_non_overlap_cost
    return Costs(traffic if given[0] is None else given[0], non_overlap if given[1] is None else given[1])


def _balance(
    clients: Clients,
    tasks_of: Callable[[ClientState], set[TaskId]],
    may_move: Callable[[ClientState, ClientState], bool],
) -> None:
    """Move tasks of one kind from loaded to less loaded clients as long as that improves the balance over threads."""
    moved = True
    while moved:
        moved = False
        for source in clients.values():
            for destination in clients.values():
                if source is not destination and _should_move_a_task(source, destination):
                    moved |= _move_tasks(source, destination, tasks_of, may_move)


def _move_tasks(
    source: ClientState,
    destination: ClientState,
    tasks_of: Callable[[ClientState], set[TaskId]],
    may_move: Callable[[ClientState, ClientState], bool],
) -> bool:
    if not may_move(source, destination):
        return False
    moved = False
    for task in sorted(tasks_of(source)):
        if not _should_move_a_task(source, destination):
            break
        if not destination.has_assigned_task(task):
            tasks_of(source).remove(task)
            tasks_of(destination).add(task)
            moved = True
    return moved


def _should_move_a_task(source: ClientState, destination: ClientState) -> bool:
    skew = source.assigned_task_load - destination.assigned_task_load
    if skew <= 0:
        return False
    then_at_source = (source.assigned_task_count - 1) / source.capacity
    then_at_destination = (destination.assigned_task_count + 1) / destination.capacity
    return 0 <= then_at_source - then_at_destination < skew


class StickyTaskAssignor(TaskAssignor):
    """Tasks stay with their client, as far as balance allows; tasks move immediately, without warm-up.

    must_preserve_active: ignore balance; every task returns to its previous client. racks: reduces traffic between
    racks; by default that counts less than stickiness.
    """

    TRAFFIC_COST = 1
    NON_OVERLAP_COST = 10

    def __init__(self, must_preserve_active: bool = False) -> None:
        self._must_preserve_active = must_preserve_active

    @override
    def assign(
        self,
        clients: Clients,
        all_tasks: Collection[TaskId],
        stateful_tasks: Collection[TaskId],
        configs: AssignmentConfigs,
        racks: RackAwareOptimizer | None = None,
    ) -> bool:
        """Assign; never needs a probing rebalance."""
        make = StickyAssignment if configs.spread else StickyAssignmentOfKafkaStreams
        assignment = make(clients, all_tasks, self._must_preserve_active)
        assignment.assign_active()
        costs = _costs(configs, self.TRAFFIC_COST, self.NON_OVERLAP_COST)
        if racks is not None:
            racks.optimize_active(stateful_tasks, clients, costs)
            racks.optimize_active(set(all_tasks) - set(stateful_tasks), clients, STATELESS_COSTS)
        missing = {}
        for task in assignment.in_order(stateful_tasks):
            if count := configs.num_standby_replicas - assignment.assign_standby(task, configs.num_standby_replicas):
                missing[task] = count
        warn_of_missing_standbys(missing, configs)
        if racks is not None and configs.num_standby_replicas:
            racks.optimize_standby(clients, costs, lambda source, destination, task: True)
        return False


class FallbackPriorTaskAssignor(TaskAssignor):
    """Used if no lags are known: leaves all tasks where they were, and retries soon."""

    @override
    def assign(
        self,
        clients: Clients,
        all_tasks: Collection[TaskId],
        stateful_tasks: Collection[TaskId],
        configs: AssignmentConfigs,
    ) -> bool:
        """Assign; always requires a probing rebalance."""
        StickyTaskAssignor(must_preserve_active=True).assign(clients, all_tasks, stateful_tasks, configs)
        return True


def validate_task_assignment(clients: Clients, all_tasks: Collection[TaskId]) -> None:
    """Check the result of a user's assignor; raises TaskAssignmentError (Kafka: TaskAssignmentUtils)."""
    owner: dict[TaskId, UUID] = {}
    for client in clients.values():
        for task in client.active_tasks:
            if task in owner:
                raise TaskAssignmentError(f"Active task {task} was assigned twice: {owner[task]}, {client.process_id}.")
            owner[task] = client.process_id
        if both := client.active_tasks & client.standby_tasks:
            raise TaskAssignmentError(f"Client {client.process_id} got {sorted(both)} as active and as standby tasks.")
    if unknown := {task for c in clients.values() for task in c.active_tasks | c.standby_tasks} - set(all_tasks):
        raise TaskAssignmentError(f"There are no such tasks: {', '.join(map(str, sorted(unknown)))}.")
    if missing := set(all_tasks) - owner.keys():
        raise TaskAssignmentError(f"Tasks were not assigned: {', '.join(map(str, sorted(missing)))}.")
