"""What brokers say of the topics that a thread writes to; asked seldom."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from confluent_kafka import KafkaException

from penstock.clients.clock import Clock
from penstock.clients.log_context import listed
from penstock.topology.errors import BrokerUnavailableError, StreamsError
from penstock.topology.exception_handlers import FailedProcessingError
from penstock.topology.records import TaskId

from .changelog_bounds import CHANGELOG_DELETED
from .producer_errors import MISSING_TOPIC

#: How the names of changelogs end.
CHANGELOG_SUFFIX = "-changelog"
#: How long the broker may take to say how many partitions a topic has, in seconds.
COUNT_SECONDS = 30.0
#: How long the broker may take to say whether a topic exists, in seconds; asked only when a record was given up.
METADATA_SECONDS = 5.0
#: How long it is known how many partitions a topic has, in ms (metadata.max.age.ms).
PARTITION_COUNT_MS = 300_000


class SinkTopics:
    """Whether topics exist, and with how many partitions. list_topics: a confluent_kafka client's."""

    def __init__(self, list_topics: Callable[..., Any], clock: Clock) -> None:
        self._list_topics = list_topics
        self._clock = clock
        self._partition_counts: dict[str, int] = {}
        self._last_counts: dict[str, int] = {}
        self._forget_counts_at = 0
        self._missing: dict[str, tuple[bool, int]] = {}  # whether a topic is missing; until when that counts, in ms

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has; raises StreamsError without such a topic, BrokerUnavailableError.

        A partitioner asks for each record, the broker is asked every PARTITION_COUNT_MS; if it does not answer then,
        the last count is used, as Kafka's producer does with its metadata.
        """
        count = self._partition_counts.get(topic)
        if count is None:
            try:
                count = self._ask_partition_count(topic)
            except BrokerUnavailableError:
                count = self._last_counts.get(topic)
                if count is None:
                    raise
            self._partition_counts[topic] = self._last_counts[topic] = count
        return count

    def _ask_partition_count(self, topic: str) -> int:
        try:
            metadata = self._list_topics(topic, COUNT_SECONDS).topics.get(topic)
        except KafkaException as error:
            raise BrokerUnavailableError(f"The partitions of topic {topic} could not be read: {error}.") from error
        if metadata is None or metadata.error is not None or not metadata.partitions:
            raise StreamsError(
                f"Could not get partition information for topic {topic}. This can happen if the topic does not exist."
            )
        return len(metadata.partitions)

    def forget_old_counts(self) -> None:
        """Have partition counts asked for again if they are PARTITION_COUNT_MS old."""
        now = self._clock.monotonic_ms()
        if now >= self._forget_counts_at:
            self.forget_counts()
            self._forget_counts_at = now + PARTITION_COUNT_MS

    def forget_counts(self) -> None:
        """Have partition counts asked for again: a topic may have been recreated."""
        self._partition_counts.clear()

    def is_missing(self, topic: str) -> bool:
        """Return whether a topic does not exist, asked once for all records that are given up together."""
        missing, until_ms = self._missing.get(topic, (False, 0))
        if self._clock.monotonic_ms() >= until_ms:
            missing = self._asked_whether_missing(topic)
            self._missing[topic] = missing, self._clock.monotonic_ms() + int(METADATA_SECONDS * 1000)
        return missing

    def _asked_whether_missing(self, topic: str) -> bool:
        """Ask the broker whether a topic does not exist; False if it does not answer."""
        try:
            metadata = self._list_topics(topic, METADATA_SECONDS).topics.get(topic)
        except KafkaException:
            return False
        return metadata is None or (metadata.error is not None and metadata.error.code() in MISSING_TOPIC)

    def missing_changelog(self, writers: Mapping[str, Collection[TaskId]]) -> StreamsError | None:
        """Return the error of a changelog that is gone, None if there is none, or if the broker does not answer.

        writers: the tasks that write to each topic.
        """
        try:
            existing = self._list_topics(timeout=METADATA_SECONDS).topics
        except KafkaException:
            return None
        for topic, tasks in sorted(writers.items()):
            if topic.endswith(CHANGELOG_SUFFIX) and topic not in existing:
                partition = min(tasks).partition
                return FailedProcessingError(
                    f"There is no topic {topic} partition {partition} any more, written by {listed(sorted(tasks))}. "
                    f"The changelog was deleted. {CHANGELOG_DELETED}"
                )
        return None
