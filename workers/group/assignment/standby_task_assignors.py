"""Assign standby tasks (Kafka Streams: DefaultStandbyTaskAssignor, ClientTagAwareStandbyTaskAssignor, KIP-708)."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Protocol

from typing_extensions import override

from penstock.topology.common.java_collections import grown_hash_order
from penstock.topology.records import TaskId

from .client_state import AssignmentConfigs, Clients, ClientState, least_loaded
from .java_hashes import task_hash

log = logging.getLogger(__name__)

#: A client tag's name and value.
TagEntry = tuple[str, str]


class StandbyTaskAssignor(Protocol):
    """Assigns the standby tasks, after the active ones."""

    def assign(self, clients: Clients, stateful_tasks: Collection[TaskId], configs: AssignmentConfigs) -> None:
        """Assign standby tasks, never to a client with the active task or another standby of it."""

    def is_allowed_task_movement(self, source: ClientState, destination: ClientState) -> bool:
        """Return True if balancing may move a standby task from one client to the other."""

    def may_move(self, clients: Clients, source: ClientState, destination: ClientState, task: TaskId) -> bool:
        """Return True if saving traffic may move this standby task from one client to the other."""


def create_standby_task_assignor(configs: AssignmentConfigs) -> StandbyTaskAssignor:
    """Return the assignor that spreads over tags if ``rack.aware.assignment.tags`` is set, or the default one."""
    return ClientTagAwareStandbyTaskAssignor() if configs.rack_aware_assignment_tags else DefaultStandbyTaskAssignor()


class DefaultStandbyTaskAssignor(StandbyTaskAssignor):
    """Standby tasks go to the least loaded clients."""

    @override
    def assign(self, clients: Clients, stateful_tasks: Collection[TaskId], configs: AssignmentConfigs) -> None:
        _assign_to_least_loaded(clients, dict.fromkeys(sorted(stateful_tasks), configs.num_standby_replicas), configs)

    def is_allowed_task_movement(self, source: ClientState, destination: ClientState) -> bool:
        """Allow all."""
        return True

    def may_move(self, clients: Clients, source: ClientState, destination: ClientState, task: TaskId) -> bool:
        """Allow all."""
        return True


def _assign_to_least_loaded(clients: Clients, wanted: Mapping[TaskId, int], configs: AssignmentConfigs) -> None:
    """Assign this many standby tasks of each task."""
    missing: dict[TaskId, int] = {}
    for task, count in wanted.items():
        for placed in range(count):
            client = least_loaded(clients.values(), lambda client: not client.has_assigned_task(task))  # noqa: B023
            if client is None:
                missing[task] = count - placed
                break
            client.assign_standby(task)
    warn_of_missing_standbys(missing, configs)


def warn_of_missing_standbys(missing: Mapping[TaskId, int], configs: AssignmentConfigs) -> None:
    """Log, once for all tasks, that some have fewer standby tasks than configured."""
    if missing:
        log.warning(
            "Unable to assign %d of %d standby tasks for tasks [%s]. There is not enough available capacity. You "
            "should increase the number of application instances to maintain the requested number of standby replicas.",
            max(missing.values()),
            configs.num_standby_replicas,
            ", ".join(map(str, sorted(missing))),
        )


class ClientTagAwareStandbyTaskAssignor(StandbyTaskAssignor):
    """Spreads the copies of a task over different values of as many tags as possible (KIP-708).

    The remaining copies go to the least loaded clients.
    """

    @override
    def assign(self, clients: Clients, stateful_tasks: Collection[TaskId], configs: AssignmentConfigs) -> None:
        tags = _Tags(clients, configs.rack_aware_assignment_tags)
        remaining: dict[TaskId, int] = {}
        active_clients = {task: client for client in clients.values() for task in client.active_tasks}
        for task in sorted(stateful_tasks):
            placed = self._assign_to_different_tags(clients, tags, task, active_clients[task], configs)
            if placed < configs.num_standby_replicas:
                remaining[task] = configs.num_standby_replicas - placed
        if remaining:
            log.warning(
                "Rack aware standby task assignment was not able to assign all of %d standby tasks for the active "
                "tasks [%s] with the rack aware assignment tags %s. It falls back to the least loaded clients. "
                "Consider launching application instances on different tag dimensions.",
                configs.num_standby_replicas,
                ", ".join(map(str, remaining)),
                ", ".join(configs.rack_aware_assignment_tags),
            )
        in_order = grown_hash_order(sorted(stateful_tasks), task_hash)  # in the order of Kafka Streams' map
        _assign_to_least_loaded(clients, {task: remaining[task] for task in in_order if task in remaining}, configs)

    def _assign_to_different_tags(
        self, clients: Clients, tags: _Tags, task: TaskId, active_client: ClientState, configs: AssignmentConfigs
    ) -> int:
        """Return how many standby tasks were assigned to a client that shares no tag value with previous clients."""
        used: set[TagEntry] = set()
        last_used = active_client
        for placed in range(configs.num_standby_replicas):
            tags.use(last_used, 1 + placed, used)
            client = least_loaded(
                clients.values(),
                lambda client: not client.has_assigned_task(task) and used.isdisjoint(tags.of(client)),
            )
            if client is None:
                return placed
            client.assign_standby(task)
            last_used = client
        return configs.num_standby_replicas

    def is_allowed_task_movement(self, source: ClientState, destination: ClientState) -> bool:
        """Allow moves between clients with the same tags."""
        return all(destination.client_tags.get(name) == value for name, value in source.client_tags.items())

    def may_move(self, clients: Clients, source: ClientState, destination: ClientState, task: TaskId) -> bool:
        """Allow moves that leave the task's copies on at least as many different tags."""
        others = {
            tag
            for client in clients.values()
            if client is not source and client is not destination and client.has_assigned_task(task)
            for tag in client.client_tags.items()
        }
        return len(others | destination.client_tags.items()) >= len(others | source.client_tags.items())


class _Tags:
    """The relevant tags, and all values of each in the group."""

    def __init__(self, clients: Clients, names: Collection[str]) -> None:
        self._of = {
            client.process_id: {(name, client.client_tags[name]) for name in names if name in client.client_tags}
            for client in clients.values()
        }
        self._values: Mapping[str, set[str]] = defaultdict(set)
        for entries in self._of.values():
            for name, value in entries:
                self._values[name].add(value)

    def of(self, client: ClientState) -> set[TagEntry]:
        return self._of[client.process_id]

    def use(self, client: ClientState, used_clients: int, used: set[TagEntry]) -> None:
        """Exclude the values of a client that has got a copy.

        A tag without remaining values no longer counts: it would exclude all clients, although the other tags still
        differ.
        """
        for name, value in self.of(client):
            if len(self._values[name]) <= used_clients:
                used.difference_update({(name, known) for known in self._values[name]})
            else:
                used.add((name, value))
