"""Reduces traffic between racks: tasks are exchanged so that they read from brokers in their own rack (KIP-925).

Kafka Streams: RackAwareTaskAssignor, MinTrafficGraphConstructor, BalanceSubtopologyGraphConstructor. A client keeps its
number of tasks. Among all such assignments the cheapest is chosen, and among equally cheap ones Kafka Streams' choice,
so that no task moves when the leader changes between Java and Penstock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from itertools import combinations, groupby
from math import ceil
from uuid import UUID

from penstock.clients.log_context import PrefixedLogger
from penstock.topology.records import TaskId, TopicPartition

from .client_state import Clients, ClientState
from .cycle_canceling import cancel_negative_cycles
from .task_groups import TaskGroup, fill_shares

#: Maximum number of rounds in which pairs of clients exchange standby tasks; usually three are enough.
STANDBY_ROUNDS_MAX = 4

#: May this standby task move from one client to the other?
MayMove = Callable[[ClientState, ClientState, TaskId], bool]
#: The racks of the replicas of each partition that a task reads.
PartitionRacks = tuple[frozenset[str], ...]


@dataclass(frozen=True, slots=True)
class Costs:
    """traffic: cost of a partition without a replica in the task's rack; non_overlap: cost of a task that moves."""

    traffic: int
    non_overlap: int


#: For stateless tasks: moving them costs nothing (RackAwareTaskAssignor).
STATELESS_COSTS = Costs(traffic=1, non_overlap=0)


@dataclass(frozen=True, slots=True)
class RackAwareOptimizer:
    """strategy: min_traffic or balance_subtopology.

    client_racks: of all clients. source_racks: of all tasks' input partitions; changelog_racks: of the changelogs of
    stateful tasks, needed for standby tasks only.
    """

    strategy: str
    client_racks: Mapping[UUID, str]
    source_racks: Mapping[TaskId, PartitionRacks]
    changelog_racks: Mapping[TaskId, PartitionRacks] = field(default_factory=dict)

    def optimize_active(self, tasks: Collection[TaskId], clients: Clients, costs: Costs) -> None:
        """Reassign active tasks; all of them must be assigned already."""
        if not tasks:
            return
        order = list(clients.values())
        homes = {task: number for number, client in enumerate(order) for task in client.active_tasks}
        places = _Places(self, order, self.source_racks, costs)
        if self.strategy == "balance_subtopology":
            moved = places.balanced({task: homes[task] for task in sorted(tasks)})
        else:
            moved = places.cheapest({task: homes[task] for task in sorted(tasks)})
        for task, number in moved.items():
            order[homes[task]].active_tasks.remove(task)
            order[number].active_tasks.add(task)

    def optimize_standby(self, clients: Clients, costs: Costs, may_move: MayMove) -> None:
        """Exchange standby tasks between pairs of clients in different racks."""
        pairs = [
            (first, second)
            for first, second in combinations(clients.values(), 2)
            if self.client_racks[first.process_id] != self.client_racks[second.process_id]
        ]
        for _ in range(STANDBY_ROUNDS_MAX):
            exchanges = [self._exchange(first, second, costs, may_move) for first, second in pairs]
            if not any(exchanges):
                break

    def _exchange(self, first: ClientState, second: ClientState, costs: Costs, may_move: MayMove) -> bool:
        """Return whether any of their standby tasks was exchanged."""
        pair = (first, second)
        homes: dict[TaskId, int] = {}
        for home, (source, destination) in enumerate((pair, pair[::-1])):
            movable = {
                task: home
                for task in source.standby_tasks
                if not destination.has_assigned_task(task) and may_move(source, destination, task)
            }
            if not movable:
                return False
            homes |= movable
        moved = _Places(self, pair, self.changelog_racks, costs).cheapest(dict(sorted(homes.items())))
        for task, number in moved.items():
            pair[1 - number].standby_tasks.remove(task)
            pair[number].assign_standby(task)
        return bool(moved)


@dataclass(eq=False)
class _Places:
    """The possible clients of tasks, with the costs. read: the racks of the partitions that they read."""

    optimizer: InitVar[RackAwareOptimizer]
    clients: InitVar[Sequence[ClientState]]
    read: Mapping[TaskId, PartitionRacks]
    costs: Costs

    def __post_init__(self, optimizer: RackAwareOptimizer, clients: Sequence[ClientState]) -> None:
        client_racks = [optimizer.client_racks[client.process_id] for client in clients]
        self._racks = sorted(set(client_racks))
        self._rack_of = [self._racks.index(rack) for rack in client_racks]

    def cheapest(self, homes: Mapping[TaskId, int]) -> dict[TaskId, int]:
        """Return the new clients of the (sorted) tasks that move."""
        return self._moved(homes, [self._group(list(homes), homes)])

    def balanced(self, homes: Mapping[TaskId, int]) -> dict[TaskId, int]:
        """As cheapest, but each client gets its share of each sub-topology, rounded up."""
        sizes = [0] * len(self._rack_of)
        for home in homes.values():
            sizes[home] += 1
        groups = []
        for _, together in groupby(homes, lambda task: task.subtopology):
            tasks = list(together)
            shares = [ceil(size * 1.0 / len(homes) * len(tasks)) for size in sizes]  # rounded as Kafka Streams does
            groups.append(self._group(tasks, homes, shares))
        fill_shares(groups, sizes)
        return self._moved(homes, groups)

    def _group(self, tasks: Sequence[TaskId], homes: Mapping[TaskId, int], shares: Sequence[int] = ()) -> TaskGroup:
        traffic = [
            [sum(rack not in racks for racks in self.read[task]) * self.costs.traffic for task in tasks]
            for rack in self._racks
        ]
        return TaskGroup([homes[task] for task in tasks], self._rack_of, traffic, self.costs.non_overlap, shares)

    @staticmethod
    def _moved(homes: Mapping[TaskId, int], groups: Sequence[TaskGroup]) -> dict[TaskId, int]:
        cancel_negative_cycles(groups)
        owners = [owner for group in groups for owner in group.owners]
        return {task: owner for (task, home), owner in zip(homes.items(), owners, strict=True) if owner != home}


def rack_aware_optimizer(
    strategy: str,
    clients: Clients,
    sources: Mapping[TaskId, Collection[TopicPartition]],
    changelogs: Mapping[TaskId, Collection[TopicPartition]],
    racks: Mapping[TopicPartition, frozenset[str]],
    log: PrefixedLogger,
) -> RackAwareOptimizer | None:
    """Return the optimizer, None if it is not configured or not possible; the log then names the reason.

    sources, changelogs: the partitions that each task reads as active and as standby task (empty without standby
    tasks). racks: of each partition's replicas, never empty; missing if unknown.
    """
    if strategy == "none":
        return None
    without = sorted(str(client.process_id) for client in clients.values() if not client.rack)
    if without:
        log.error(
            "Tasks are assigned without regard to racks: the members of client %s have no client.rack, or different "
            "ones. Set client.rack for every member.",
            ", ".join(without),
        )
        return None
    unknown = sorted({p for read in (sources, changelogs) for found in read.values() for p in found} - racks.keys())
    if unknown:
        log.error(
            "Tasks are assigned without regard to racks: for %d partitions, among them %s-%d, the brokers have "
            "no rack. Set broker.rack for every broker.",
            len(unknown),
            *unknown[0],
        )
        return None
    return RackAwareOptimizer(
        strategy,
        {client.process_id: client.rack or "" for client in clients.values()},
        {task: tuple(racks[partition] for partition in sorted(found)) for task, found in sources.items()},
        {task: tuple(racks[partition] for partition in sorted(found)) for task, found in changelogs.items()},
    )
