"""A Reader and a Writer over a Kafka cluster in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from penstock.clients.errors import ErrorCode, TransactionError, broker_error
from penstock.clients.protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from penstock.clients.reading.reader import ReaderEvent, Records
from penstock.clients.writing.writer import Lost
from penstock.topology.records import RawRecord, TopicPartition
from tests.reader_positions import ReaderPositions
from tests.workers.memory_kafka import Cluster, ManualClock


class MemoryReader(ReaderPositions):
    """A Reader. While it waits nothing arrives, but the clock advances."""

    def __init__(self, cluster: Cluster, clock: ManualClock, committed_only: bool) -> None:
        super().__init__()
        self.cluster = cluster
        self.clock = clock
        self.committed_only = committed_only
        self.starts: dict[TopicPartition, int] = {}
        self.closed = False

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        super().assign(offsets)
        self.starts |= offsets

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
            self.clock.advance(int(timeout_seconds * 1000))
        return records, events

    def _read(self, partition: TopicPartition, count: int) -> tuple[list[Any], ReaderEvent | None]:
        log = self.cluster.logs.get(partition)
        position = self.positions[partition]
        if log is None:
            return [], ReaderEvent(partition, position, broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        if not log.start <= position <= log.end:
            return [], ReaderEvent(partition, position, broker_error(ErrorCode.OFFSET_OUT_OF_RANGE))
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
            return found, ReaderEvent(partition, position, None)
        return found, None

    def read_ahead(self, until: Future[Any]) -> None:
        pass

    def high_watermark(self, partition: TopicPartition) -> int | None:
        return self.cluster.logs[partition].readable_end(self.committed_only)

    def close(self) -> None:
        self.closed = True


class MemoryWriter:
    """A Writer, which sends its records at the next call."""

    def __init__(self, cluster: Cluster, transactional: bool) -> None:
        self.cluster = cluster
        self.transactional = transactional
        self.queue: list[tuple[str, int, bytes | None, bytes | None, int, Any]] = []
        self.written: set[TopicPartition] = set()
        self.in_transaction = False
        self.lost: list[Lost] = []
        self.records = None

    def produce(
        self, topic: str, key: Any, value: Any, partition: int, timestamp: int | None, headers: Any = None
    ) -> None:
        self.queue.append((topic, partition, key, value, 0 if timestamp is None else timestamp, headers))

    def send_due(self) -> None:
        pass

    def wait_ms(self) -> float:
        return math.inf

    def poll(self) -> None:
        self._deliver()

    def flush(self, seconds: float = math.inf) -> bool:
        self._deliver()
        return True

    def take_lost(self) -> list[Lost]:
        lost, self.lost = self.lost, []
        return lost

    def drop(self) -> None:
        pass

    def close(self) -> None:
        self.queue = []

    def _deliver(self) -> None:
        sent, self.queue = self.queue, []
        for topic, partition, key, value, timestamp, headers in sent:
            existing = self.cluster.partitions(topic)
            if partition < 0 and existing:
                partition = sum(key or b"") % len(existing)
            target = TopicPartition(topic, partition)
            if topic in self.cluster.refuse_topics or target not in existing:
                error = broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                self.lost.append(Lost(error, RawRecord(topic, partition, -1, timestamp, key, value)))
                continue
            log = self.cluster.logs[target]
            if self.transactional and target not in self.written:
                log.open_since = log.end
                self.written.add(target)
            self.cluster.append(topic, partition, key, value, timestamp, headers)

    def init_transactions(self, seconds: float) -> None:
        self.in_transaction = False

    def begin_transaction(self) -> None:
        assert not self.in_transaction
        self.in_transaction = True

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group_metadata: GroupMetadata, seconds: float
    ) -> None:
        if group_metadata.generation != self.cluster.group.generation:
            raise TransactionError(broker_error(ErrorCode.ILLEGAL_GENERATION), can_abort=True)
        self._offsets = {p: OffsetAndMetadata(at.offset, f"{at.metadata}\0") for p, at in offsets.items()}

    def commit_transaction(self, seconds: float) -> None:
        self._deliver()
        self._end()
        self.cluster.committed |= self._offsets

    def abort_transaction(self, seconds: float) -> None:
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
