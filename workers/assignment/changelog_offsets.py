"""How long the changelogs are, for the lags that the leader compares; asked only by the leader, in each rebalance."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # no __all__ there

from penstock.topology.errors import BrokerUnavailableError, StreamsError
from penstock.topology.records import TopicPartition

from ..listed_offsets import listed_offset
from ..membership.membership import OffsetAndMetadata

#: The leader has not answered yet when a topic was just made, or is being elected, or the broker comes back.
_NOT_YET = frozenset(
    (
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._NOENT,  # no partition has a leader: a broker that was killed is not registered again yet
    )
)
#: Nobody has answered in time.
_SILENT = frozenset((KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT))
#: The client goes by a leader epoch of before a broker's restart, or by the moment in which no partition had a leader,
#: and would until its metadata expire.
_STALE_LEADER = (
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError._NOENT,
)
_RETRY_SECONDS = 0.05
#: How long a broker that has just answered may take to list its topics, in seconds.
_METADATA_SECONDS = 5.0

Offsets = dict[TopicPartition, int]


class ChangelogOffsets(Protocol):
    """Asks the brokers. Runs while the member joins, so it must not call the member."""

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end offset of each partition; raises StreamsError."""

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the group's committed offset of each partition, 0 without one; raises StreamsError."""


class CommittedOffsets(Protocol):
    """Reads the group's committed offsets; membership.offsets_reader.GroupOffsetsReader is one."""

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Return the offset of each partition, None without one; raises StreamsError."""


class AdminChangelogOffsets:
    """ChangelogOffsets by an admin client, and a reader of the group's offsets.

    timeout_ms: for one question. The group waits meanwhile and this member sends no heartbeats, so two such times must
    be well below ``session.timeout.ms``.
    """

    def __init__(
        self,
        admin: AdminClient,
        committed: CommittedOffsets,
        timeout_ms: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._admin = admin
        self._committed = committed
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
            return {TopicPartition(p.topic, p.partition): listed_offset(f.result(seconds)) for p, f in futures.items()}

        return self._until_deadline(ask, f"The end offsets of {len(partitions)} changelog partitions")

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> Offsets:
        """See ChangelogOffsets."""
        if not partitions:
            return {}
        found = self._committed.committed(partitions)
        return {partition: 0 if offset is None else offset.offset for partition, offset in found.items()}

    def _until_deadline(self, ask: Callable[[float], Offsets], what: str) -> Offsets:
        deadline = self._clock() + self._seconds
        while True:
            try:
                return ask(max(deadline - self._clock(), _RETRY_SECONDS))
            except (KafkaException, FutureTimeoutError) as error:
                again = isinstance(error, KafkaException) and error.args[0].code() in _NOT_YET
                if not again or self._clock() >= deadline:
                    silent = again or isinstance(error, FutureTimeoutError) or error.args[0].code() in _SILENT
                    kind = BrokerUnavailableError if silent else StreamsError
                    raise kind(f"{what} are not known: {error}.") from error
                refresh_stale_leaders(self._admin, error)
            self._sleep(_RETRY_SECONDS)


def refresh_stale_leaders(admin: AdminClient, error: Exception) -> None:
    """Have an admin client ask who leads the partitions, if it has asked the wrong one or with an old leader epoch.

    librdkafka's ListOffsets (2.16) returns such an error and keeps the metadata that led to it. Waits for the answer of
    a broker that was there a moment ago.
    """
    if isinstance(error, KafkaException) and error.args[0].code() in _STALE_LEADER:
        with contextlib.suppress(KafkaException):  # the next question fails in the same way, and is asked again
            admin.list_topics(timeout=_METADATA_SECONDS)
