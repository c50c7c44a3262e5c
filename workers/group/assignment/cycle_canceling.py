"""The cheapest assignment of tasks to clients; among equally cheap ones, that of Kafka Streams (its class Graph).

Kafka Streams cancels negative cycles. To find one, Bellman-Ford relaxes all edges as many times as there are nodes. If
the last pass still shortens a distance, that node is reachable from a negative cycle, and the tasks on the cycle change
places. Which cycle is found, and so which of equally cheap assignments results, depends on every pass.

This module finds the same cycles with less work. A pass visits all tasks before the client nodes, so for each client
node only the first task with the shortest distance counts. Tasks of other clients offer the same distance to all
clients of a rack. Source and sink are on no cycle, because their edges are full. While there is a negative cycle,
distances decrease without end, and after some time in a pattern that repeats every few passes; such passes are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from operator import add, sub
from typing import NamedTuple

from .task_groups import CLIENT, Node, TaskGroup, Ways


def cancel_negative_cycles(groups: Sequence[TaskGroup]) -> None:
    """Exchange tasks until no exchange is cheaper. Each client keeps its number of tasks."""
    while (search := _CycleSearch(groups)).finds_a_cycle():
        search.cancel_it()


class _SavedDistances(NamedTuple):
    nodes: Sequence[int]
    offered: Sequence[int]
    origins: Sequence[int | None]


class _GroupDistances:
    """The shortest distances to a group's nodes so far, and the tasks or clients before them (origins).

    nodes: distances to the client nodes. offered: their values at the time when these nodes last relaxed their tasks.
    source: the distance to the source by way of the group's tasks.
    """

    def __init__(self, group: TaskGroup, origins: list[int | None]) -> None:
        self._group = group
        self._origins = origins
        self._costs = [group.cost(task, owner) for task, owner in enumerate(group.owners)]
        self.nodes = [0] * len(group.racks)
        self.offered = list(self.nodes)
        self.source = 0

    def tasks(self) -> list[int]:
        """Return the distances to the tasks, each from the client node of its owner."""
        offered = self.offered
        return [offered[owner] - cost for owner, cost in zip(self._group.owners, self._costs, strict=True)]

    def relax(self) -> bool:
        """Relax the edges from tasks to client nodes, then those from client nodes to tasks; return whether any was."""
        group, nodes = self._group, self.nodes
        tasks = self.tasks()
        self.source = min(tasks)
        offers = [list(map(add, tasks, traffic)) for traffic in group.traffic]
        from_elsewhere = [(min(offer) + group.non_overlap, offer.index(min(offer))) for offer in offers]
        for client, rack in enumerate(group.racks):
            distance, origin = from_elsewhere[rack]
            for task in group.natives[client]:
                native = offers[rack][task]
                if native < distance or (native == distance and task < origin):
                    distance, origin = native, task
            # A client's own tasks never offer a shorter distance, because theirs comes from the client node.
            if distance < nodes[client]:
                nodes[client], self._origins[client] = distance, origin
        before, self.offered = self.offered, list(nodes)
        return before != nodes

    def save(self) -> _SavedDistances:
        """Return the values that shift compares with."""
        return _SavedDistances(list(self.nodes), self.offered, list(self._origins))

    def shift(self, saved: _SavedDistances) -> int | None:
        """Return by how much all distances differ from the saved ones; None if not all alike, or if origins differ."""
        if self._origins != saved.origins:
            return None
        shifts = {*map(sub, self.nodes, saved.nodes), *map(sub, self.offered, saved.offered)}
        return shifts.pop() if len(shifts) == 1 else None

    def move(self, distance: int) -> None:
        """Add a number to all distances."""
        self.nodes = [node + distance for node in self.nodes]
        self.offered = [node + distance for node in self.offered]
        self.source += distance

    def relax_first(self, source: int) -> int | None:
        """Relax the first edge from a task that shortens a distance, None if none does.

        Return the client of the node that it leads to; if it leads to the source, the client of the task.
        """
        for task, distance in enumerate(self.tasks()):
            owner = self._group.owners[task]
            if distance < source:
                return owner
            for client, node in enumerate(self.nodes):
                if client != owner and distance + self._group.cost(task, client) < node:
                    self._origins[client] = task
                    return client
        return None


class _Saved(NamedTuple):
    """The distances after some number of passes. crossed: client nodes with a relaxed edge from or to their client
    since.
    """

    done: int
    groups: Sequence[_SavedDistances]
    clients: Sequence[int]
    origins: Sequence[int | None]
    crossed: set[Node]


class _CycleSearch:
    """Bellman-Ford, once. distances: of the groups; clients: to the clients' own nodes, where groups have shares."""

    def __init__(self, groups: Sequence[TaskGroup]) -> None:
        clients = len(groups[0].racks)
        self._groups = groups
        self._ways = Ways(groups)
        self._distances = [_GroupDistances(g, nodes) for g, nodes in zip(groups, self._ways.nodes, strict=True)]
        self._clients = [0] * clients
        self._own_nodes = range(clients) if groups[0].shares else range(0)
        tasks = sum(len(group.homes) for group in groups)
        #: As many as nodes; the last three are source, sink, and one that has an edge to each of the others.
        self._passes = tasks + len(groups) * clients + len(self._own_nodes) + 3
        self._saved = self._save(0)
        self._cycle: list[Node] = []

    def finds_a_cycle(self) -> bool:
        """Return whether there is a negative cycle."""
        last = self._passes - 1
        done = 1  # the first one finds all distances 0
        while done < last:
            if not self._relax():
                return False
            done = self._skip(done + 1, last)
        node = self._relax_first()
        if node is None:
            return False
        while node not in self._cycle:
            self._cycle.append(node)
            node = self._ways.previous(node)
        del self._cycle[: self._cycle.index(node)]
        return True

    def cancel_it(self) -> None:
        """Send one unit of flow along the cycle."""
        self._ways.send(self._cycle)

    def _relax(self) -> bool:
        """Relax all edges, in the order of the nodes from which they come; return whether a distance got shorter."""
        relaxed = [distances.relax() for distances in self._distances]
        if self._own_nodes:
            for number, distances in enumerate(self._distances):
                for client, (node, own_node) in enumerate(zip(distances.nodes, self._clients, strict=True)):
                    relaxed.append(node < own_node and self._relax_to_client(number, client))
            for number, distances in enumerate(self._distances):
                for client, (node, own_node) in enumerate(zip(distances.nodes, self._clients, strict=True)):
                    relaxed.append(own_node < node and self._relax_from_client(number, client))
        return any(relaxed)

    def _relax_to_client(self, number: int, client: int) -> bool:
        group, distance = self._groups[number], self._distances[number].nodes[client]
        if distance >= self._clients[client] or group.taken[client] == group.shares[client]:
            return False
        self._clients[client] = distance
        self._ways.clients[client] = number
        self._saved.crossed.add((number, client))
        return True

    def _relax_from_client(self, number: int, client: int) -> bool:
        nodes, distance = self._distances[number].nodes, self._clients[client]
        if distance >= nodes[client] or not self._groups[number].taken[client]:
            return False
        nodes[client] = distance
        self._ways.nodes[number][client] = CLIENT
        self._saved.crossed.add((number, client))
        return True

    def _relax_first(self) -> Node | None:
        """Relax the first edge that shortens a distance, and return its end or a node on the way to it."""
        source = min(distances.source for distances in self._distances)
        for number, distances in enumerate(self._distances):
            client = distances.relax_first(source)
            if client is not None:
                return number, client
        for number, client in product(range(len(self._groups)), self._own_nodes):
            distances = self._distances[number]
            if distances.nodes[client] < distances.offered[client] and client in self._groups[number].owners:
                return number, client
            if self._relax_to_client(number, client):
                return CLIENT, client
        for client, number in product(self._own_nodes, range(len(self._groups))):
            if self._relax_from_client(number, client):
                return number, client
        return None

    # Passes that need not be run

    def _save(self, done: int) -> _Saved:
        groups = [distances.save() for distances in self._distances]
        return _Saved(done, groups, list(self._clients), list(self._ways.clients), set())

    def _skip(self, done: int, last: int) -> int:
        """Return how many passes are done when a known pattern of distances has been repeated up to the last pass."""
        shifts = self._shifts()
        if shifts is not None:
            period = done - self._saved.done
            repeats = (last - done) // period
            done += repeats * period
            for distances, shift in zip(self._distances, shifts[0], strict=True):
                distances.move(repeats * shift)
            self._clients = [known + repeats * shift for known, shift in zip(self._clients, shifts[1], strict=True)]
        elif done > 2 * self._saved.done:
            self._saved = self._save(done)
        return done

    def _shifts(self) -> tuple[list[int], list[int]] | None:
        """Return by how much the distances of groups and clients have changed since they were saved.

        None if they will not change by the same amounts after as many further passes. They will if all distances of a
        group have changed equally, none by less than a distance to which it has an edge, and by as much as the one
        whose edge relaxed it: edges that were not shorter then stay so.
        """
        saved = self._saved
        groups = [now.shift(then) for now, then in zip(self._distances, saved.groups, strict=True)]
        if None in groups or self._ways.clients != saved.origins:
            return None
        shifts = [shift for shift in groups if shift is not None]
        clients = list(map(sub, self._clients, saved.clients))
        for (number, group), client in product(enumerate(self._groups), self._own_nodes):
            to_client = shifts[number] - clients[client]
            has_room, has_flow = group.taken[client] < group.shares[client], group.taken[client] > 0
            if (to_client < 0 and has_room) or (to_client > 0 and has_flow):
                return None
            if to_client and (number, client) in saved.crossed:
                return None
        return shifts, clients
