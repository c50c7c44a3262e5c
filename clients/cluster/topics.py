"""What a cluster says of its topics: which there are, with which ids and partitions (Kafka: TopicDescription)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ErrorCode, Kind, broker_error
from .brokers import Leader

#: The id of a topic on brokers that have no topic ids (before Kafka 2.8).
NO_ID = bytes(16)


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition. replicas, in_sync: ids of brokers."""

    leader: Leader
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic that exists. id: 16 bytes, or NO_ID; partitions: by number, fewer than before if it was recreated so."""

    id: bytes
    partitions: Mapping[int, PartitionDescription]


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """An answer. topics: those that exist, by name; racks: of the brokers that are there, None for one without."""

    topics: Mapping[str, TopicDescription]
    racks: Mapping[int, str | None]

    @property
    def partition_counts(self) -> dict[str, int]:
        """How many partitions each topic has."""
        return {name: len(topic.partitions) for name, topic in self.topics.items()}


def described(answer: Any, asked: Collection[str] | None) -> ClusterDescription:
    """Return what an answer of Cluster.metadata says. asked: the topics, None for all that there are.

    Raises BrokerError if a topic that was requested may not be looked at, or is not ready yet.
    """
    topics = {}
    for topic in answer.topics:
        code = ErrorCode(topic.error_code)
        if not code:
            partitions = {each.partition_index: _partition(each) for each in topic.partitions}
            topics[topic.name] = TopicDescription(topic.topic_id, dict(sorted(partitions.items())))
        elif asked is not None and code.kind is not Kind.MISSING:
            raise broker_error(code, f"topic {topic.name}")
    return ClusterDescription(topics, {broker.node_id: broker.rack for broker in answer.brokers})


def _partition(answer: Any) -> PartitionDescription:
    leader = Leader(answer.leader_id, answer.leader_epoch)
    return PartitionDescription(leader, tuple(answer.replica_nodes), tuple(answer.isr_nodes))
