"""A Kafka cluster in memory, with the calls of confluent-kafka's clients that stream threads use.

Deterministic: nothing happens but in a call, waiting moves the clock, and errors come when a test asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import OffsetSpec

from penstock.topology.records import RawRecord, TopicPartition
from penstock.workers.membership.membership import Assigned, OffsetAndMetadata, Rebalance


class ManualClock:
    """Stands still until somebody waits or a test advances it."""

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
    """The brokers: topics, committed offsets, one group. refuse_topics: whose produced records come back as errors."""

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
        """Return what a compacted topic would hold."""
        return {record.key(): record.value() for record in self.records(topic)}


class MemoryConsumer:
    """confluent_kafka.Consumer, as far as PartitionConsumer asks it about topics and offsets."""

    def __init__(self, cluster: Cluster, committed_only: bool) -> None:
        self.cluster = cluster
        self.committed_only = committed_only

    def consume(self, count: int, timeout: float) -> list[Any]:
        return []

    def offsets_for_times(self, asked: list[RdTopicPartition], timeout: float) -> list[RdTopicPartition]:
        logs = [self.cluster.logs[TopicPartition(p.topic, p.partition)] for p in asked]
        ends = [
            (log.start, log.readable_end(self.committed_only)) for log in logs
        ]  # -2 OFFSET_BEGINNING, -1 OFFSET_END
        return [RdTopicPartition(p.topic, p.partition, end[p.offset]) for p, end in zip(asked, ends, strict=True)]

    def list_topics(self, topic: str | None = None, timeout: float = 0) -> Any:
        return list_topics(self.cluster, topic)

    def close(self) -> None:
        pass


def list_topics(cluster: Cluster, topic: str | None) -> Any:
    names = {p.topic for p in cluster.logs if topic in (None, p.topic)}
    numbers = {name: {p.partition: p for p in cluster.partitions(name)} for name in names}
    return SimpleNamespace(topics={name: SimpleNamespace(error=None, partitions=p) for name, p in numbers.items()})


class Group:
    """The coordinator of the one group: everybody has to join before anybody gets an assignment."""

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
    """confluent_kafka.admin.AdminClient, as far as InternalTopicManager and others call it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def list_topics(self, topic: str | None = None, timeout: float = 0) -> Any:
        return list_topics(self.cluster, topic)

    def describe_topics(self, topics: Any, request_timeout: float = 0) -> dict[str, Future[Any]]:
        def describe(name: str) -> Future[Any]:
            partitions = self.cluster.partitions(name)
            unknown = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
            return done(SimpleNamespace(partitions=partitions)) if partitions else failed(unknown)

        return {name: describe(name) for name in topics.topic_names}

    def create_topics(self, topics: Any, request_timeout: float = 0) -> dict[str, Future[Any]]:
        for topic in topics:
            self.cluster.create_topic(topic.topic, topic.num_partitions)
            self.cluster.cleanup_policies[topic.topic] = topic.config["cleanup.policy"]
        return {topic.topic: done(None) for topic in topics}

    def describe_configs(self, resources: list[Any], request_timeout: float = 0) -> dict[Any, Future[Any]]:
        policies = self.cluster.cleanup_policies
        return {r: done({"cleanup.policy": SimpleNamespace(value=policies.get(r.name, "compact"))}) for r in resources}

    def list_offsets(
        self,
        asked: Mapping[RdTopicPartition, Any],
        request_timeout: float = 0,
        isolation_level: Any = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[Any, Future[Any]]:
        def answer(partition: RdTopicPartition, spec: Any) -> Future[Any]:
            log = self.cluster.logs.get(TopicPartition(partition.topic, partition.partition))
            if log is None:
                return failed(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
            end = log.readable_end(isolation_level is IsolationLevel.READ_COMMITTED)
            earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
            return done(SimpleNamespace(offset=log.start if type(spec) is type(earliest) else end))

        return {partition: answer(partition, spec) for partition, spec in asked.items()}

    def delete_records(self, partitions: list[RdTopicPartition]) -> dict[Any, Future[Any]]:
        for partition in partitions:
            key = TopicPartition(partition.topic, partition.partition)
            self.cluster.deleted_before[key] = self.cluster.logs[key].start = partition.offset
        return {partition: done(None) for partition in partitions}


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def failed(error: Exception) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future
