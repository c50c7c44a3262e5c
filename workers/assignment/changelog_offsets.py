"""How long the changelogs are, for the lags that the leader compares; asked only by the leader, in each rebalance."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Protocol

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # no __all__ there

from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition


class ChangelogOffsets(Protocol):
    """Asks the brokers. Runs on the group member's IO thread, so it must not call the member."""

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end offset of each partition; raises StreamsError."""

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the group's committed offset of each partition, 0 without one; raises StreamsError."""


class AdminChangelogOffsets:
    """ChangelogOffsets by an admin client. timeout_ms: for one question; the group waits for it, so keep it short."""

    def __init__(self, admin: AdminClient, group_id: str, timeout_ms: int) -> None:
        self._admin = admin
        self._group_id = group_id
        self._seconds = timeout_ms / 1000

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """See ChangelogOffsets."""
        asked = {RdTopicPartition(*partition): OffsetSpec.latest() for partition in partitions}  # type: ignore[no-untyped-call]
        if not asked:
            return {}
        try:
            futures = self._admin.list_offsets(asked, request_timeout=self._seconds)
            return {
                TopicPartition(found.topic, found.partition): future.result(self._seconds).offset
                for found, future in futures.items()
            }
        except (KafkaException, FutureTimeoutError) as error:
            raise StreamsError(
                f"The end offsets of {len(asked)} changelog partitions are not known: {error}."
            ) from error

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """See ChangelogOffsets."""
        if not partitions:
            return {}
        asked = [RdTopicPartition(*partition) for partition in sorted(partitions)]
        request = ConsumerGroupTopicPartitions(self._group_id, asked)
        try:
            futures = self._admin.list_consumer_group_offsets([request], request_timeout=self._seconds)
            found = futures[self._group_id].result(self._seconds).topic_partitions
        except (KafkaException, FutureTimeoutError) as error:
            raise StreamsError(f"The committed offsets of source changelogs are not known: {error}.") from error
        return {TopicPartition(p.topic, p.partition): max(p.offset, 0) for p in found}
