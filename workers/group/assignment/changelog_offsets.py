"""End offsets of changelogs: the group's leader computes lags from them, and a commit stores them with the data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from typing_extensions import override

from penstock.clients.cluster.admin import Admin, answered, results
from penstock.clients.cluster.offsets import LATEST
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.topology.records import TopicPartition

Offsets = dict[TopicPartition, int]


class ChangelogOffsets(Protocol):
    """Requests offsets from the brokers. The leader does so while it joins, so it must not call the member."""

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end offset of each partition; raises StreamsError."""

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the group's committed offset of each partition, 0 without one; raises StreamsError."""


class CommittedOffsets(Protocol):
    """Reads the group's committed offsets; clients.group.offsets_reader.GroupOffsetsReader is one."""

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Return the offset of each partition, None without one; raises StreamsError."""


class AdminChangelogOffsets(ChangelogOffsets):
    """Requests end offsets from the partitions' leaders, and committed offsets from the group's coordinator.

    timeout_ms: for one request. If the leader uses this, the group waits for it, and the leader sends no heartbeats:
    twice the timeout must be well below ``session.timeout.ms``.
    """

    def __init__(self, admin: Admin, committed: CommittedOffsets, timeout_ms: int = 10_000) -> None:
        self._admin = admin
        self._committed = committed
        self._timeout_ms = timeout_ms

    @override
    def end_offsets(self, partitions: Collection[TopicPartition]) -> Offsets:
        asked = self._admin.offsets(dict.fromkeys(partitions, LATEST), self._timeout_ms)
        with answered(f"The end offsets of {len(partitions)} changelog partitions are not known"):
            return results(asked, self._timeout_ms)

    @override
    def committed_offsets(self, partitions: Collection[TopicPartition]) -> Offsets:
        if not partitions:
            return {}
        found = self._committed.committed(partitions)
        return {partition: 0 if offset is None else offset.offset for partition, offset in found.items()}
