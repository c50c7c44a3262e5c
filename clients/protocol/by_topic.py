"""Partitions as most messages have them: a list of topics, each with a list of its partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from penstock.topology.records import TopicPartition


def by_topic(
    entries: Iterable[tuple[TopicPartition, Any]], topic_field: str = "name", partitions_field: str = "partitions"
) -> list[dict[str, Any]]:
    """Return what a message says of partitions, in their order, by topic."""
    found: dict[str, list[Any]] = {}
    for partition, entry in entries:
        found.setdefault(partition.topic, []).append(entry)
    return [{topic_field: topic, partitions_field: of_topic} for topic, of_topic in found.items()]


def each_partition(topics: Iterable[Any]) -> Iterator[tuple[TopicPartition, Any]]:
    """Yield the partitions in an answer, and what it says of each."""
    for topic in topics:
        for each in topic.partitions:
            yield TopicPartition(topic.name, each.partition_index), each
