"""Partitions in the form of most messages: a list of topics, each with a list of its partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import SimpleNamespace

from penstock.topology.records import TopicPartition


def by_topic(
    entries: Iterable[tuple[TopicPartition, object]], topic_field: str = "name", partitions_field: str = "partitions"
) -> list[dict[str, object]]:
    """Return entries about partitions grouped by topic, in their order."""
    found: dict[str, list[object]] = {}
    for partition, entry in entries:
        found.setdefault(partition.topic, []).append(entry)
    return [{topic_field: topic, partitions_field: of_topic} for topic, of_topic in found.items()]


def each_partition(topics: Iterable[SimpleNamespace]) -> Iterator[tuple[TopicPartition, SimpleNamespace]]:
    """Yield the partitions of a response, each with its entry."""
    for topic in topics:
        for each in topic.partitions:
            yield TopicPartition(topic.name, each.partition_index), each
