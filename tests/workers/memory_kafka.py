"""A Kafka cluster in memory, with the calls of confluent-kafka's clients that stream threads use.

Deterministic: nothing happens but in a call, waiting moves the clock, and errors come when a test asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as RdTopicPartition

from penstock.clients.cluster.admin import NewTopic
from penstock.clients.cluster.brokers import Leader
from penstock.clients.cluster.offsets import EARLIEST
from penstock.clients.cluster.topics import NO_ID, ClusterDescription, PartitionDescription, TopicDescription
from penstock.clients.errors import BrokerError, ErrorCode, broker_error
from penstock.clients.writing.transaction_requests import GroupMetadata
from penstock.topology.records import RawRecord, TopicPartition
from penstock.workers.membership.membership import Assigned, MemberSubscription, OffsetAndMetadata, Rebalance


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


class ErrorEvent(RawRecord):
    """What a consumer returns in place of a record."""

    def __init__(self, partition: TopicPartition, offset: int, code: int) -> None:
        super().__init__(partition.topic, partition.partition, offset, -1, None, None)
        self._error = KafkaError(code)

    def error(self) -> KafkaError:  # type: ignore[override]
        return self._error


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
    """confluent_kafka.Consumer, as far as PartitionConsumer calls it."""

    def __init__(self, cluster: Cluster, clock: ManualClock, committed_only: bool) -> None:
        self.cluster = cluster
        self.clock = clock
        self.committed_only = committed_only
        self.positions: dict[TopicPartition, int] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.told_end: dict[TopicPartition, int] = {}
        self.closed = False

    def incremental_assign(self, partitions: list[RdTopicPartition]) -> None:
        for partition in partitions:
            key = TopicPartition(partition.topic, partition.partition)
            assert key not in self.positions
            self.positions[key] = self.starts[key] = partition.offset

    def incremental_unassign(self, partitions: list[RdTopicPartition]) -> None:
        for partition in partitions:
            key = TopicPartition(partition.topic, partition.partition)
            del self.positions[key]  # librdkafka remembers that it is paused
            self.told_end.pop(key, None)

    def pause(self, partitions: list[RdTopicPartition]) -> None:
        self.paused |= {TopicPartition(p.topic, p.partition) for p in partitions}

    def resume(self, partitions: list[RdTopicPartition]) -> None:
        self.paused -= {TopicPartition(p.topic, p.partition) for p in partitions}

    def consume(self, count: int, timeout: float) -> list[Any]:
        found: list[Any] = []
        for partition in sorted(self.positions.keys() - self.paused):
            found += self._read(partition, count - len(found))
        if not found:
            self.clock.advance(int(timeout * 1000))
        return found

    def _read(self, partition: TopicPartition, count: int) -> list[Any]:
        log = self.cluster.logs.get(partition)
        position = self.positions[partition]
        if count < 1:
            return []
        if log is None:
            return [ErrorEvent(partition, position, KafkaError.UNKNOWN_TOPIC_OR_PART)]
        if not log.start <= position <= log.end:
            return [ErrorEvent(partition, position, KafkaError._AUTO_OFFSET_RESET)]
        end = log.readable_end(self.committed_only)
        found: list[Any] = []
        while position < end and len(found) < count:
            record = log.records[position]
            position += 1
            if record is not None:
                found.append(record)
        self.positions[partition] = position
        if position >= end and self.told_end.get(partition) != position:
            self.told_end[partition] = position
            found.append(ErrorEvent(partition, position, KafkaError._PARTITION_EOF))
        return found

    def poll(self, timeout: float) -> Any:
        found = self.consume(1, timeout)
        return found[0] if found else None

    def get_watermark_offsets(self, partition: RdTopicPartition, cached: bool) -> tuple[int, int]:
        log = self.cluster.logs[TopicPartition(partition.topic, partition.partition)]
        return log.start, log.readable_end(self.committed_only)

    def list_topics(self, topic: str, timeout: float) -> None:
        """LibrdkafkaSource has it look for the topic's leaders."""

    def close(self) -> None:
        self.closed = True


class MemoryProducer:
    """confluent_kafka.Producer, as far as StreamsProducer calls it. queue_limit: BufferError beyond it until a poll."""

    def __init__(self, cluster: Cluster, settings: Mapping[str, Any], transactional: bool) -> None:
        self.cluster = cluster
        self.transactional = transactional
        self.queue: list[tuple[str, int, bytes | None, bytes | None, int, Any]] = []
        self.queue_limit: int | None = None
        self.written: set[TopicPartition] = set()
        self.in_transaction = False
        self._on_delivery: Callable[[KafkaError | None, Any], None] = settings["on_delivery"]

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        callback: Any = None,
        on_delivery: Any = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        if self.queue_limit is not None and len(self.queue) >= self.queue_limit:
            raise BufferError("Local: Queue full")
        self.queue.append((topic, partition, key, value, timestamp, headers))

    def poll(self, timeout: float) -> int:
        return self._deliver()

    def flush(self, timeout: float = -1) -> int:
        self._deliver()
        return 0

    def purge(self) -> None:
        self.queue = []

    def _deliver(self) -> int:
        sent, self.queue = self.queue, []
        for topic, partition, key, value, timestamp, headers in sent:
            existing = self.cluster.partitions(topic)
            if partition < 0 and existing:
                partition = sum(key or b"") % len(existing)
            target = TopicPartition(topic, partition)
            if topic in self.cluster.refuse_topics or target not in existing:
                error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
                self._on_delivery(error, RawRecord(topic, partition, -1, timestamp, key, value))
                continue
            log = self.cluster.logs[target]
            if self.transactional and target not in self.written:
                log.open_since = log.end
                self.written.add(target)
            self.cluster.append(topic, partition, key, value, timestamp, headers)
        return len(sent)

    def init_transactions(self, timeout: float) -> None:
        self.in_transaction = False

    def begin_transaction(self) -> None:
        assert not self.in_transaction
        self.in_transaction = True

    def send_offsets_to_transaction(
        self, offsets: list[RdTopicPartition], member: GroupMetadata, timeout: float
    ) -> None:
        if member.generation != self.cluster.group.generation:
            raise KafkaException(KafkaError(KafkaError.ILLEGAL_GENERATION))
        self._offsets = {
            TopicPartition(p.topic, p.partition): OffsetAndMetadata(p.offset, f"{p.metadata}\0") for p in offsets
        }

    def commit_transaction(self, timeout: float) -> None:
        self._deliver()
        self._end()
        self.cluster.committed |= self._offsets

    def abort_transaction(self, timeout: float) -> None:
        self.queue = []
        for partition in self.written:
            log = self.cluster.logs[partition]
            since = log.end if log.open_since is None else log.open_since
            log.records[since:] = [None] * (log.end - since)
        self._end()

    def _end(self) -> None:
        self.in_transaction = False
        for partition in self.written:
            self.cluster.logs[partition].open_since = None
            self.cluster.append_marker(*partition)
        self.written.clear()


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
        subscriptions = {name: MemberSubscription(None, member.joined or b"") for name, member in self.members.items()}
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
