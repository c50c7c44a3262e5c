"""A producer that the stream thread itself runs, in place of librdkafka's (Kafka: KafkaProducer).

The kernel grows a batch for each partition (kernel/record_accumulator.pyx). It is closed when it is full, or after
``linger.ms``, and then the Sender's. Nothing here waits but flush(), a full buffer, and the first record of a topic.
docs/producing.md says what happens when.
"""

from __future__ import annotations

import math
import random
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from penstock.kernel import record_accumulator
from penstock.topology.records import RawRecord, TopicPartition

from ..clock import Clock
from ..cluster.brokers import Brokers, KafkaBrokers
from ..connection.broker_link import OldBrokerError
from ..log_context import PrefixedLogger
from .partition_queue import PartitionQueue
from .produce_settings import ProduceSettings
from .sender import Sender

_SEEDS = 1 << 16


class NotProducibleError(Exception):
    """A broker does not know our requests, but librdkafka can write to it."""


class KafkaProducer:
    """Has the methods of confluent_kafka.Producer that a StreamsProducer calls. One thread may use it.

    client: a confluent_kafka.Producer, for questions that are asked seldom. seed: where records without keys begin.
    """

    #: Timestamps that stand for now, and for the beginning of time.
    NOW, EARLIEST = -1, 0

    def __init__(
        self, client: Any, brokers: Brokers, settings: ProduceSettings, clock: Clock, log: PrefixedLogger, seed: int
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._sender = Sender(brokers, settings, log)
        self._growing: dict[Any, float] = {}  # the kernel's PartitionRecords, and when their batches are to be closed
        self._seen_answers = 0
        self._failure: Exception | None = None
        #: Takes records past produce().
        self.records = record_accumulator.RecordAccumulator(
            settings.batch_bytes, settings.max_request_bytes, self._batch_is_full, clock.wall_clock_ms, seed
        )

    def produce(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int,
        callback: None,
        on_delivery: None,
        timestamp: int,
        headers: Any = None,
    ) -> None:
        """Take a record that ``records`` has not taken; waits until the topic is known to the brokers.

        partition: -1 for the one of its key. timestamp: in ms; NOW. Raises KafkaException if it cannot be written.
        """
        key, value = _as_bytes(key), _as_bytes(value)
        timestamp = self._clock.wall_clock_ms() if timestamp == self.NOW else timestamp
        if self.records.offer(topic, partition, key, value, timestamp, headers):
            return
        try:
            self._learn(topic, partition)
        except TimeoutError:  # as if it had been sent, and not been acknowledged in time
            lost = RawRecord(topic, partition, -1, timestamp, key, value, headers)
            self._sender.lost.append((KafkaError(KafkaError._MSG_TIMED_OUT), lost))
            return
        if not self.records.offer(topic, partition, key, value, timestamp, headers):
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))

    def _learn(self, topic: str, partition: int) -> None:
        """Wait until a topic's partitions are known, this one among them. Raises KafkaException, TimeoutError."""
        probe = TopicPartition(topic, max(partition, 0))
        now = self._clock.monotonic_ms()
        deadline = now + self._settings.delivery_timeout_ms
        if self.records.partition_count(topic) <= probe.partition:
            self._sender.hear_of(probe)
        while self.records.partition_count(topic) <= probe.partition:
            self._advance(now)
            if self._failure is not None or now >= deadline:
                raise TimeoutError
            code = self._sender.leaders.error_of(probe, now)
            if code is not None:
                self._sender.leaders.refresh(now)  # it may be there by the next record
                raise KafkaException(KafkaError(code))
            if self.records.partition_count(topic) <= probe.partition:
                self._sender.leaders.refresh(now)
                self._sender.wait(now, deadline)
                now = self._clock.monotonic_ms()

    def _batch_is_full(self, records: Any) -> None:
        """Close a batch for the kernel; wait if too much is not acknowledged yet."""
        now = self._clock.monotonic_ms()
        self._note_begun(now)
        self._close(records)
        self._advance(now)
        while self._sender.buffered_bytes > self._settings.buffer_bytes and self._failure is None:
            self._sender.wait(now, math.inf)
            now = self._clock.monotonic_ms()
            self._advance(now)

    def _note_begun(self, now: int) -> None:
        begun = self.records.begun
        for records in begun:
            records.growing.created_ms = now
            self._growing[records] = now + self._settings.linger_ms
        begun.clear()

    def _close(self, records: Any) -> None:
        del self._growing[records]
        self._sender.enqueue(records.queue, records.close())

    def _advance(self, now: int) -> None:
        """Do what can be done without a wait; what makes all of it futile is raised by poll() and flush()."""
        if self._failure is None:
            try:
                self._sender.advance(now)
            except Exception as failure:  # noqa: BLE001  raised by the next poll: the kernel's loops must not be left here
                self._failure = failure
        if self._sender.leaders.answers != self._seen_answers:
            self._seen_answers = self._sender.leaders.answers
            self._know_partitions()

    def _know_partitions(self) -> None:
        for topic, count in self._sender.leaders.partition_counts.items():
            for records in self.records.know(topic, count):
                records.queue = PartitionQueue(records)

    def poll(self, seconds: float = 0) -> None:
        """Close batches that have waited for long enough, send, take answers; wait only if told to.

        Raises NotProducibleError, StreamsError if nothing can be written any more.
        """
        now = self._clock.monotonic_ms()
        self._note_begun(now)
        for records in self._due(now):
            self._close(records)
        if not self._sender.is_idle:
            self._advance(now)
            if seconds and not self._sender.is_idle:
                self._sender.wait(now, now + seconds * 1000)
                self._advance(self._clock.monotonic_ms())
        self._raise_failure()

    def _due(self, now: int) -> list[Any]:
        found = []
        for records, due in self._growing.items():  # in the order in which they begun
            if due > now:
                break
            found.append(records)
        return found

    def _raise_failure(self) -> None:
        if isinstance(self._failure, OldBrokerError):
            raise NotProducibleError(str(self._failure)) from self._failure
        if self._failure is not None:
            raise self._failure

    def next_at(self, now_ms: int) -> float:
        """Return when poll() may have something to do, in ms; infinity: not before more is produced."""
        self._note_begun(now_ms)
        due, wait_ms = next(iter(self._growing.values()), math.inf), self._sender.wait_ms
        return due if wait_ms is None else min(due, now_ms + wait_ms)

    def flush(self, seconds: float = math.inf) -> None:
        """Wait until every record is acknowledged or given up, for so long at most. Raises as poll() does."""
        now = self._clock.monotonic_ms()
        deadline = now + seconds * 1000
        self._note_begun(now)
        for records in tuple(self._growing):
            self._close(records)
        self._advance(now)
        while not self._sender.is_idle and self._failure is None and now < deadline:
            self._sender.wait(now, deadline)
            now = self._clock.monotonic_ms()
            self._advance(now)
        self._raise_failure()

    def drop(self) -> None:
        """Forget what is not on its way to a broker: others may write in its place by now."""
        self._note_begun(self._clock.monotonic_ms())
        for records in self._growing:
            records.close()
        self._growing.clear()
        self._sender.drop()

    def take_lost(self) -> list[tuple[KafkaError, Any]]:
        """Return the records that were given up since the last call, and why."""
        lost, self._sender.lost = self._sender.lost, []
        return lost

    def list_topics(self, *arguments: Any, **named: Any) -> Any:
        """See confluent_kafka.Producer."""
        return self._client.list_topics(*arguments, **named)

    def purge(self) -> None:
        """Give up all that is not acknowledged, and close the connections. Nothing else may be called then."""
        self._sender.close()
        self._client.purge()


def _as_bytes(given: Any) -> bytes | None:
    """Return a key or value as confluent-kafka takes it; raises TypeError."""
    if given is None:
        return None
    return given.encode() if isinstance(given, str) else bytes(memoryview(given))


def kafka_producer_for(client: Any, clock: Clock, log: PrefixedLogger) -> KafkaProducer | None:
    """Return a producer in place of one whose supplier gave it produce_settings, None where librdkafka writes."""
    settings: ProduceSettings | None = getattr(client, "produce_settings", None)
    if settings is None or record_accumulator is None:
        return None
    brokers = KafkaBrokers(settings, creates_topics=True)
    return KafkaProducer(client, brokers, settings, clock, log, random.randrange(_SEEDS))
