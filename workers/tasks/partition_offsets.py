"""What a reader of partitions asks before it reads: which there are, and where they begin, end, or reach a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.clients.cluster.admin import Admin, answered, results
from penstock.clients.log_context import listed
from penstock.topology.errors import MissingSourceTopicError
from penstock.topology.records import TopicPartition

#: Timestamps, and offsets, that stand for "the first" and "behind the last" record.
OFFSET_BEGINNING = -2
OFFSET_END = -1

#: How long the brokers may take to name offsets or partitions, in seconds (Kafka: default.api.timeout.ms).
API_TIMEOUT_SECONDS = 60.0


class PartitionOffsets:
    """Asks the brokers and waits for them. committed_only: whether the reader reads so (``isolation.level``)."""

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
        """Return the first offset with a timestamp (ms) or a later one; each leader is asked once for all partitions.

        OFFSET_BEGINNING and OFFSET_END are timestamps, too; with read_committed the end is the last stable offset.
        OFFSET_END is the answer where no record is that late.

        Raises BrokerUnavailableError if one of the offsets is not known in time, StreamsError for a refusal.
        """
        timeout_ms = int(timeout_seconds * 1000)
        asked = self._admin.offsets(timestamps, timeout_ms, self._committed_only)
        with answered(f"The offsets of {listed(timestamps)} could not be read within {timeout_seconds:g} s"):
            return results(asked, timeout_ms)

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offset of each partition; raises as offsets_at."""
        return self.offsets_at(dict.fromkeys(partitions, OFFSET_END))
