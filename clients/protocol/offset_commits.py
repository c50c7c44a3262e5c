"""The common parts of OffsetCommit and TxnOffsetCommit: the offsets, and the committing member."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.topology.records import TopicPartition

from .by_topic import by_topic


class OffsetAndMetadata(NamedTuple):
    """A committed offset (the next one to read) and the text stored with it.

    leader_epoch: of the record before it, -1 if unknown; serves to detect a log truncated since then (KIP-320).
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class GroupMetadata(NamedTuple):
    """The member that commits offsets in a transaction, by which the broker fences zombies (KIP-447).

    instance_id: its ``group.instance.id``, None for a dynamic member.
    """

    group_id: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


def committed_by_topic(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> list[dict[str, object]]:
    """Return the topics of a request that commits these offsets."""
    return by_topic(
        (
            partition,
            {
                "partition_index": partition.partition,
                "committed_offset": committed.offset,
                "committed_leader_epoch": committed.leader_epoch,
                "committed_metadata": committed.metadata,
            },
        )
        for partition, committed in offsets.items()
    )
