"""How a task writes output and changelog records.

send and log_change run for every record, so they are closures over the Writer's produce, made once per task. With
Penstock's own producer (kernel/sinks.pyx) they handle only what it does not take: the first record of a transaction or
of a topic, and the record after an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.clients.errors import ClientError
from penstock.clients.writing.writer import BY_KEY, Source
from penstock.kernel.sinks import RecordWriter
from penstock.topology.context.task_context import LogChange
from penstock.topology.records import Headers, RawRecord, TaskId, TopicPartition

from .streams_producer import StreamsProducer

#: send(topic, key, value, timestamp, headers, partition=None); see TaskContext.send.
Send = Callable[..., None]
#: Returns the source of the record that a task writes now; see Writer.produce.
FindSource = Callable[[], Source | None]


def make_send(producer: StreamsProducer, task_id: TaskId | None = None, source: FindSource | None = None) -> Send:
    """Return a task's send. Like Kafka Streams', it raises the error of an earlier record.

    source: None if no handler of lost records asks for it.
    """
    write = _writing(producer, task_id, source)

    def send(
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: Headers,
        partition: int | None = None,
    ) -> None:
        write(topic, key, value, BY_KEY if partition is None else partition, timestamp, headers)

    plain = _in_transaction(producer, send)
    if producer.records is None:
        return plain
    writer = RecordWriter(producer.records, plain, producer.collector.errors, producer, None, source)
    return writer.send


def make_log_change(
    producer: StreamsProducer,
    changelogs: Mapping[str, TopicPartition],
    task_id: TaskId | None = None,
    source: FindSource | None = None,
) -> LogChange:
    """Return a task's log_change. changelogs: by store, without stores whose source topic serves as changelog."""
    write = _writing(producer, task_id, source)

    def log_change(
        store_name: str, key: bytes, value: bytes | None, timestamp: int | None, headers: Headers = None
    ) -> None:
        topic, partition = changelogs[store_name]
        write(topic, key, value, partition, timestamp, headers)

    plain = _in_transaction(producer, log_change)
    if producer.records is None:
        return plain
    errors = producer.collector.errors
    writer = RecordWriter(producer.records, plain, errors, producer, changelogs, source)
    return writer.log_change


def _writing(producer: StreamsProducer, task_id: TaskId | None, source: FindSource | None) -> Callable[..., None]:
    produce, collector = producer.produce, producer.collector
    errors, check = collector.errors, collector.check

    def write(
        topic: str, key: bytes | None, value: bytes | None, partition: int, timestamp: int | None, headers: Headers
    ) -> None:
        if errors:
            check()
        listed = list(headers) if headers else None
        try:
            produce(topic, key, value, partition, timestamp, listed, None if source is None else source())
        except ClientError as error:
            at = -1 if timestamp is None else timestamp
            record = RawRecord(topic, partition, -1, at, key, value, listed)
            producer.refused(error, record, task_id, None if source is None else source())

    return write


def _in_transaction(producer: StreamsProducer, write: Callable[..., None]) -> Callable[..., None]:
    """With exactly-once, make the first record after a commit begin the next transaction."""
    if not producer.transactional:
        return write
    begin_transaction = producer.begin_transaction

    def begin_and_write(
        topic_or_store: str, key: bytes | None, value: bytes | None, timestamp: int | None, *more: object
    ) -> None:
        if not producer.in_transaction:
            begin_transaction()
        write(topic_or_store, key, value, timestamp, *more)

    return begin_and_write
