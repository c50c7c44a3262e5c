"""``Topology.describe()``: the sub-topologies as values, and as the text that Kafka Streams prints.

The order of nodes in the text must equal Kafka Streams'. It sorts a node by the size of the tree below it, as far as
the size is known when the node is inserted. Hence java_collections.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..common.java_collections import TreeSet, hash_map_order, hash_set_order
from ..operators.sink_operator import SinkOperator
from .declarations import NodeFactory, ProcessorFactory, SinkFactory, SourceFactory

if TYPE_CHECKING:
    from .internal_topology_builder import InternalTopologyBuilder


@dataclass(frozen=True, slots=True)
class Source:
    """A node that reads topics, or all topics that match a pattern."""

    name: str
    topics: tuple[str, ...]
    topic_pattern: re.Pattern[str] | None
    successors: tuple[str, ...]

    def __str__(self) -> str:
        topics = f"[{', '.join(self.topics)}]" if self.topic_pattern is None else self.topic_pattern.pattern
        return f"Source: {self.name} (topics: {topics})\n      --> {_names(self.successors)}"


@dataclass(frozen=True, slots=True)
class Processor:
    """A node that processes, with the stores it uses."""

    name: str
    stores: tuple[str, ...]
    successors: tuple[str, ...]
    predecessors: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"Processor: {self.name} (stores: [{', '.join(self.stores)}])\n"
            f"      --> {_names(self.successors)}\n      <-- {_names(self.predecessors)}"
        )


@dataclass(frozen=True, slots=True)
class Sink:
    """A node that writes a topic; topic is None if a function chooses it."""

    name: str
    topic: str | None
    topic_name_extractor: Callable[..., str] | None
    predecessors: tuple[str, ...]

    def __str__(self) -> str:
        extractor = self.topic_name_extractor
        where = f"topic: {self.topic}" if extractor is None else f"extractor class: {_function_name(extractor)}"
        return f"Sink: {self.name} ({where})\n      <-- {_names(self.predecessors)}"


@dataclass(frozen=True, slots=True)
class OutsideSink:
    """A node that writes to a sink outside of Kafka (to_sink); Kafka Streams has none."""

    name: str
    sink: str
    predecessors: tuple[str, ...]

    def __str__(self) -> str:
        return f"Sink: {self.name} ({self.sink})\n      <-- {_names(self.predecessors)}"


@dataclass(frozen=True, slots=True)
class Subtopology:
    """Nodes that are connected, directly or through stores: they run in one task."""

    id: int
    nodes: tuple[Source | Processor | Sink | OutsideSink, ...]

    def __str__(self) -> str:
        nodes = "".join(f"    {node}\n" for node in self.nodes)
        return f"Sub-topology: {self.id}\n{nodes}\n"


@dataclass(frozen=True, slots=True)
class GlobalStore:
    """A store that every task can read, with the source and processor that maintain it."""

    id: int
    source: Source
    processor: Processor

    def __str__(self) -> str:
        return (
            f"Sub-topology: {self.id} for global store (will not generate tasks)\n"
            f"    {self.source}\n    {self.processor}\n"
        )


@dataclass(frozen=True, slots=True)
class TopologyDescription:
    """All sub-topologies and global stores. ``str()`` gives Kafka Streams' text."""

    subtopologies: tuple[Subtopology, ...]
    global_stores: tuple[GlobalStore, ...]

    def __str__(self) -> str:
        parts: list[Subtopology | GlobalStore] = [*self.subtopologies, *self.global_stores]
        parts.sort(key=lambda part: part.id)
        return "Topologies:\n " + "".join(f"  {part}" for part in parts)


def describe(builder: InternalTopologyBuilder) -> TopologyDescription:
    """Return the description of the declared topology."""
    subtopologies, global_stores = [], []
    for number, names in builder.node_groups().items():
        if builder.is_global_group(names):
            global_stores.append(_global_store(builder, number, names))
        else:
            subtopologies.append(_subtopology(builder, number, names))
    return TopologyDescription(tuple(subtopologies), tuple(global_stores))


@dataclass(eq=False, slots=True)
class _Ranked:
    """A node while sorting; size counts the nodes of the tree below it, including itself."""

    node: NodeFactory
    size: int = 1
    successors: TreeSet[_Ranked] = field(default_factory=lambda: TreeSet(_compare))
    predecessors: TreeSet[_Ranked] = field(default_factory=lambda: TreeSet(_compare))

    def grow(self, by: int) -> None:
        self.size += by
        for predecessor in self.predecessors:
            predecessor.grow(by)


def _compare(one: _Ranked, other: _Ranked) -> int:
    """Larger trees first, then by name."""
    if one is other:
        return 0
    if one.size != other.size:
        return other.size - one.size
    return -1 if one.node.name < other.node.name else 1


def _subtopology(builder: InternalTopologyBuilder, number: int, names: Iterable[str]) -> Subtopology:
    ranked = {name: _Ranked(builder.nodes[name]) for name in hash_map_order(names)}
    for entry in ranked.values():
        for parent in (ranked[name] for name in entry.node.predecessors):
            entry.predecessors.add(parent)
            parent.successors.add(entry)
            parent.grow(entry.size)
    in_order = sorted(ranked.values(), key=lambda entry: (-entry.size, entry.node.name))
    return Subtopology(number, tuple(_describe_node(entry) for entry in in_order))


def _describe_node(entry: _Ranked) -> Source | Processor | Sink | OutsideSink:
    node = entry.node
    successors = tuple(child.node.name for child in entry.successors)
    predecessors = tuple(parent.node.name for parent in entry.predecessors)
    if isinstance(node, SourceFactory):
        return Source(node.name, tuple(hash_set_order(node.topics)), node.pattern, successors)
    if isinstance(node, SinkFactory):
        topic, extractor = (node.topic, None) if isinstance(node.topic, str) else (None, node.topic)
        return Sink(node.name, topic, extractor, predecessors)
    assert isinstance(node, ProcessorFactory)
    if isinstance(node.operator, SinkOperator):
        return OutsideSink(node.name, str(node.operator.sink), predecessors)
    stores = hash_set_order(hash_map_order(node.stores))
    return Processor(node.name, tuple(stores), successors, predecessors)


def _global_store(builder: InternalTopologyBuilder, number: int, names: Iterable[str]) -> GlobalStore:
    nodes = [builder.nodes[name] for name in names]
    source = next(node for node in nodes if isinstance(node, SourceFactory))
    processor = next(node for node in nodes if isinstance(node, ProcessorFactory))
    return GlobalStore(
        number,
        Source(source.name, source.topics, source.pattern, (processor.name,)),
        Processor(processor.name, tuple(processor.stores), (), (source.name,)),
    )


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"


def _function_name(function: Callable[..., str]) -> str:
    return getattr(function, "__name__", None) or repr(function)
