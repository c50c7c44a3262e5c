"""Who leads which partition, asked again when that turns out to be wrong (Kafka: Metadata)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future

from penstock.topology.records import TopicPartition

from ..errors import ErrorCode, Kind
from ..network_settings import NetworkSettings
from .brokers import Brokers, Leader, Leaders

#: What brokers say of topics that may still come to be, or be known there soon.
_NOT_YET = frozenset(
    (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_SERVER_ERROR)
)

#: What brokers say of a topic or partition they do not know, or no longer do: it may be another one by the same name.
UNKNOWN_THERE = frozenset(code for code in ErrorCode if code.kind is Kind.MISSING and code.retriable)
#: Errors of a partition after which its leader is looked up again, and asked the same.
MOVED = UNKNOWN_THERE | {code for code in ErrorCode if code.kind is Kind.MOVED}


class LeaderTable:
    """The leaders of partitions that are read or written. Nothing waits: advance() takes the answers that are there.

    on_done: called on another thread when there is an answer to take.
    """

    def __init__(self, brokers: Brokers, settings: NetworkSettings, on_done: Callable[[], None]) -> None:
        self._brokers = brokers
        self._settings = settings
        self._on_done = on_done
        self._leaders: dict[TopicPartition, Leader] = {}
        #: How many partitions there are, by topic.
        self.partition_counts: Mapping[str, int] = {}
        self._errors: dict[str, int] = {}  # code by topic
        self._ids: dict[str, bytes] = {}  # by topic
        self._unknown_since: dict[TopicPartition, int] = {}  # what does not exist, by what brokers said, in ms
        self._asked: Future[Leaders] | None = None
        self._topics: frozenset[str] = frozenset()  # of the last question
        self._ask_at = 0  # in ms; the first time at once
        self._is_wanted = False  # by anybody: there are partitions
        #: How many questions were answered.
        self.answers = 0
        #: Why the last question was not answered, None since it was.
        self.failure: str | None = None

    def of(self, partition: TopicPartition) -> Leader | None:
        """Return a partition's leader, None if none is known."""
        leader = self._leaders.get(partition)
        return None if leader is None or leader.node < 0 else leader

    def id_of(self, topic: str) -> bytes | None:
        """Return a topic's id, None if none is known: of brokers before Kafka 2.8."""
        return self._ids.get(topic)

    def refresh(self, now_ms: int) -> None:
        """Ask again after ``retry.backoff.ms``, unless a request is in flight."""
        if self._asked is None:
            self._ask_at = min(self._ask_at, now_ms + self._settings.retry_backoff_ms)

    def hear_of(self, partitions: Collection[TopicPartition]) -> None:
        """Ask at once if there are topics among these that were not asked for yet."""
        if not _topics(partitions) <= self._topics:
            self._ask_at = 0

    def learn(self, partition: TopicPartition, leader: Leader) -> None:
        """Take what a broker says of a partition's leader, if it is newer than what is known (KIP-951)."""
        known = self._leaders.get(partition)
        if known is None or leader.epoch > known.epoch:
            self._leaders[partition] = leader

    def error_of(self, partition: TopicPartition, now_ms: int) -> int | None:
        """Return why a partition cannot be read, as an error's code, None if it can or may be soon.

        What does not exist is an error when that has been so for ``topic.metadata.propagation.max.ms``.
        """
        code = self._errors.get(partition.topic)
        if code is not None and code not in _NOT_YET:
            return code
        since = self._unknown_since.get(partition)
        if since is not None and now_ms - since >= self._settings.unknown_topic_ms:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return None

    def advance(self, partitions: Collection[TopicPartition], now_ms: int) -> bool:
        """Take an answer that is there, ask what is to be asked; return whether there was an answer."""
        answered = False
        self._is_wanted = bool(partitions)
        if self._asked is not None and self._asked.done():
            answer, self._asked = self._asked, None
            answered = self._take(answer, partitions, now_ms)
        if self._asked is None and now_ms >= self._ask_at and partitions:
            self._ask_at = now_ms + self._settings.metadata_max_age_ms
            self._topics = _topics(partitions)
            self._asked = self._brokers.leaders(self._topics, self._on_done)
        return answered

    def next_at(self) -> int | None:
        """Return when advance() has something to do, in ms, None if not before an answer or partitions have come."""
        return self._ask_at if self._is_wanted and self._asked is None else None

    def _take(self, answer: Future[Leaders], partitions: Collection[TopicPartition], now_ms: int) -> bool:
        error = answer.exception()
        if error is not None:
            self.failure = str(error) or type(error).__name__
            self.refresh(now_ms)
            return False
        self.failure = None
        self.answers += 1
        leaders = answer.result()
        self._leaders, self._errors = dict(leaders.by_partition), dict(leaders.errors)
        self._ids = dict(leaders.ids)
        # A topic that was not asked for yet is neither among the leaders nor among the errors.
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
