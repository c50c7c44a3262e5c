"""The nodes, stores and internal topics of a topology as they are declared (Kafka Streams: InternalTopologyBuilder).

Topology and the DSL's graph write into it. It rejects invalid declarations and groups nodes into sub-topologies;
subtopologies.py and description.py build and describe it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ..errors import TopologyError
from ..operators.operator import Operator
from ..stores.materialized import StoreFactory
from .copartition import copartition_groups, validate_copartition
from .declarations import (
    Consumed,
    DeclaredStore,
    NodeFactory,
    ProcessorFactory,
    Produced,
    SinkFactory,
    SourceFactory,
    TopicPattern,
)
from .description import TopologyDescription, describe
from .node_groups import NodeGroups
from .processor_topology import ProcessorTopology
from .subtopologies import build_global_topology, build_subtopologies


class InternalTopologyBuilder:
    """The declarations so far; every method that declares raises TopologyError for an invalid declaration."""

    def __init__(self) -> None:
        #: All nodes, parents before children.
        self.nodes: dict[str, NodeFactory] = {}
        self.stores: dict[str, DeclaredStore] = {}
        self.global_stores: dict[str, DeclaredStore] = {}
        self.global_topics: set[str] = set()
        #: Repartition and foreign-key topics without the application's prefix: partition count or None.
        self.internal_topics: dict[str, int | None] = {}
        #: Names of sources that must have the same number of partitions.
        self.copartition_sources: list[set[str]] = []
        #: The same as Kafka Streams lists them; see require_copartition.
        self.listed_copartition_sources: list[set[str]] = []
        self._listed_as: dict[str, frozenset[str]] = {}
        self._source_topics: set[str] = set()
        self._groups = NodeGroups()
        self._unnamed_topics: list[str] = []

    def add_source(self, name: str, topics: Iterable[str] | TopicPattern, consumed: Consumed) -> None:
        """Add a source of topics, or of a pattern."""
        self._check_new(name)
        pattern = topics if isinstance(topics, re.Pattern) else None
        names = () if isinstance(topics, re.Pattern) else tuple(topics)
        if pattern is not None:
            self._check_pattern(pattern)
        elif not names:
            raise TopologyError(f'Source "{name}" must have at least one topic')
        for topic in names:
            self._check_topic(topic)
        self._source_topics.update(names)
        self.nodes[name] = SourceFactory(name, (), names, pattern, consumed)
        self._groups.add(name)

    def add_processor(self, name: str, operator: Operator, parents: Sequence[str]) -> None:
        """Add a processor after its parents."""
        self._check_new(name)
        self._check_parents("Processor", name, parents)
        self.nodes[name] = ProcessorFactory(name, tuple(parents), operator)
        self._groups.add(name, *parents)

    def add_sink(self, name: str, topic: str | Callable[..., str], parents: Sequence[str], produced: Produced) -> None:
        """Add a sink after its parents."""
        self._check_new(name)
        self._check_parents("Sink", name, parents)
        self.nodes[name] = SinkFactory(name, tuple(parents), topic, produced)
        self._groups.add(name, *parents)

    def add_state_store(self, factory: StoreFactory, processors: Iterable[str] = ()) -> None:
        """Add a store and connect processors to it; the same builder may be added again."""
        name = factory.name
        known = self.stores.get(name)
        if known is not None and known.factory.builder is not factory.builder:
            raise TopologyError(
                f"A different StateStore has already been added with the name {name}; give one of them another name"
            )
        if name in self.global_stores:
            raise TopologyError(f"A different GlobalStateStore has already been added with the name {name}")
        self.stores.setdefault(name, DeclaredStore(factory))
        for processor in processors:
            self._connect(processor, name)

    def add_global_store(
        self,
        factory: StoreFactory,
        source_name: str,
        topic: str,
        processor_name: str,
        operator: Operator,
        consumed: Consumed,
        *,
        reprocess_on_restore: bool = False,
    ) -> None:
        """Add a store that every task can read, with the source and processor that maintain it."""
        store = factory.name
        self._check_new(source_name)
        self._check_new(processor_name)
        if store in self.stores or store in self.global_stores:
            raise TopologyError(f"A different store has already been added with the name {store}")
        if factory.builder.logging:
            raise TopologyError(f"Global store {store} must not have logging enabled: its topic is its changelog")
        if source_name == processor_name:
            raise TopologyError(
                f"Source and processor of global store {store} must have different names: {source_name}"
            )
        self._check_topic(topic)
        self.global_topics.add(topic)
        self.nodes[source_name] = SourceFactory(source_name, (), (topic,), None, consumed)
        self.nodes[processor_name] = ProcessorFactory(processor_name, (source_name,), operator, [store])
        self._groups.add(source_name)
        self._groups.add(processor_name, source_name)
        self.global_stores[store] = DeclaredStore(factory, [processor_name], topic, reprocess_on_restore)

    def connect_processor_and_state_stores(self, processor: str, *stores: str) -> None:
        """Let a processor use stores."""
        if not stores:
            raise TopologyError(f"Name at least one store to connect to processor {processor}")
        for store in stores:
            self._connect(processor, store)

    def connect_source_store_and_topic(self, store: str, topic: str) -> None:
        """Let a store's source topic serve as its changelog."""
        declared = self.stores[store]
        if declared.source_topic is not None:
            raise TopologyError(f"Source store {store} is already added.")
        declared.source_topic = topic
        builder = declared.factory.builder.with_logging_disabled()
        declared.factory = replace(declared.factory, builder=builder)

    def add_internal_topic(self, topic: str, partitions: int | None = None, *, named: bool = True) -> None:
        """Add a repartition or foreign-key topic; named: by the user."""
        self.internal_topics[topic] = partitions
        if not named:
            self._unnamed_topics.append(topic)

    def require_copartition(self, sources: Iterable[str], listed: Iterable[str] | None = None) -> None:
        """Require the same number of partitions of all sources.

        listed: the names that Kafka Streams lists here, which the broker of a streams group compares; by default those
        of ``sources``.
        """
        sources = list(sources)
        self.copartition_sources.append(set().union(*(self._listed_as.get(name, {name}) for name in sources)))
        self.listed_copartition_sources.append(set(sources if listed is None else listed))

    def listed_as(self, name: str, sources: frozenset[str]) -> frozenset[str]:
        """Return the name under which Kafka Streams lists these sources, although no source has it.

        This occurs after suppress(), a cogroup, and a repartition topic shared by a second join.
        """
        self._listed_as[name] = frozenset().union(*(self._listed_as.get(source, {source}) for source in sources))
        return frozenset([name])

    def rename_copartition_source(self, replaced: str, by: str) -> None:
        """Replace a source that an optimization has removed."""
        for group in [*self.copartition_sources, *self.listed_copartition_sources]:
            if replaced in group:
                group.remove(replaced)
                group.add(by)

    def is_store_versioned(self, store: str) -> bool:
        """Return whether a store keeps old versions."""
        return self.stores[store].factory.builder.history_retention_ms is not None

    def history_retention_ms(self, store: str) -> int:
        """Return how long a versioned store keeps old versions."""
        return self.stores[store].factory.builder.history_retention_ms or 0

    def validate(self) -> None:
        """Check the whole topology: partition counts of joined topics."""
        validate_copartition(self)

    def check_explicit_names(self) -> None:
        """Raise TopologyError for internal topics and stores with generated names (KIP-1111)."""
        unnamed = [declared.factory for declared in self.stores.values() if not declared.factory.named]
        changelogs = [f"{factory.name}-changelog" for factory in unnamed if factory.builder.logging]
        parts = {
            "changelog topic(s)": changelogs,
            "state store(s)": [factory.name for factory in unnamed],
            "repartition topic(s)": self._unnamed_topics,
        }
        found = [f"Following {what} has not been named: {', '.join(names)}" for what, names in parts.items() if names]
        if found:
            raise TopologyError(
                "; ".join(found) + ". Give them names with store= and name=, or set "
                "ensure.explicit.internal.resource.naming=false"
            )

    def node_groups(self) -> dict[int, list[str]]:
        """Return the node names of each sub-topology by its number, both in the order of declaration."""
        groups: dict[str, list[str]] = {}
        for name in self.nodes:
            groups.setdefault(self._groups.root(name), []).append(name)
        return dict(enumerate(groups.values()))

    def is_global_group(self, names: Iterable[str]) -> bool:
        """Return whether these are the nodes of a global store."""
        return any(
            isinstance(node := self.nodes[name], SourceFactory) and self.global_topics.issuperset(node.topics or ("",))
            for name in names
        )

    def describe(self) -> TopologyDescription:
        """Return the description of all sub-topologies."""
        return describe(self)

    def build_subtopologies(
        self, config: Mapping[str, object] | None = None, known_topics: Iterable[str] = ()
    ) -> list[ProcessorTopology]:
        """Return the sub-topologies that have tasks, by number.

        config: the application's, for the kind of stores. known_topics: the topics that source patterns match against.
        """
        return build_subtopologies(self, config, frozenset(known_topics))

    def build_global_topology(self, config: Mapping[str, object] | None = None) -> ProcessorTopology | None:
        """Return the topology of all global stores (subtopology -1), None if there is none."""
        return build_global_topology(self, config)

    def copartition_groups(self, known_topics: Iterable[str] = ()) -> list[frozenset[str]]:
        """Return the groups of source topics that must have the same number of partitions, application-wide."""
        return copartition_groups(self, frozenset(known_topics))

    def source_topics(self) -> frozenset[str]:
        """Return all topics that sources of tasks name, internal ones without the application's prefix."""
        return frozenset(self._source_topics)

    def source_patterns(self) -> tuple[TopicPattern, ...]:
        """Return all patterns of sources."""
        sources = (node for node in self.nodes.values() if isinstance(node, SourceFactory))
        return tuple(source.pattern for source in sources if source.pattern is not None)

    def _check_new(self, name: str) -> None:
        if name in self.nodes:
            raise TopologyError(f"Processor {name} is already added; operators need different names")

    def _check_parents(self, kind: str, name: str, parents: Sequence[str]) -> None:
        if not parents:
            raise TopologyError(f"{kind} {name} must have at least one parent")
        for parent in parents:
            if parent == name:
                raise TopologyError(f"Processor {name} cannot be a predecessor of itself.")
            if parent not in self.nodes:
                raise TopologyError(
                    f"Predecessor processor {parent} is not added yet for {name}; add it first (cycles are not allowed)"
                )
            if isinstance(self.nodes[parent], SinkFactory):
                raise TopologyError(f"Sink {parent} cannot be used as a parent of {name}; sinks end a topology")

    def _check_topic(self, topic: str) -> None:
        if topic in self._source_topics or topic in self.global_topics:
            raise TopologyError(
                f"Topic {topic} has already been registered by another source; read it once and use the result twice"
            )
        for pattern in self.source_patterns():
            if pattern.fullmatch(topic):
                raise TopologyError(f"Topic {topic} matches the pattern {pattern.pattern} of another source")

    def _check_pattern(self, pattern: TopicPattern) -> None:
        for topic in sorted(self._source_topics):
            if pattern.fullmatch(topic):
                raise TopologyError(
                    f"Pattern {pattern.pattern} will match topic {topic}, "
                    "which has already been registered by another source"
                )

    def _connect(self, processor: str, store: str) -> None:
        if store in self.global_stores:
            raise TopologyError(
                f"Global store {store} can be used by every processor; do not name it at processor {processor}"
            )
        if store not in self.stores:
            raise TopologyError(f"StateStore {store} is not added yet; add it before processor {processor} uses it")
        node = self.nodes.get(processor)
        if node is None:
            raise TopologyError(f"Processor {processor} is not added yet; add it before store {store} is connected")
        if not isinstance(node, ProcessorFactory):
            raise TopologyError(f"Store {store} cannot be connected to {processor}: it is a source or a sink")
        users = self.stores[store].processors
        if users:
            self._groups.unite(users[0], processor)
        if processor not in users:
            users.append(processor)
        if store not in node.stores:
            node.stores.append(store)
