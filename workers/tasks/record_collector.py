"""Handles records that could not be written (Kafka Streams: RecordCollectorImpl; KIP-210, KIP-1034, KIP-1065).

The client reports a lost record later. The first error is kept and raised by every later send, flush and commit, so no
offset after a lost record is ever committed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock.clients.errors import BrokerError, ClientError, ErrorCode, Kind
from penstock.clients.log_context import PrefixedLogger, listed
from penstock.clients.writing.writer import BY_KEY, Lost
from penstock.topology.context.exception_handlers import (
    LETTER_HEADER,
    PRODUCTION,
    ErrorHandlerContext,
    FailedProcessingError,
    LogAndFail,
    ProducerRecord,
    Result,
    configured_handler,
)
from penstock.topology.errors import StreamsError, TaskMigratedError
from penstock.topology.records import Message, TaskId, as_headers

from .changelog_bounds import CHANGELOG_DELETED
from .sink_topics import CHANGELOG_SUFFIX, SinkTopics

#: The cluster could not write now; a repetition may succeed.
TRANSIENT = frozenset((Kind.MOVED, Kind.AGAIN, Kind.ABORTABLE))
#: A new generation of the group, or another producer with our transactional id, has taken over; or the broker has
#: aborted a transaction that took too long.
FENCED = frozenset((Kind.FENCED, Kind.EVICTED))


logger = logging.getLogger(__name__)

#: The broker reports a failure long after the send, and without the task.
UNKNOWN_TASK = TaskId(-1, -1)
#: The name used for the operator in the handler's context and in metrics.
PRODUCER_NODE = "producer"


class Decision(NamedTuple):
    """Whether to continue without a record that could not be written, and the dead letters for it (KIP-1034)."""

    goes_on: bool
    dead_letters: Sequence[ProducerRecord] = ()


#: The header of a dead letter that was written with another timestamp than the failed record's.
TIMESTAMP_HEADER = f"{LETTER_HEADER}timestamp"
#: The setting that limits timestamps of the future; one hour by default since Kafka 4.0.
AFTER_MAX = "message.timestamp.after.max.ms"

#: Decides on a record that could not be written: (lost record, task or None).
ProductionExceptionHandler = Callable[[Lost, TaskId | None], Decision]


def fail_on_production_error(lost: Lost, task_id: TaskId | None) -> Decision:
    """Never continue: ``production.exception.handler=fail``, the default."""
    return Decision(goes_on=False)


def is_bad_timestamp(error: ClientError) -> bool:
    """Return whether a topic refuses the timestamp of a record."""
    return isinstance(error, BrokerError) and error.code == ErrorCode.INVALID_TIMESTAMP


@dataclass(eq=False)
class RecordCollector:
    """The send errors of all tasks of a thread, and their dead letters.

    produce: the Writer's method, for dead letters. transactional: exactly_once_v2.
    """

    produce: Callable[..., None]
    topics: SinkTopics
    log: PrefixedLogger
    handler: ProductionExceptionHandler
    transactional: bool

    def __post_init__(self) -> None:
        #: Reported errors that are not classified yet, or must be raised; every send checks them. A ClientError:
        #: the failure of the client itself.
        self.errors: list[Lost | ClientError] = []
        #: Whether the client must be replaced.
        self.has_lost_client = False
        #: Number of skipped records.
        self.dropped = 0
        #: Number of dead letters passed to the producer, those that were written again included.
        self.letters = 0
        #: Number of dead letters, by their topic and the error's class.
        self.dead_letters: Counter[tuple[str, str]] = Counter()
        self._error: StreamsError | None = None
        self._writers: dict[str, set[TaskId]] = {}
        self._dead_letter_topics: set[str] = set()

    def register_writer(self, task_id: TaskId, topics: Collection[str]) -> None:
        """Register a task as a writer of these topics; errors name it."""
        for topic in topics:
            self._writers.setdefault(topic, set()).add(task_id)

    def note(self, lost: Iterable[Lost]) -> None:
        """Add reported errors."""
        self.errors += lost

    def note_failure(self, error: ClientError) -> None:
        """Add the failure of the client itself."""
        self.errors.append(error)

    def check(self) -> None:
        """Raise the first reported error, if any, until forget_errors is called."""
        while self.errors:
            if self._error is None:
                self._error = self._judge(self.errors[0])
            if self._error is not None:
                raise self._error.with_traceback(None)  # for each send: the traceback would grow
            del self.errors[0]

    def forget_errors(self) -> None:
        """Clear all errors: the tasks whose records were lost have been closed without a commit."""
        self.topics.forget_counts()  # the cause may be a recreated topic
        self.errors.clear()
        self._error = None

    def refused(self, lost: Lost, task_id: TaskId | None) -> None:
        """Handle a record that the client refused immediately: return to skip it, or raise."""
        text = self._failure(lost.error, lost.record, task_id)
        if not self._may_go_on(lost, task_id):
            raise FailedProcessingError(text) from lost.error
        self._leave_out(text)

    def _judge(self, lost: Lost | ClientError) -> StreamsError | None:
        """Return the error to raise for a report, None to skip the record.

        With exactly-once only a record that was refused alone can be skipped: it was never in the transaction.
        """
        if isinstance(lost, ClientError):
            self.has_lost_client = True
            return TaskMigratedError(f"The producer cannot continue: {lost}")
        error, record = lost.error, lost.record
        task_id = None if lost.source is None else lost.source[0]
        text = self._failure(error, record, task_id)
        if error.kind in FENCED:
            self.has_lost_client = True
            return TaskMigratedError(f"{text}. The producer is fenced: its tasks have moved.")
        if self._wrote_letter_again(error, record):
            return None
        if self._may_go_on(lost, task_id):
            if lost.is_refused and record.topic().endswith(CHANGELOG_SUFFIX):
                return FailedProcessingError(f"{text}. It cannot be skipped: the store has it already.")
            if lost.is_refused or not self.transactional:
                self._leave_out(text)
                return None
            why = "With exactly_once_v2 it cannot be skipped: the broker aborts the whole transaction."
            return FailedProcessingError(f"{text}. {why}")
        if error.kind in TRANSIENT and not self.topics.is_missing(record.topic()):
            # Restarted tasks would recreate a missing changelog and continue without its data.
            return self.topics.missing_changelog(self._writers) or TaskMigratedError(
                f"{text}. The tasks of this thread start again from the last commit."
            )
        return FailedProcessingError(f"{text}. No offset is committed; records since the last commit are read again.")

    def _wrote_letter_again(self, error: ClientError, record: Message) -> bool:
        """Write a dead letter again with the current time, if its topic refuses the failed record's timestamp.

        A header keeps that timestamp, for replays. Returns False for any other record.
        """
        headers = list(as_headers(record.headers()) or ())
        names = {name for name, _ in headers}
        if not (is_bad_timestamp(error) and f"{LETTER_HEADER}exception" in names) or TIMESTAMP_HEADER in names:
            return False
        headers.append((TIMESTAMP_HEADER, str(record.timestamp()[1]).encode()))
        self._write_letter(ProducerRecord(record.topic(), record.key(), record.value(), None, headers))
        return True

    def _may_go_on(self, lost: Lost, task_id: TaskId | None) -> bool:
        """Call the handler and write its dead letters; a dead letter that cannot be written gets none."""
        goes_on, letters = self.handler(lost, task_id)
        for letter in letters if lost.record.topic() not in self._dead_letter_topics else ():
            self._dead_letter_topics.add(letter.topic)
            if self._write_letter(letter):
                self.dead_letters[letter.topic, type(lost.error).__qualname__] += 1
        return goes_on

    def _write_letter(self, letter: ProducerRecord) -> bool:
        """Return whether the producer accepted it; a letter may be too large, like its record."""
        to = BY_KEY if letter.partition is None else letter.partition
        headers = None if letter.headers is None else list(letter.headers)
        try:
            self.produce(letter.topic, letter.key, letter.value, to, letter.timestamp, headers)
        except ClientError as refusal:
            self.log.error("The dead letter could not be sent to topic %s: %s", letter.topic, refusal)
            return False
        self.letters += 1
        return True

    def _leave_out(self, text: str) -> None:
        self.dropped += 1
        self.log.error("%s. The exception handler chose to CONTINUE processing in spite of this error.", text)

    def _failure(self, error: ClientError, record: Message, task_id: TaskId | None) -> str:
        topic, partition = record.topic(), record.partition()
        where = topic if partition is None or partition < 0 else f"{topic} partition {partition}"
        writers = {task_id} if task_id is not None else self._writers.get(topic, set())
        tasks = f", written by {listed(sorted(writers))}," if writers else ""
        advice = ""
        if error.kind is Kind.MISSING or (error.kind in TRANSIENT and self.topics.is_missing(topic)):
            advice = ". The topic does not exist: create it, or correct its name in the topology"
            if topic.endswith(CHANGELOG_SUFFIX):
                advice = f". The changelog was deleted. {CHANGELOG_DELETED.rstrip('.')}"
        if is_bad_timestamp(error):
            advice = (
                f". If records may have such timestamps, raise {AFTER_MAX} or message.timestamp.before.max.ms of topic "
                f"{topic} with kafka-configs --alter"
            )
        return f"Error encountered sending record to topic {where}{tasks} due to: {error}{advice}"

    def check_changelogs(self) -> None:
        """Raise StreamsError if a task's changelog was deleted; return if the broker does not answer."""
        missing = self.topics.missing_changelog(self._writers)
        if missing is not None:
            raise missing


def production_error_handler(config: Mapping[str, object]) -> ProductionExceptionHandler:
    """Return the configured handler as RecordCollector calls it; raises ConfigError if it does not exist.

    Its context has the input record of the lost one. If that is unknown, as for a record of a punctuation, the dead
    letters of the built-in handlers hold the record that could not be written. RETRY after a transient error restarts
    the thread's tasks from the last commit (Kafka Streams: TaskCorruptedException), which writes the record again;
    after any other error it counts as FAIL.
    """
    handle = configured_handler(config, PRODUCTION)

    def decide(lost: Lost, task_id: TaskId | None) -> Decision:
        error, message = lost.error, lost.record
        key, value, timestamp = message.key(), message.value(), message.timestamp()[1]
        record = ProducerRecord(
            message.topic(), key, value, timestamp, as_headers(message.headers()), message.partition()
        )
        response = handle(_context(lost, task_id), record, error)
        if response.result is Result.RETRY and error.kind not in TRANSIENT:
            logger.warning(
                "%s returned RETRY for an error that is not transient, which counts as FAIL (%s)", PRODUCTION, error
            )
        letters = response.dead_letter_queue_records
        if isinstance(handle, LogAndFail) and lost.source is None:
            letters = [replace(letter, key=key, value=value, timestamp=timestamp) for letter in letters]
        return Decision(response.result is Result.RESUME, letters)

    return decide


def _context(lost: Lost, task_id: TaskId | None) -> ErrorHandlerContext:
    if lost.source is None:
        return ErrorHandlerContext(None, -1, -1, None, PRODUCER_NODE, task_id or UNKNOWN_TASK, -1, None, None)
    task_id, message = lost.source
    return ErrorHandlerContext(
        message.topic(),
        message.partition(),
        message.offset(),
        as_headers(message.headers()),
        PRODUCER_NODE,
        task_id,
        message.timestamp()[1],
        message.key(),
        message.value(),
    )
