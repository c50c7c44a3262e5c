"""A producer that runs on the stream thread itself, instead of librdkafka's (Kafka: KafkaProducer).

transactional_producer.py adds transactions.

The kernel appends records to one batch per partition (kernel/record_accumulator.pyx). A batch is closed and handed to
the Sender when it is full, or after ``linger.ms`` if no earlier batch of the partition awaits its acknowledgement. Only
flush(), a full buffer, and the first record of a topic block.
docs/clients.md describes the order of events.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from typing_extensions import override

from penstock.kernel.record_accumulator import PartitionRecords, RecordAccumulator
from penstock.topology.records import RawRecord, TopicPartition

from ..clock import Clock
from ..cluster.brokers import Brokers
from ..errors import BrokerError, ErrorCode
from ..log_context import PrefixedLogger
from ..retry_log import RetryLog
from ..served_clock import ServedClock
from ..throttle import Health
from .partition_queue import PartitionQueue
from .produce_settings import ProduceSettings
from .producer_identity import Identity, ProducerIdentity
from .sender import BEHIND_WAIT_MS, Sender
from .writer import Lost, Source, Writer


class KafkaProducer(Writer):
    """A Writer; see there. Not thread-safe. Owns brokers. seed: of the partitioner for records without keys."""

    def __init__(
        self, brokers: Brokers, settings: ProduceSettings, clock: Clock, log: PrefixedLogger, seed: int
    ) -> None:
        self._settings = settings
        self._clock = ServedClock(clock, self._note_pause)
        self._log = log
        self._brokers = brokers
        self._sender = Sender(brokers, settings, log, self._new_identity)
        self._growing: dict[PartitionRecords, float] = {}  # and when to close their batches
        self._seen_answers = 0
        self._failure: Exception | None = None
        #: Accepts records without a call of produce().
        self.records = RecordAccumulator(
            settings.batch_bytes, settings.max_request_bytes, self._batch_is_full, clock.wall_clock_ms, seed
        )

    def _new_identity(self, on_done: Callable[[], None], retries: RetryLog) -> Identity:
        return ProducerIdentity(self._brokers, self._settings.retry_backoff_ms, on_done, retries)

    @override
    def produce(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        partition: int,
        timestamp: int | None,
        headers: list[tuple[str, bytes | None]] | None = None,
        source: Source | None = None,
    ) -> None:
        """For records that ``records`` did not accept."""
        key, value = _as_bytes(key), _as_bytes(value)
        timestamp = self._clock.wall_clock_ms() if timestamp is None else timestamp
        if self.records.offer(topic, partition, key, value, timestamp, headers, source):
            return
        try:
            self._learn(topic, partition)
        except TimeoutError:  # same as a record that was not acknowledged in time
            lost = RawRecord(topic, partition, -1, timestamp, key, value, headers)
            self._sender.lost.append(Lost(self._sender.too_late(), lost, source))
            return
        if not self.records.offer(topic, partition, key, value, timestamp, headers, source):
            limit = f"more than {self._settings.max_request_bytes} bytes (producer.message.max.bytes)"
            raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE, limit)

    def _learn(self, topic: str, partition: int) -> None:
        """Wait until a topic's partitions, including this one, are known. Raises ClientError, TimeoutError."""
        probe = TopicPartition(topic, max(partition, 0))
        now = self._clock.monotonic_ms()
        deadline = now + self._settings.delivery_timeout_ms
        if self.records.partition_count(topic) <= probe.partition:
            self._sender.hear_of(probe)
        while True:
            self._advance(now)
            if self.records.partition_count(topic) > probe.partition:
                return
            if self._failure is not None or now >= deadline:
                raise TimeoutError
            error = self._sender.missing(probe, now)
            if error is not None:
                raise error
            self._sender.leaders.refresh(now)
            now = self._wait(now, deadline)

    def _batch_is_full(self, records: PartitionRecords) -> None:
        """Close a batch for the kernel; block while too many bytes are unacknowledged."""
        now = self._clock.monotonic_ms()
        self._note_begun(now)
        self._close(records)
        self._advance(now)
        while self._sender.buffered_bytes > self._settings.buffer_bytes and self._failure is None:
            now = self._wait(now, math.inf)
            self._advance(now)

    def _note_pause(self, ms: int) -> None:
        self._sender.note_pause(ms)

    def _wait(self, now: int, until: float) -> int:
        """Wait until something is due, or until ``until``; return the current time."""
        ends = self._sender.wait_ends(now, until)
        self._clock.begin_wait(ends - now)
        self._sender.wait(now, ends)
        return self._clock.monotonic_ms()

    def _note_begun(self, now: int) -> None:
        begun = self.records.begun
        for records in begun:
            growing = records.growing
            assert growing is not None  # each close() follows a call of this method
            growing.created_ms = now
            self._growing[records] = now + self._settings.linger_ms
        begun.clear()

    def _close(self, records: PartitionRecords) -> None:
        del self._growing[records]
        batch = records.close()
        assert batch is not None  # it was begun, and is not closed elsewhere
        self._sender.enqueue(records.queue, batch)

    def _advance(self, now: int) -> None:
        """Do all that is due without blocking; poll() and flush() raise a permanent failure."""
        if self._failure is None:
            try:
                self._sender.advance(now)
            except Exception as failure:  # noqa: BLE001  raised by the next poll, to not unwind the kernel's loops
                self._failure = failure
        if self._sender.leaders.responses != self._seen_answers:
            self._seen_answers = self._sender.leaders.responses
            self._know_partitions()

    def _know_partitions(self) -> None:
        for topic, count in self._sender.leaders.partition_counts.items():
            for records in self.records.know(topic, count):
                records.queue = PartitionQueue(records)

    @override
    def poll(self) -> None:
        self.send_due()

    @override
    def send_due(self) -> None:
        now = self._clock.monotonic_ms()
        self._note_begun(now)
        if not self._sender.is_idle:
            self._advance(now)
        due = self._due(now)
        if due:
            for records in due:
                self._close(records)
            self._advance(now)
        self._raise_failure()

    def _due(self, now: int) -> list[PartitionRecords]:
        """Return the batches to close; those queued behind another batch can still grow until it is acknowledged."""
        found = []
        for records, due in self._growing.items():  # in order of creation
            if due > now:
                break
            if not records.queue.batches:
                found.append(records)
        return found

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    @override
    def wait_ms(self) -> float:
        now = self._clock.monotonic_ms()
        self._note_begun(now)
        wait_ms = self._sender.wait_ms
        shortest = math.inf if wait_ms is None else wait_ms
        for records, due in self._growing.items():
            if due - now >= shortest:
                break
            shortest = min(shortest, max(due - now, BEHIND_WAIT_MS if records.queue.batches else 0))
        return shortest

    @override
    def flush(self, seconds: float = math.inf) -> bool:
        self._note_begun(self._clock.monotonic_ms())
        for records in tuple(self._growing):
            self._close(records)
        is_done = self._serve_until(lambda: self._sender.is_idle, seconds)
        self._raise_failure()
        return is_done

    def _serve_until(self, is_done: Callable[[], bool], seconds: float) -> bool:
        """Run the client until is_done, the timeout, or a permanent failure. Returns whether it is done."""
        now = self._clock.monotonic_ms()
        deadline = now + seconds * 1000
        self._advance(now)
        while not is_done() and self._failure is None and now < deadline:
            now = self._wait(now, deadline)
            self._advance(now)
        return is_done()

    @override
    def drop(self) -> None:
        self._drop_batches()
        self._sender.abort(self._clock.monotonic_ms())

    def _drop_batches(self) -> None:
        self._note_begun(self._clock.monotonic_ms())
        for records in self._growing:
            records.close()
        self._growing.clear()
        self._sender.drop()

    @override
    def take_lost(self) -> list[Lost]:
        lost, self._sender.lost = self._sender.lost, []
        return lost

    @override
    def health(self) -> Health:
        return self._sender.health(self._clock.monotonic_ms())

    @override
    def close(self) -> None:
        self._sender.close()


def _as_bytes(given: bytes | str | None) -> bytes | None:
    """Return a key or value as bytes, accepting the same types as confluent-kafka; raises TypeError."""
    if given is None:
        return None
    return given.encode() if isinstance(given, str) else bytes(memoryview(given))
