"""Writes records to Kafka from Spark's executors, as the local engine does: same partitioner, timestamps and headers.

Spark's own Kafka sink has no column for timestamps: every record would get its write time, and event time would be lost
at the first repartition topic. This sink is at-least-once, like Spark's: a failed micro-batch is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.topology.errors import StreamsError
from penstock.topology.records import Headers

from .record_batches import MapInArrow, columns, unpack_all

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
    """One producer of one Spark task. settings: see producer_settings.

    send(topic, key, value, timestamp, headers, partition=None): see TaskContext.send. It never raises; a refused record
    makes finish() fail.
    """

    def __init__(self, settings: Mapping[str, Any], make: Callable[[dict[str, Any]], Any] = Producer) -> None:
        # Reports of success would cost more than the record itself; flush() covers all records at once.
        reports = {"on_delivery": self._delivered, "delivery.report.only.error": True}
        self._producer = make({**settings, **reports})
        self._failed = 0
        self._first_failure = ""
        self.send = self._make_send()

    def _make_send(self) -> Callable[..., None]:
        """Return send: a closure over the client's produce, because it runs for every record."""
        produce, poll, refused = self._producer.produce, self._producer.poll, self._refused

        def send(
            topic: str,
            key: bytes | None,
            value: bytes | None,
            timestamp: int | None,
            headers: Headers,
            partition: int | None = None,
        ) -> None:
            to = UNASSIGNED if partition is None else partition
            at = NOW if timestamp is None else timestamp or EARLIEST_TIMESTAMP
            listed = list(headers) if headers else None
            while True:
                try:
                    produce(topic, value, key, to, None, None, at, listed)
                except BufferError:
                    poll(QUEUE_FULL_POLL_SECONDS)
                    continue
                except KafkaException as error:
                    refused(topic, error.args[0])
                return

        return send

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
        if self._failed:
            raise StreamsError(
                f"{self._failed} records could not be written to Kafka, the first to {self._first_failure}"
            )


def write_to_kafka(settings: Mapping[str, Any], packed: bool = False) -> MapInArrow:
    """Return a function for mapInArrow that writes records and yields nothing. packed: see unpack_all."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sink: KafkaSink | None = None
        for batch in unpack_all(batches) if packed else batches:
            if batch.num_rows:
                sink = sink or open_sink(settings)
                sink.write(batch)
        if sink is not None:
            sink.finish()
        yield from ()

    return write


def open_sink(settings: Mapping[str, Any]) -> KafkaSink:
    """Return a new sink; raises StreamsError for settings that librdkafka refuses."""
    try:
        return KafkaSink(settings)
    except KafkaException as error:
        raise StreamsError(f"librdkafka refuses the producer's settings: {error.args[0].str()}") from error
