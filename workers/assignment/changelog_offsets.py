"""How long the changelogs are, for the lags that the leader compares; asked only by the leader, in each rebalance."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Protocol

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # no __all__ there

from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition

#: The leader has not answered yet when a topic was just made, or is being elected.
_NOT_YET = frozenset(
    (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART)
)
_RETRY_SECONDS = 0.05

Offsets = dict[TopicPartition, int]


class ChangelogOffsets(Protocol):
    """Asks the brokers. Runs on the group member's IO thread, so it must not call the member."""

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end offset of each partition; raises StreamsError."""

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the group's committed offset of each partition, 0 without one; raises StreamsError."""


class AdminChangelogOffsets:
    """ChangelogOffsets by an admin client.

    timeout_ms: for one question. The group waits meanwhile and this member sends no heartbeats, so two such times must
    be well below ``session.timeout.ms``.
    """

    def __init__(
        self,
        admin: AdminClient,
        group_id: str,
        timeout_ms: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._admin = admin
        self._group_id = group_id
        self._seconds = timeout_ms / 1000
        self._clock = clock
        self._sleep = sleep

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Offsets:
        """See ChangelogOffsets."""
        if not partitions:
            return {}
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]

        def ask(seconds: float) -> Offsets:
            asked = {RdTopicPartition(*partition): latest for partition in partitions}
            futures = self._admin.list_offsets(asked, request_timeout=seconds)
            return {TopicPartition(p.topic, p.partition): f.result(seconds).offset for p, f in futures.items()}

        return self._until_deadline(ask, f"The end offsets of {len(partitions)} changelog partitions")

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> Offsets:
        """See ChangelogOffsets."""
        if not partitions:
            return {}

        def ask(seconds: float) -> Offsets:
            asked = [RdTopicPartition(*partition) for partition in sorted(partitions)]
            request = ConsumerGroupTopicPartitions(self._group_id, asked)
            futures = self._admin.list_consumer_group_offsets([request], request_timeout=seconds)
            found = futures[self._group_id].result(seconds).topic_partitions
            return {TopicPartition(p.topic, p.partition): max(p.offset, 0) for p in found}

        return self._until_deadline(ask, f"The committed offsets of {len(partitions)} source changelogs")

    def _until_deadline(self, ask: Callable[[float], Offsets], what: str) -> Offsets:
        deadline = self._clock() + self._seconds
        while True:
            try:
                return ask(max(deadline - self._clock(), _RETRY_SECONDS))
            except (KafkaException, FutureTimeoutError) as error:
                again = isinstance(error, KafkaException) and error.args[0].code() in _NOT_YET
                if not again or self._clock() >= deadline:
                    raise StreamsError(f"{what} are not known: {error}.") from error
            self._sleep(_RETRY_SECONDS)
