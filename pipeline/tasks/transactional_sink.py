"""Writes the output of a micro-batch to Kafka once, although Spark may run a micro-batch, or one of its tasks, again.

The output of a Spark task in a micro-batch is one transaction, which also commits the number of the micro-batch as an
offset of a consumer group. A later attempt finds the number there and writes nothing. It may rely on that, because
Spark repeats a micro-batch with the same records, the same state and the same time. (Kafka Streams commits offsets of
its input in the same way, KIP-447.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from pyspark import TaskContext
from typing_extensions import override

from penstock.topology.errors import StreamsError

from .kafka_sink import KafkaSink, Sinks

log = logging.getLogger(__name__)

#: Local properties of Spark's MicroBatchExecution and StreamExecution. A query keeps its id in the checkpoint.
BATCH_ID, QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"
#: One call of a transaction's client. It repeats what can be repeated, within its own limits.
CALL_SECONDS = 60.0


@dataclass(frozen=True)
class BatchMark:
    """Where the number of the last micro-batch that was written is kept: as an offset of group for one partition.

    query_id: Spark's. A number of another query means nothing.
    """

    transactional_id: str
    group: str
    topic: str
    partition: int
    query_id: str
    batch_id: int

    def committed(self) -> TopicPartition:
        """Return the offset to commit with this micro-batch: it proves that the micro-batch is written."""
        return TopicPartition(self.topic, self.partition, self.batch_id + 1, self.query_id)

    def is_covered_by(self, found: TopicPartition) -> bool:
        """Return whether a committed offset proves that this micro-batch is written."""
        return bool(found.metadata == self.query_id and found.offset > self.batch_id)


class TransactionalSink(KafkaSink):
    """One transaction. settings, connection: see producer_settings, connection_settings; make, make_consumer: clients.

    Opening it ends the transaction of an earlier attempt, and no such attempt can write any more (KIP-98). Raises
    StreamsError if the brokers refuse the transaction.
    """

    def __init__(
        self,
        settings: Mapping[str, object],
        connection: Mapping[str, object],
        mark: BatchMark,
        make: Callable[[dict[str, Any]], Any] = Producer,
        make_consumer: Callable[[dict[str, Any]], Any] = Consumer,
    ) -> None:
        super().__init__({**settings, "transactional.id": mark.transactional_id}, make)
        self._mark = mark
        self._consumer = make_consumer(
            # Without read_committed, the answer would not wait for a transaction whose end is under way (KIP-447).
            {**connection, "group.id": mark.group, "isolation.level": "read_committed", "enable.auto.commit": False}
        )
        self._call("begin", self._producer.init_transactions, CALL_SECONDS)
        (found,) = self._call("begin", self._consumer.committed, [mark.committed()], CALL_SECONDS)
        self.is_written = mark.is_covered_by(found)
        if not self.is_written:
            self._call("begin", self._producer.begin_transaction)

    @override
    def send(self, topic: str, *record: Any) -> None:
        """Send a record, unless an earlier attempt has sent it."""
        if not self.is_written:
            super().send(topic, *record)

    @override
    def _reports(self) -> dict[str, object]:
        return {}  # the commit fails if a record has failed

    @override
    def finish(self) -> None:
        """Commit; raises StreamsError, and nothing is visible, if the brokers have refused a record or the commit."""
        try:
            if not self.is_written:
                self._finish()
        finally:
            self._consumer.close()

    def _finish(self) -> None:
        try:
            self._check()
            metadata = self._consumer.consumer_group_metadata()
            committed = [self._mark.committed()]
            self._call("commit", self._producer.send_offsets_to_transaction, committed, metadata, CALL_SECONDS)
            self._call("commit", self._producer.commit_transaction, CALL_SECONDS)
        except StreamsError:
            self._abort()
            raise

    def _abort(self) -> None:
        """End the transaction now, for its readers' sake. If that fails, the next attempt ends it."""
        try:
            self._producer.abort_transaction(CALL_SECONDS)
        except KafkaException as error:
            if not error.args[0].fatal():
                raise StreamsError(f"{self._named('abort')}: {error.args[0].str()}") from error

    def _call(self, what: str, function: Callable[..., object], *arguments: object) -> Any:
        """Call a client; it may be asked again after an error that passes, such as a coordinator that moves."""
        while True:
            try:
                return function(*arguments)
            except KafkaException as error:
                found: KafkaError = error.args[0]
                if found.retriable():
                    log.warning("%s yet, and is tried again: %s", self._named(what), found.str())
                else:
                    raise StreamsError(f"{self._named(what)}: {found.str()}") from error

    def _named(self, what: str) -> str:
        mark = self._mark
        return (
            f"Micro-batch {mark.batch_id} could not {what} its transaction for {mark.topic}-{mark.partition} "
            f"(transactional.id {mark.transactional_id}, group {mark.group})"
        )


@dataclass(frozen=True)
class TransactionalSinks(Sinks):
    """Opens a TransactionalSink for each task of Spark.

    connection: see connection_settings. name: of the query. topic: one that the query reads, with the most partitions,
    to keep the numbers; partitions: how many it has.
    """

    connection: Mapping[str, Any]
    name: str
    topic: str
    partitions: int

    @override
    def of_tasks(self) -> KafkaSink:
        number = _context().partitionId()  # which tasks are in it is fixed by the checkpoint
        rest, partition = divmod(number, self.partitions)
        return self._sink(f"{self.name}-{number}", f"{self.name}-{rest}", self.topic, partition)

    @override
    def of_partition(self, topic: str, partition: int) -> KafkaSink:
        return self._sink(f"{self.name}-{topic}-{partition}", f"{self.name}-0", topic, partition)

    @override
    def finish(self, sink: KafkaSink) -> None:
        sink.finish()  # the next micro-batch of this process may be that of another task

    def _sink(self, transactional_id: str, group: str, topic: str, partition: int) -> KafkaSink:
        context = _context()
        query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query_id is None or batch_id is None:
            raise StreamsError(f"Spark does not say which micro-batch it runs ({QUERY_ID}, {BATCH_ID})")
        mark = BatchMark(transactional_id, group, topic, partition, query_id, int(batch_id))
        return self._opened(lambda: TransactionalSink(self.settings, self.connection, mark))


def _context() -> TaskContext:
    found = TaskContext.get()
    assert found is not None, "it runs on an executor"
    return found
