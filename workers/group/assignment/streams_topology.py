"""The topology sent to a streams group's broker, which creates the internal topics and the tasks (KIP-1071).

Kafka: StreamThread.initBrokerTopology, StreamsRebalanceData.Subtopology.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.clients.group.streams_values import InternalTopic, StreamsSubtopology, StreamsTopology
from penstock.topology.common.java_collections import hash_map_order, hash_set_order_of_sets
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import StreamsError
from penstock.topology.graph.processor_topology import ProcessorTopology, SourceNode

from ..internal_topic_manager import changelog_topic_config, repartition_topic_config
from .topics_info import TopicsInfo, topics_infos


def streams_topology(topologies: Iterable[ProcessorTopology], config: StreamsConfig) -> StreamsTopology:
    """Describe the sub-topologies; config: a StreamsConfig. Raises StreamsError for unsupported features."""
    topologies = list(topologies)
    for topology in topologies:
        _refuse_patterns(topology)
    infos = topics_infos(config["application.id"], topologies)
    repartition = {name for info in infos.values() for name in info.repartition_source_topics}
    groups = _copartition_groups(infos)
    described = (_subtopology(info, repartition, groups, config) for info in infos.values())
    by_text = sorted(described, key=lambda subtopology: str(subtopology.subtopology))
    return StreamsTopology(tuple(by_text))


def _refuse_patterns(topology: ProcessorTopology) -> None:
    for node in topology.nodes.values():
        if isinstance(node, SourceNode) and node.pattern is not None:
            raise StreamsError(
                f"Source {node.name} subscribes to the pattern {node.pattern.pattern!r}, which brokers do not support "
                "in streams groups yet. Name the topics, or set group.protocol=classic."
            )


def _copartition_groups(infos: Mapping[int, TopicsInfo]) -> list[tuple[str, ...]]:
    """Return the groups of all sub-topologies, merged and ordered as in Kafka Streams, which uses hash sets."""
    by_topic: dict[str, dict[str, None]] = {}  # for equal hashes the insertion order counts
    for topics in dict.fromkeys(topics for info in infos.values() for topics in info.listed_copartition):
        distinct = hash_map_order(dict.fromkeys(topics))
        group = next((by_topic[topic] for topic in distinct if topic in by_topic), {})
        group.update(dict.fromkeys(distinct))
        by_topic.update(dict.fromkeys(distinct, group))
    groups = list({id(group): tuple(group) for group in by_topic.values()}.values())
    return [tuple(hash_map_order(group)) for group in hash_set_order_of_sets(groups, size=len(by_topic))]


def _subtopology(
    info: TopicsInfo, repartition: set[str], groups: Iterable[tuple[str, ...]], config: StreamsConfig
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
