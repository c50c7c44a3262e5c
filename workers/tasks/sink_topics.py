"""Metadata of the topics that a thread writes to, requested rarely."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.clients.clock import Clock
from penstock.clients.cluster.admin import Admin, answered
from penstock.clients.errors import BrokerError, RetriableError
from penstock.clients.log_context import listed
from penstock.topology.context.exception_handlers import FailedProcessingError
from penstock.topology.errors import BrokerUnavailableError, StreamsError
from penstock.topology.records import TaskId

from .changelog_bounds import CHANGELOG_DELETED

#: The suffix of changelog names.
CHANGELOG_SUFFIX = "-changelog"
#: The brokers' topic for the state of transactions.
TRANSACTION_LOG = "__transaction_state"
#: Time limit for a request of a topic's partition count, in ms.
COUNT_MS = 30_000
#: Time limit for a request of whether a topic exists, in ms; sent only after a record was dropped.
METADATA_MS = 5_000
#: How long partition counts are cached by default, in ms (metadata.max.age.ms).
PARTITION_COUNT_MS = 300_000


class SinkTopics:
    """The existence and the partition counts of topics.

    max_age_ms: how long partition counts are cached: the producer's metadata.max.age.ms.
    """

    def __init__(self, admin: Admin, clock: Clock, max_age_ms: int = PARTITION_COUNT_MS) -> None:
        self._max_age_ms = max_age_ms
        self._admin = admin
        self._clock = clock
        self._partition_counts: dict[str, int] = {}
        self._last_counts: dict[str, int] = {}
        self._forget_counts_at = 0
        self._missing: dict[
            str, tuple[bool, int]
        ] = {}  # whether a topic is missing, and until when that is cached, in ms

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has; raises StreamsError without such a topic, BrokerUnavailableError.

        Partitioners call this for every record. Counts are cached for max_age_ms, and used longer if the broker does
        not answer, like the metadata of Kafka's producer.
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
        with answered(f"The partitions of topic {topic} could not be read"):
            found = self._admin.describe([topic], COUNT_MS).topics.get(topic)
        if found is None:
            raise StreamsError(
                f"Could not get partition information for topic {topic}. This can happen if the topic does not exist."
            )
        return len(found.partitions)

    def forget_old_counts(self) -> None:
        """Drop partition counts that are max_age_ms old."""
        now = self._clock.monotonic_ms()
        if now >= self._forget_counts_at:
            self.forget_counts()
            self._forget_counts_at = now + self._max_age_ms

    def forget_counts(self) -> None:
        """Drop all partition counts: a topic may have been recreated."""
        self._partition_counts.clear()

    def is_missing(self, topic: str) -> bool:
        """Return whether a topic does not exist; one request serves all records that are dropped together."""
        missing, until_ms = self._missing.get(topic, (False, 0))
        if self._clock.monotonic_ms() >= until_ms:
            missing = self._asked_whether_missing(topic)
            self._missing[topic] = missing, self._clock.monotonic_ms() + METADATA_MS
        return missing

    def _asked_whether_missing(self, topic: str) -> bool:
        """Request whether a topic does not exist; False if the broker does not answer."""
        try:
            return topic not in self._admin.describe([topic], METADATA_MS).topics
        except (RetriableError, BrokerError):
            return False

    def missing_changelog(self, writers: Mapping[str, Collection[TaskId]]) -> StreamsError | None:
        """Return an error if a changelog was deleted; None if all exist, or if the broker does not answer.

        writers: the tasks that write to each topic.
        """
        changelogs = {topic: tasks for topic, tasks in writers.items() if topic.endswith(CHANGELOG_SUFFIX)}
        if not changelogs:
            return None
        try:
            existing = self._admin.describe(changelogs, METADATA_MS).topics
        except (RetriableError, BrokerError):
            return None
        for topic, tasks in sorted(changelogs.items()):
            if topic not in existing:
                partition = min(tasks).partition
                return FailedProcessingError(
                    f"There is no topic {topic} partition {partition} any more, written by {listed(sorted(tasks))}. "
                    f"The changelog was deleted. {CHANGELOG_DELETED}"
                )
        return None

    def transaction_log_hint(self) -> str:
        """Return a hint, from the cluster's metadata, why transactions may not start."""
        try:
            found = self._admin.describe([TRANSACTION_LOG], METADATA_MS)
        except (RetriableError, BrokerError) as error:
            return f"No broker can be reached ({error}): check bootstrap.servers, the network and the brokers"
        brokers, log = len(found.racks), found.topics.get(TRANSACTION_LOG)
        if log is None:
            return (
                f"The cluster has {brokers} broker(s) and no topic {TRANSACTION_LOG}: is the brokers' "
                "transaction.state.log.replication.factor above the number of brokers?"
            )
        in_sync = min((len(partition.in_sync) for partition in log.partitions.values()), default=0)
        return (
            f"{TRANSACTION_LOG} has {in_sync} replica(s) in sync where it has fewest, on {brokers} broker(s): is "
            "the brokers' transaction.state.log.min.isr above that, or a broker down?"
        )
