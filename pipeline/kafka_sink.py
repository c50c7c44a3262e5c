"""Writes records to Kafka from Spark's executors, as the local engine does: same partitioner, timestamps and headers.

Not by Spark's own Kafka sink, which has no column for timestamps: every record would be of the time when it was
written, and event time would end at the first repartition topic. At-least-once, as that one is: a micro-batch that
fails half-way is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.topology.errors import StreamsError

from .record_batches import messages, unpack_all

#: librdkafka takes timestamp 0 for "now": 1 ms after 1970 is closest.
EARLIEST_TIMESTAMP = 1
NOW = 0
#: How long a full queue is waited for before its error is raised, in seconds; delivery.timeout.ms ends it earlier.
QUEUE_SECONDS = 300.0
WRITTEN_DDL = "written bigint"


class KafkaSink:
    """One producer of one Spark task. settings: see producer_settings."""

    def __init__(self, settings: Mapping[str, Any], make: Callable[[dict[str, Any]], Any] = Producer) -> None:
        self._producer = make(dict(settings))
        self._failed: list[str] = []

    def write(self, records: pa.RecordBatch) -> int:
        """Produce a batch of RECORD_SCHEMA; returns how many records."""
        produce = self._producer.produce
        sent = messages(records)
        for record in sent:
            at = record.timestamp()[1]
            arguments = (
                record.topic(),
                record.value(),
                record.key(),
                record.partition(),
                None,
                self._delivered,
                NOW if at is None else at or EARLIEST_TIMESTAMP,
                record.headers(),
            )
            try:
                produce(*arguments)
            except BufferError:
                self._producer.poll(QUEUE_SECONDS)
                produce(*arguments)
        self._producer.poll(0)
        return len(sent)

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._failed.append(f"{message.topic()}: {error.str()}")

    def finish(self) -> None:
        """Wait until the brokers have everything; raises StreamsError with the topic of the first record they refused.

        As long as delivery.timeout.ms lets the producer try.
        """
        self._producer.flush()
        if self._failed:
            raise StreamsError(
                f"{len(self._failed)} records could not be written to Kafka, the first to {self._failed[0]}"
            )


def write_to_kafka(
    settings: Mapping[str, Any], packed: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for mapInArrow that writes records and yields how many. packed: they come as unpack_all's."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sink: KafkaSink | None = None
        written = 0
        for batch in unpack_all(batches) if packed else batches:
            if batch.num_rows:
                sink = sink or _open(settings)
                written += sink.write(batch)
        if sink is not None:
            sink.finish()
        yield pa.RecordBatch.from_arrays([pa.array([written], pa.int64())], ["written"])

    return write


def _open(settings: Mapping[str, Any]) -> KafkaSink:
    try:
        return KafkaSink(settings)
    except KafkaException as error:
        raise StreamsError(f"librdkafka refuses the producer's settings: {error.args[0].str()}") from error
