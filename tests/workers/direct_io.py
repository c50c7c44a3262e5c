"""A Reader, a Writer and an Admin whose requests the in-memory broker answers within the call."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from penstock.clients.cluster.admin import KafkaAdmin
from penstock.clients.cluster.brokers import ProducerId
from penstock.clients.cluster.coordinators import CoordinatorKind
from penstock.clients.cluster.leader_questions import LeaderQuestion
from penstock.clients.errors import (
    ClientError,
    ErrorCode,
    TransactionError,
    UnreachableError,
    broker_error,
)
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.protocol.messages import METADATA
from penstock.clients.protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from penstock.clients.protocol.schema import Request
from penstock.clients.reading.reader import ReaderEvent, Records
from penstock.clients.retry_log import RetryLog
from penstock.clients.throttle import Health
from penstock.clients.writing.transactions import TransactionManager, TransactionState
from penstock.clients.writing.writer import Lost, Source
from penstock.kernel.record_accumulator import ProducerBatch
from penstock.testing.broker.apis.fetch import FETCH, READ_COMMITTED
from penstock.topology.context.partitioners import partition_for_key
from penstock.topology.records import RawRecord, TopicPartition
from tests.direct_kafka import NEVER_MS, Caller, DirectKafka, read_records
from tests.futures import done, failed
from tests.reader_positions import ReaderPositions

T = TypeVar("T")

#: The last version that identifies topics by name instead of by id.
_FETCH_VERSION = 12
_NOT_TRANSACTIONAL = ProducerId(-1, -1)
_LOG = PrefixedLogger("penstock.test", "")


class DirectReader(ReaderPositions):
    """A Reader. A wait only advances the clock; no records arrive during it."""

    def __init__(self, kafka: DirectKafka, client_id: str, committed_only: bool) -> None:
        super().__init__()
        self._kafka = kafka
        self._caller = Caller(kafka, client_id)
        self._committed_only = committed_only
        self._high_watermarks: dict[TopicPartition, int] = {}
        self.starts: dict[TopicPartition, int] = {}
        self._topic_ids: dict[TopicPartition, bytes] = {}
        self.closed = False

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        super().assign(offsets)
        self.starts |= offsets
        self._topic_ids |= {p: self._kafka.topics[p.topic].id for p in offsets if p.topic in self._kafka.topics}

    def topic_id(self, partition: TopicPartition) -> bytes | None:
        return self._topic_ids.get(partition)

    def fetch(self, max_records: int, timeout_seconds: float) -> tuple[Records, list[ReaderEvent]]:
        records: Records = {}
        events: list[ReaderEvent] = []
        left = max_records
        for partition in sorted(self.positions.keys() - self.paused):
            run, event = self._read(partition, left) if left > 0 else ([], None)
            left -= len(run)
            if run:
                records[partition] = run
            if event is not None:
                events.append(event)
        if not records and not events:
            self._kafka.clock.advance(int(timeout_seconds * 1000))
        return records, events

    def _read(self, partition: TopicPartition, count: int) -> tuple[list[Any], ReaderEvent | None]:
        position = self.positions[partition]
        answer = self._fetched(partition, position)
        if answer.error_code:
            return [], ReaderEvent(partition, position, broker_error(answer.error_code))
        aborted = [(one.producer_id, one.first_offset) for one in answer.aborted_transactions or ()]
        skipped = aborted if self._committed_only else None
        run, position = read_records(partition, answer.records, position, skipped, count)
        self.positions[partition] = position
        self._high_watermarks[partition] = answer.high_watermark
        end = answer.last_stable_offset if self._committed_only else answer.high_watermark
        if position >= end and self.told_end.get(partition) != position:
            self.told_end[partition] = position
            return run, ReaderEvent(partition, position, None)
        return run, None

    def _fetched(self, partition: TopicPartition, offset: int) -> Any:
        wanted = {"partition": partition.partition, "fetch_offset": offset, "partition_max_bytes": NEVER_MS}
        request = FETCH(
            isolation_level=READ_COMMITTED if self._committed_only else 0,
            topics=[{"topic": partition.topic, "partitions": [wanted]}],
        )
        (topic,) = self._caller.ask(replace(request, version_max=_FETCH_VERSION)).responses
        return topic.partitions[0]

    def read_ahead(self, until: Future[Any]) -> None:
        pass

    def high_watermark(self, partition: TopicPartition) -> int | None:
        return self._high_watermarks.get(partition)

    def close(self) -> None:
        self.closed = True
        self._caller.close()


class DirectWriter:
    """A Writer that sends its records at the next call. It uses the transaction code of the real Writer."""

    records = None

    def __init__(self, kafka: DirectKafka, client_id: str, transactional_id: str | None) -> None:
        self._kafka = kafka
        self._caller = Caller(kafka, client_id)
        self._transactional_id = transactional_id
        self.queue: dict[tuple[str, int], list[tuple[RawRecord, Source | None]]] = {}
        self._sequences: Counter[tuple[ProducerId, TopicPartition]] = Counter()
        self.lost: list[Lost] = []
        self._transactions = TransactionManager(
            self,
            transactional_id or "",
            timeout_ms=NEVER_MS,
            retry_backoff_ms=100,
            level_max_age_ms=NEVER_MS,
            on_done=lambda: None,
            retries=RetryLog(_LOG),
            log=_LOG,
        )

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
        count = len(self._kafka.partitions(topic))
        number = partition_for_key(key or b"", count) if partition < 0 and count else partition
        record = RawRecord(topic, number, -1, 0 if timestamp is None else timestamp, key, value, headers)
        self.queue.setdefault((topic, number), []).append((record, source))

    def send_due(self) -> None:
        pass

    def wait_ms(self) -> float:
        return math.inf

    def poll(self) -> None:
        self._deliver()

    def flush(self, seconds: float = math.inf) -> bool:
        self._deliver()
        return True

    def health(self) -> Health:
        return Health()

    def take_lost(self) -> list[Lost]:
        lost, self.lost = self.lost, []
        return lost

    def drop(self) -> None:
        self.queue.clear()

    def close(self) -> None:
        self.queue.clear()
        self._caller.close()

    def _deliver(self) -> None:
        sent, self.queue = self.queue, {}
        for target, records in sent.items():
            error = self._write(TopicPartition(*target), records)
            if error is not None:
                self.lost += [Lost(error, record, source) for record, source in records]
                self._transactions.note_failed(error)

    def _write(self, target: TopicPartition, records: list[tuple[RawRecord, Source | None]]) -> ClientError | None:
        """Write a batch; return the error if the broker refused it."""
        if target not in self._kafka.partitions(target.topic):  # as the metadata says
            return broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        producer = self._producer_of(target)
        batch = ProducerBatch()
        for record, source in records:
            batch.add(record.key(), record.value(), record.timestamp()[1], record.headers(), source)
        batch.pack("none")
        sequence = -1 if producer is _NOT_TRANSACTIONAL else self._sequences[producer, target]
        data = batch.sealed(producer.id, producer.epoch, sequence, producer is not _NOT_TRANSACTIONAL)
        version = self._transactions.produce_version
        answer = self._caller.produce(target, data, version, self._transactional_id)
        if answer.error_code:
            return broker_error(answer.error_code, answer.error_message)
        self._sequences[producer, target] += batch.count
        return None

    # -- transactions

    def _producer_of(self, target: TopicPartition) -> ProducerId:
        if self._transactional_id is None:
            return _NOT_TRANSACTIONAL
        self._until(lambda: self._transactions.may_write(target))
        producer = self._transactions.producer
        assert producer is not None, f"a record for {target} outside of a transaction"
        return producer

    def ask_coordinator(
        self, kind: CoordinatorKind, key: str, request: Request, on_done: Callable[[], None]
    ) -> Future[Any]:
        return done(self._caller.ask(request))

    def init_transactions(self, seconds: float) -> None:
        self._transactions.initialize()
        self._until_ready()

    def begin_transaction(self) -> None:
        self._transactions.begin()

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group_metadata: GroupMetadata, seconds: float
    ) -> None:
        self._transactions.send_offsets(offsets, group_metadata)
        self._until(lambda: self._transactions.has_sent_offsets)

    def commit_transaction(self, seconds: float) -> None:
        self._deliver()
        self._transactions.commit()
        self._until_ready()

    def abort_transaction(self, seconds: float) -> None:
        self._transactions.drain()
        self.queue.clear()
        self._transactions.abort()
        self._until_ready()

    def _until_ready(self) -> None:
        self._until(lambda: self._transactions.state is TransactionState.READY)

    def _until(self, is_done: Callable[[], bool], tries: int = 1_000) -> None:
        """Send requests until is_done, and advance the clock between attempts. Raises TransactionError."""
        for _ in range(tries):
            self._transactions.check()
            if is_done():
                return
            now = self._kafka.clock.monotonic_ms()
            pause = self._transactions.next_at - now
            if 0 < pause < math.inf:
                self._kafka.clock.advance(int(pause))
            self._transactions.advance(self._kafka.clock.monotonic_ms())
        raise TransactionError(UnreachableError(f"not done: {self._transactions.failure}"), can_abort=False)


class _AskedCluster:
    """The requests of a KafkaAdmin, answered by the in-memory broker."""

    def __init__(self, kafka: DirectKafka, client_id: str) -> None:
        self.caller = Caller(kafka, client_id)

    async def metadata(self, topics: Collection[str] | None, timeout_ms: float | None = None) -> Any:
        wanted = None if topics is None else [{"name": topic} for topic in sorted(topics)]
        return self.caller.ask(METADATA(topics=wanted))

    async def ask_any(self, request: Request, timeout_ms: float | None = None) -> Any:
        return self.caller.ask(request)

    async def ask_broker(self, node: int, request: Request, timeout_ms: float, purpose: str = "") -> Any:
        return self.caller.ask(request)


class DirectAdmin(KafkaAdmin):
    """A KafkaAdmin that sends each request once; the response is available at once and is final."""

    _cluster: Any

    def __init__(self, kafka: DirectKafka, client_id: str = "admin") -> None:
        self.kafka = kafka
        self._cluster = _AskedCluster(kafka, client_id)

    def _retried(self, attempt: Callable[[float], Coroutine[Any, Any, T]], timeout_ms: int, what: str) -> T:  # type: ignore[override]
        return asyncio.run(attempt(math.inf))

    def _ask_leaders(
        self, question: LeaderQuestion, partitions: Collection[TopicPartition], timeout_ms: int
    ) -> dict[TopicPartition, Future[int]]:
        response = self._cluster.caller.ask(question.request(dict.fromkeys(partitions, -1)))
        return {
            answer.partition: failed(broker_error(answer.code)) if answer.code else done(answer.value)
            for answer in question.responses(response)
        }

    def wait(self, asked: Collection[Future[Any]], seconds: float) -> None:
        assert all(future.done() for future in asked)

    def waits(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        self._cluster.caller.close()
