"""Rewrites the graph of DSL operations before it is written (Kafka Streams: InternalStreamsBuilder, KIP-295, KIP-825).

- always: sources of the same topics are merged, and repartition topics drop records without a key unless a left or
  outer join after them needs them
- reuse.ktable.source.topics: a table's source topic is its changelog
- merge.repartition.topics: one repartition topic after a key-changing operation serves all operations that need one
- single.store.self.join: a stream that is joined with itself is stored once

Penstock's own, always: sinks outside of Kafka get a sub-topology for themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ..common.naming import NameProvider
from ..config.streams_config import verify_topology_optimization_configs
from ..errors import TopologyError
from ..operators.stateless import REPEATABLE
from .graph_nodes import (
    BaseRepartitionNode,
    GraphNode,
    OptimizableRepartitionNode,
    OutsideSinkNode,
    ProcessorGraphNode,
    StreamSourceNode,
    StreamStreamJoinNode,
    TableSourceNode,
    UnoptimizableRepartitionNode,
)
from .internal_topology_builder import InternalTopologyBuilder
from .repartition import repartition_node


@dataclass(slots=True)
class OperationGraph:
    """All operations, and the starting points of optimizations; dicts serve as ordered sets."""

    root: GraphNode
    nodes: dict[GraphNode, None] = field(default_factory=dict)
    #: Key-changing operations, and the repartition topics behind each that nothing but key changes separates from it.
    key_changers: dict[GraphNode, dict[OptimizableRepartitionNode, None]] = field(default_factory=dict)
    merge_nodes: dict[GraphNode, None] = field(default_factory=dict)
    table_sources: dict[TableSourceNode, None] = field(default_factory=dict)


def optimize(graph: OperationGraph, topology: InternalTopologyBuilder, config: str, names: NameProvider) -> None:
    """Apply the optimizations that topology.optimization names."""
    enabled = verify_topology_optimization_configs(config)
    if "reuse.ktable.source.topics" in enabled:
        for table in graph.table_sources:
            table.reuse_source_topic_for_changelog = True
    if "merge.repartition.topics" in enabled:
        merge_repartition_topics(graph, topology, names)
    if "single.store.self.join" in enabled:
        rewrite_self_joins(graph.root)
    drop_null_keys(graph.root)
    isolate_sinks(graph, names)


def merge_duplicate_sources(graph: OperationGraph) -> None:
    """Merge sources of the same topics, or of the same pattern."""
    first_by_topic: dict[object, StreamSourceNode] = {}
    for node in list(graph.root.children):
        if not isinstance(node, StreamSourceNode):
            continue
        for key in _keys(node):
            first = first_by_topic.setdefault(key, node)
            if first is node:
                continue
            if first.topics != node.topics and set(_keys(first)) != set(_keys(node)):
                raise TopologyError(
                    f"Two sources read overlapping but not equal topics: {first.node_name} reads {first.topics}, "
                    f"{node.node_name} reads {node.topics}"
                )
            first.merge(node)
            graph.root.remove_child(node)
            break


def _keys(source: StreamSourceNode) -> tuple[str | re.Pattern[str], ...]:
    return source.topics if isinstance(source.topics, tuple) else (source.topics,)


def drop_null_keys(root: GraphNode) -> None:
    """Let repartition topics drop records without a key if no operator follows that accepts them."""
    wanting: set[GraphNode] = set()
    visited: dict[GraphNode, None] = {}
    for node in _children_first(root):
        visited[node] = None
        if any(child.accepts_null_keys or child in wanting for child in node.children):
            wanting.add(node)
    for node in visited:
        if isinstance(node, BaseRepartitionNode) and node not in wanting:
            node.drops_null_keys = True


def _children_first(root: GraphNode) -> list[GraphNode]:
    """Return all nodes below root, each after all of its children."""
    order: dict[GraphNode, None] = {}
    open_nodes: list[tuple[GraphNode, bool]] = [(root, False)]
    while open_nodes:
        node, children_done = open_nodes.pop()
        if node in order:
            continue
        if children_done:
            order[node] = None
            continue
        open_nodes.append((node, True))
        open_nodes.extend((child, False) for child in node.children if child not in order)
    return list(order)


def isolate_sinks(graph: OperationGraph, names: NameProvider) -> None:
    """Put a repartition topic before each sink outside of Kafka, unless its task does nothing else in any case.

    Its task continues at the offsets that the sink has stored, and nothing else may process records again with it.
    """
    for sink in [node for node in graph.nodes if isinstance(node, OutsideSinkNode)]:
        if _is_isolated(sink):
            continue
        operator = sink.operator
        serdes = operator.key_serde, operator.value_serde
        between = repartition_node(UnoptimizableRepartitionNode, names, sink.node_name, *serdes, named=sink.named)
        between.build_priority = sink.build_priority
        for parent in list(sink.parents):
            parent.remove_child(sink)
            parent.add_child(between)
        between.add_child(sink)
        graph.nodes[between] = None


def _is_isolated(sink: OutsideSinkNode) -> bool:
    """Return whether only sources and stateless functions precede a sink, and nothing else follows them."""
    seen: set[GraphNode] = {sink}
    above = list(sink.parents)
    while above:
        node = above.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, StreamSourceNode | BaseRepartitionNode):
            continue
        if not isinstance(node, ProcessorGraphNode) or not isinstance(node.operator, REPEATABLE):
            return False
        above.extend(node.parents)
    return all(seen.issuperset(node.children) for node in seen)


def rewrite_self_joins(root: GraphNode) -> None:
    """Store a stream that is joined with itself once."""
    for node in _children_first(root):
        if not isinstance(node, StreamStreamJoinNode) or len(node.parents) != 1:
            continue
        (parent,) = node.parents
        names = {child.node_name: child for child in parent.children if child.build_priority < node.build_priority}
        parent.remove_child(names[node.other.windowed_name])
        node.is_self_join = True


def key_changing_parent(node: GraphNode) -> GraphNode | None:
    """Return the nearest key-changing operation above, None if one that changes values is nearer."""
    changing = find_parent_matching(node, lambda above: above.key_changing or above.value_changing)
    key_changing = find_parent_matching(node, lambda above: above.key_changing)
    return key_changing if changing is key_changing else None


def find_parent_matching(node: GraphNode, matches: Callable[[GraphNode], bool]) -> GraphNode | None:
    """Return the first match among the node and its ancestors, parent by parent in order; None if there is none."""
    if matches(node):
        return node
    above = (find_parent_matching(parent, matches) for parent in node.parents)
    return next((found for found in above if found is not None), None)


def merge_repartition_topics(graph: OperationGraph, topology: InternalTopologyBuilder, names: NameProvider) -> None:
    """Replace the repartition topics behind each key-changing operation by one, named like the first of them.

    Raises TopologyError if records would then not be partitioned by their new key.
    """
    _let_merge_nodes_stand_for_key_changers(graph)
    readers = {node: list(node.children) for repartitions in graph.key_changers.values() for node in repartitions}
    for key_changer, repartitions in graph.key_changers.items():
        if not repartitions:
            continue
        first = next(iter(repartitions))
        merged = repartition_node(
            OptimizableRepartitionNode,
            names,
            first.topic,
            next((node.key_serde for node in repartitions if node.key_serde is not None), None),
            next((node.value_serde for node in repartitions if node.value_serde is not None), None),
            named=first.named,
        )
        for replaced in repartitions:
            _replace(replaced, merged, key_changer)
            topology.rename_copartition_source(replaced.node_name, merged.node_name)
        key_changer.add_child(merged)
        graph.nodes[merged] = None
    for replaced, children in readers.items():
        _check_repartitioned(replaced, children)


def _check_repartitioned(replaced: OptimizableRepartitionNode, readers: list[GraphNode]) -> None:
    """Raise TopologyError if readers of a repartition topic would read re-keyed records that were not repartitioned.

    Kafka Streams looks for one key-changing operation above a repartition topic and uses its merged topic; above a
    merge there may be others.
    """
    seen = {parent for reader in readers for parent in reader.parents}
    above = list(seen)
    while above:
        node = above.pop()
        if node.key_changing:
            raise TopologyError(
                f"merge.repartition.topics would remove the repartition topic {replaced.topic}, but records that "
                f"get their key in {node.node_name} need it (Kafka Streams removes it, and they are not partitioned "
                f"by their key). Call repartition() after {node.node_name}, or remove merge.repartition.topics from "
                "topology.optimization."
            )
        if not isinstance(node, BaseRepartitionNode):
            above.extend(parent for parent in node.parents if parent not in seen)
            seen.update(node.parents)


def _replace(replaced: OptimizableRepartitionNode, merged: OptimizableRepartitionNode, key_changer: GraphNode) -> None:
    """Remove a repartition node, and attach the path to it to the merged one."""
    leading = find_parent_matching(replaced, lambda node: key_changer in node.parents)
    if leading is None:
        raise TopologyError(
            f"{replaced.node_name} is not downstream of {key_changer.node_name}: its repartition cannot be merged"
        )
    merged.add_child(leading)
    key_changer.remove_child(leading)
    children, parents = list(replaced.children), list(replaced.parents)
    for child in children:
        for parent in parents:
            parent.add_child(child)
    for parent in parents:
        parent.remove_child(replaced)
    replaced.clear_children()


def _let_merge_nodes_stand_for_key_changers(graph: OperationGraph) -> None:
    """Repartition re-keyed streams once after their merge instead of once per stream."""
    key_changers_of: dict[GraphNode, list[GraphNode]] = {merge: [] for merge in graph.merge_nodes}
    for merge, found in key_changers_of.items():
        for key_changer, repartitions in graph.key_changers.items():
            behind_merge = all(
                find_parent_matching(node, lambda above, merge=merge: merge in above.parents) is not None  # type: ignore[misc]
                for node in repartitions
            )
            leads_to_merge = find_parent_matching(
                merge,
                lambda above, key_changer=key_changer: key_changer in above.parents,  # type: ignore[misc]
            )
            if behind_merge and leads_to_merge is not None:
                found.append(key_changer)
    replaced = {key_changer for found in key_changers_of.values() for key_changer in found}
    for merge, found in key_changers_of.items():
        graph.key_changers[merge] = {node: None for key_changer in found for node in graph.key_changers[key_changer]}
    for key_changer in replaced:
        del graph.key_changers[key_changer]
