"""The producer of a stream thread and its transaction (Kafka Streams: StreamsProducer).

A record that could not be written is learned of later, from librdkafka's report. The first such error is kept and
raised by every send, flush and commit from then on: no offset behind a lost record is ever committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from penstock.topology.errors import StreamsError, TaskMigratedError
from penstock.topology.exception_handlers import FailedProcessingError
from penstock.topology.records import TopicPartition

from .log_context import PrefixedLogger
from .membership.membership import OffsetAndMetadata

#: Another producer with our transactional id, or a new generation of the group, has taken over.
FENCED = frozenset(
    (
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
    )
)
#: How long one wait for room in the local queue lasts, in seconds; the send is then tried again.
QUEUE_FULL_POLL_SECONDS = 0.05
#: How long one request of a transaction may take before it is repeated, in seconds.
TRANSACTION_REQUEST_SECONDS = 30.0

#: How long records that nobody waits for any more may take when the client is closed, in seconds.
CLOSE_SECONDS = 5.0

#: Makes the client: called with settings that this class needs on top of the configuration.
MakeProducer = Callable[[Mapping[str, Any]], Any]
#: Decides on a record that could not be written: (message, error) -> True to go on without it.
ProductionExceptionHandler = Callable[[Any, KafkaError], bool]


def fail_on_production_error(message: Any, error: KafkaError) -> bool:
    """Never go on: ``production.exception.handler=fail``, the default."""
    return False


class StreamsProducer:
    """One producer for all tasks of a thread.

    transactional: exactly_once_v2. Its transaction then spans all tasks, and is committed with their offsets.
    """

    def __init__(
        self,
        make_producer: MakeProducer,
        log: PrefixedLogger,
        *,
        transactional: bool = False,
        handler: ProductionExceptionHandler = fail_on_production_error,
    ) -> None:
        #: Whether an error waits to be raised; what sends look at.
        self.errors: list[StreamsError] = []
        self.transactional = transactional
        self.in_transaction = False
        self.dropped = 0
        self._log = log
        self._handler = handler
        self._make_producer = make_producer
        self._producer = self._new_producer()
        if transactional:
            self._initialize_transactions()

    @property
    def produce(self) -> Callable[..., None]:
        """The client's own produce; record_collector.py says how it is called."""
        produce: Callable[..., None] = self._producer.produce
        return produce

    def produce_later(self, *record: Any) -> None:
        """Produce what raised BufferError, as soon as the local queue has room."""
        while True:
            self._producer.poll(QUEUE_FULL_POLL_SECONDS)
            self.check()
            try:
                self._producer.produce(*record)
                return
            except BufferError:
                continue

    def check(self) -> None:
        """Raise the first error that was reported, if there is one, until forget_errors is called."""
        if self.errors:
            raise self.errors[0]

    def forget_errors(self) -> None:
        """Start afresh: the tasks whose records were lost have been closed without a commit."""
        self.errors.clear()

    def poll(self) -> None:
        """Take in reports of failure without waiting."""
        self._producer.poll(0)
        self.check()

    def flush(self) -> None:
        """Wait until every record is acknowledged.

        Raises StreamsError naming topic and partition of the first record that was not, TaskMigratedError if fenced.
        """
        self._producer.flush()
        self.check()

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has; raises StreamsError if there is no such topic."""
        metadata = self._producer.list_topics(topic, TRANSACTION_REQUEST_SECONDS).topics.get(topic)
        if metadata is None or metadata.error is not None or not metadata.partitions:
            raise StreamsError(
                f"Could not get partition information for topic {topic}. This can happen if the topic does not exist."
            )
        return len(metadata.partitions)

    def begin_transaction(self) -> None:
        """Start the transaction unless it is open; without exactly-once nothing happens."""
        if self.transactional and not self.in_transaction:
            self._guard("begin a transaction", lambda _timeout: self._producer.begin_transaction())
            self.in_transaction = True

    def commit_transaction(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group_metadata: bytes) -> None:
        """Commit all records of the transaction and these consumed offsets together.

        group_metadata: the member's generation, by which the broker refuses a zombie (KIP-447). Raises
        TaskMigratedError if it does, StreamsError for anything else; the transaction then has to be aborted.
        """
        self.begin_transaction()
        committed = [
            confluent_kafka.TopicPartition(p.topic, p.partition, at.offset, at.metadata) for p, at in offsets.items()
        ]
        send_offsets, commit = self._producer.send_offsets_to_transaction, self._producer.commit_transaction
        self._guard("send offsets to the transaction", send_offsets, committed, group_metadata)
        self._guard("commit the transaction", commit)
        self.in_transaction = False
        self.check()

    def abort_transaction(self) -> None:
        """Undo all records since the last commit; a fenced producer is replaced by a new one."""
        if not self.in_transaction:
            return
        self.in_transaction = False
        self._log.info("Aborting the transaction")
        try:
            self._producer.abort_transaction(TRANSACTION_REQUEST_SECONDS)
        except KafkaException as error:
            self._log.warning("The transaction could not be aborted, making a new producer: %s", error)
            self._producer = self._new_producer()
            self._initialize_transactions()
        self.errors.clear()

    def close(self) -> None:
        """Give up an open transaction, wait a little for what is still on its way, and end the client.

        After a commit nothing is; without one it does not matter.
        """
        self.abort_transaction()
        self._producer.flush(CLOSE_SECONDS)
        self._producer.purge()

    def _new_producer(self) -> Any:
        # Reports of success would cost half as much as the send itself; flush() tells the same of all records at once.
        return self._make_producer({"on_delivery": self._on_error, "delivery.report.only.error": True})

    def _initialize_transactions(self) -> None:
        self._guard("initialize transactions", self._producer.init_transactions)

    def _guard(self, what: str, call: Callable[..., Any], *arguments: Any) -> None:
        """Call, repeat what can be repeated, and translate what cannot."""
        while True:
            try:
                call(*arguments, TRANSACTION_REQUEST_SECONDS)
                return
            except KafkaException as exception:
                error: KafkaError = exception.args[0]
                if error.retriable():
                    self._log.warning("Failed to %s, trying again: %s", what, error)
                    continue
                if error.code() in FENCED:
                    raise TaskMigratedError(f"Failed to {what}: the producer is fenced ({error})") from exception
                raise StreamsError(f"Failed to {what}: {error}") from exception

    def _on_error(self, error: KafkaError | None, message: Any) -> None:
        """Note the failure of one record; librdkafka calls this from within poll, flush and the transaction's calls."""
        if error is None or self.errors:
            return
        where = f"{message.topic()} partition {message.partition()}"
        text = f"Error encountered sending record to topic {where} due to: {error}"
        if error.code() in FENCED:
            self.errors.append(TaskMigratedError(f"{text}. The producer is fenced: its tasks have moved."))
        elif self._handler(message, error):
            self.dropped += 1
            self._log.error("%s. The exception handler chose to CONTINUE processing in spite of this error.", text)
        else:
            self.errors.append(
                FailedProcessingError(
                    f"{text}. No offset is committed; what was read since the last commit is read again."
                )
            )
