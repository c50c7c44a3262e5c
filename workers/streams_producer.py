"""The producer of a stream thread and its transaction (Kafka Streams: StreamsProducer).

A record that could not be written is learned of later, from the client's report. The first such error is kept and
raised by every send, flush and commit from then on: no offset behind a lost record is ever committed.

What goes wrong with a transaction is never tried again in place, unlike its beginning. A request that timed out may
have reached the broker, which may have decided either way. So the thread gives its tasks
up (TaskMigratedError) and takes a new producer: its initialization makes the broker decide the old transaction, one way
or the other, and the tasks then start from what is committed (Kafka Streams does so with TaskCorruptedException).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from penstock.clients.clock import Clock, SystemClock
from penstock.clients.log_context import PrefixedLogger, listed
from penstock.clients.writing.kafka_producer import KafkaProducer, NotProducibleError
from penstock.clients.writing.transaction_requests import GroupMetadata
from penstock.clients.writing.transactional_producer import kafka_producer_for
from penstock.kernel import produce as compiled
from penstock.topology.errors import BrokerUnavailableError, ConfigError, StreamsError, TaskMigratedError
from penstock.topology.exception_handlers import FailedProcessingError, ProducerRecord
from penstock.topology.records import RawRecord, TaskId, TopicPartition

from .changelog_bounds import CHANGELOG_DELETED
from .membership.membership import OffsetAndMetadata
from .producer_errors import (
    FENCED,
    MEMBER_FENCED,
    MISSING_TOPIC,
    PERMANENT,
    PURGED,
    TRANSIENT,
    UNUSABLE,
    checked,
)
from .sink_topics import CHANGELOG_SUFFIX, SinkTopics

#: How long one wait for room in the local queue lasts, in seconds; the send is then tried again.
QUEUE_FULL_POLL_SECONDS = 0.05
#: How long one request of a transaction may take, in seconds; less if the broker ends the transaction earlier.
TRANSACTION_REQUEST_SECONDS = 30.0
#: How long one try to initialize transactions may take, in seconds: between two of them a warning says what is wrong.
INITIALIZE_SECONDS = 10.0
#: How long records that nobody waits for any more may take when the client is closed, in seconds.
CLOSE_SECONDS = 5.0

#: librdkafka takes timestamp 0 for "now", which would move a record from 1970 to today; 1 ms after it is closest.
NOW, EARLIEST = 0, 1

#: Makes the client: called with settings that this class needs on top of the configuration.
MakeProducer = Callable[[Mapping[str, Any]], Any]


class Decision(NamedTuple):
    """Whether to go on without a record that could not be written, and what to write in its place (KIP-1034)."""

    goes_on: bool
    dead_letters: Sequence[ProducerRecord] = ()


#: Decides on a record that could not be written: (message, error, task or None).
ProductionExceptionHandler = Callable[[Any, KafkaError, TaskId | None], Decision]


def fail_on_production_error(message: Any, error: KafkaError, task_id: TaskId | None) -> Decision:
    """Never go on: ``production.exception.handler=fail``, the default."""
    return Decision(goes_on=False)


class StreamsProducer:
    """One producer for all tasks of a thread.

    transactional: exactly_once_v2. Its transaction then spans all tasks, and is committed with their offsets.
    transaction_timeout_ms: ``transaction.timeout.ms``. timeout_ms: how long the broker may refuse or fail to initialize
    transactions (``task.timeout.ms``).

    Raises ConfigError if the broker refuses the transaction's timeout, BrokerUnavailableError after timeout_ms.
    """

    def __init__(
        self,
        make_producer: MakeProducer,
        log: PrefixedLogger,
        *,
        topics: SinkTopics,
        transactional: bool = False,
        handler: ProductionExceptionHandler = fail_on_production_error,
        clock: Clock | None = None,
        transaction_timeout_ms: int = 60_000,
        timeout_ms: int = 300_000,
    ) -> None:
        #: What librdkafka has reported and nobody has judged yet, or what is to be raised; what sends look at.
        self.errors: list[tuple[KafkaError, Any]] = []
        self._error: StreamsError | None = None
        self.transactional = transactional
        self.in_transaction = False
        self.dropped = 0
        self._writers: dict[str, set[TaskId]] = {}
        self._dead_letter_topics: set[str] = set()
        #: Letters about records that could not be written, by the topic that they went to.
        self.dead_letters: Counter[str] = Counter()
        self._log = log
        self._handler = handler
        self._clock = clock or SystemClock()
        self._topics = topics
        self._timeout_ms = timeout_ms
        self._request_seconds = min(TRANSACTION_REQUEST_SECONDS, transaction_timeout_ms / 1000)
        self._make_producer = make_producer
        self._librdkafka_only = False
        #: Whether the client can only be replaced: it is fenced, or nobody knows what became of its transaction.
        self._unusable = False
        self._producer = self._new_producer()
        if transactional:
            try:
                self._initialize_transactions()
            except BaseException:
                self._producer.purge()
                raise

    @property
    def produce(self) -> Callable[..., None]:
        """The client's own produce; record_collector.py says how it is called."""
        produce: Callable[..., None] = self._producer.produce
        return produce

    def send_due(self) -> None:
        """Send what is due where librdkafka has no thread that does; does not wait. Raises as poll() does."""
        if isinstance(self._producer, KafkaProducer):
            self._serve(self._producer.poll, 0)
            self.check()

    def wait_ms(self, limit_ms: int) -> int:
        """Return how long the thread may wait for other things until poll() is to be called, up to a limit, in ms."""
        if not isinstance(self._producer, KafkaProducer):
            return limit_ms
        return int(min(limit_ms, self._producer.wait_ms()))

    def produce_later(self, *record: Any) -> None:
        """Produce what raised BufferError, as soon as the local queue has room."""
        while True:
            self._serve(self._producer.poll, QUEUE_FULL_POLL_SECONDS)
            self.check()
            try:
                self._producer.produce(*record)
                return
            except BufferError:
                continue

    def refused(self, exception: KafkaException, record: RawRecord, task_id: TaskId | None) -> None:
        """Deal with a record that produce has refused at once: return if it is to be left out, else raise.

        It never was in the transaction, so that the handler may leave it out with exactly-once too.
        """
        error: KafkaError = exception.args[0]
        self._serve(self._producer.poll, 0)  # what was reported meanwhile may be the reason
        self.check()
        if error.code() in UNUSABLE:
            self._unusable = True
            if self.transactional and error.code() not in FENCED:  # its transaction has failed, it does not say why
                self.check_changelogs()
            raise TaskMigratedError(f"The producer takes no records any more ({error}).") from exception
        if self._may_go_on(record, error, task_id):
            self._leave_out(self._failure(error, record, task_id))
        else:
            raise FailedProcessingError(self._failure(error, record, task_id)) from exception

    def register_writer(self, task_id: TaskId, topics: Collection[str]) -> None:
        """Note that a task writes to these topics; errors name it."""
        for topic in topics:
            self._writers.setdefault(topic, set()).add(task_id)

    def check(self) -> None:
        """Raise the first error that was reported, if there is one, until forget_errors is called."""
        while self.errors:
            if self._error is None:
                self._error = self._judge(*self.errors[0])
            if self._error is not None:
                raise self._error
            del self.errors[0]

    def forget_errors(self) -> None:
        """Start afresh: the tasks whose records were lost have been closed without a commit."""
        self._topics.forget_counts()  # a topic that was recreated may be the reason
        self.errors.clear()
        self._error = None

    def poll(self) -> None:
        """Take in reports of failure without waiting; forget, now and then, how many partitions topics had."""
        self._topics.forget_old_counts()
        self._serve(self._producer.poll, 0)
        self.check()

    def flush(self) -> None:
        """Wait until every record is acknowledged.

        Raises StreamsError naming topic and partition of the first record that was not, TaskMigratedError if the
        broker was away for too long or the producer is fenced.
        """
        letters = -1
        while letters != self.dead_letters.total():  # those about what this flush has found lost are records, too
            letters = self.dead_letters.total()
            self._serve(self._producer.flush)
            self.check()

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has; see SinkTopics.partition_count."""
        return self._topics.partition_count(topic)

    # -- the transaction

    def begin_transaction(self) -> None:
        """Start the transaction unless it is open; without exactly-once nothing happens."""
        if self.transactional and not self.in_transaction:
            self._attempt("begin a transaction", lambda _timeout: self._producer.begin_transaction())
            self.in_transaction = True

    def commit_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group_metadata: GroupMetadata
    ) -> None:
        """Commit all records of the transaction and these consumed offsets together.

        group_metadata: the member's generation, by which the broker refuses a zombie (KIP-447). Raises
        TaskMigratedError if it does, or if the broker did not answer in time; StreamsError for what another try cannot
        mend. The transaction then has to be aborted, and the tasks be closed.
        """
        self.begin_transaction()
        committed = [
            confluent_kafka.TopicPartition(p.topic, p.partition, at.offset, at.metadata, at.leader_epoch)
            for p, at in offsets.items()
        ]
        # The records first: librdkafka may hang when offsets are sent while the broker is away.
        self.flush()
        send_offsets, commit = self._producer.send_offsets_to_transaction, self._producer.commit_transaction
        self._attempt("send offsets to the transaction", send_offsets, committed, group_metadata)
        self._attempt("commit the transaction", commit)
        self.in_transaction = False
        self.check()

    def abort_transaction(self, last: bool = False) -> None:
        """Undo all records since the last commit; all tasks of the thread have to be closed then.

        A producer that cannot go on is replaced, unless this is the last call. Raises BrokerUnavailableError if the
        new one cannot be initialized. Without a transaction what is not on its way yet is not sent any more, where
        Penstock writes itself.
        """
        if self.in_transaction and not self._unusable:
            self._log.info("Aborting the transaction")
            try:
                checked(self._producer.abort_transaction, self._request_seconds)
            except KafkaException as error:
                self._log.warning("The transaction could not be aborted: %s", error)
                self._unusable = True
        if self._unusable and not last:
            self._replace()
        elif isinstance(self._producer, KafkaProducer) and not last:
            self._producer.drop()
        self.in_transaction = False
        self.forget_errors()

    def close(self) -> None:
        """Give up an open transaction, wait a little for what is still on its way, and end the client.

        After a commit nothing is; without one it does not matter.
        """
        self.abort_transaction(last=True)
        if not self._unusable:
            self._serve(self._producer.flush, CLOSE_SECONDS)
        self._producer.purge()

    def _replace(self) -> None:
        self._log.info("Making a new producer")
        self._producer.purge()
        self._producer = self._new_producer()
        self._unusable = False
        if self.transactional:
            self._initialize_transactions()

    def _new_producer(self) -> Any:
        # Reports of success would cost half as much as the send itself; flush() tells the same of all records at once.
        # A client that was given up may still report; nobody is to take that for the next one's.
        self.errors = []
        callback = partial(self._on_error, self.errors)
        settings = {"on_delivery": callback, "delivery.report.only.error": True}
        client = self._make_producer(settings if compiled is None else settings | compiled.SETTINGS)
        own = None if compiled is None or self._librdkafka_only else kafka_producer_for(client, self._clock, self._log)
        producer = client if own is None else own
        #: Timestamps that stand for now, and for the beginning of time.
        self.now = NOW if own is None else own.NOW
        self.earliest = EARLIEST if own is None else own.EARLIEST
        #: Takes most records past the client's produce; None: it has all of them.
        self.records: Any = None
        if compiled is not None:
            self.records = compiled.record_producer_for(client) if own is None else own.records
        return producer

    def _initialize_transactions(self) -> None:
        deadline_ms = self._clock.monotonic_ms() + self._timeout_ms
        while True:
            try:
                checked(self._producer.init_transactions, INITIALIZE_SECONDS)
                return
            except KafkaException as exception:
                error: KafkaError = exception.args[0]
                if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                    raise ConfigError(
                        "The broker refuses transaction.timeout.ms: it is above the broker's transaction.max.timeout.ms"
                        f" ({error.str()}). Lower the one or raise the other."
                    ) from exception
                if error.code() == KafkaError.UNSUPPORTED_VERSION and not self._librdkafka_only:
                    self._librdkafka_only = True
                elif not error.retriable():
                    raise StreamsError(f"Failed to initialize transactions: {error}") from exception
                hint = self._topics.transaction_log_hint()
                if self._clock.monotonic_ms() >= deadline_ms:
                    raise BrokerUnavailableError(
                        f"Transactions could not be initialized within {self._timeout_ms} ms (task.timeout.ms): "
                        f"{error.str()}. {hint}"
                    ) from exception
                self._log.warning("Failed to initialize transactions, trying again: %s. %s", error.str(), hint)
                self._producer.purge()
                self._producer = self._new_producer()

    def _attempt(self, what: str, call: Callable[..., Any], *arguments: Any) -> None:
        """Call once, and translate what goes wrong."""
        try:
            checked(call, *arguments, self._request_seconds)
        except KafkaException as exception:
            error: KafkaError = exception.args[0]
            self._serve(self._producer.poll, 0)  # the report of the record that is to blame says more
            self.check()
            if error.code() in PERMANENT:
                raise StreamsError(f"Failed to {what}: {error}") from exception
            if error.code() in MISSING_TOPIC:  # of a record of the transaction; the error does not say which
                self.check_changelogs()
            can_abort = error.txn_requires_abort() or error.code() in MEMBER_FENCED
            self._unusable = self._unusable or error.fatal() or not can_abort
            reason = "the producer is fenced" if error.code() in FENCED else "the transaction is given up"
            raise TaskMigratedError(f"Failed to {what}: {reason} ({error})") from exception

    # -- what librdkafka reports, from within poll, flush and the transaction's calls

    def _serve(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Call, and note it if the client has failed for good; all else it mends itself, and logs it."""
        try:
            checked(call, *arguments)
        except KafkaException as exception:
            self.errors.append((exception.args[0], None))
        except NotProducibleError as reason:
            self._librdkafka_only = True
            self.errors.append((KafkaError(KafkaError._UNSUPPORTED_FEATURE, f"{reason}. librdkafka writes."), None))
        for error, lost in self._take_lost():
            self._on_error(self.errors, error, lost)

    def _take_lost(self) -> Iterable[tuple[KafkaError, Any]]:
        if isinstance(self._producer, KafkaProducer):
            return self._producer.take_lost()
        found = () if self.records is None else self.records.take_lost()
        return ((error, lost and _lost_record(*lost)) for error, lost in found)

    @staticmethod
    def _on_error(errors: list[tuple[KafkaError, Any]], error: KafkaError | None, message: Any) -> None:
        """Note the failure of one record; nothing more, because librdkafka must not be called from here."""
        if error is not None and error.code() not in PURGED:
            errors.append((error, message))

    def _judge(self, error: KafkaError, message: Any) -> StreamsError | None:
        """Return what to raise for a report, None if the record is to be left out. message: None for the client's."""
        if message is None:
            self._unusable = True
            return TaskMigratedError(f"The producer cannot go on: {error}")
        text = self._failure(error, message, None)
        if error.code() in FENCED:
            self._unusable = True
            return TaskMigratedError(f"{text}. The producer is fenced: its tasks have moved.")
        if self._may_go_on(message, error, None):
            if not self.transactional:
                self._leave_out(text)
                return None
            why = "With exactly_once_v2 it cannot be left out: the broker takes back the whole transaction."
            return FailedProcessingError(f"{text}. {why}")
        if error.code() in TRANSIENT and not self._topics.is_missing(message.topic()):
            # Tasks that start again would make a changelog anew that is gone, and go on without what was in it.
            return self._topics.missing_changelog(self._writers) or TaskMigratedError(
                f"{text}. The tasks of this thread start again from the last commit."
            )
        return FailedProcessingError(
            f"{text}. No offset is committed; what was read since the last commit is read again."
        )

    def _may_go_on(self, message: Any, error: KafkaError, task_id: TaskId | None) -> bool:
        """Ask the handler, and write its dead letters; about one of these that cannot be written itself, none."""
        goes_on, letters = self._handler(message, error, task_id)
        for letter in letters if message.topic() not in self._dead_letter_topics else ():
            self._dead_letter_topics.add(letter.topic)
            to = -1 if letter.partition is None else letter.partition
            headers = None if letter.headers is None else list(letter.headers)
            at = self.now if letter.timestamp is None else letter.timestamp or self.earliest
            try:
                self._produce_letter(letter.topic, letter.value, letter.key, to, None, None, at, headers)
                self.dead_letters[letter.topic] += 1
            except KafkaException as exception:  # e.g. it is as much too large as the record was
                self._log.error("The dead letter could not be sent to topic %s: %s", letter.topic, exception)
        return goes_on

    def _produce_letter(self, *record: Any) -> None:
        """Produce a dead letter; what is reported meanwhile is judged behind the record that the letter is about."""
        while True:
            try:
                self._producer.produce(*record)
                return
            except BufferError:
                self._serve(self._producer.poll, QUEUE_FULL_POLL_SECONDS)

    def _leave_out(self, text: str) -> None:
        self.dropped += 1
        self._log.error("%s. The exception handler chose to CONTINUE processing in spite of this error.", text)

    def _failure(self, error: KafkaError, message: Any, task_id: TaskId | None) -> str:
        topic, partition = message.topic(), message.partition()
        where = topic if partition is None or partition < 0 else f"{topic} partition {partition}"
        writers = {task_id} if task_id is not None else self._writers.get(topic, set())
        tasks = f", written by {listed(sorted(writers))}," if writers else ""
        advice = ""
        if error.code() in MISSING_TOPIC or (error.code() in TRANSIENT and self._topics.is_missing(topic)):
            advice = ". The topic does not exist: create it, or correct its name in the topology"
            if topic.endswith(CHANGELOG_SUFFIX):
                advice = f". The changelog was deleted. {CHANGELOG_DELETED.rstrip('.')}"
        return f"Error encountered sending record to topic {where}{tasks} due to: {error}{advice}"

    def check_changelogs(self) -> None:
        """Raise StreamsError if a changelog that a task writes to is gone; return if the broker does not answer."""
        missing = self._topics.missing_changelog(self._writers)
        if missing is not None:
            raise missing


def _lost_record(topic: str, partition: int, key: bytes | None, value: bytes | None) -> RawRecord:
    return RawRecord(topic, partition, -1, -1, key, value)
