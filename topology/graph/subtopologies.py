"""Builds the ProcessorTopology from the declarations in an InternalTopologyBuilder."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..common.java_collections import hash_map_order
from ..context.idle_time import IdleTimeout, combined
from ..context.partitioners import WindowedStreamPartitioner
from ..context.store_interfaces import StoreBuilder
from ..serdes.serdes import or_default
from ..serdes.windowed_serdes import WindowedSerde
from .copartition import copartition_groups, listed_copartition_topics, topics_of_source
from .declarations import NodeFactory, ProcessorFactory, SinkFactory, SourceFactory
from .processor_topology import GLOBAL_SUBTOPOLOGY, Node, ProcessorNode, ProcessorTopology, SinkNode, SourceNode

if TYPE_CHECKING:
    from .internal_topology_builder import InternalTopologyBuilder


def build_subtopologies(
    builder: InternalTopologyBuilder, config: Mapping[str, object] | None, known_topics: frozenset[str]
) -> list[ProcessorTopology]:
    """Return the sub-topologies that have tasks; see InternalTopologyBuilder.build_subtopologies."""
    groups = builder.node_groups().items()
    return [
        _build(builder, number, names, config, known_topics)
        for number, names in groups
        if not builder.is_global_group(names)
    ]


def build_global_topology(
    builder: InternalTopologyBuilder, config: Mapping[str, object] | None
) -> ProcessorTopology | None:
    """Return the topology of all global stores, None if there is none."""
    names = [name for group in builder.node_groups().values() if builder.is_global_group(group) for name in group]
    return _build(builder, GLOBAL_SUBTOPOLOGY, names, config, frozenset()) if names else None


def _build(
    builder: InternalTopologyBuilder,
    number: int,
    names: list[str],
    config: Mapping[str, object] | None,
    known_topics: frozenset[str],
) -> ProcessorTopology:
    children: dict[str, list[str]] = {name: [] for name in names}
    for name in names:
        for parent in builder.nodes[name].predecessors:
            children[parent].append(name)
    nodes = {name: _node(builder, name, tuple(children[name]), config, known_topics) for name in names}
    stores = _stores(builder, nodes.values(), config)
    topics = {topic for node in nodes.values() for topic in _topics(node)}
    read = {topic for node in nodes.values() if isinstance(node, SourceNode) for topic in node.topics}
    groups = copartition_groups(builder, known_topics)
    return ProcessorTopology(
        subtopology=number,
        nodes=nodes,
        stores=stores,
        changelog_topics={name: topic for name in stores if (topic := _changelog_topic(builder, name)) is not None},
        repartition_topics={topic: count for topic, count in builder.internal_topics.items() if topic in topics},
        copartition_groups=tuple(group for group in groups if group & read),
        listed_copartition=tuple(
            topics for topics in listed_copartition_topics(builder, known_topics) if read.intersection(topics)
        ),
        global_stores=tuple(builder.global_stores),
        reprocess_on_restore=frozenset(
            name for name, declared in builder.global_stores.items() if declared.reprocess_on_restore
        ),
        idle_timeout=_idle_timeout(builder, names),
    )


def _idle_timeout(builder: InternalTopologyBuilder, names: Iterable[str]) -> IdleTimeout | None:
    """Return the idle timeout of the tasks of these nodes.

    It is given by operators whose windows close without input, or by all sources whose records reach these nodes.
    """
    closing = [timeout for name in names if (timeout := _closes_without_input(builder.nodes[name])) is not None]
    sources = [node for node in builder.nodes.values() if isinstance(node, SourceFactory)]
    if not closing and all(source.consumed.idle_timeout is None for source in sources):
        return None
    sources = _sources_upstream(builder, names)
    if not closing and any(_is_input_without_timeout(builder, source) for source in sources):
        return None
    timeouts = (source.consumed.idle_timeout for source in sources)
    return combined([*closing, *(timeout for timeout in timeouts if timeout is not None)])


def _closes_without_input(node: NodeFactory) -> IdleTimeout | None:
    operator = node.operator if isinstance(node, ProcessorFactory) else None
    return None if operator is None else operator.idle_timeout


def _is_input_without_timeout(builder: InternalTopologyBuilder, source: SourceFactory) -> bool:
    is_internal = source.pattern is None and builder.internal_topics.keys() >= set(source.topics)
    return source.consumed.idle_timeout is None and not is_internal


def _sources_upstream(builder: InternalTopologyBuilder, names: Iterable[str]) -> list[SourceFactory]:
    """Return the sources of these nodes, and of the sub-topologies that write to them through internal topics.

    Nothing can come from an internal topic while these are idle. They may form circles: the two sides of a foreign-key
    join write to each other.
    """
    groups = builder.node_groups().values()
    sources, reached, waiting = list[SourceFactory](), set(names), [list(names)]
    while waiting:
        read = [node for name in waiting.pop() if isinstance(node := builder.nodes[name], SourceFactory)]
        sources += read
        topics = {topic for source in read for topic in source.topics if topic in builder.internal_topics}
        for group in groups:
            if reached.isdisjoint(group) and _writes(builder, group, topics):
                reached.update(group)
                waiting.append(group)
    return sources


def _writes(builder: InternalTopologyBuilder, names: Iterable[str], topics: Collection[str]) -> bool:
    nodes = (builder.nodes[name] for name in names)
    return any(isinstance(node, SinkFactory) and isinstance(node.topic, str) and node.topic in topics for node in nodes)


def _node(
    builder: InternalTopologyBuilder,
    name: str,
    children: tuple[str, ...],
    config: Mapping[str, object] | None,
    known_topics: frozenset[str],
) -> Node:
    declared = builder.nodes[name]
    if isinstance(declared, SourceFactory):
        consumed = declared.consumed
        return SourceNode(
            name,
            topics_of_source(builder, name, known_topics),
            or_default(consumed.key_serde, config, is_key=True),
            or_default(consumed.value_serde, config, is_key=False),
            children,
            consumed.timestamp_extractor,
            consumed.offset_reset,
            declared.pattern,
        )
    if isinstance(declared, SinkFactory):
        key_serde = or_default(declared.produced.key_serde, config, is_key=True)
        value_serde = or_default(declared.produced.value_serde, config, is_key=False)
        partitioner = declared.produced.partitioner
        if isinstance(partitioner, WindowedStreamPartitioner) and isinstance(key_serde, WindowedSerde):
            partitioner = WindowedStreamPartitioner(key_serde)  # with the default serde if necessary
        return SinkNode(name, declared.topic, key_serde, value_serde, partitioner)
    assert isinstance(declared, ProcessorFactory)
    assert declared.operator is not None
    return ProcessorNode(name, declared.operator, tuple(hash_map_order(declared.stores)), children)


def _topics(node: Node) -> tuple[str, ...]:
    if isinstance(node, SourceNode):
        return node.topics
    return (node.topic,) if isinstance(node, SinkNode) and isinstance(node.topic, str) else ()


def _stores(
    builder: InternalTopologyBuilder, nodes: Iterable[Node], config: Mapping[str, object] | None
) -> dict[str, StoreBuilder]:
    """Return the stores of processors, in the order in which Kafka Streams opens and flushes them."""
    all_stores = {**builder.global_stores, **builder.stores}
    names = dict.fromkeys(store for node in nodes if isinstance(node, ProcessorNode) for store in node.stores)
    return {name: all_stores[name].factory.configure(config) for name in names}


def _changelog_topic(builder: InternalTopologyBuilder, store: str) -> str | None:
    """Return a source topic that serves as changelog, ``<store>-changelog``, or None if the store is not logged."""
    declared = builder.global_stores.get(store) or builder.stores[store]
    if declared.source_topic is not None:
        return declared.source_topic
    return f"{store}-changelog" if declared.factory.builder.logging else None


def build_whole_topology(
    builder: InternalTopologyBuilder,
    config: Mapping[str, object] | None = None,
    known_topics: frozenset[str] = frozenset(),
) -> ProcessorTopology:
    """Return all sub-topologies that have tasks as one, in the order of declaration; run by a single task in tests."""
    groups = [names for names in builder.node_groups().values() if not builder.is_global_group(names)]
    own_names = {name for names in groups for name in names}
    whole = _build(builder, 0, [name for name in builder.nodes if name in own_names], config, known_topics)
    timeouts = ((frozenset(names), _idle_timeout(builder, names)) for names in groups)
    return replace(
        whole, idle_timeout=None, idle_parts=tuple((names, found) for names, found in timeouts if found is not None)
    )
