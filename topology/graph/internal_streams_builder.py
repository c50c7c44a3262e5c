"""The graph behind a StreamsBuilder: generates names, collects operations, and writes them into a topology."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter

from ..errors import TopologyError
from ..operators.suppress import KTableSuppressProcessor
from ..stores.materialized import setting
from .graph_nodes import GraphNode, OptimizableRepartitionNode, ProcessorGraphNode, TableSourceNode
from .internal_topology_builder import InternalTopologyBuilder
from .optimizer import OperationGraph, key_changing_parent, merge_duplicate_sources, optimize

#: Operations whose input was renumbered by a topology release of Kafka Streams would rename internal topics: so every
#: generated name, of nodes and of stores, comes from one counter.
_NUMBER_WIDTH = 10


class InternalStreamsBuilder:
    """One graph of DSL operations (Kafka Streams: InternalStreamsBuilder)."""

    def __init__(self, topology: InternalTopologyBuilder) -> None:
        self.topology = topology
        self.root = GraphNode("root")
        self.graph = OperationGraph(self.root)
        # Not itertools.count: a topology is sent to the processes, and from Python 3.14 on that cannot be pickled.
        self._next_index = 0
        self._next_priority = 0
        self._built = False

    def new_processor_name(self, prefix: str) -> str:
        """Return ``<prefix><number>``."""
        return f"{prefix}{self._new_index():0{_NUMBER_WIDTH}d}"

    def new_store_name(self, prefix: str) -> str:
        """Return ``<prefix>STATE-STORE-<number>``."""
        return f"{prefix}STATE-STORE-{self._new_index():0{_NUMBER_WIDTH}d}"

    def _new_index(self) -> int:
        self._next_index += 1
        return self._next_index - 1

    def add_graph_node(self, parents: GraphNode | Iterable[GraphNode], child: GraphNode) -> None:
        """Attach an operation to its parents."""
        for parent in [parents] if isinstance(parents, GraphNode) else parents:
            parent.add_child(child)
            self._note(child)

    def _note(self, node: GraphNode) -> None:
        """Record a node for the optimizer; as in Kafka Streams under the first matching category only."""
        graph = self.graph
        node.build_priority = self._next_priority
        self._next_priority += 1
        graph.nodes[node] = None
        if node.key_changing:
            graph.key_changers[node] = {}
        elif isinstance(node, OptimizableRepartitionNode):
            key_changer = key_changing_parent(node)
            if key_changer is not None:
                graph.key_changers[key_changer][node] = None
        elif node.merge_node:
            graph.merge_nodes[node] = None
        elif isinstance(node, TableSourceNode):
            graph.table_sources[node] = None

    def build_and_optimize(self, config: Mapping[str, object] | None) -> None:
        """Write all operations into the topology, once; config: topology.optimization and explicit naming.

        Raises TopologyError if the topology is not valid.
        """
        if self._built:
            self._check_nothing_new()
            return
        self._built = True
        merge_duplicate_sources(self.graph)
        optimize(self.graph, self.topology, setting(config, "topology.optimization"), self)
        self._enable_versioned_semantics()
        self._write()
        self.topology.validate()
        if setting(config, "ensure.explicit.internal.resource.naming"):
            self.topology.check_explicit_names()

    def _check_nothing_new(self) -> None:
        """Reject operations added after build(); a second build() returns the same topology."""
        new = [node.node_name for node in self.graph.nodes if not node.written and node.parents]
        if new:
            raise TopologyError(
                f"{', '.join(new)} was added after build(); create a new StreamsBuilder for another topology"
            )

    def _write(self) -> None:
        """Write parents before children, and otherwise in the order of build_priority."""
        order = itertools.count()  # of two nodes with equal priority, the one that was reached first
        waiting = [(0, next(order), self.root)]
        while waiting:
            _, _, node = heapq.heappop(waiting)
            if node.written or not all(parent.written for parent in node.parents):
                continue
            node.write_to(self.topology)
            node.written = True
            for child in node.children:
                heapq.heappush(waiting, (child.build_priority, next(order), child))

    def _enable_versioned_semantics(self) -> None:
        versioned = self._versioned_nodes()
        for node in self.graph.nodes:
            for parent in node.parents:
                if parent in versioned:
                    node.enable_versioned_semantics(parent.node_name)
            suppresses = isinstance(node, ProcessorGraphNode) and isinstance(node.operator, KTableSuppressProcessor)
            if suppresses and versioned.issuperset(node.parents):
                raise TopologyError(
                    f"{node.node_name}: suppress() is only supported for non-versioned KTables "
                    "(versioned semantics may be inherited from upstream)"
                )

    def _versioned_nodes(self) -> set[GraphNode]:
        """Return the nodes whose table keeps versions, by themselves or because all of their parents do."""
        versioned: set[GraphNode] = set()
        for node in TopologicalSorter({node: node.parents for node in self.graph.nodes}).static_order():
            inherited = bool(node.parents) and versioned.issuperset(node.parents)
            if inherited if node.output_versioned is None else node.output_versioned:
                versioned.add(node)
        return versioned
