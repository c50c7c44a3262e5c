"""How a task of a stream thread writes output and changelog records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.clients.errors import ClientError
from penstock.clients.writing.writer import BY_KEY, Source
from penstock.kernel.sinks import RecordWriter
from penstock.topology.context.task_output import TaskOutput
from penstock.topology.records import Headers, RawRecord, TaskId, TopicPartition

from .streams_producer import StreamsProducer

#: Returns the source of the record that a task writes now; see Writer.produce.
FindSource = Callable[[], Source | None]


@dataclass(eq=False)
class ProducerOutput:
    """A TaskOutput that calls the Writer's produce. Like Kafka Streams', it raises the error of an earlier record.

    changelogs: by store, without stores whose source topic serves as changelog. source: None if no handler of lost
    records asks for it. With exactly-once, the first record after a commit begins the next transaction.
    """

    producer: StreamsProducer
    changelogs: Mapping[str, TopicPartition]
    task_id: TaskId | None
    source: FindSource | None

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: Headers,
        partition: int | None = None,
    ) -> None:
        """See TaskOutput.send."""
        self._write(topic, key, value, BY_KEY if partition is None else partition, timestamp, headers)

    def log_change(
        self, store_name: str, key: bytes, value: bytes | None, timestamp: int | None, headers: Headers = None
    ) -> None:
        """See TaskOutput.log_change."""
        topic, partition = self.changelogs[store_name]
        self._write(topic, key, value, partition, timestamp, headers)

    def _write(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int,
        timestamp: int | None,
        headers: Headers,
    ) -> None:
        producer, source = self.producer, self.source
        if producer.transactional and not producer.in_transaction:
            producer.begin_transaction()
        if producer.collector.errors:
            producer.collector.check()
        listed = list(headers) if headers else None
        try:
            producer.produce(topic, key, value, partition, timestamp, listed, None if source is None else source())
        except ClientError as error:
            at = -1 if timestamp is None else timestamp
            record = RawRecord(topic, partition, -1, at, key, value, listed)
            producer.refused(error, record, self.task_id, None if source is None else source())


def task_output(
    producer: StreamsProducer,
    changelogs: Mapping[str, TopicPartition],
    task_id: TaskId | None = None,
    source: FindSource | None = None,
) -> TaskOutput:
    """Return the output of a task; see ProducerOutput.

    With Penstock's own producer, a ProducerOutput handles only what the kernel does not take: the first record of a
    transaction or of a topic, and the record after an error.
    """
    output = ProducerOutput(producer, changelogs, task_id, source)
    if producer.records is None:
        return output
    return RecordWriter(producer.records, output, producer.collector.errors, producer, changelogs, source)
