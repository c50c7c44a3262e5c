"""A transaction's requests to its coordinators, and their versions by protocol (KIP-890)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace

from penstock.topology.records import TopicPartition

from ..cluster.brokers import ProducerId
from ..protocol.by_topic import by_topic, each_partition
from ..protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
)
from ..protocol.offset_commits import GroupMetadata, OffsetAndMetadata, committed_by_topic
from ..protocol.schema import Request

#: The last versions of the old protocol. In later versions the coordinator adds the group automatically, and the
#: response of EndTxn contains the next epoch.
_OLD_TXN_OFFSET_COMMIT = _OLD_END_TXN = 4
#: The finalized feature of a cluster that supports the new protocol, and its minimum level.
TRANSACTION_VERSION, NEW_PROTOCOL_LEVEL = "transaction.version", 2

#: Error code by partition.
Codes = Mapping[TopicPartition, int]


def transaction_level(response: SimpleNamespace) -> int:
    """Return the finalized level of transaction.version, 0 without one."""
    levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
    return int(levels.get(TRANSACTION_VERSION, 0)) if response.finalized_features_epoch >= 0 else 0


def init_producer_id(transactional_id: str, timeout_ms: int, producer: ProducerId) -> Request:
    """Request a producer id and epoch. producer: whose epoch to bump (KIP-360); id -1 the first time."""
    return INIT_PRODUCER_ID(transaction_timeout_ms=timeout_ms, **_who(transactional_id, producer))


def add_partitions(transactional_id: str, producer: ProducerId, partitions: Collection[TopicPartition]) -> Request:
    """Add partitions to the transaction (old protocol)."""
    topics = by_topic((partition, partition.partition) for partition in partitions)
    return ADD_PARTITIONS_TO_TXN(topics=topics, **_who(transactional_id, producer))


def added_partitions(response: SimpleNamespace) -> Codes:
    """Return the error codes of a response to add_partitions."""
    return {
        TopicPartition(topic.name, partition.partition_index): partition.partition_error_code
        for topic in response.results_by_topic
        for partition in topic.results_by_partition
    }


def add_offsets(transactional_id: str, producer: ProducerId, group_id: str) -> Request:
    """Add a group's offsets to the transaction (old protocol)."""
    return ADD_OFFSETS_TO_TXN(group_id=group_id, **_who(transactional_id, producer))


def txn_offset_commit(
    transactional_id: str,
    producer: ProducerId,
    group: GroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    is_new: bool,
) -> Request:
    """Commit offsets when the transaction is committed. is_new: the new protocol, in which this adds the group too."""
    request = TXN_OFFSET_COMMIT(
        group_id=group.group_id,
        generation_id_or_member_epoch=group.generation,
        member_id=group.member_id,
        group_instance_id=group.instance_id,
        topics=committed_by_topic(offsets),
        **_who(transactional_id, producer),
    )
    return request if is_new else replace(request, version_max=_OLD_TXN_OFFSET_COMMIT)


def committed_offsets(response: SimpleNamespace) -> Codes:
    """Return the error codes of a response to txn_offset_commit."""
    return {partition: found.error_code for partition, found in each_partition(response.topics)}


def end_txn(transactional_id: str, producer: ProducerId, commit: bool, is_new: bool) -> Request:
    """Commit or abort the transaction. is_new: see next_producer."""
    request = END_TXN(committed=commit, **_who(transactional_id, producer))
    return request if is_new else replace(request, version_max=_OLD_END_TXN)


def next_producer(response: SimpleNamespace, producer: ProducerId) -> ProducerId:
    """Return the producer id and epoch after end_txn: from the response in the new protocol, else unchanged."""
    return producer if response.producer_id < 0 else ProducerId(response.producer_id, response.producer_epoch)


def _who(transactional_id: str, producer: ProducerId) -> dict[str, object]:
    return {
        "transactional_id": transactional_id,
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
    }
