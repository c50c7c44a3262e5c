"""Writes records to Kafka from Spark's executors, with the local engine's writer.

Spark's own Kafka sink has no column for timestamps: every record would get its write time, and event time would be lost
at the first repartition topic. This sink is at-least-once, like Spark's: a failed micro-batch is written again.
transactional_sink.py has the other one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.clients.clock import SystemClock
from penstock.clients.errors import ClientError, DeliveryTimeoutError, TransactionError, UnreachableError
from penstock.clients.librdkafka import as_writer
from penstock.clients.writing.writer import BY_KEY, Writer
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import BrokerUnavailableError, StreamsError
from penstock.topology.records import Headers
from penstock.workers.thread.client_supplier import KafkaClientSupplier, configured_supplier

from .record_batches import MapInArrow, columns

#: After so many records the writer is served: it sends batches after linger.ms and handles responses only then, or when
#: a batch is full.
SERVE_RECORDS = 1_000
#: The schema of a writing query's rows: there are none.
WRITTEN_DDL = "written bigint"


class KafkaSink:
    """Writes what one Spark task at a time sends; owns its writer."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._produced = 0
        self._failure: StreamsError | None = None

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: Headers,
        partition: int | None = None,
    ) -> None:
        """See TaskOutput.send. A handler might take an error for that of a record: only finish() raises it.

        After an error nothing is sent: the micro-batch will be repeated.
        """
        if self._failure is not None:
            return
        to = BY_KEY if partition is None else partition
        try:
            self._writer.produce(topic, key, value, to, timestamp, list(headers) if headers else None)
        except ClientError as error:
            self._fail(error, topic)
        self._produced += 1
        if self._produced % SERVE_RECORDS == 0:
            self._serve(self._writer.poll)
        else:
            self._note_lost()

    def write(self, records: pa.RecordBatch) -> int:
        """Produce a batch of RECORD_SCHEMA; returns how many records."""
        send = self.send
        for topic, partition, _, timestamp, key, value, headers in zip(*columns(records), strict=True):
            send(topic, key, value, timestamp, headers, partition)
        return int(records.num_rows)

    def _serve(self, call: Callable[[], object]) -> None:
        """Call the writer, which may report that it has failed or lost records."""
        try:
            call()
        except StreamsError as error:
            self._failure = self._failure or error
        except ClientError as error:
            self._fail(error)
        self._note_lost()

    def _note_lost(self) -> None:
        for lost in self._writer.take_lost():
            self._fail(lost.error, lost.record.topic())

    def _fail(self, error: ClientError, topic: str | None = None) -> None:
        named = "" if topic is None else f", the first to {topic}"
        self._failure = self._failure or task_error(f"Records could not be written to Kafka{named}", error)

    def finish(self) -> None:
        """Wait until the brokers have everything; raises StreamsError with the topic of the first record that they do
        not have, BrokerUnavailableError if they did not respond.

        Waits up to delivery.timeout.ms.
        """
        if self._failure is None:
            self._serve(self._writer.flush)
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Drop what is not written, and close the connections."""
        self._writer.close()


def task_error(what: str, error: ClientError) -> StreamsError:
    """Return the error of a task of Spark. Brokers that do not respond are a BrokerUnavailableError, which restarts the
    query; see failures.BROKERS_ARE_AWAY.
    """
    cause = error.cause if isinstance(error, TransactionError) else error
    is_away = isinstance(cause, UnreachableError | DeliveryTimeoutError)
    return (BrokerUnavailableError if is_away else StreamsError)(f"{what}: {error}")


class IdleSinks:
    """The open sinks of this Python process, which Spark uses again: connecting takes longer than a small micro-batch.

    Only those of the last settings are kept.
    """

    def __init__(self) -> None:
        self._settings = ""
        self._sinks: list[KafkaSink] = []

    def take(self, settings: str) -> KafkaSink | None:
        """Return a sink with these settings, None if there is none."""
        if settings != self._settings:
            while self._sinks:
                self._sinks.pop().close()
        return self._sinks.pop() if self._sinks else None

    def keep(self, sink: KafkaSink, settings: str) -> None:
        """Keep a sink that has finished."""
        self._settings = settings
        self._sinks.append(sink)


idle = IdleSinks()


@dataclass(frozen=True)
class Sinks:
    """Opens the sinks of a query; it is sent to the executors, which make the clients."""

    config: StreamsConfig

    def of_tasks(self) -> KafkaSink:
        """Return the sink of all tasks of Penstock in the calling task of Spark; raises StreamsError, ConfigError."""
        return idle.take(self._settings) or KafkaSink(as_writer(self._supplier.get_producer(self._client_id)))

    def of_partition(self, topic: str, partition: int) -> KafkaSink:
        """Return the sink of a stateless task: that of one partition of a topic. Raises as of_tasks."""
        return self.of_tasks()

    def finish(self, sink: KafkaSink) -> None:
        """Finish a sink, and keep it for the next task. Raises as it does; it is closed then."""
        try:
            sink.finish()
        except StreamsError:
            sink.close()
            raise
        idle.keep(sink, self._settings)

    @property
    def _supplier(self) -> KafkaClientSupplier:
        return configured_supplier(self.config, SystemClock())

    @property
    def _client_id(self) -> str:
        return f"{self.config['application.id']}-spark"

    @property
    def _settings(self) -> str:
        """What distinguishes a producer from one of another application of the same Python process."""
        supplier, config = self._supplier, self.config
        given = sorted(supplier.producer_settings(self._client_id).items())
        kind = type(self), type(supplier), config["penstock.sender"], config["transaction.timeout.ms"]
        return repr((kind, given))


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
