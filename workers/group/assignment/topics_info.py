"""The topics of each sub-topology by their full names (Kafka Streams: InternalTopologyBuilder.TopicsInfo)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from penstock.topology.context.store_interfaces import StoreBuilder
from penstock.topology.graph.processor_topology import ProcessorTopology, SourceNode
from penstock.topology.records import TaskId, TopicPartition


@dataclass(frozen=True, slots=True)
class TopicsInfo:
    """The topics and stores of one sub-topology.

    repartition_source_topics: the internal ones among source_topics, with the declared partition count, None if it is
    derived. changelog_topics: the store of each; source_changelog_topics: those that are also source topics
    (reuse.ktable.source.topics, read-only stores) and therefore never created. sink_topics: those with a fixed name.
    listed_copartition: the topics of each operation that needs co-partitioning, as Kafka Streams lists them.
    has_patterns: whether topics are read by a pattern, for which members may know different matches for a while.
    """

    subtopology: int
    source_topics: frozenset[str]
    sink_topics: frozenset[str]
    repartition_source_topics: Mapping[str, int | None]
    changelog_topics: Mapping[str, StoreBuilder]
    source_changelog_topics: frozenset[str]
    copartition_groups: tuple[frozenset[str], ...]
    listed_copartition: tuple[tuple[str, ...], ...] = ()
    has_patterns: bool = False

    def input_partitions(self, number: int, counts: Mapping[str, int]) -> frozenset[TopicPartition]:
        """Return the input partitions of the task with this number, of topics with a known partition count."""
        return frozenset(TopicPartition(topic, number) for topic in self.source_topics if number < counts.get(topic, 0))

    @property
    def user_source_topics(self) -> frozenset[str]:
        """Source topics that the user must create."""
        return self.source_topics - self.repartition_source_topics.keys()


def topics_infos(application_id: str, topologies: Iterable[ProcessorTopology]) -> dict[int, TopicsInfo]:
    """Return the topics of the sub-topologies by their numbers."""
    topologies = list(topologies)
    internal = {name for topology in topologies for name in topology.repartition_topics}
    return {topology.subtopology: _topics_info(application_id, topology, internal) for topology in topologies}


def _topics_info(application_id: str, topology: ProcessorTopology, internal: set[str]) -> TopicsInfo:
    def decorate(name: str) -> str:
        return f"{application_id}-{name}" if name in internal else name

    user_sources = set(topology.source_topics) - internal
    changelogs = {
        (topic if topic in user_sources else f"{application_id}-{topic}"): topology.stores[store]
        for store, topic in topology.changelog_topics.items()
    }
    return TopicsInfo(
        topology.subtopology,
        frozenset(map(decorate, topology.source_topics)),
        frozenset(decorate(sink.topic) for sink in topology.sinks if isinstance(sink.topic, str)),
        {
            decorate(name): count
            for name, count in topology.repartition_topics.items()
            if name in topology.source_topics
        },
        changelogs,
        frozenset(changelogs.keys() & user_sources),
        tuple(frozenset(map(decorate, group)) for group in topology.copartition_groups),
        tuple(tuple(map(decorate, topics)) for topics in topology.listed_copartition),
        any(isinstance(node, SourceNode) and node.pattern is not None for node in topology.nodes.values()),
    )


def topology_digest(topics: Mapping[int, TopicsInfo]) -> str:
    """Return a digest that distinguishes topologies: of the names of their internal topics, by sub-topology.

    Source topics are not included, because members may know different matches of a pattern for a while.
    """
    names = [
        (number, sorted(info.repartition_source_topics), sorted(info.changelog_topics))
        for number, info in sorted(topics.items())
    ]
    return sha256(repr(names).encode()).hexdigest()[:16]


def partition_groups(
    topics: Mapping[int, TopicsInfo], counts: Mapping[str, int]
) -> dict[TaskId, frozenset[TopicPartition]]:
    """Return all tasks with their input partitions (Kafka Streams: PartitionGrouper).

    A sub-topology has as many tasks as its widest source topic has partitions; task n reads partition n of each topic
    that has one. Raises KeyError for a source topic without a count.
    """
    groups = {}
    for info in topics.values():
        for number in range(max((counts[topic] for topic in info.source_topics), default=0)):
            groups[TaskId(info.subtopology, number)] = info.input_partitions(number, counts)
    return groups
