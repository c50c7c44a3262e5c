"""Copartitioning: source topics that need the same number of partitions, because one task joins their records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.java_collections import hash_set_order
from ..errors import TopologyError

if TYPE_CHECKING:
    from .internal_topology_builder import InternalTopologyBuilder


def topics_of_source(builder: InternalTopologyBuilder, name: str, known_topics: frozenset[str]) -> tuple[str, ...]:
    """Return a source node's topics, those of a pattern from known_topics; none if it is not a source (any more)."""
    node = builder.nodes.get(name)
    pattern = getattr(node, "pattern", None)
    if pattern is not None:
        return tuple(sorted(topic for topic in known_topics if pattern.fullmatch(topic)))
    topics: tuple[str, ...] = getattr(node, "topics", ())
    return topics


def copartition_groups(builder: InternalTopologyBuilder, known_topics: frozenset[str]) -> list[frozenset[str]]:
    """Return the groups, merged where they share a topic, in the order of declaration."""
    merged: list[set[str]] = []
    for sources in builder.copartition_sources:
        topics = {topic for name in sorted(sources) for topic in topics_of_source(builder, name, known_topics)}
        touching = [group for group in merged if group & topics]
        for group in touching:
            topics |= group
            merged.remove(group)
        if topics:
            merged.append(topics)
    return [frozenset(group) for group in merged]


def listed_copartition_topics(builder: InternalTopologyBuilder, known_topics: frozenset[str]) -> list[tuple[str, ...]]:
    """Return the topics of each declaration as Kafka Streams lists them: in its order, not merged."""
    listed = [hash_set_order(sorted(names)) for names in builder.listed_copartition_sources]
    return [tuple(t for name in names for t in topics_of_source(builder, name, known_topics)) for names in listed]


def validate_copartition(builder: InternalTopologyBuilder) -> None:
    """Raise TopologyError if copartitioned internal topics were declared with different partition counts."""
    for sources in builder.copartition_sources:
        topics = {topic for name in sources for topic in topics_of_source(builder, name, frozenset())}
        counts = {topic: builder.internal_topics.get(topic) for topic in sorted(topics)}
        if None not in counts.values() and len(set(counts.values())) > 1:
            raise TopologyError(
                f"Following topics do not have the same number of partitions: {counts}; "
                "give the same number to each repartition()"
            )
