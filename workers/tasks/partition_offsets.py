"""Partitions of topics, and their first and last offsets and offsets by timestamp, requested from the brokers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.clients.cluster.admin import Admin, answered, results
from penstock.clients.log_context import listed
from penstock.topology.errors import MissingSourceTopicError
from penstock.topology.records import TopicPartition

#: Timestamps, and offsets, that mean the first record and the end of the partition.
OFFSET_BEGINNING = -2
OFFSET_END = -1

#: Time limit for a request of offsets or partitions, in seconds (Kafka: default.api.timeout.ms).
API_TIMEOUT_SECONDS = 60.0


class PartitionOffsets:
    """Requests offsets and waits for them. committed_only: whether the reader reads committed records only."""

    def __init__(self, admin: Admin, committed_only: bool) -> None:
        self._admin = admin
        self._committed_only = committed_only

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic.

        Raises MissingSourceTopicError if there is no such topic, StreamsError if it may not be read,
        BrokerUnavailableError.
        """
        with answered(f"The partitions of {topic} could not be read"):
            found = self._admin.describe([topic], int(API_TIMEOUT_SECONDS * 1000)).topics.get(topic)
        if found is None:
            raise MissingSourceTopicError(f"The topic {topic} does not exist. Create it and start again.")
        return [TopicPartition(topic, partition) for partition in found.partitions]

    def offsets_at(
        self, timestamps: Mapping[TopicPartition, int], timeout_seconds: float = API_TIMEOUT_SECONDS
    ) -> dict[TopicPartition, int]:
        """Return the first offset at or after a timestamp (ms), by one request to each leader.

        OFFSET_BEGINNING and OFFSET_END are also timestamps; with read_committed the end is the last stable offset.
        Without a record that late, the result is OFFSET_END.

        Raises BrokerUnavailableError if one of the offsets is not known in time, StreamsError for a refusal.
        """
        timeout_ms = int(timeout_seconds * 1000)
        asked = self._admin.offsets(timestamps, timeout_ms, self._committed_only)
        with answered(f"The offsets of {listed(timestamps)} could not be read within {timeout_seconds:g} s"):
            return results(asked, timeout_ms)

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offset of each partition; raises as offsets_at."""
        return self.offsets_at(dict.fromkeys(partitions, OFFSET_END))
