"""Descriptions of a cluster's topics: ids and partitions (Kafka: TopicDescription)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import SimpleNamespace

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
    """A topic that exists. id: 16 bytes, or NO_ID; partitions: by number; a recreated topic may have fewer."""

    id: bytes
    partitions: Mapping[int, PartitionDescription]


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A metadata response. topics: existing ones, by name; racks: by broker that is up, None if it has no rack."""

    topics: Mapping[str, TopicDescription]
    racks: Mapping[int, str | None]

    @property
    def partition_counts(self) -> dict[str, int]:
        """The number of partitions of each topic."""
        return {name: len(topic.partitions) for name, topic in self.topics.items()}


def described(response: SimpleNamespace, asked: Collection[str] | None) -> ClusterDescription:
    """Return the description in a response of Cluster.metadata. asked: the requested topics, None for all.

    Raises BrokerError if access to a requested topic is denied, or if it is not ready yet.
    """
    topics = {}
    for topic in response.topics:
        code = ErrorCode(topic.error_code)
        if not code:
            partitions = {each.partition_index: _partition(each) for each in topic.partitions}
            topics[topic.name] = TopicDescription(topic.topic_id, dict(sorted(partitions.items())))
        elif asked is not None and code.kind is not Kind.MISSING:
            raise broker_error(code, f"topic {topic.name}")
    return ClusterDescription(topics, {broker.node_id: broker.rack for broker in response.brokers})


def _partition(response: SimpleNamespace) -> PartitionDescription:
    leader = Leader(response.leader_id, response.leader_epoch)
    return PartitionDescription(leader, tuple(response.replica_nodes), tuple(response.isr_nodes))
