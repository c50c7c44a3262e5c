"""Groups of connected nodes, each of which forms a sub-topology (Kafka Streams: QuickUnion)."""

from __future__ import annotations


class NodeGroups:
    """Disjoint sets of node names."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def add(self, name: str, *others: str) -> None:
        """Add a node to the groups of others, which are merged; without others to a new group."""
        self._parents[name] = name
        self.unite(name, *others)

    def unite(self, name: str, *others: str) -> None:
        """Put nodes into one group."""
        for other in others:
            self._parents[self.root(name)] = self.root(other)

    def root(self, name: str) -> str:
        """Return the representative of a node's group."""
        parents = self._parents
        while parents[name] != name:
            parents[name] = parents[parents[name]]
            name = parents[name]
        return name
