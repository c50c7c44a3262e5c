"""A Kafka cluster in memory, and the Admin over it.

Deterministic: everything happens within calls, waiting advances the clock, and tests inject errors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from penstock.clients.cluster.admin import NewTopic
from penstock.clients.cluster.brokers import Leader
from penstock.clients.cluster.offsets import EARLIEST
from penstock.clients.cluster.topics import NO_ID, ClusterDescription, PartitionDescription, TopicDescription
from penstock.clients.errors import BrokerError, ErrorCode, broker_error
from penstock.clients.group.membership import Assigned, Rebalance
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.topology.records import RawRecord, TopicPartition


class ManualClock:
    """Stalls until someone waits or a test advances it."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.epoch_ms = 1_700_000_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_clock_ms(self) -> int:
        return self.epoch_ms + self.now_ms

    def advance(self, ms: int) -> None:
        self.now_ms += ms

    def sleep(self, seconds: float) -> None:
        self.advance(int(seconds * 1000))


@dataclass
class Log:
    """One partition. records: by offset, None for a transaction's marker."""

    records: list[RawRecord | None] = field(default_factory=list)
    start: int = 0
    #: Offset of the first record of a transaction that is still open.
    open_since: int | None = None

    @property
    def end(self) -> int:
        return len(self.records)

    def readable_end(self, committed_only: bool) -> int:
        return self.open_since if committed_only and self.open_since is not None else self.end


class Cluster:
    """The brokers: topics, committed offsets, one group. refuse_topics: topics that reject produced records."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, Log] = {}
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.refuse_topics: set[str] = set()
        self.deleted_before: dict[TopicPartition, int] = {}
        self.cleanup_policies: dict[str, str] = {}
        self.group = Group(self)

    def create_topic(self, topic: str, partitions: int) -> None:
        for number in range(partitions):
            self.logs.setdefault(TopicPartition(topic, number), Log())

    def partitions(self, topic: str) -> list[TopicPartition]:
        return sorted(p for p in self.logs if p.topic == topic)

    def append(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> int:
        log = self.logs[TopicPartition(topic, partition)]
        log.records.append(RawRecord(topic, partition, log.end, timestamp, key, value, headers))
        return log.end

    def append_marker(self, topic: str, partition: int) -> None:
        """End a transaction: a record that no consumer sees."""
        self.logs[TopicPartition(topic, partition)].records.append(None)

    def records(self, topic: str) -> list[RawRecord]:
        """Return the records of a topic, partition by partition."""
        return [r for p in self.partitions(topic) for r in self.logs[p].records if r is not None]

    def table(self, topic: str) -> dict[bytes | None, bytes | None]:
        """Return the rows of a topic as if it were compacted."""
        return {record.key(): record.value() for record in self.records(topic)}


class Group:
    """The coordinator of the one group: all members must join before any gets an assignment."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.members: dict[str, Any] = {}  # memory_clients.MemoryMember
        self.generation = 0

    def rebalance(self, cause: Any) -> None:
        for member in self.members.values():
            if member is not cause and member.joined is not None:
                member.joined = None
                member.events.append(Rebalance())
        if self.members and all(member.joined is not None for member in self.members.values()):
            self._assign()

    def joined(self) -> None:
        if all(member.joined is not None for member in self.members.values()):
            self._assign()

    def _assign(self) -> None:
        self.generation += 1
        subscriptions = {name: member.joined for name, member in self.members.items()}
        leader = self.members[min(self.members)]
        for name, assignment in leader.assign(subscriptions).items():
            member = self.members[name]
            member.generation = self.generation
            member.events.append(Assigned(self.generation, assignment.user_data, frozenset(assignment.active)))


class MemoryAdmin:
    """clients.cluster.admin.Admin over a Cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def describe(self, topics: Collection[str] | None, timeout_ms: int) -> ClusterDescription:
        numbers: dict[str, list[int]] = {}
        for topic, number in sorted(self.cluster.logs):
            if topics is None or topic in topics:
                numbers.setdefault(topic, []).append(number)
        one = PartitionDescription(Leader(1, 0), (1,), (1,))
        return ClusterDescription(
            {topic: TopicDescription(NO_ID, dict.fromkeys(found, one)) for topic, found in numbers.items()}, {1: None}
        )

    def create_topics(self, topics: Collection[NewTopic], timeout_ms: int) -> dict[str, BrokerError | None]:
        for topic in topics:
            self.cluster.create_topic(topic.name, topic.num_partitions)
            self.cluster.cleanup_policies[topic.name] = topic.config["cleanup.policy"]
        return {topic.name: None for topic in topics}

    def topic_config(self, topics: Collection[str], key: str, timeout_ms: int) -> dict[str, str | BrokerError]:
        assert key == "cleanup.policy"
        return {topic: self.cluster.cleanup_policies.get(topic, "compact") for topic in topics}

    def offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: int, committed_only: bool = False
    ) -> dict[TopicPartition, Future[int]]:
        def answer(partition: TopicPartition, timestamp: int) -> Future[int]:
            log = self.cluster.logs.get(partition)
            if log is None:
                return failed(broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return done(log.start if timestamp == EARLIEST else log.readable_end(committed_only))

        return {partition: answer(partition, at) for partition, at in timestamps.items()}

    def delete_records(
        self, before: Mapping[TopicPartition, int], timeout_ms: int
    ) -> dict[TopicPartition, Future[int]]:
        for partition, offset in before.items():
            self.cluster.deleted_before[partition] = self.cluster.logs[partition].start = offset
        return {partition: done(offset) for partition, offset in before.items()}

    def wait(self, asked: Collection[Future[Any]], seconds: float) -> None:
        assert all(future.done() for future in asked)

    def close(self) -> None:
        pass


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def failed(error: Exception) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future
