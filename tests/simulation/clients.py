"""confluent-kafka's clients over the simulated brokers, as far as a stream thread calls them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as RdTopicPartition

from penstock.clients.cluster.offsets import EARLIEST
from penstock.clients.errors import ErrorCode, UnreachableError, broker_error
from penstock.clients.network_settings import NetworkSettings
from penstock.clients.writing.transaction_requests import GroupMetadata
from penstock.topology.errors import BrokerUnavailableError
from penstock.topology.partitioners import partition_for_key
from penstock.topology.records import RawRecord, TopicPartition
from penstock.workers.changelog_bounds import REQUEST_TIMEOUT_MS
from penstock.workers.client_supplier import KafkaClientSupplier
from penstock.workers.membership.group_member import GroupMember
from penstock.workers.membership.membership import Assign, OffsetAndMetadata
from penstock.workers.partition_offsets import API_TIMEOUT_SECONDS
from tests.workers.memory_kafka import ErrorEvent, MemoryAdmin, done, failed

from .broker import Broker, Transaction, kafka_error
from .connection import Io, SimulatedConnection

#: How long a transaction's call waits for the coordinator before it can be tried again, in ms.
TRANSACTION_WAIT_MS = 1_000
#: How long one request of a transaction waits for them, in ms.
TRANSACTION_REQUEST_MS = 5_000
#: How long records wait for brokers that are away, in ms.
OUTAGE_WAIT_MS = 120_000


class SimulatedConsumer:
    """A consumer of assigned partitions. A fetch brings a random number of records, of one partition after another."""

    def __init__(self, broker: Broker, io: Any, committed_only: bool) -> None:
        self.broker, self.io = broker, io
        self.committed_only = committed_only
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.told_end: dict[TopicPartition, int] = {}

    def incremental_assign(self, partitions: list[RdTopicPartition]) -> None:
        for p in partitions:
            assert TopicPartition(p.topic, p.partition) not in self.positions, f"{p} is assigned already"
            self.positions[TopicPartition(p.topic, p.partition)] = p.offset

    def incremental_unassign(self, partitions: list[RdTopicPartition]) -> None:
        for p in partitions:
            partition = TopicPartition(p.topic, p.partition)
            del self.positions[partition]  # librdkafka remembers that it is paused
            self.told_end.pop(partition, None)

    def pause(self, partitions: list[RdTopicPartition]) -> None:
        self.paused |= {TopicPartition(p.topic, p.partition) for p in partitions}

    def resume(self, partitions: list[RdTopicPartition]) -> None:
        self.paused -= {TopicPartition(p.topic, p.partition) for p in partitions}

    def consume(self, count: int, timeout: float) -> list[Any]:
        found: list[Any] = self.io.points.call("consume", lambda: self._consume(count))
        return found

    def poll(self, timeout: float) -> Any:
        found = self.consume(1, 0)
        if not found:
            self.io.idle(int(timeout * 1000))
        return found[0] if found else None

    def _consume(self, count: int) -> list[Any]:
        found: list[Any] = []
        if self.broker.world.brokers_away:
            return found
        for partition in sorted(self.positions.keys() - self.paused):
            if len(found) < count:
                found += self._read(partition, min(count - len(found), self.io.fetch_size()))
        return found

    def _read(self, partition: TopicPartition, count: int) -> list[Any]:
        log = self.broker.logs.get(partition)
        position = self.positions[partition]
        if log is None:
            return [ErrorEvent(partition, position, KafkaError.UNKNOWN_TOPIC_OR_PART)]
        if not log.start <= position <= log.end:
            return [ErrorEvent(partition, position, KafkaError._AUTO_OFFSET_RESET)]
        end = log.readable_end(self.committed_only)
        found: list[Any] = []
        while position < end and len(found) < count:
            record = log.read(position, self.committed_only)
            position += 1
            if record is not None:
                found.append(record)
        self.positions[partition] = position
        if position >= end and self.told_end.get(partition) != position and len(found) < count:
            self.told_end[partition] = position
            found.append(ErrorEvent(partition, position, KafkaError._PARTITION_EOF))
        return found

    def get_watermark_offsets(self, partition: RdTopicPartition, cached: bool) -> tuple[int, int]:
        assert cached
        log = self.broker.logs[TopicPartition(partition.topic, partition.partition)]
        return log.start, log.readable_end(self.committed_only)

    def list_topics(self, topic: str, timeout: float) -> None:
        """LibrdkafkaSource has it look for the topic's leaders."""

    def close(self) -> None:
        self.positions.clear()


class SimulatedProducer:
    """A producer: records wait in its queue until they are sent, which may happen at any call, or a while after one."""

    def __init__(self, broker: Broker, io: Any, settings: Mapping[str, Any], transactional_id: str | None) -> None:
        self.broker, self.io = broker, io
        self.transactional_id = transactional_id
        self.epoch = -1
        #: Records, each with the process's term in the group when it came.
        self.queue: list[tuple[RawRecord, int]] = []
        self.in_transaction = False
        self.just_committed = False
        self.must_abort = False
        self._on_delivery: Callable[[KafkaError, Any], None] = settings["on_delivery"]

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        callback: Any,
        on_delivery: Any,
        timestamp: int,
        headers: Any = None,
    ) -> None:
        if partition < 0:
            partition = partition_for_key(key or b"", len(self.broker.partitions(topic)))
        record = RawRecord(topic, partition, -1, timestamp, key, value, headers)
        self.queue.append((record, self.broker.group.term(self.io.client)))

    def poll(self, timeout: float) -> int:
        if self.queue:
            self.io.points.call("send some", lambda: self._send(self.io.part_of(len(self.queue))))
        return 0

    def flush(self, timeout: float = -1) -> int:
        if not self.transactional_id or self.queue:
            self.io.points.call("flush producer", self._send_all)
        return 0

    def purge(self) -> None:
        self.queue = []

    def _send_all(self) -> None:
        if self.queue and self.broker.world.brokers_away:
            self.io.wait(lambda: not self.broker.world.brokers_away, OUTAGE_WAIT_MS)
        if self.transactional_id and self.queue and not self.broker.is_free(self.transactional_id):
            self.io.wait(lambda: self.broker.is_free(self.transactional_id or ""), 60_000)
        self._send(len(self.queue))

    def _send(self, count: int) -> None:
        """Send so many records. One that fails takes along those behind it, as an idempotent producer's do."""
        transaction: Transaction | None = None
        if self.broker.world.brokers_away:
            return
        if self.transactional_id is not None and count:
            if not self.broker.is_free(self.transactional_id):
                return  # CONCURRENT_TRANSACTIONS: the last one's markers are not written yet
            try:
                transaction = self._transaction()
            except KafkaException as error:
                self._refuse(count, error.args[0])
                return
        failing = self.io.failing_send(count)
        sent, self.queue = self.queue[:count], self.queue[count:]
        for number, (record, term) in enumerate(sent):
            if failing is not None and number >= failing:
                self.must_abort = True
                self._on_delivery(KafkaError(KafkaError._MSG_TIMED_OUT), record)
            else:
                self.broker.write(record, transaction, self.io.client, term)

    def _refuse(self, count: int, error: KafkaError) -> None:
        refused, self.queue = self.queue[:count], self.queue[count:]
        for record, _ in refused:
            self._on_delivery(error, record)

    def _transaction(self) -> Transaction:
        assert self.transactional_id is not None
        assert self.in_transaction, "a record was sent outside of a transaction"
        return self.broker.transaction(
            self.transactional_id, self.epoch, self.io.client, self.io.transaction_timeout_ms
        )

    def lose_process(self) -> None:
        """Of what waits here when the process is killed, some may have been sent, or is still on its way."""
        on_its_way = self.queue[: self.io.part_of(len(self.queue))] if self.queue else []
        self.queue = []
        try:
            transaction = self._transaction() if self.transactional_id and on_its_way else None
        except (KafkaException, AssertionError):
            return
        for record, term in on_its_way:
            self.broker.write(record, transaction, self.io.client, term)

    # Transactions: the coordinator may do what it is asked and its answer get lost; the same call is then made again

    def init_transactions(self, timeout: float) -> None:
        transactional_id = self.transactional_id or ""

        def initialize() -> None:
            self.epoch = self.broker.init_transactions(transactional_id)
            self.in_transaction = False
            self.io.wait(lambda: self.broker.is_free(transactional_id), 60_000)

        self._exchange("init transactions", initialize)

    def begin_transaction(self) -> None:
        assert not self.in_transaction, "there is a transaction already"
        self.in_transaction, self.just_committed = True, False

    def send_offsets_to_transaction(
        self, offsets: list[RdTopicPartition], member: GroupMetadata, timeout: float
    ) -> None:
        taken = {TopicPartition(p.topic, p.partition): OffsetAndMetadata(p.offset, f"{p.metadata}\0") for p in offsets}

        def send() -> None:
            self._wait_until_free()
            self._check_abortable()
            self.broker.add_offsets(self._transaction(), taken, member)

        if taken:
            self._exchange("send offsets", send)

    def commit_transaction(self, timeout: float) -> None:
        def commit() -> None:
            if self.just_committed:
                return
            self._send_all()
            self._check_abortable()
            self.broker.end_transaction(self.transactional_id or "", self.epoch, commit=True)
            self.just_committed = True

        self._exchange("commit transaction", commit)
        self.in_transaction = False

    def abort_transaction(self, timeout: float) -> None:
        def abort() -> None:
            self.queue = []
            self.must_abort = False
            self.broker.end_transaction(self.transactional_id or "", self.epoch, commit=False)

        self._exchange("abort transaction", abort)
        self.in_transaction = False

    def _check_abortable(self) -> None:
        """A record that could not be sent makes the transaction one that can only be aborted."""
        if self.must_abort:
            error = KafkaError(KafkaError._MSG_TIMED_OUT, "a record was not delivered", False, False, True)
            raise KafkaException(error)

    def _wait_until_free(self) -> None:
        transactional_id = self.transactional_id or ""
        if not self.io.wait(lambda: self.broker.is_free(transactional_id), TRANSACTION_WAIT_MS):
            raise kafka_error(KafkaError._TIMED_OUT, "the last transaction is still ending", retriable=True)

    def _exchange(self, kind: str, effect: Callable[[], None]) -> None:
        def exchange() -> None:
            if self.broker.world.brokers_away:
                self.io.wait(lambda: not self.broker.world.brokers_away, TRANSACTION_REQUEST_MS)
            lost = self.io.loses()
            if lost != "request":
                effect()
            if lost is not None:
                raise kafka_error(KafkaError._TIMED_OUT, f"{kind}: no answer", retriable=True)

        self.io.points.call(kind, exchange)


class OffsetsReader:
    """membership.offsets_reader.GroupOffsetsReader without a connection. Raises what that one does."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        if self.broker.world.brokers_away:
            raise BrokerUnavailableError("The committed offsets were not answered: the brokers are away.")
        return {partition: self.broker.offsets.committed.get(partition) for partition in partitions}

    def close(self) -> None:
        pass


class SimulatedAdmin(MemoryAdmin):
    """What one process asks the cluster beside reading, writing and its group."""

    def __init__(self, broker: Broker, io: Any) -> None:
        super().__init__(broker)  # type: ignore[arg-type]
        self.io = io

    def offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: int, committed_only: bool = False
    ) -> dict[TopicPartition, Future[int]]:
        """See Admin; the answers are there at once."""

        def answer(partition: TopicPartition, timestamp: int) -> Future[int]:
            log = self.cluster.logs.get(partition)
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

        # For the sake of the known seeds, which are older than the one Admin: what a PartitionOffsets asks was a
        # consumer's question, and has always been answered.
        by_reader = timeout_ms == API_TIMEOUT_SECONDS * 1000 or (
            EARLIEST in timestamps.values() and timeout_ms != REQUEST_TIMEOUT_MS
        )
        if by_reader:
            readers: dict[TopicPartition, Future[int]] = self.io.points.call("offsets_for_times", find)
            return readers
        if self.io.world.in_event:  # the group's leader asks on its IO thread, which cannot be left
            return find()
        found: dict[TopicPartition, Future[int]] = self.io.points.call("list offsets", find, counted=False)
        return found

    def delete_records(
        self, before: Mapping[TopicPartition, int], timeout_ms: int
    ) -> dict[TopicPartition, Future[int]]:
        def delete() -> dict[TopicPartition, Future[int]]:
            for partition, offset in before.items():
                log = self.cluster.logs[partition]
                log.start = max(log.start, offset)
            return {}

        deleted: dict[TopicPartition, Future[int]] = self.io.points.call("delete records", delete)
        return deleted


class SimulatedSupplier(KafkaClientSupplier):
    """Makes the clients of one process."""

    def __init__(self, config: Any, clock: Any, broker: Broker, io: Io) -> None:
        super().__init__(config, clock)
        self.broker, self.io = broker, io
        self.producers: list[SimulatedProducer] = []

    def get_consumer(self, client_id: str) -> Any:
        return SimulatedConsumer(self.broker, self.io, self._config["isolation.level"] == "read_committed")

    get_restore_consumer = get_global_consumer = get_consumer

    def get_producer(
        self, client_id: str, settings: Mapping[str, Any] | None = None, transactional_id: str | None = None
    ) -> Any:
        self.producers.append(SimulatedProducer(self.broker, self.io, settings or {}, transactional_id))
        return self.producers[-1]

    def get_admin(self, client_id: str) -> Any:
        return SimulatedAdmin(self.broker, self.io)

    def get_offsets_reader(self, client_id: str, timeout_ms: int) -> Any:
        return OffsetsReader(self.broker)

    def get_group_member(self, client_id: str, assign: Assign, instance_id: str | None = None) -> GroupMember:
        config, _ = self._member_settings(client_id, instance_id)
        world, group = self.broker.world, self.broker.group

        def connect(_: NetworkSettings) -> Any:
            return SimulatedConnection(world, self.io, self.io.client, group)

        return GroupMember(config, NetworkSettings(), assign, self._clock, connect)
