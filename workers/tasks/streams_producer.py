"""The producer of a stream thread and its transaction (Kafka Streams: StreamsProducer).

A failed request of a transaction, except the first, is never retried with the same producer. A request that timed out
may have reached the broker, which may have committed or aborted. So the thread closes its tasks (TaskMigratedError) and
makes a new producer. Its initialization makes the broker complete the old transaction, and the tasks then start from
the committed offsets (Kafka Streams does this with TaskCorruptedException).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from penstock.clients.clock import Clock, SystemClock
from penstock.clients.errors import (
    BrokerError,
    ClientError,
    ErrorCode,
    Kind,
    RetriableError,
    TransactionError,
    UnusableClientError,
)
from penstock.clients.group.membership import RetriableCommitError
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from penstock.clients.throttle import Health
from penstock.clients.writing.writer import Lost, Source, TransactionalWriter, Writer
from penstock.kernel.sinks import RecordTaker
from penstock.topology.errors import BrokerUnavailableError, ConfigError, StreamsError, TaskMigratedError
from penstock.topology.records import RawRecord, TaskId, TopicPartition

from .record_collector import FENCED, ProductionExceptionHandler, RecordCollector, fail_on_production_error
from .sink_topics import SinkTopics

#: Time limit for one request of a transaction, in seconds; less if the transaction times out earlier.
TRANSACTION_REQUEST_SECONDS = 30.0
#: Time limit for one attempt to initialize transactions, in seconds; a warning is logged after each.
INITIALIZE_SECONDS = 10.0
#: How often a flush looks whether the membership is in doubt.
DOUBT_SECONDS = 0.25
#: Time limit for the last records when the client is closed, in seconds; their tasks are already closed.
CLOSE_SECONDS = 5.0

#: Makes the client.
MakeWriter = Callable[[], Writer]


class StreamsProducer:
    """One producer for all tasks of a thread.

    topics: metadata of the topics written to. transactional: exactly_once_v2; make_writer then returns a
    TransactionalWriter, whose transaction spans all tasks and is committed with their offsets. keeps_sources: see
    asks_for_sources. transaction_timeout_ms: ``transaction.timeout.ms``. timeout_ms: how long the initialization of
    transactions may fail (``task.timeout.ms``).

    With exactly-once, call initialize() until it returns True before anything else.
    """

    def __init__(
        self,
        make_writer: MakeWriter,
        log: PrefixedLogger,
        *,
        topics: SinkTopics,
        transactional: bool = False,
        handler: ProductionExceptionHandler = fail_on_production_error,
        keeps_sources: bool = False,
        clock: Clock | None = None,
        transaction_timeout_ms: int = 60_000,
        timeout_ms: int = 300_000,
        in_doubt: Callable[[], bool] = lambda: False,
    ) -> None:
        self.transactional = transactional
        #: Whether tasks pass the source of each record; see Writer.produce.
        self.keeps_sources = keeps_sources
        self.in_transaction = False
        #: Number of aborted transactions since the thread started.
        self.transactions_aborted = 0
        self._log = log
        self._clock = clock or SystemClock()
        self._topics = topics
        self._timeout_ms = timeout_ms
        self._in_doubt = in_doubt
        self._request_seconds = min(TRANSACTION_REQUEST_SECONDS, transaction_timeout_ms / 1000)
        self._make_writer = make_writer
        self._writer = make_writer()
        #: Handles records that could not be written.
        self.collector = RecordCollector(self._produce, topics, log, handler, transactional)
        #: When to stop trying to initialize transactions; None while that is not under way.
        self._initialize_until_ms: int | None = None

    @property
    def _transactions(self) -> TransactionalWriter:
        return cast("TransactionalWriter", self._writer)

    def _produce(self, *record: Any) -> None:
        self._writer.produce(*record)

    @property
    def produce(self) -> Callable[..., None]:
        """The client's produce; see Writer."""
        return self._writer.produce

    @property
    def records(self) -> RecordTaker | None:
        """Accepts ordinary records without a call of produce; see Writer."""
        return self._writer.records

    def health(self) -> Health:
        """Return what the client waits for, and its throttle times; see Writer."""
        return self._writer.health()

    def send_due(self) -> None:
        """Send due batches, if no other thread does; does not block. Raises as poll() does."""
        self._serve(self._writer.send_due)

    def wait_ms(self, limit_ms: int) -> int:
        """Return how long the thread may block before it must call send_due(), up to a limit, in ms."""
        return int(min(limit_ms, self._writer.wait_ms()))

    def poll(self) -> None:
        """Handle failure reports, without blocking; drop outdated partition counts."""
        self._topics.forget_old_counts()
        self._serve(self._writer.poll)

    def flush(self) -> None:
        """Wait until every record is acknowledged.

        Raises StreamsError with topic and partition of the first record that was not, TaskMigratedError if the broker
        was unavailable for too long or the producer is fenced, and RetriableCommitError if the membership is in doubt
        by then: repeated requests could put an older value behind that of a new owner. With exactly-once, brokers
        refuse them.
        """
        letters = -1
        while letters != self.collector.letters:  # those about records lost in this flush must be flushed, too
            letters = self.collector.letters
            self._serve(self._flush)

    def _flush(self) -> None:
        while not self._writer.flush(DOUBT_SECONDS):
            if not self.transactional and self._in_doubt():
                raise RetriableCommitError(
                    "Records are not acknowledged yet, and the session of this member may have ended. Commit again "
                    "when the group has confirmed that it still owns its tasks."
                )

    def refused(
        self, error: ClientError, record: RawRecord, task_id: TaskId | None, source: Source | None = None
    ) -> None:
        """Handle a record that produce refused immediately: return to skip it, or raise."""
        self._serve(self._writer.poll)  # an earlier report may be the cause
        if isinstance(error, UnusableClientError) or error.kind in FENCED:
            self.collector.has_lost_client = True
            if self.transactional and error.kind not in FENCED:  # its transaction has failed, for an unknown reason
                self.check_changelogs()
            raise TaskMigratedError(f"The producer accepts no more records ({error}).") from error
        self.collector.refused(Lost(error, record, source, is_refused=True), task_id)

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has; see SinkTopics.partition_count."""
        return self._topics.partition_count(topic)

    def check_changelogs(self) -> None:
        """Raise if a changelog topic was deleted; see RecordCollector.check_changelogs."""
        self.collector.check_changelogs()

    # -- the transaction

    def begin_transaction(self) -> None:
        """Begin a transaction unless one is open; does nothing without exactly-once."""
        if self.transactional and not self.in_transaction:
            self._attempt("begin a transaction", self._transactions.begin_transaction)
            self.in_transaction = True

    def commit_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group_metadata: GroupMetadata
    ) -> None:
        """Commit the transaction: all its records together with these consumed offsets.

        group_metadata: the member's generation, by which the broker fences a zombie (KIP-447). Raises TaskMigratedError
        if it is fenced, or if the broker did not answer in time; StreamsError if a retry cannot help. The transaction
        must then be aborted, and the tasks closed.
        """
        self.begin_transaction()
        # Records first: librdkafka may hang when offsets are sent while the broker is unavailable.
        self.flush()
        send_offsets, commit = self._transactions.send_offsets_to_transaction, self._transactions.commit_transaction
        self._attempt("send offsets to the transaction", send_offsets, offsets, group_metadata, self._request_seconds)
        self._attempt("commit the transaction", commit, self._request_seconds)
        self.in_transaction = False
        self.collector.note(self._writer.take_lost())
        self.collector.check()

    def abort_transaction(self, last: bool = False) -> None:
        """Abort all records since the last commit; all tasks of the thread must then be closed.

        A failed producer is replaced, unless this is the last call. Raises BrokerUnavailableError if the new one cannot
        be initialized. Without a transaction, records not sent yet are dropped (by Penstock's own writer only). All
        errors are cleared.
        """
        self.transactions_aborted += self.in_transaction
        if self.in_transaction and not self.collector.has_lost_client:
            self._log.info("Aborting the transaction")
            try:
                self._transactions.abort_transaction(self._request_seconds)
            except TransactionError as error:
                self._log.warning("The transaction could not be aborted: %s", error)
                self.collector.has_lost_client = True
        if self.collector.has_lost_client and not last:
            self._replace()
        elif not last:
            self._writer.drop()
        self.in_transaction = False
        self._writer.take_lost()
        self.collector.forget_errors()

    def close(self) -> None:
        """Abort an open transaction, wait briefly for records in flight, and close the client.

        After a commit there are none; without a commit, losing them does no harm.
        """
        self.abort_transaction(last=True)
        if not self.collector.has_lost_client:
            try:
                self._writer.flush(CLOSE_SECONDS)
            except (ClientError, StreamsError) as error:
                self._log.warning("The last records were dropped: %s", error)
        self._writer.close()

    def _replace(self) -> None:
        self._log.info("Making a new producer")
        self._writer.close()
        self._writer = self._make_writer()
        self.collector.has_lost_client = False
        while not self.initialize():
            pass

    def initialize(self) -> bool:
        """Make one attempt to initialize transactions; return whether it succeeded. True without exactly-once.

        An attempt takes up to INITIALIZE_SECONDS. Raises ConfigError if the broker refuses the transaction timeout,
        StreamsError if another attempt cannot help, BrokerUnavailableError after failures for timeout_ms.
        """
        if not self.transactional:
            return True
        if self._initialize_until_ms is None:
            self._initialize_until_ms = self._clock.monotonic_ms() + self._timeout_ms
        try:
            self._transactions.init_transactions(INITIALIZE_SECONDS)
        except TransactionError as error:
            self._judge_initialization(error, self._initialize_until_ms)
            self._writer.close()
            self._writer = self._make_writer()
            return False
        self._initialize_until_ms = None
        return True

    def _judge_initialization(self, error: TransactionError, deadline_ms: int) -> None:
        """Return to retry, or raise."""
        cause = error.cause
        if isinstance(cause, BrokerError) and cause.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise ConfigError(
                "The broker refuses transaction.timeout.ms: it is above the broker's transaction.max.timeout.ms"
                f" ({error}). Lower the former or raise the latter."
            ) from error
        if not isinstance(cause, RetriableError):
            raise StreamsError(f"Failed to initialize transactions: {error}") from error
        hint = self._topics.transaction_log_hint()
        if self._clock.monotonic_ms() >= deadline_ms:
            raise BrokerUnavailableError(
                f"Transactions could not be initialized within {self._timeout_ms} ms (task.timeout.ms): {error}. {hint}"
            ) from error
        self._log.warning("Failed to initialize transactions, trying again: %s. %s", error, hint)

    def _attempt(self, what: str, call: Callable[..., object], *arguments: object) -> None:
        """Call once, and translate errors."""
        try:
            call(*arguments)
        except TransactionError as error:
            self._serve(self._writer.poll)  # the failed record's report has more details
            if error.kind is Kind.FORBIDDEN or _is_permanent(error.cause):
                raise StreamsError(f"Failed to {what}: {error}") from error
            if error.kind is Kind.MISSING:  # of some record of the transaction
                self.check_changelogs()
            self.collector.has_lost_client |= not error.can_abort
            reason = "the producer is fenced" if error.kind in FENCED else "the transaction is aborted"
            raise TaskMigratedError(f"Failed to {what}: {reason} ({error})") from error

    # -- reports of the client

    def _serve(self, call: Callable[[], None]) -> None:
        """Call, handle the client's reports, and raise the resulting error."""
        try:
            call()
        except ClientError as error:
            self.collector.note_failure(error)
        self.collector.note(self._writer.take_lost())
        self.collector.check()


def _is_permanent(error: ClientError) -> bool:
    """Whether retries cannot help."""
    codes = (ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.UNSUPPORTED_VERSION)
    return isinstance(error, BrokerError) and error.code in codes
