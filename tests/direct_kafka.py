"""The in-memory broker, called directly: it answers a request within the call, at the time of the test's clock."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from penstock.clients.connection.opening import Opened
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.clients.protocol.schema import Request, SchemaApi
from penstock.kernel.record_accumulator import ProducerBatch
from penstock.kernel.record_batches import RecordBatches, origin_of
from penstock.testing.broker import Cluster
from penstock.testing.broker.apis.produce import PRODUCE
from penstock.testing.broker.classic_group import ClassicGroup
from penstock.testing.broker.group_coordinator import CommittedOffset
from penstock.testing.broker.partition_log import PartitionLog
from penstock.testing.broker.record_batches import one_batch
from penstock.testing.wire import Fail, Rule, refusals
from penstock.testing.wire import framing as wire
from penstock.testing.wire.rules import Rules
from penstock.topology.records import Message, TopicPartition
from tests.manual_clock import ManualClock

NODE = 1
GROUP = "app"
#: Members and transactions do not time out by themselves, so a test may advance the clock by hours.
NEVER_MS = (1 << 31) - 1
_BROKER_SETTINGS = {"group.max.session.timeout.ms": str(NEVER_MS), "transaction.max.timeout.ms": str(NEVER_MS)}
#: The producer of markers that a test appends.
_OTHER_PRODUCER = 1_000_000


class DirectKafka(Cluster):
    """A cluster of one node, with operations for tests. requests: their number by API."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(config=_BROKER_SETTINGS, random=Random(1))
        self.clock = clock
        self.requests: Counter[str] = Counter()
        self.callers: list[Caller] = []
        self.set_rules()

    def set_rules(self, *rules: Rule) -> None:
        """Replace the rules, which are those of a WireProxy. Raises ValueError for an action other than Fail."""
        if not all(isinstance(rule.action, Fail) for rule in rules):
            raise ValueError("without a connection that takes time there is only Fail")
        self.rules = Rules(rules, seed=0)

    def refuse(self, api: str, error: str, times: int | None = None) -> None:
        """Answer the next requests of an API with an error; both by Kafka's names."""
        self.set_rules(Rule(Fail(error), api=api, times=times))

    def pass_time(self) -> None:
        """Let the cluster see the current time, and deliver the responses that are ready."""
        self.advance(self.clock.wall_clock_ms())
        for caller in tuple(self.callers):
            caller.take_responses()

    # -- topics

    def log(self, partition: TopicPartition) -> PartitionLog:
        """Return a partition's log."""
        return self.partition(self.topic(partition.topic), partition.partition).log

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic, empty if it does not exist."""
        found = self.topics.get(topic)
        return [] if found is None else [TopicPartition(topic, number) for number in range(len(found.partitions))]

    def delete(self, topic: str) -> None:
        """Delete a topic by its name."""
        self.delete_topic(self.topic(topic))

    def refuse_records(self, topic: str) -> None:
        """Let a topic refuse all further records: each is larger than it allows."""
        self.topic(topic).config["max.message.bytes"] = "0"

    @property
    def has_open_transactions(self) -> bool:
        """True if a record belongs to a transaction that has not ended."""
        logs = (partition.log for topic in self.topics.values() for partition in topic.partitions)
        return any(log.last_stable < log.high_watermark for log in logs)

    def append(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> int:
        """Append a record without a client; return the end offset."""
        batch = ProducerBatch()
        batch.add(key, value, timestamp, headers)
        batch.pack("none")
        found = self.partition(self.topic(topic), partition)
        found.log.append(one_batch(batch.sealed(-1, -1, -1, False)), found.leader_epoch)
        return found.log.end

    def append_marker(self, topic: str, partition: int) -> None:
        """Append a transaction marker, a record that consumers do not see."""
        found = self.partition(self.topic(topic), partition)
        found.log.end_transaction(_OTHER_PRODUCER, 0, 0, True, found.leader_epoch, self.now_ms)

    def records(self, topic: str, committed_only: bool = False) -> list[Message]:
        """Return the records of a topic, partition by partition, without those of aborted transactions.

        committed_only: also without those of open transactions, and all records behind them.
        """
        return [record for partition in self.partitions(topic) for record in self._records(partition, committed_only)]

    def _records(self, partition: TopicPartition, committed_only: bool) -> list[Message]:
        log = self.log(partition)
        data = log.read(log.start, log.last_stable if committed_only else log.end, NEVER_MS, at_least_one=True)
        aborted = [(one.producer_id, one.first) for one in log.abortions(log.start, log.end)]
        return read_records(partition, data, log.start, aborted)[0]

    def keys(self, topic: str, committed_only: bool = False) -> dict[TopicPartition, list[bytes | None]]:
        """Return the keys of a topic's records by partition, without empty partitions."""
        found: dict[TopicPartition, list[bytes | None]] = {}
        for record in self.records(topic, committed_only):
            found.setdefault(TopicPartition(topic, record.partition()), []).append(record.key())
        return found

    def table(self, topic: str) -> dict[bytes | None, bytes | None]:
        """Return the rows of a topic as if it were compacted."""
        return {record.key(): record.value() for record in self.records(topic)}

    # -- the group

    @property
    def group(self) -> ClassicGroup:
        """The members of the application's group."""
        self.groups.group(GROUP, create=True)
        return self.groups.classic(GROUP)

    def evict(self, *member_ids: str) -> None:
        """Remove members from the group as after a session timeout; without ids, all of them."""
        for member_id in member_ids or tuple(self.group.members):
            self.group.leave(member_id, None)
        self.pass_time()

    def committed(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """Return the group's committed offset and metadata for a partition."""
        found = self.groups.group(GROUP, create=True).offsets.get(partition)
        return None if found is None else OffsetAndMetadata(found.offset, found.metadata, found.leader_epoch)

    def committed_offset(self, partition: TopicPartition) -> int | None:
        """Return the offset that the group has committed for a partition."""
        found = self.committed(partition)
        return None if found is None else found.offset

    def commit(self, partition: TopicPartition, offset: int, metadata: str = "") -> None:
        """Commit an offset for the group, as an admin tool does."""
        self.groups.group(GROUP, create=True).offsets[partition] = CommittedOffset(offset, -1, metadata)

    def forget_commit(self, partition: TopicPartition) -> None:
        """Drop the committed offset of a partition."""
        del self.groups.group(GROUP, create=True).offsets[partition]

    def forget_commits(self) -> None:
        """Drop all committed offsets."""
        self.groups.group(GROUP, create=True).offsets.clear()


def read_records(
    partition: TopicPartition,
    data: bytes,
    offset: int,
    aborted: Iterable[tuple[int, int]] | None,
    count: int = NEVER_MS,
) -> tuple[list[Message], int]:
    """Return records from an offset on, and the offset after the last. aborted: as for RecordBatches."""
    found: list[Message] = []
    if not data:
        return found, offset
    origin = origin_of(partition.topic, partition.partition)
    batches = RecordBatches(origin, data, 0, len(data), offset, None if aborted is None else list(aborted), True)
    batches.take(found, count)
    return found, batches.next_offset if batches.finished else found[-1].offset() + 1


@dataclass(frozen=True)
class _Asked:
    """A request that the broker has received. failure: the action that puts an error into its response."""

    api: SchemaApi
    request: wire.Request
    take: Callable[[Any], None]
    failure: Fail | None


class Caller:
    """A client's connection to the node."""

    def __init__(self, kafka: DirectKafka, client_id: str) -> None:
        self._kafka = kafka
        self._client_id = client_id
        self._connection = kafka.connect(NODE)
        self._asked: deque[_Asked] = deque()
        versions = {
            each["api_key"]: (each["min_version"], each["max_version"]) for each in kafka.versions()["api_keys"]
        }
        self._opened = Opened(None, versions)  # type: ignore[arg-type]  # of which only the versions are used
        kafka.callers.append(self)

    def send(self, request: Request, take: Callable[[Any], None]) -> None:
        """Send a request. take: called with the response, within this call unless the broker waits for other members.

        Raises BrokerError if the broker does not serve it.
        """
        version = self._opened.version_of(request.api, request.version_max)
        data = request.encode(version, 0, self._client_id)
        self._kafka.requests[request.api.name] += 1
        sent = wire.parse_request(data)
        action, _ = self._kafka.rules.choose(sent, NODE)
        failure = action if isinstance(action, Fail) else None
        asked = _Asked(request.api, sent, take, failure)
        if failure is not None and not refusals.reaches_broker(sent):
            self._answer(asked, refusals.refusal(sent, refusals.error_of(failure.error)))
            return
        self._asked.append(asked)
        self._kafka.receive(self._connection, data, self._kafka.clock.wall_clock_ms())
        self._kafka.pass_time()

    def ask(self, request: Request) -> Any:
        """Send a request that the broker answers at once, and return the response."""
        found: list[Any] = []
        self.send(request, found.append)
        (answer,) = found
        return answer

    def produce(self, partition: TopicPartition, records: bytes, version: int, transactional_id: str | None) -> Any:
        """Write a batch, and return the partition's part of the response."""
        parts = [{"index": partition.partition, "records": records}]
        topics = [{"name": partition.topic, "partition_data": parts}]
        request = PRODUCE(transactional_id=transactional_id, acks=-1, topic_data=topics)
        (topic,) = self.ask(replace(request, version_max=version)).responses
        return topic.partition_responses[0]

    def take_responses(self) -> None:
        """Deliver the responses that are ready."""
        while self._connection.outbox:
            asked, data = self._asked.popleft(), self._connection.outbox.popleft()
            if asked.failure is not None:
                data = refusals.with_error(asked.request, data, refusals.error_of(asked.failure.error))
            self._answer(asked, data)

    @staticmethod
    def _answer(asked: _Asked, data: bytes) -> None:
        asked.take(asked.api.decode(data, asked.request.version))

    def close(self) -> None:
        """Close the connection; pending requests get no response."""
        if self in self._kafka.callers:
            self._kafka.callers.remove(self)
            self._kafka.disconnect(self._connection)
