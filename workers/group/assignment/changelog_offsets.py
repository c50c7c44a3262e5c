"""End offsets of changelogs: the group's leader computes lags from them, and a commit stores them with the data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.clients.cluster.admin import Admin, answered, results
from penstock.clients.cluster.offsets import LATEST
from penstock.clients.group.offsets_reader import GroupOffsetsReader
from penstock.topology.records import TopicPartition


@dataclass(eq=False)
class ChangelogOffsets:
    """Requests offsets from the brokers. The leader does so while it joins, so they are not requested from the member.

    timeout_ms: for one request. If the leader uses this, the group waits for it, and the leader sends no heartbeats:
    twice the timeout must be well below ``session.timeout.ms``.
    """

    admin: Admin
    committed: GroupOffsetsReader
    timeout_ms: int = 10_000

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end offset of each partition, from its leader; raises StreamsError."""
        asked = self.admin.offsets(dict.fromkeys(partitions, LATEST), self.timeout_ms)
        with answered(f"The end offsets of {len(partitions)} changelog partitions are not known"):
            return results(asked, self.timeout_ms)

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the group's committed offset of each partition, 0 without one; raises StreamsError."""
        if not partitions:
            return {}
        found = self.committed.committed(partitions)
        return {partition: 0 if offset is None else offset.offset for partition, offset in found.items()}
