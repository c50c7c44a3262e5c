"""The topology as a streams group's broker is told it, so that it makes the internal topics and the tasks (KIP-1071).

Kafka: StreamThread.initBrokerTopology, StreamsRebalanceData.Subtopology.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.topology.errors import StreamsError
from penstock.topology.java_collections import hash_map_order, hash_set_order_of_sets
from penstock.topology.processor_topology import ProcessorTopology, SourceNode

from ..assignment.topics_info import TopicsInfo, topics_infos
from ..internal_topic_manager import changelog_topic_config, repartition_topic_config


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic that the broker makes. partitions: 0 if the broker derives it; replication_factor: -1 for its default."""

    name: str
    partitions: int = 0
    replication_factor: int = -1
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamsSubtopology:
    """One sub-topology. source_topics: the user's.

    All in the order in which Kafka Streams lists them: the broker compares the descriptions of all members of a group,
    some of which may run on Java.
    """

    subtopology: int
    source_topics: tuple[str, ...]
    repartition_sink_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[InternalTopic, ...] = ()
    changelog_topics: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class StreamsTopology:
    """All of them, and what they read by sub-topology. epoch: Kafka 4.4 knows no other than 0."""

    subtopologies: tuple[StreamsSubtopology, ...]
    topics: Mapping[int, TopicsInfo]
    epoch: int = 0


def streams_topology(topologies: Iterable[ProcessorTopology], config: Any) -> StreamsTopology:
    """Describe the sub-topologies; config: a StreamsConfig. Raises StreamsError for what a streams group cannot do."""
    topologies = list(topologies)
    for topology in topologies:
        _refuse_patterns(topology)
    infos = topics_infos(config["application.id"], topologies)
    repartition = {name for info in infos.values() for name in info.repartition_source_topics}
    groups = _copartition_groups(infos)
    described = (_subtopology(info, repartition, groups, config) for info in infos.values())
    by_text = sorted(described, key=lambda subtopology: str(subtopology.subtopology))
    return StreamsTopology(tuple(by_text), infos)


def _refuse_patterns(topology: ProcessorTopology) -> None:
    for node in topology.nodes.values():
        if isinstance(node, SourceNode) and node.pattern is not None:
            raise StreamsError(
                f"Source {node.name} subscribes to the pattern {node.pattern.pattern!r}, which brokers do not support "
                "in streams groups yet. Name the topics, or set group.protocol=classic."
            )


def _copartition_groups(infos: Mapping[int, TopicsInfo]) -> list[tuple[str, ...]]:
    """Return the groups of all sub-topologies as Kafka Streams merges and orders them, with the help of hash sets."""
    by_topic: dict[str, dict[str, None]] = {}  # the insertion order counts, as far as hashes are equal
    for topics in dict.fromkeys(topics for info in infos.values() for topics in info.listed_copartition):
        distinct = hash_map_order(dict.fromkeys(topics))
        group = next((by_topic[topic] for topic in distinct if topic in by_topic), {})
        group.update(dict.fromkeys(distinct))
        by_topic.update(dict.fromkeys(distinct, group))
    groups = list({id(group): tuple(group) for group in by_topic.values()}.values())
    return [tuple(hash_map_order(group)) for group in hash_set_order_of_sets(groups, size=len(by_topic))]


def _subtopology(
    info: TopicsInfo, repartition: set[str], groups: Iterable[tuple[str, ...]], config: Any
) -> StreamsSubtopology:
    replication: int = config["replication.factor"]
    return StreamsSubtopology(
        info.subtopology,
        tuple(sorted(info.user_source_topics)),
        tuple(sorted(info.sink_topics & repartition)),
        tuple(
            InternalTopic(name, count or 0, replication, repartition_topic_config(config))
            for name, count in sorted(info.repartition_source_topics.items())
        ),
        tuple(
            InternalTopic(name, 0, replication, changelog_topic_config(store, config))
            for name, store in sorted(info.changelog_topics.items())
        ),
        tuple(group for group in groups if info.source_topics.issuperset(group)),
    )
