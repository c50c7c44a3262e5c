"""The cheapest way to send as much as possible through a graph (Kafka Streams: Graph, which cancels negative cycles).

Primal-dual: shortest paths by Dijkstra over reduced costs, then as many paths of that length as there are. Costs in an
assignment take few different values, so there are few such rounds, whatever the size of the graph.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush

_INFINITE = 2**62


class MinCostFlow:
    """Nodes are made by naming them in an edge. Edge n's way back is edge n ^ 1, with what flows as its capacity."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._edges_of: list[list[int]] = []
        self._target: list[int] = []
        self._residual: list[int] = []
        self._cost: list[int] = []

    def add_edge(self, source: Hashable, target: Hashable, capacity: int, cost: int = 0) -> int:
        """Return the number of a new edge; capacity and cost (for each unit) from 0."""
        edge = len(self._target)
        start, end = self._node(source), self._node(target)
        for node, other, residual, signed in ((start, end, capacity, cost), (end, start, 0, -cost)):
            self._edges_of[node].append(len(self._target))
            self._target.append(other)
            self._residual.append(residual)
            self._cost.append(signed)
        return edge

    def _node(self, name: Hashable) -> int:
        number = self._numbers.setdefault(name, len(self._numbers))
        if number == len(self._edges_of):
            self._edges_of.append([])
        return number

    def flow(self, edge: int) -> int:
        """Return how much flows through an edge."""
        return self._residual[edge ^ 1]

    def solve(self, source: Hashable, sink: Hashable) -> tuple[int, int]:
        """Send all that can be sent; returns how much that is, and what it costs."""
        start, end = self._node(source), self._node(sink)
        potential = [0] * len(self._edges_of)
        flow = cost = 0
        while (distances := self._distances(start, potential))[end] < _INFINITE:
            reached = max(distance for distance in distances if distance < _INFINITE)
            for node, distance in enumerate(distances):
                potential[node] += min(distance, reached)
            while sent := self._send(start, end, potential):
                flow += sent
                cost += sent * (potential[end] - potential[start])
        return flow, cost

    def _distances(self, start: int, potential: list[int]) -> list[int]:
        distances = [_INFINITE] * len(potential)
        distances[start] = 0
        heap = [(0, start)]
        while heap:
            distance, node = heappop(heap)
            if distance > distances[node]:
                continue
            base = distance + potential[node]
            for edge in self._edges_of[node]:
                if self._residual[edge]:
                    other = self._target[edge]
                    through = base + self._cost[edge] - potential[other]
                    if through < distances[other]:
                        distances[other] = through
                        heappush(heap, (through, other))
        return distances

    def _send(self, start: int, end: int, potential: list[int]) -> int:
        """Send along paths of no reduced cost, none through a node from which an earlier one found no way.

        A node may be on another path's way when it is given up, so that 0 only says something of the first path; solve
        asks until then.
        """
        tried = [0] * len(potential)  # of each node, how many of its edges lead nowhere
        seen = [False] * len(potential)
        sent = 0
        path: list[int] = []
        node = start
        seen[start] = True
        while True:
            if node == end:
                sent += self._push(path)
                for edge in path:
                    seen[self._target[edge]] = False
                path, node = [], start
                continue
            onward = self._next_edge(node, tried, seen, potential)
            if onward is not None:
                path.append(onward)
                node = self._target[onward]
                seen[node] = True
            elif path:
                node = self._target[path.pop() ^ 1]
                tried[node] += 1
            else:
                return sent

    def _next_edge(self, node: int, tried: list[int], seen: list[bool], potential: list[int]) -> int | None:
        edges = self._edges_of[node]
        while tried[node] < len(edges):
            edge = edges[tried[node]]
            other = self._target[edge]
            if self._residual[edge] and not seen[other] and potential[node] + self._cost[edge] == potential[other]:
                return edge
            tried[node] += 1
        return None

    def _push(self, path: list[int]) -> int:
        amount = min(self._residual[edge] for edge in path)
        for edge in path:
            self._residual[edge] -= amount
            self._residual[edge ^ 1] += amount
        return amount
