"""The clients of a stream thread over the simulated brokers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Any

from typing_extensions import override

from penstock.clients.cluster.admin import Admin, NewTopic, TopicSetting
from penstock.clients.cluster.brokers import Leader, ProducerId
from penstock.clients.cluster.offsets import EARLIEST
from penstock.clients.cluster.topics import NO_ID, ClusterDescription, PartitionDescription, TopicDescription
from penstock.clients.errors import (
    BrokerError,
    DeliveryTimeoutError,
    ErrorCode,
    Kind,
    TransactionError,
    UnreachableError,
    broker_error,
)
from penstock.clients.group.classic_protocol import ClassicProtocol
from penstock.clients.group.group_description import GroupDescription
from penstock.clients.group.group_member import GroupMember
from penstock.clients.group.membership import Assign
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.network_settings import NetworkSettings
from penstock.clients.protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from penstock.clients.reading.reader import ReaderEvent, Records
from penstock.clients.throttle import Health
from penstock.clients.writing.kafka_producer import KafkaProducer
from penstock.clients.writing.produce_settings import produce_settings
from penstock.clients.writing.transactional_producer import TransactionalKafkaProducer
from penstock.clients.writing.writer import Lost, Source
from penstock.kernel.sinks import RecordTaker
from penstock.testing.broker.record_batches import NO_ORIGIN, Origin
from penstock.topology.context.partitioners import partition_for_key
from penstock.topology.errors import BrokerUnavailableError
from penstock.topology.records import RawRecord, TopicPartition
from penstock.workers.tasks.changelog_bounds import REQUEST_TIMEOUT_MS
from penstock.workers.tasks.partition_offsets import API_TIMEOUT_SECONDS
from penstock.workers.tasks.sink_topics import COUNT_MS
from penstock.workers.thread.client_supplier import KafkaClientSupplier
from tests.futures import done, failed
from tests.reader_positions import ReaderPositions
from tests.simulation.broker import Broker
from tests.simulation.connection import SimulatedConnection
from tests.simulation.coordinators import Coordinators
from tests.simulation.java_member import JavaMember, leading_on_java
from tests.simulation.producers import OwnTransactionalWriter, OwnWriter, Wire

#: How long a transaction's call waits for the coordinator before it can be tried again, in ms.
TRANSACTION_WAIT_MS = 1_000
#: How long one request of a transaction waits for them, in ms.
TRANSACTION_REQUEST_MS = 5_000
NO_PRODUCER = ProducerId(-1, -1)
#: How long records wait for brokers that are away, in ms.
OUTAGE_WAIT_MS = 120_000


class SimulatedReader(ReaderPositions):
    """A Reader. A fetch brings a random number of records, of one partition after another."""

    def __init__(self, broker: Broker, io: Any, committed_only: bool) -> None:
        super().__init__()
        self.broker, self.io = broker, io
        self.committed_only = committed_only

    def fetch(self, max_records: int, timeout_seconds: float) -> tuple[Records, list[ReaderEvent]]:
        records: Records = {}
        events: list[ReaderEvent] = []
        left = self._take(max_records, records, events)
        if left == max_records and timeout_seconds > 0:
            if self._take(1, records, events):
                self.io.idle(int(timeout_seconds * 1000))
            else:
                self._take(max_records, records, events)
        return records, events

    def _take(self, count: int, records: Records, events: list[ReaderEvent]) -> int:
        """Take up to this many records and events; return how many more were available."""
        left: int = self.io.points.call("consume", lambda: self._consume(count, records, events))
        return left

    def _consume(self, count: int, records: Records, events: list[ReaderEvent]) -> int:
        if self.broker.world.brokers_away:
            return count
        for partition in sorted(self.positions.keys() - self.paused):
            if count > 0:
                count -= self._read(partition, min(count, self.io.fetch_size()), records, events)
        return count

    def _read(self, partition: TopicPartition, count: int, records: Records, events: list[ReaderEvent]) -> int:
        log = self.broker.logs.get(partition)
        position = self.positions[partition]
        if log is None:
            events.append(ReaderEvent(partition, position, broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)))
            return 1
        if not log.start <= position <= log.end:
            events.append(ReaderEvent(partition, position, broker_error(ErrorCode.OFFSET_OUT_OF_RANGE)))
            return 1
        end = log.readable_end(self.committed_only)
        found = list(islice(self.broker.read(partition, position, self.committed_only), count))
        position = found[-1].offset() + 1 if len(found) == count else max(position, end)
        self.positions[partition] = position
        if found:
            records.setdefault(partition, []).extend(found)
        if position >= end and self.told_end.get(partition) != position and len(found) < count:
            self.told_end[partition] = position
            events.append(ReaderEvent(partition, position, None))
            return len(found) + 1
        return len(found)

    def read_ahead(self, until: Future[Any]) -> None:
        pass

    def high_watermark(self, partition: TopicPartition) -> int | None:
        return self.broker.logs[partition].readable_end(self.committed_only)

    def close(self) -> None:
        self.positions.clear()


class SimulatedWriter:
    """A Writer: records wait in its queue until they are sent, which may happen at any call, or a while after one."""

    def __init__(self, broker: Broker, io: Any, transactional_id: str | None) -> None:
        self.broker, self.io = broker, io
        self.transactional_id = transactional_id
        self.producer = NO_PRODUCER
        self.sequences: Counter[TopicPartition] = Counter()
        #: Records, each with the process's term in the group at that time.
        self.queue: list[tuple[RawRecord, int]] = []
        self.in_transaction = False
        self.just_committed = False
        self.must_abort = False
        self.lost: list[Lost] = []
        self.records: RecordTaker | None = None

    def produce(
        self,
        topic: str,
        key: Any,
        value: Any,
        partition: int,
        timestamp: int | None,
        headers: Any = None,
        source: Source | None = None,
    ) -> None:
        if partition < 0:
            partition = partition_for_key(key or b"", len(self.broker.partitions(topic)))
        record = RawRecord(topic, partition, -1, 0 if timestamp is None else timestamp, key, value, headers)
        self.queue.append((record, self.broker.group.term(self.io.client)))

    def send_due(self) -> None:
        pass

    def wait_ms(self) -> float:
        return math.inf

    def poll(self) -> None:
        if self.queue:
            self.io.points.call("send some", lambda: self._send(self.io.part_of(len(self.queue))))

    def flush(self, seconds: float = math.inf) -> bool:
        if not self.transactional_id or self.queue:
            self.io.points.call("flush producer", self._send_all)
        return True

    def health(self) -> Health:
        return Health()

    def take_lost(self) -> list[Lost]:
        lost, self.lost = self.lost, []
        return lost

    def drop(self) -> None:
        self.queue = []

    def close(self) -> None:
        self.queue = []

    def _send_all(self) -> None:
        if self.queue and self.broker.world.brokers_away:
            self.io.wait(lambda: not self.broker.world.brokers_away, OUTAGE_WAIT_MS)
        if self.transactional_id and self.queue and not self.broker.is_free(self.transactional_id):
            self.io.wait(lambda: self.broker.is_free(self.transactional_id or ""), 60_000)
        self._send(len(self.queue))

    def _send(self, count: int) -> None:
        """Send count records. If one fails, so do the records after it, as with an idempotent producer."""
        if self.broker.world.brokers_away:
            return
        if self.transactional_id is not None and count:
            if not self.broker.is_free(self.transactional_id):
                return  # CONCURRENT_TRANSACTIONS: the last one's markers are not written yet
            try:
                self._add()
            except BrokerError as error:
                self._refuse(count, error)
                return
        failing = self.io.failing_send(count)
        sent, self.queue = self.queue[:count], self.queue[count:]
        for number, (record, term) in enumerate(sent):
            if failing is not None and number >= failing:
                self.must_abort = True
                self.lost.append(Lost(DeliveryTimeoutError("a record was not delivered"), record))
            else:
                self._write(record, term)

    def _refuse(self, count: int, error: BrokerError) -> None:
        refused, self.queue = self.queue[:count], self.queue[count:]
        for record, _ in refused:
            self.lost.append(Lost(error, record))

    def _add(self, *partitions: TopicPartition) -> None:
        """Let partitions take part in the transaction, and open it."""
        assert self.transactional_id is not None
        assert self.in_transaction, "a record was sent outside of a transaction"
        self.broker.add(self.transactional_id, self.producer, partitions)

    def _write(self, record: RawRecord, term: int) -> None:
        origin = NO_ORIGIN
        if self.transactional_id is not None:
            partition = TopicPartition(record.topic(), record.partition())
            self._add(partition)
            origin = Origin(self.producer.id, self.producer.epoch, self.sequences[partition], transactional=True)
            self.sequences[partition] += 1
        self.broker.write(record, self.io.client, term, origin)

    def lose_process(self) -> None:
        """Send some of the queued records of a killed process, now or later."""
        on_its_way = self.queue[: self.io.part_of(len(self.queue))] if self.queue else []
        self.queue = []
        try:
            if self.transactional_id and on_its_way:
                self._add()
        except (BrokerError, AssertionError):
            return
        for record, term in on_its_way:
            self._write(record, term)

    # Transactions: a coordinator may carry out a request whose response is lost; the call is then repeated

    def init_transactions(self, seconds: float) -> None:
        transactional_id = self.transactional_id or ""

        def initialize() -> None:
            self.in_transaction = False
            while not self._has_initialized(transactional_id):
                self.io.wait(lambda: self.broker.is_free(transactional_id), 60_000)

        self._exchange("init transactions", initialize)

    def _has_initialized(self, transactional_id: str) -> bool:
        """Request a producer id, which aborts the last transaction. Returns False while that has not ended yet."""
        try:
            self.producer = self.broker.init_transactions(transactional_id, self.io.transaction_timeout_ms)
        except BrokerError as error:
            if error.code != ErrorCode.CONCURRENT_TRANSACTIONS:
                raise
            return False
        self.sequences.clear()
        return True

    def begin_transaction(self) -> None:
        assert not self.in_transaction, "there is a transaction already"
        self.in_transaction, self.just_committed = True, False

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group_metadata: GroupMetadata, seconds: float
    ) -> None:
        taken = {p: OffsetAndMetadata(at.offset, f"{at.metadata}\0") for p, at in offsets.items()}

        def send() -> None:
            self._wait_until_free()
            self._check_abortable()
            self._add()
            self.broker.add_offsets(self.transactional_id or "", self.producer, self.io.client, taken, group_metadata)

        if taken:
            self._exchange("send offsets", send)

    def commit_transaction(self, seconds: float) -> None:
        def commit() -> None:
            if self.just_committed:
                return
            self._send_all()
            self._check_abortable()
            self.broker.end_transaction(self.transactional_id or "", self.producer, commit=True)
            self.just_committed = True

        self._exchange("commit transaction", commit)
        self.in_transaction = False

    def abort_transaction(self, seconds: float) -> None:
        def abort() -> None:
            self.queue = []
            self.must_abort = False
            self.broker.end_transaction(self.transactional_id or "", self.producer, commit=False)

        self._exchange("abort transaction", abort)
        self.in_transaction = False

    def _check_abortable(self) -> None:
        """Raise if a record could not be sent: the transaction can then only be aborted."""
        if self.must_abort:
            raise TransactionError(DeliveryTimeoutError("a record was not delivered"), can_abort=True)

    def _wait_until_free(self) -> None:
        transactional_id = self.transactional_id or ""
        if not self.io.wait(lambda: self.broker.is_free(transactional_id), TRANSACTION_WAIT_MS):
            raise UnreachableError("the last transaction is still ending")

    def _exchange(self, kind: str, effect: Callable[[], None]) -> None:
        def exchange() -> None:
            if self.broker.world.brokers_away:
                self.io.wait(lambda: not self.broker.world.brokers_away, TRANSACTION_REQUEST_MS)
            lost = self.io.loses()
            if lost != "request":
                effect()
            if lost is not None:
                raise UnreachableError(f"{kind}: no answer")

        try:
            self.io.points.call(kind, exchange)
        except (BrokerError, UnreachableError) as error:
            evicted = isinstance(error, BrokerError) and error.kind is Kind.EVICTED
            raise TransactionError(error, can_abort=evicted) from error


class OffsetsReader:
    """clients.group.offsets_reader.GroupOffsetsReader without a connection. Raises the same errors."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        if self.broker.world.brokers_away:
            raise BrokerUnavailableError("The committed offsets were not answered: the brokers are away.")
        found = {partition: self.broker.committed.get(partition) for partition in partitions}
        return {
            partition: None if at is None else OffsetAndMetadata(at.offset, at.metadata, at.leader_epoch)
            for partition, at in found.items()
        }

    def describe(self) -> GroupDescription:
        return GroupDescription("DEAD")

    def close(self) -> None:
        pass


class SimulatedAdmin(Admin):
    """The admin requests of one process."""

    def __init__(self, broker: Broker, io: Any) -> None:
        self.broker, self.io = broker, io

    @override
    def describe(self, topics: Collection[str] | None, timeout_ms: int) -> ClusterDescription:
        if timeout_ms == COUNT_MS:
            self.io.on_count_asked()
        self._ask_for_topics(timeout_ms)
        numbers: dict[str, list[int]] = {}
        for topic, number in sorted(self.broker.logs):
            if topics is None or topic in topics:
                numbers.setdefault(topic, []).append(number)
        one = PartitionDescription(Leader(1, 0), (1,), (1,))
        return ClusterDescription(
            {topic: TopicDescription(NO_ID, dict.fromkeys(found, one)) for topic, found in numbers.items()}, {1: None}
        )

    @override
    def topic_ids(self, topics: Collection[str], timeout_ms: int) -> dict[str, bytes]:
        """Return none, without a request: the simulated broker is one from before topics had ids."""
        return {}

    @override
    def create_topics(self, topics: Collection[NewTopic], timeout_ms: int) -> dict[str, BrokerError | None]:
        self._ask_for_topics(timeout_ms)
        for topic in topics:
            self.broker.create_topic(topic.name, topic.num_partitions)
            self.broker.cleanup_policies[topic.name] = topic.config["cleanup.policy"]
        return {topic.name: None for topic in topics}

    @override
    def topic_config(
        self, topics: Collection[str], keys: Collection[str], timeout_ms: int
    ) -> dict[str, Mapping[str, TopicSetting] | BrokerError]:
        policies = self.broker.cleanup_policies
        return {
            topic: {"cleanup.policy": TopicSetting(policies.get(topic, "compact"), is_own=topic in policies)}
            for topic in topics
        }

    @override
    def alter_topic_config(
        self, topics: Mapping[str, Mapping[str, str]], timeout_ms: int
    ) -> dict[str, BrokerError | None]:
        raise AssertionError("no topic here has limits of timestamps")

    def _ask_for_topics(self, timeout_ms: int) -> None:
        if self.io.world.brokers_away:
            self.io.world.happened("topics are asked for while brokers are away")
            if not self.io.wait(lambda: not self.io.world.brokers_away, timeout_ms):
                raise UnreachableError("the brokers are away")

    @override
    def newest_timestamps(
        self, partitions: Collection[TopicPartition], timeout_ms: int, committed_only: bool = False
    ) -> dict[TopicPartition, Future[int]]:
        raise NotImplementedError("no simulated source follows others")

    @override
    def offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: int, committed_only: bool = False
    ) -> dict[TopicPartition, Future[int]]:
        """Complete the futures immediately; in some schedules those of changelogs are later.

        A late response has the end of the partition at the time of the request.
        """

        def answer(partition: TopicPartition, timestamp: int) -> Future[int]:
            log = self.broker.logs.get(partition)
            if log is None:
                return failed(broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            if not by_reader and self.io.leaves_unanswered():
                return failed(UnreachableError("the broker went away"))
            return done(log.start if timestamp == EARLIEST else log.readable_end(committed_only))

        def find() -> dict[TopicPartition, Future[int]]:
            if self.io.world.brokers_away and not by_reader:
                self.io.world.happened("ends are asked for while brokers are away")
                return {p: failed(UnreachableError("the brokers are away")) for p in timestamps}
            return {partition: answer(partition, at) for partition, at in timestamps.items()}

        # For the known seeds, which are older than the single Admin: a PartitionOffsets request was a consumer's, and
        # always got a response.
        by_reader = timeout_ms == API_TIMEOUT_SECONDS * 1000 or (
            EARLIEST in timestamps.values() and timeout_ms != REQUEST_TIMEOUT_MS
        )
        if by_reader:
            readers: dict[TopicPartition, Future[int]] = self.io.points.call("offsets_for_times", find)
            return readers
        if self.io.world.in_event:  # the group's leader asks on its IO thread, which cannot be left
            return find()
        found: dict[TopicPartition, Future[int]] = self.io.points.call("list offsets", find, counted=False)
        late_ms = self.io.answer_ms() if timeout_ms == REQUEST_TIMEOUT_MS else 0
        return {partition: self._in(late_ms, answer) for partition, answer in found.items()} if late_ms else found

    def _in(self, ms: int, answer: Future[int]) -> Future[int]:
        """Return a future that is completed like the given one, this many milliseconds later."""
        late: Future[int] = Future()

        def arrive() -> None:
            error = answer.exception()
            if error is None:
                late.set_result(answer.result())
            else:
                late.set_exception(error)

        self.io.later(ms, arrive)
        return late

    @override
    def wait(self, asked: Collection[Future[Any]], seconds: float) -> None:
        self.io.wait(lambda: all(future.done() for future in asked), int(seconds * 1000))

    @override
    def delete_records(
        self, before: Mapping[TopicPartition, int], timeout_ms: int
    ) -> dict[TopicPartition, Future[int]]:
        def delete() -> dict[TopicPartition, Future[int]]:
            for partition, offset in before.items():
                self.broker.logs[partition].delete_before(offset)
            return {}

        deleted: dict[TopicPartition, Future[int]] = self.io.points.call("delete records", delete)
        return deleted

    @override
    def close(self) -> None:
        pass


class SimulatedSupplier(KafkaClientSupplier):
    """Makes the clients of one process. on_java: its group member behaves as Kafka Streams' does.

    coordinators: of the brokers that real producers write to, None for simulated ones.
    """

    def __init__(
        self, config: Any, clock: Any, broker: Broker, io: Any, on_java: bool, coordinators: Coordinators | None
    ) -> None:
        super().__init__(config, clock)
        self.broker, self.io, self.on_java = broker, io, on_java
        self.coordinators = coordinators
        self.writers: list[SimulatedWriter | OwnWriter] = []

    def get_consumer(self, client_id: str) -> SimulatedReader:
        return SimulatedReader(self.broker, self.io, self._config["isolation.level"] == "read_committed")

    get_restore_consumer = get_global_consumer = get_consumer

    def get_producer(self, client_id: str, transactional_id: str | None = None) -> SimulatedWriter | OwnWriter:
        if self.coordinators is None:
            self.writers.append(SimulatedWriter(self.broker, self.io, transactional_id))
        else:
            self.writers.append(self._own_writer(self.coordinators, client_id, transactional_id))
        return self.writers[-1]

    def _own_writer(self, coordinators: Coordinators, client_id: str, transactional_id: str | None) -> OwnWriter:
        settings = produce_settings(self.producer_settings(client_id, transactional_id))
        log = PrefixedLogger("penstock.clients.writing", f"[{client_id}] ")
        wire, seed = Wire(coordinators, self.io), self.io.world.seed
        if transactional_id is None:
            producer = KafkaProducer(wire, settings, self._clock, log, seed)
            return OwnWriter(producer, wire, self.io, settings.delivery_timeout_ms)
        transactional = TransactionalKafkaProducer(wire, settings, self._clock, log, seed)
        return OwnTransactionalWriter(transactional, wire, self.io, settings.delivery_timeout_ms)

    def get_admin(self, client_id: str) -> Any:
        return SimulatedAdmin(self.broker, self.io)

    def get_offsets_reader(self, client_id: str, timeout_ms: int) -> Any:
        return OffsetsReader(self.broker)

    def get_group_member(self, client_id: str, assign: Assign, instance_id: str | None = None) -> GroupMember:
        config, _ = self._member_settings(client_id, instance_id)
        world, broker = self.broker.world, self.broker

        def connect(_: NetworkSettings) -> Any:
            return SimulatedConnection(world, self.io, self.io.client, broker)

        if self.on_java:
            return JavaMember(
                config,
                NetworkSettings(),
                self._clock,
                partial(ClassicProtocol, assign=leading_on_java(assign)),
                connect,
            )
        return GroupMember(config, NetworkSettings(), self._clock, partial(ClassicProtocol, assign=assign), connect)
