"""The description of the topology for brokers of streams groups (KIP-1331; Kafka: TopologyDescriptionConverter)."""

from __future__ import annotations

from collections.abc import Callable

from penstock.clients.group.streams_values import DescribedNode, DescribedTopology, NodeType
from penstock.topology.graph.description import OutsideSink, Processor, Sink, Source, TopologyDescription


def described_topology(description: TopologyDescription, topic_name: Callable[[str], str]) -> DescribedTopology:
    """Return a description as it is sent, sorted as Kafka Streams sorts it.

    topic_name: returns the name of a topic on the brokers, where internal ones begin with the application's id.
    """

    def node(found: Source | Processor | Sink | OutsideSink) -> DescribedNode:
        if isinstance(found, OutsideSink):
            return DescribedNode(found.name, NodeType.SINK)
        if isinstance(found, Sink):
            topic = None if found.topic is None else topic_name(found.topic)
            return DescribedNode(found.name, NodeType.SINK, sink_topic=topic)
        successors = tuple(sorted(found.successors))
        if isinstance(found, Source):
            topics = tuple(sorted(map(topic_name, found.topics)))
            return DescribedNode(found.name, NodeType.SOURCE, source_topics=topics, successors=successors)
        return DescribedNode(found.name, NodeType.PROCESSOR, stores=tuple(sorted(found.stores)), successors=successors)

    subtopologies = sorted(description.subtopologies, key=lambda found: found.id)
    stores = sorted(description.global_stores, key=lambda found: found.id)
    return DescribedTopology(
        tuple(
            (str(found.id), tuple(map(node, sorted(found.nodes, key=lambda each: each.name))))
            for found in subtopologies
        ),
        tuple((node(found.source), node(found.processor)) for found in stores),
    )
