"""The flow of tasks to clients, for which Kafka Streams builds a graph (RackAwareGraphConstructor).

Each task sends one unit of flow to a client node. With min_traffic there is one node per client. With
balance_subtopology there is one per sub-topology and client, whose capacity is the client's share of the sub-topology,
followed by one per client, whose capacity is the client's number of tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: Instead of a group's index: a client's own node, after its client nodes. Instead of a task: the path from there.
CLIENT = -1
#: Instead of a client: the task has none yet.
_UNASSIGNED = -1

#: A client node by the indexes of its group and its client; or CLIENT and a client's.
Node = tuple[int, int]


@dataclass(eq=False)
class TaskGroup:
    """Tasks that share client nodes (one per client): all tasks, or those of one sub-topology.

    homes: each task's previous client. owners: each task's current client. racks: by client. traffic: by rack, the cost
    of each task there. non_overlap: additional cost of a task away from home. shares: by client, the maximum number of
    tasks; without it, tasks start at home. taken: by client, the used part of its share. natives: by client, the tasks
    at home there, if that makes them cheaper. Costs are never negative.
    """

    homes: Sequence[int]
    racks: Sequence[int]
    traffic: Sequence[Sequence[int]]
    non_overlap: int
    shares: Sequence[int] = ()

    def __post_init__(self) -> None:
        self.owners = [_UNASSIGNED] * len(self.homes) if self.shares else list(self.homes)
        self.taken = [0] * len(self.shares)
        self.natives: list[list[int]] = [[] for _ in self.racks]
        for task, home in enumerate(self.homes if self.non_overlap else ()):
            self.natives[home].append(task)

    def cost(self, task: int, client: int) -> int:
        """Return the cost of a task at a client."""
        return self.traffic[self.racks[client]][task] + (self.homes[task] != client) * self.non_overlap


class Ways:
    """The predecessor of each node on its shortest path.

    nodes: by group and client node: a task, or CLIENT. clients: by client: the group of the client node before it.
    None: not known yet.
    """

    def __init__(self, groups: Sequence[TaskGroup]) -> None:
        self._groups = groups
        self.nodes: list[list[int | None]] = [[None] * len(group.racks) for group in groups]
        self.clients: list[int | None] = [None] * len(groups[0].racks)

    def previous(self, node: Node) -> Node:
        """Return the client node or client before this one; a task between two client nodes is skipped."""
        group, client = node
        if group == CLIENT:
            return _known(self.clients[client]), client
        origin = _known(self.nodes[group][client])
        return (CLIENT, client) if origin == CLIENT else (group, self._groups[group].owners[origin])

    def send(self, nodes: Iterable[Node]) -> None:
        """Send one unit of flow over the last edge to each of the nodes."""
        for group, client in nodes:
            if group == CLIENT:
                self._groups[_known(self.clients[client])].taken[client] += 1
            elif (origin := _known(self.nodes[group][client])) == CLIENT:
                self._groups[group].taken[client] -= 1
            else:
                self._groups[group].owners[origin] = client


class _Task(NamedTuple):
    group: int
    task: int


def _known(origin: int | None) -> int:
    assert origin is not None, "a shortest path has no start; this is a bug"
    return origin


def fill_shares(groups: Sequence[TaskGroup], sizes: Sequence[int]) -> None:
    """Assign every task, to each client as many as its size: along shortest paths, as Kafka Streams does
    (Ford-Fulkerson).

    Raises AssertionError if the shares leave no room for a task: a bug.
    """
    free = list(sizes)
    for _ in range(sum(free)):
        ways = Ways(groups)
        node = _nearest_with_room(groups, free, ways)
        free[node[1]] -= 1
        path = [node]
        while (node := ways.previous(node))[1] != _UNASSIGNED:
            path.append(node)
        ways.send(path)


def _nearest_with_room(groups: Sequence[TaskGroup], free: Sequence[int], ways: Ways) -> Node:
    """Return the first client with room, found by a breadth-first search from the unassigned tasks.

    Nodes are visited in Kafka Streams' order. The first task of a group to be visited reaches all its client nodes.
    """
    queue: list[Node | _Task] = [
        _Task(number, group.owners.index(_UNASSIGNED))
        for number, group in enumerate(groups)
        if _UNASSIGNED in group.owners
    ]
    for visited in queue:  # grows during the search
        if isinstance(visited, _Task):
            nodes = ways.nodes[visited.group]
            for client, origin in enumerate(nodes):
                if origin is None and client != groups[visited.group].owners[visited.task]:
                    nodes[client] = visited.task
                    queue.append((visited.group, client))
            continue
        number, client = visited
        if number == CLIENT:
            if free[client]:
                return visited
            for number, group in enumerate(groups):
                if group.taken[client] and ways.nodes[number][client] is None:
                    ways.nodes[number][client] = CLIENT
                    queue.append((number, client))
            continue
        group = groups[number]
        if None in ways.nodes[number]:
            queue.extend(_Task(number, task) for task, owner in enumerate(group.owners) if owner == client)
        if group.taken[client] < group.shares[client] and ways.clients[client] is None:
            ways.clients[client] = number
            queue.append((CLIENT, client))
    raise AssertionError("the clients' shares leave no room for a task; this is a bug")
