"""The common base of streams and tables: a position in the graph of operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..common.naming import Named
from ..graph.graph_nodes import GraphNode, ProcessorGraphNode
from ..graph.internal_streams_builder import InternalStreamsBuilder
from ..operators.operator import Operator
from ..serdes.serdes import Serde


@dataclass(eq=False, repr=False)
class AbstractStream:
    """An operation's result. The attributes are for internal use by the DSL (Kafka Streams: AbstractStream).

    name: of the node that yields it; key_serde, value_serde: known ones, else None; source_nodes: the sources of its
    sub-topology; graph_node: where the next operation is attached.
    """

    builder: InternalStreamsBuilder
    graph_node: GraphNode
    key_serde: Serde | None
    value_serde: Serde | None
    source_nodes: frozenset[str]
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.name or self.graph_node.node_name

    def copartition_with(self, *others: AbstractStream) -> frozenset[str]:
        """Require that all sources have the same number of partitions, and return the sources."""
        sources = self.source_nodes.union(*(other.source_nodes for other in others))
        self.builder.topology.require_copartition(sources)
        return sources

    def attach(self, name: str | None, prefix: str, operator: Operator, **options: object) -> ProcessorGraphNode:
        """Attach an operator to this stream; its name is generated with prefix unless given.

        options: arguments of ProcessorGraphNode, and its flags key_changing, value_changing, output_versioned and
        accepts_null_keys.
        """
        return self.attach_named(Named(name).or_generate(self.builder, prefix), operator, **options)

    def attach_named(self, name: str, operator: Operator, **options: Any) -> ProcessorGraphNode:
        """Attach an operator with this name to this stream; see attach."""
        flags = {flag: options.pop(flag) for flag in _FLAGS if flag in options}
        node = ProcessorGraphNode(name, operator, **options)
        for flag, value in flags.items():
            setattr(node, flag, value)
        self.builder.add_graph_node(self.graph_node, node)
        return node

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


_FLAGS: Sequence[str] = ("key_changing", "value_changing", "output_versioned", "accepts_null_keys")
