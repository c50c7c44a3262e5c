"""Less traffic between racks: tasks change places so that they read from brokers of their own rack (KIP-925).

Kafka Streams: RackAwareTaskAssignor, MinTrafficGraphConstructor, BalanceSubtopologyGraphConstructor. A client keeps as
many tasks as it had; among all ways to deal them out so, the cheapest is taken. The costs are Kafka Streams'; of
several cheapest ways, we take one that moves the fewest tasks, it takes any.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any
from uuid import UUID

from penstock.clients.log_context import PrefixedLogger
from penstock.topology.records import TaskId, TopicPartition

from .client_state import Clients, ClientState
from .min_cost_flow import MinCostFlow

#: How often pairs of clients exchange standby tasks at most; usually nothing is left to gain after three times.
STANDBY_ROUNDS_MAX = 4

#: May this standby task move from one client to the other?
MayMove = Callable[[ClientState, ClientState, TaskId], bool]
#: Of each partition that a task reads, the racks of its replicas.
PartitionRacks = tuple[frozenset[str], ...]


@dataclass(frozen=True, slots=True)
class Costs:
    """traffic: of a partition without a replica in the task's rack; non_overlap: of a task that changes its client."""

    traffic: int
    non_overlap: int


#: For stateless tasks: moving them costs nothing (RackAwareTaskAssignor).
STATELESS_COSTS = Costs(traffic=1, non_overlap=0)


@dataclass(frozen=True, slots=True)
class RackAwareOptimizer:
    """strategy: min_traffic or balance_subtopology.

    client_racks: of all clients. source_racks: of all tasks' input partitions; changelog_racks: of those of all
    stateful tasks, needed for standby tasks only.
    """

    strategy: str
    client_racks: Mapping[UUID, str]
    source_racks: Mapping[TaskId, PartitionRacks]
    changelog_racks: Mapping[TaskId, PartitionRacks] = field(default_factory=dict)

    def optimize_active(self, tasks: Collection[TaskId], clients: Clients, costs: Costs) -> int:
        """Reassign active tasks, all of which are assigned, and return what the assignment costs then."""
        owners = {task: client for client in clients.values() for task in client.active_tasks & set(tasks)}
        owner_ids = {task: client.process_id for task, client in owners.items()}
        reassign = self._balanced if self.strategy == "balance_subtopology" else self._cheapest
        for task, process_id in reassign(owner_ids, clients, costs).items():
            owners[task].active_tasks.remove(task)
            clients[process_id].active_tasks.add(task)
        return self.active_cost(tasks, clients, owner_ids, costs)

    def active_cost(
        self, tasks: Collection[TaskId], clients: Clients, before: Mapping[TaskId, UUID], costs: Costs
    ) -> int:
        """Return what active tasks cost where they are, compared with where they were."""
        return sum(
            self._misses(self.source_racks[task], self.client_racks[client.process_id]) * costs.traffic
            + (client.process_id != before[task]) * costs.non_overlap
            for client in clients.values()
            for task in client.active_tasks & set(tasks)
        )

    def standby_cost(self, clients: Clients, costs: Costs) -> int:
        """Return what the traffic of all standby tasks costs."""
        return sum(
            self._misses(self.changelog_racks[task], self.client_racks[client.process_id]) * costs.traffic
            for client in clients.values()
            for task in client.standby_tasks
        )

    @staticmethod
    def _misses(partitions: PartitionRacks, rack: str) -> int:
        return sum(rack not in racks for racks in partitions)

    # Active tasks

    def _traffic(self, task: TaskId, racks: Iterable[str]) -> tuple[int, ...]:
        return tuple(self._misses(self.source_racks[task], rack) for rack in racks)

    def _cheapest(self, owners: Mapping[TaskId, UUID], clients: Clients, costs: Costs) -> dict[TaskId, UUID]:
        """Return who gets which task in another rack.

        Clients of one rack cost the same, so that it is enough to decide on racks: tasks with the same traffic that
        leave the same rack are one node.
        """
        racks = sorted({self.client_racks[process_id] for process_id in clients})
        graph = _Graph(costs, len(owners))
        alike: dict[tuple[str, tuple[int, ...]], list[TaskId]] = defaultdict(list)
        for task in sorted(owners):
            alike[self.client_racks[owners[task]], self._traffic(task, racks)].append(task)
        for (home, traffic), tasks in alike.items():
            for rack, misses in zip(racks, traffic, strict=True):
                graph.offer(tuple(tasks), rack, misses, moves=rack != home)
        counts = Counter(self.client_racks[process_id] for process_id in owners.values())
        for rack, count in counts.items():
            graph.limit(rack, count)
        places: dict[str, list[UUID]] = defaultdict(list)
        moved = {task: rack for task, rack in graph.solve() if rack != self.client_racks[owners[task]]}
        for task in sorted(moved):
            places[self.client_racks[owners[task]]].append(owners[task])
        return {task: places[rack].pop(0) for task, rack in sorted(moved.items())}

    def _balanced(self, owners: Mapping[TaskId, UUID], clients: Clients, costs: Costs) -> dict[TaskId, UUID]:
        """As _cheapest, but each client gets its share of each sub-topology, rounded up."""
        racks = sorted({self.client_racks[process_id] for process_id in clients})
        counts = Counter(owners.values())
        sizes = Counter(task.subtopology for task in owners)
        graph = _Graph(costs, len(owners))
        alike: dict[tuple[int, UUID, tuple[int, ...]], list[TaskId]] = defaultdict(list)
        for task in sorted(owners):
            alike[task.subtopology, owners[task], self._traffic(task, racks)].append(task)
        for (subtopology, home, traffic), tasks in alike.items():
            graph.offer(tuple(tasks), (subtopology, home), traffic[racks.index(self.client_racks[home])], moves=False)
            for rack, misses in zip(racks, traffic, strict=True):
                graph.offer(tuple(tasks), (subtopology, rack), misses, moves=True)
        for subtopology, size in sorted(sizes.items()):
            for process_id, count in sorted(counts.items()):
                share = ceil(count * 1.0 / len(owners) * size)  # in Kafka Streams' order, for the same rounding
                graph.join((subtopology, self.client_racks[process_id]), (subtopology, process_id), share)
                graph.join((subtopology, process_id), process_id, share)
        for process_id, count in counts.items():
            graph.limit(process_id, count)
        return self._dealt_out(graph, owners)

    @staticmethod
    def _dealt_out(graph: _Graph, owners: Mapping[TaskId, UUID]) -> dict[TaskId, UUID]:
        """Deal the tasks that went to a sub-topology's share of a rack out to the clients that had room for them."""
        moved: dict[TaskId, UUID] = {}
        for task, place in sorted(graph.solve()):
            subtopology, where = place
            process_id = where if isinstance(where, UUID) else graph.take((subtopology, where))[1]
            if process_id != owners[task]:
                moved[task] = process_id
        return moved

    # Standby tasks

    def optimize_standby(self, clients: Clients, costs: Costs, may_move: MayMove) -> int:
        """Let pairs of clients in different racks exchange standby tasks; returns what the traffic costs then."""
        ordered = list(clients.values())
        pairs = [
            (first, second)
            for number, first in enumerate(ordered)
            for second in ordered[number + 1 :]
            if self.client_racks[first.process_id] != self.client_racks[second.process_id]
        ]
        for _ in range(STANDBY_ROUNDS_MAX):
            exchanges = [self._exchange(first, second, costs, may_move) for first, second in pairs]
            if not any(exchanges):
                break
        return self.standby_cost(clients, costs)

    def _exchange(self, first: ClientState, second: ClientState, costs: Costs, may_move: MayMove) -> bool:
        """Exchange the tasks that gain most, as long as both moves together pay; return whether any did."""
        gains = []
        for source, destination in ((first, second), (second, first)):
            gain = {
                task: self._gain(task, source, destination, costs)
                for task in source.standby_tasks
                if not destination.has_assigned_task(task) and may_move(source, destination, task)
            }
            gains.append(sorted(gain.items(), key=lambda item: (-item[1], item[0])))
        exchanged = False
        for (mine, my_gain), (theirs, their_gain) in zip(*gains, strict=False):
            if my_gain + their_gain <= 0:
                break
            first.standby_tasks.remove(mine)
            second.standby_tasks.remove(theirs)
            first.assign_standby(theirs)
            second.assign_standby(mine)
            exchanged = True
        return exchanged

    def _gain(self, task: TaskId, source: ClientState, destination: ClientState, costs: Costs) -> int:
        racks, partitions = self.client_racks, self.changelog_racks[task]
        saved = self._misses(partitions, racks[source.process_id]) - self._misses(
            partitions, racks[destination.process_id]
        )
        return saved * costs.traffic - costs.non_overlap


class _Graph:
    """The tasks on the left, the places with their limits on the right.

    Each unit of cost counts more than all moves together, and each move counts: of equals the fewest tasks move.
    """

    def __init__(self, costs: Costs, tasks: int) -> None:
        self._costs = costs
        self._scale = tasks + 1
        self._flow = MinCostFlow()
        self._offers: dict[tuple[TaskId, ...], list[tuple[int, object]]] = {}
        self._joins: dict[object, list[tuple[int, object]]] = defaultdict(list)
        self._taken: Counter[int] = Counter()

    def offer(self, tasks: tuple[TaskId, ...], place: object, misses: int, moves: bool) -> None:
        """Let any of the tasks, which are alike, go to a place; misses: partitions that are in no rack of it."""
        cost = misses * self._costs.traffic + moves * self._costs.non_overlap
        if tasks not in self._offers:
            self._offers[tasks] = []
            self._flow.add_edge("source", tasks, len(tasks))
        edge = self._flow.add_edge(tasks, ("place", place), len(tasks), cost * self._scale + moves)
        self._offers[tasks].append((edge, place))

    def join(self, place: object, wider: object, capacity: int) -> None:
        """Let what went to one place go on to another."""
        edge = self._flow.add_edge(("place", place), ("place", wider), capacity)
        self._joins[place].append((edge, wider))

    def limit(self, place: object, capacity: int) -> None:
        """End at a place, as often as that."""
        self._flow.add_edge(("place", place), "sink", capacity)

    def solve(self) -> list[tuple[TaskId, Any]]:
        """Return each task with the first place on its cheapest way. Raises AssertionError if one has none: a bug."""
        sent, _ = self._flow.solve("source", "sink")
        tasks = sum(map(len, self._offers))
        assert sent == tasks, f"{sent} of {tasks} tasks found a place; this is a bug"
        found: list[tuple[TaskId, Any]] = []
        for alike, offers in self._offers.items():
            remaining = iter(alike)
            for edge, place in offers:
                found += [(next(remaining), place) for _ in range(self._flow.flow(edge))]
        return found

    def take(self, place: object) -> Any:
        """Return where one unit that went to the place has gone on to; each unit once."""
        for edge, wider in self._joins[place]:
            if self._taken[edge] < self._flow.flow(edge):
                self._taken[edge] += 1
                return wider
        raise AssertionError(f"more left {place} than came; this is a bug")


def rack_aware_optimizer(
    strategy: str,
    clients: Clients,
    sources: Mapping[TaskId, Collection[TopicPartition]],
    changelogs: Mapping[TaskId, Collection[TopicPartition]],
    racks: Mapping[TopicPartition, frozenset[str]],
    log: PrefixedLogger,
) -> RackAwareOptimizer | None:
    """Return what saves traffic, None if it shall not or cannot; then the log says what is missing.

    sources, changelogs: what each task reads as an active, and as a standby task (empty without any). racks: of each
    partition's replicas, none of them empty; without an entry they are not known.
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
            "Tasks are assigned without regard to racks: for %d partitions, among them %s-%d, the brokers tell no "
            "rack. Set broker.rack for every broker.",
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
