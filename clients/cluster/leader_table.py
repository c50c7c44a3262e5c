"""The leaders of partitions, looked up again when they turn out to be stale (Kafka: Metadata)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future

from penstock.topology.records import TopicPartition

from ..errors import ErrorCode, Kind
from ..network_settings import NetworkSettings
from .brokers import Brokers, Leader, Leaders

#: Errors of topics that may still be created, or that the broker may learn of soon.
_NOT_YET = frozenset(
    (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_SERVER_ERROR)
)

#: Errors of a topic or partition that a broker does not know: it may have been recreated under the same name.
UNKNOWN_THERE = frozenset(code for code in ErrorCode if code.kind is Kind.MISSING and code.retriable)
#: Errors of a partition after which its leader is looked up again and the request is repeated.
MOVED = UNKNOWN_THERE | {code for code in ErrorCode if code.kind is Kind.MOVED}


class LeaderTable:
    """The leaders of partitions that are read or written. Never blocks: advance() handles responses that have arrived.

    on_done: called on another thread when a response has arrived.
    """

    def __init__(self, brokers: Brokers, settings: NetworkSettings, on_done: Callable[[], None]) -> None:
        self._brokers = brokers
        self._settings = settings
        self._on_done = on_done
        self._leaders: dict[TopicPartition, Leader] = {}
        #: Number of partitions by topic.
        self.partition_counts: Mapping[str, int] = {}
        self._errors: dict[str, int] = {}  # code by topic
        self._ids: dict[str, bytes] = {}  # by topic
        self._unknown_since: dict[TopicPartition, int] = {}  # missing partitions, in ms
        self._asked: Future[Leaders] | None = None
        self._topics: frozenset[str] = frozenset()  # of the last question
        self._ask_at = 0  # in ms; 0: the first request is sent immediately
        self._is_wanted = False  # whether there are partitions to look up
        #: Number of answered requests.
        self.responses = 0
        #: Why the last request failed; None after a success.
        self.failure: str | None = None

    def of(self, partition: TopicPartition) -> Leader | None:
        """Return a partition's leader, None if none is known."""
        leader = self._leaders.get(partition)
        return None if leader is None or leader.node < 0 else leader

    def id_of(self, topic: str) -> bytes | None:
        """Return a topic's id, None if unknown, as with brokers before Kafka 2.8."""
        return self._ids.get(topic)

    def refresh(self, now_ms: int) -> None:
        """Look up leaders again after ``retry.backoff.ms``, unless a request is in flight."""
        if self._asked is None:
            self._ask_at = min(self._ask_at, now_ms + self._settings.retry_backoff_ms)

    def note_pause(self, ms: int) -> None:
        """Count a pause of the caller, which the times passed to other methods exclude: what is known has aged."""
        self._ask_at -= ms

    def hear_of(self, partitions: Collection[TopicPartition]) -> None:
        """Look up leaders immediately if these include topics that were not requested yet."""
        if not _topics(partitions) <= self._topics:
            self._ask_at = 0

    def learn(self, partition: TopicPartition, leader: Leader) -> None:
        """Store a partition's leader as reported by a broker, if its epoch is newer than the known one (KIP-951)."""
        known = self._leaders.get(partition)
        if known is None or leader.epoch > known.epoch:
            self._leaders[partition] = leader

    def error_of(self, partition: TopicPartition, now_ms: int) -> int | None:
        """Return the error code of a partition that cannot be read; None if it can be, or may be soon.

        A missing partition is an error only after ``topic.metadata.propagation.max.ms``.
        """
        code = self._errors.get(partition.topic)
        if code is not None and code not in _NOT_YET:
            return code
        since = self._unknown_since.get(partition)
        if since is not None and now_ms - since >= self._settings.unknown_topic_ms:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return None

    def advance(self, partitions: Collection[TopicPartition], now_ms: int) -> bool:
        """Handle a response that has arrived and send the next request if due; return whether there was a response."""
        answered = False
        self._is_wanted = bool(partitions)
        if self._asked is not None and self._asked.done():
            response, self._asked = self._asked, None
            answered = self._take(response, partitions, now_ms)
        if self._asked is None and now_ms >= self._ask_at and partitions:
            self._ask_at = now_ms + self._settings.metadata_max_age_ms
            self._topics = _topics(partitions)
            self._asked = self._brokers.leaders(self._topics, self._on_done)
        return answered

    def next_at(self) -> int | None:
        """Return when advance() is due, in ms; None while a request is in flight or without partitions."""
        return self._ask_at if self._is_wanted and self._asked is None else None

    def _take(self, response: Future[Leaders], partitions: Collection[TopicPartition], now_ms: int) -> bool:
        error = response.exception()
        if error is not None:
            self.failure = str(error) or type(error).__name__
            self.refresh(now_ms)
            return False
        self.failure = None
        self.responses += 1
        leaders = response.result()
        self._leaders, self._errors = dict(leaders.by_partition), dict(leaders.errors)
        self._ids = dict(leaders.ids)
        # A topic that was not requested yet is neither among the leaders nor among the errors.
        self.partition_counts = dict(Counter(partition.topic for partition in self._leaders))
        self._unknown_since = {
            partition: self._unknown_since.get(partition, now_ms)
            for partition in partitions
            if self._errors.get(partition.topic) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            or (partition.topic in self.partition_counts and partition not in self._leaders)
        }
        return True


def _topics(partitions: Collection[TopicPartition]) -> frozenset[str]:
    return frozenset(partition.topic for partition in partitions)
