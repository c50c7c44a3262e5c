"""Writes the output of a micro-batch to Kafka once, although Spark may run a micro-batch, or one of its tasks, again.

The output of a Spark task in a micro-batch is one transaction, which also commits the number of the micro-batch as an
offset of a consumer group. A later attempt finds the number there and writes nothing. It may rely on that, because
Spark repeats a micro-batch with the same records, the same state and the same time. (Kafka Streams commits offsets of
its input in the same way, KIP-447.)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, cast

from pyspark import TaskContext
from typing_extensions import override

from penstock.clients.errors import TransactionError
from penstock.clients.group.offsets_reader import GroupOffsetsReader
from penstock.clients.librdkafka import as_writer
from penstock.clients.network_settings import NetworkSettings, network_settings
from penstock.clients.protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from penstock.clients.writing.writer import TransactionalWriter
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition

from .kafka_sink import KafkaSink, Sinks, idle, task_error

log = logging.getLogger(__name__)

#: Local properties of Spark's MicroBatchExecution and StreamExecution. A query keeps its id in the checkpoint.
BATCH_ID, QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"
#: Time limit for one request of a transaction, which is repeated until then.
CALL_SECONDS = 60
#: By default, for transactions as long as micro-batches. Brokers allow 15 minutes (transaction.max.timeout.ms).
TRANSACTION_TIMEOUT_MS = 300_000


def transaction_config(config: StreamsConfig) -> StreamsConfig:
    """Return a configuration with Spark's default for transaction.timeout.ms."""
    if not config.is_default("transaction.timeout.ms"):
        return config
    return config.with_overrides({"transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}, "default on Spark")


@dataclass(frozen=True)
class BatchMark:
    """Where the number of the last micro-batch that was written is kept: as an offset of group for one partition.

    query_id: Spark's. A number of another query means nothing.
    """

    transactional_id: str
    group: str
    at: TopicPartition
    query_id: str
    batch_id: int

    def committed(self) -> OffsetAndMetadata:
        """Return the offset to commit with this micro-batch: it proves that the micro-batch is written."""
        return OffsetAndMetadata(self.batch_id + 1, self.query_id)

    def is_covered_by(self, found: OffsetAndMetadata | None) -> bool:
        """Return whether a committed offset proves that this micro-batch is written."""
        return found is not None and found.metadata == self.query_id and found.offset > self.batch_id


class TransactionalSink(KafkaSink):
    """One transaction after the other, each of a micro-batch and task of Spark. network: to ask for offsets."""

    def __init__(self, writer: TransactionalWriter, network: NetworkSettings) -> None:
        super().__init__(writer)
        self._transactions = writer
        self._network = network
        self._offsets: GroupOffsetsReader | None = None
        self._mark: BatchMark
        self.is_written = False

    def restart(self, transactional_id: str) -> bool:
        """See TransactionalWriter.restart."""
        return self._transactions.restart(transactional_id)

    def begin(self, mark: BatchMark) -> None:
        """Begin the transaction of a micro-batch, unless it is written. A sink that cannot is closed.

        This ends the transaction of an earlier attempt, and no such attempt can write any more (KIP-98), also if this
        process has made the last one. Raises StreamsError if the brokers refuse the transaction,
        BrokerUnavailableError if they do not respond.
        """
        self._mark = mark
        try:
            self._transactions.init_transactions(CALL_SECONDS)
            # Waits for a transaction of the group whose end is under way (KIP-447).
            self.is_written = mark.is_covered_by(self._offsets_of(mark.group).committed([mark.at])[mark.at])
            if not self.is_written:
                self._transactions.begin_transaction()
        except TransactionError as error:
            self.close()
            raise task_error(self._named("begin"), error) from error
        except StreamsError:
            self.close()
            raise

    def _offsets_of(self, group: str) -> GroupOffsetsReader:
        if self._offsets is None or self._offsets.group_id != group:
            self._close_offsets()
            self._offsets = GroupOffsetsReader(group, self._network, CALL_SECONDS * 1000)
        return self._offsets

    def _close_offsets(self) -> None:
        if self._offsets is not None:
            self._offsets.close()

    @override
    def close(self) -> None:
        super().close()
        self._close_offsets()

    @override
    def send(self, topic: str, *record: Any) -> None:
        """Send a record, unless an earlier attempt has sent it."""
        if not self.is_written:
            super().send(topic, *record)

    @override
    def finish(self) -> None:
        """Commit. Raises as KafkaSink.finish does: then nothing is visible, unless only the commit got no response."""
        if not self.is_written:
            self._commit()

    def _commit(self) -> None:
        mark, writer = self._mark, self._transactions
        try:
            super().finish()
            writer.send_offsets_to_transaction({mark.at: mark.committed()}, GroupMetadata(mark.group), CALL_SECONDS)
            writer.commit_transaction(CALL_SECONDS)
        except TransactionError as error:
            if error.can_abort:
                self._abort()
            raise task_error(self._named("commit"), error) from error
        except StreamsError:
            self._abort()
            raise

    def _abort(self) -> None:
        """End the transaction now, for its readers' sake. If that fails, the next attempt ends it."""
        try:
            self._transactions.abort_transaction(CALL_SECONDS)
        except TransactionError as error:
            log.warning("%s: %s", self._named("abort"), error)

    def _named(self, what: str) -> str:
        mark = self._mark
        return (
            f"Micro-batch {mark.batch_id} could not {what} its transaction for {mark.at} "
            f"(transactional.id {mark.transactional_id}, group {mark.group})"
        )


@dataclass(frozen=True)
class TransactionalSinks(Sinks):
    """Opens a TransactionalSink for each task of Spark.

    name: of the query. topic: one that the query reads, with the most partitions, to keep the numbers; partitions: how
    many it has.
    """

    name: str
    topic: str
    partitions: int

    @override
    def of_tasks(self) -> KafkaSink:
        number = _context().partitionId()  # which tasks are in it is fixed by the checkpoint
        rest, partition = divmod(number, self.partitions)
        return self._sink(f"{self.name}-{number}", f"{self.name}-{rest}", TopicPartition(self.topic, partition))

    @override
    def of_partition(self, topic: str, partition: int) -> KafkaSink:
        return self._sink(f"{self.name}-{topic}-{partition}", f"{self.name}-0", TopicPartition(topic, partition))

    def _sink(self, transactional_id: str, group: str, at: TopicPartition) -> KafkaSink:
        context = _context()
        query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query_id is None or batch_id is None:
            raise StreamsError(f"Spark does not say which micro-batch it runs ({QUERY_ID}, {BATCH_ID})")
        return self.opened(BatchMark(transactional_id, group, at, query_id, int(batch_id)))

    def opened(self, mark: BatchMark) -> TransactionalSink:
        """Return the sink of a micro-batch and task of Spark. Raises as TransactionalSink.begin, and ConfigError."""
        sink = cast("TransactionalSink | None", idle.take(self._settings))
        if sink is not None and not sink.restart(mark.transactional_id):
            sink.close()
            sink = None
        if sink is None:
            client = self._client_id, mark.transactional_id
            writer = cast("TransactionalWriter", as_writer(self._supplier.get_producer(*client)))
            sink = TransactionalSink(writer, network_settings(self._supplier.producer_settings(*client)))
        sink.begin(mark)
        return sink


def _context() -> TaskContext:
    found = TaskContext.get()
    assert found is not None, "it runs on an executor"
    return found
