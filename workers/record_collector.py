"""How one task writes: outputs and changelogs (Kafka Streams: RecordCollectorImpl).

send and log_change are made once for each task as closures over the client's own produce: they run for each record. Its
arguments go by position, which is a fifth faster than by name: topic, value, key, partition, callback, on_delivery (two
names of one thing), timestamp, headers. With the kernel (kernel/produce.pyx) they have the unusual records only: those
with headers, the first of a transaction, what librdkafka refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from confluent_kafka import KafkaException

from penstock.kernel import sinks as compiled
from penstock.topology.records import Headers, RawRecord, TaskId, TopicPartition

from .streams_producer import StreamsProducer

#: send(topic, key, value, timestamp, headers, partition=None); see TaskContext.send.
Send = Callable[..., None]
#: log_change(store name, key, value, timestamp, headers=None); see TaskContext.log_change.
LogChange = Callable[..., None]

#: librdkafka's "the partitioner decides".
UNASSIGNED = -1


def make_send(producer: StreamsProducer, task_id: TaskId | None = None) -> Send:
    """Return a task's send. It raises the error of an earlier record, as Kafka Streams' does."""
    produce, errors, check, produce_later = producer.produce, producer.errors, producer.check, producer.produce_later
    now, earliest = producer.now, producer.earliest

    def send(
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: Headers,
        partition: int | None = None,
    ) -> None:
        if errors:
            check()
        to = UNASSIGNED if partition is None else partition
        at = now if timestamp is None else timestamp or earliest
        try:
            produce(topic, value, key, to, None, None, at, list(headers) if headers else None)
        except BufferError:
            produce_later(topic, value, key, to, None, None, at, list(headers) if headers else None)
        except KafkaException as error:
            producer.refused(error, RawRecord(topic, to, -1, at, key, value, _listed(headers)), task_id)

    plain = _in_transaction(producer, send)
    if producer.records is None:
        return plain
    return cast("Send", compiled.RecordWriter(producer.records, plain, errors, producer).send)


def make_log_change(
    producer: StreamsProducer, changelogs: Mapping[str, TopicPartition], task_id: TaskId | None = None
) -> LogChange:
    """Return a task's log_change. changelogs: by store; stores whose source topic is the changelog are not in it."""
    produce, errors, check, produce_later = producer.produce, producer.errors, producer.check, producer.produce_later
    now, earliest = producer.now, producer.earliest

    def log_change(
        store_name: str, key: bytes, value: bytes | None, timestamp: int | None, headers: Headers = None
    ) -> None:
        if errors:
            check()
        topic, partition = changelogs[store_name]
        at = now if timestamp is None else timestamp or earliest
        try:
            produce(topic, value, key, partition, None, None, at, list(headers) if headers else None)
        except BufferError:
            produce_later(topic, value, key, partition, None, None, at, list(headers) if headers else None)
        except KafkaException as error:
            producer.refused(error, RawRecord(topic, partition, -1, at, key, value, _listed(headers)), task_id)

    plain = _in_transaction(producer, log_change)
    if producer.records is None:
        return plain
    return cast("LogChange", compiled.RecordWriter(producer.records, plain, errors, producer, changelogs).log_change)


def _in_transaction(producer: StreamsProducer, write: Callable[..., None]) -> Callable[..., None]:
    """With exactly-once, let the first record after a commit begin the next transaction."""
    if not producer.transactional:
        return write
    begin_transaction = producer.begin_transaction

    def begin_and_write(
        topic_or_store: str, key: bytes | None, value: bytes | None, timestamp: int | None, *more: Any
    ) -> None:
        if not producer.in_transaction:
            begin_transaction()
        write(topic_or_store, key, value, timestamp, *more)

    return begin_and_write


def _listed(headers: Headers) -> list[tuple[str, bytes | None]] | None:
    return None if headers is None else list(headers)
