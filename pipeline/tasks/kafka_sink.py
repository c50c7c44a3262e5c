"""Writes records to Kafka from Spark's executors, as the local engine does: same partitioner, timestamps and headers.

Spark's own Kafka sink has no column for timestamps: every record would get its write time, and event time would be lost
at the first repartition topic. This sink is at-least-once, like Spark's: a failed micro-batch is written again.
transactional_sink.py has the other one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer
from typing_extensions import override

from penstock.topology.errors import StreamsError
from penstock.topology.records import Headers

from .record_batches import MapInArrow, columns

#: librdkafka interprets timestamp 0 as "now"; 1 ms is the closest alternative.
EARLIEST_TIMESTAMP = 1
NOW = 0
#: librdkafka's value for "chosen by the partitioner".
UNASSIGNED = -1
#: How long to wait for room in the local queue before the record is retried, in seconds. The retries end, because
#: undeliverable records leave the queue after delivery.timeout.ms.
QUEUE_FULL_POLL_SECONDS = 0.05
#: The schema of a writing query's rows: there are none.
WRITTEN_DDL = "written bigint"


class KafkaSink:
    """One producer, of one Spark task at a time. settings: see producer_settings."""

    def __init__(self, settings: Mapping[str, object], make: Callable[[dict[str, Any]], Any] = Producer) -> None:
        self._producer = make({**settings, **self._reports()})
        self._failed = 0
        self._first_failure = ""

    def _reports(self) -> dict[str, object]:
        # Reports of success would cost more than the record itself; flush() covers all records at once.
        return {"on_delivery": self._delivered, "delivery.report.only.error": True}

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: Headers,
        partition: int | None = None,
    ) -> None:
        """See TaskOutput.send. It never raises; a refused record makes finish() fail."""
        to = UNASSIGNED if partition is None else partition
        at = NOW if timestamp is None else timestamp or EARLIEST_TIMESTAMP
        listed = list(headers) if headers else None
        while True:
            try:
                self._producer.produce(topic, value, key, to, None, None, at, listed)
            except BufferError:
                self._producer.poll(QUEUE_FULL_POLL_SECONDS)
                continue
            except KafkaException as error:
                self._refused(topic, error.args[0])
            return

    def write(self, records: pa.RecordBatch) -> int:
        """Produce a batch of RECORD_SCHEMA; returns how many records."""
        send = self.send
        for topic, partition, _, timestamp, key, value, headers in zip(*columns(records), strict=True):
            send(topic, key, value, timestamp, headers, partition)
        return int(records.num_rows)

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._refused(message.topic(), error)

    def _refused(self, topic: str, error: KafkaError) -> None:
        self._first_failure = self._first_failure or f"{topic}: {error.str()}"
        self._failed += 1

    def finish(self) -> None:
        """Wait until the brokers have everything; raises StreamsError with the topic of the first record they refused.

        Waits up to delivery.timeout.ms.
        """
        self._producer.flush()
        self._check()

    def _check(self) -> None:
        if self._failed:
            raise StreamsError(
                f"{self._failed} records could not be written to Kafka, the first to {self._first_failure}"
            )


class IdleSinks:
    """The open sinks of this Python process, which Spark uses again: connecting takes longer than a small micro-batch.

    Only those of the last settings are kept.
    """

    def __init__(self) -> None:
        self._settings = ""
        self._sinks: list[KafkaSink] = []

    def take(self, settings: Mapping[str, object]) -> KafkaSink | None:
        """Return a sink with these settings, None if there is none."""
        if repr(settings) != self._settings:
            self._sinks.clear()
        return self._sinks.pop() if self._sinks else None

    def keep(self, sink: KafkaSink, settings: Mapping[str, object]) -> None:
        """Keep a sink that has finished."""
        self._settings = repr(settings)
        self._sinks.append(sink)


_idle = IdleSinks()


@dataclass(frozen=True)
class Sinks:
    """Opens the sinks of a query; it is sent to the executors. settings: see producer_settings."""

    settings: Mapping[str, Any]

    def of_tasks(self) -> KafkaSink:
        """Return the sink of all tasks of Penstock in the calling task of Spark."""
        return _idle.take(self.settings) or self._opened(lambda: KafkaSink(self.settings))

    def finish(self, sink: KafkaSink) -> None:
        """Finish a sink, and keep it for the next task. Raises as it does; it is not used again then."""
        sink.finish()
        _idle.keep(sink, self.settings)

    def of_partition(self, topic: str, partition: int) -> KafkaSink:
        """Return the sink of a stateless task: that of one partition of a topic."""
        return self.of_tasks()

    def _opened(self, make: Callable[[], KafkaSink]) -> KafkaSink:
        """Return a new sink; raises StreamsError for settings that librdkafka refuses."""
        try:
            return make()
        except KafkaException as error:
            raise StreamsError(f"librdkafka refuses the producer's settings: {error.args[0].str()}") from error


class BrokenSink(KafkaSink):
    """The sink of a task whose sink could not be opened. Sends do not raise, because a handler might take the error for
    that of a record; finish() does.
    """

    def __init__(self, error: StreamsError) -> None:
        self._error = error

    @override
    def send(self, topic: str, *_: object) -> None:
        """Send nothing."""

    @override
    def finish(self) -> None:
        raise self._error


def opened(sinks: Sinks) -> KafkaSink:
    """Return the sink of all tasks of Penstock in the calling task of Spark; a BrokenSink if it could not be opened."""
    try:
        return sinks.of_tasks()
    except StreamsError as error:
        return BrokenSink(error)


def write_to_kafka(sinks: Sinks) -> MapInArrow:
    """Return a function for mapInArrow that writes records and yields nothing."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sink: KafkaSink | None = None
        for batch in batches:
            if batch.num_rows:
                sink = sink or sinks.of_tasks()
                sink.write(batch)
        if sink is not None:
            sinks.finish(sink)
        yield from ()

    return write
