"""Handles records that could not be written (Kafka Streams: RecordCollectorImpl).

The client reports a lost record later. The first error is kept and raised by every later send, flush and commit, so no
offset after a lost record is ever committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.clients.errors import ClientError, Kind
from penstock.clients.log_context import PrefixedLogger, listed
from penstock.clients.writing.writer import BY_KEY, Lost
from penstock.topology.context.exception_handlers import FailedProcessingError, ProducerRecord
from penstock.topology.errors import StreamsError, TaskMigratedError
from penstock.topology.records import Message, TaskId

from .changelog_bounds import CHANGELOG_DELETED
from .sink_topics import CHANGELOG_SUFFIX, SinkTopics

#: The cluster could not write now; a repetition may succeed.
TRANSIENT = frozenset((Kind.MOVED, Kind.AGAIN, Kind.ABORTABLE))
#: A new generation of the group, or another producer with our transactional id, has taken over; or the broker has
#: aborted a transaction that took too long.
FENCED = frozenset((Kind.FENCED, Kind.EVICTED))


class Decision(NamedTuple):
    """Whether to continue without a record that could not be written, and the dead letters for it (KIP-1034)."""

    goes_on: bool
    dead_letters: Sequence[ProducerRecord] = ()


#: Decides on a record that could not be written: (message, error, task or None).
ProductionExceptionHandler = Callable[[Message, ClientError, TaskId | None], Decision]


def fail_on_production_error(message: Message, error: ClientError, task_id: TaskId | None) -> Decision:
    """Never continue: ``production.exception.handler=fail``, the default."""
    return Decision(goes_on=False)


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
        #: Reported errors that are not classified yet, or must be raised; every send checks them. Without a record: the
        #: client has failed.
        self.errors: list[Lost] = []
        #: Whether the client must be replaced.
        self.has_lost_client = False
        #: Number of skipped records.
        self.dropped = 0
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
        self.errors.append(Lost(error, None))

    def check(self) -> None:
        """Raise the first reported error, if any, until forget_errors is called."""
        while self.errors:
            if self._error is None:
                self._error = self._judge(*self.errors[0])
            if self._error is not None:
                raise self._error
            del self.errors[0]

    def forget_errors(self) -> None:
        """Clear all errors: the tasks whose records were lost have been closed without a commit."""
        self.topics.forget_counts()  # the cause may be a recreated topic
        self.errors.clear()
        self._error = None

    def refused(self, error: ClientError, record: Message, task_id: TaskId | None) -> None:
        """Handle a record that the client refused immediately: return to skip it, or raise.

        It never was in the transaction, so the handler may skip it with exactly-once, too.
        """
        if self._may_go_on(record, error, task_id):
            self._leave_out(self._failure(error, record, task_id))
        else:
            raise FailedProcessingError(self._failure(error, record, task_id)) from error

    def _judge(self, error: ClientError, record: Message | None) -> StreamsError | None:
        """Return the error to raise for a report, None to skip the record."""
        if record is None:
            self.has_lost_client = True
            return TaskMigratedError(f"The producer cannot continue: {error}")
        text = self._failure(error, record, None)
        if error.kind in FENCED:
            self.has_lost_client = True
            return TaskMigratedError(f"{text}. The producer is fenced: its tasks have moved.")
        if self._may_go_on(record, error, None):
            if not self.transactional:
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

    def _may_go_on(self, record: Message, error: ClientError, task_id: TaskId | None) -> bool:
        """Call the handler and write its dead letters; a dead letter that cannot be written gets none."""
        goes_on, letters = self.handler(record, error, task_id)
        for letter in letters if record.topic() not in self._dead_letter_topics else ():
            self._dead_letter_topics.add(letter.topic)
            to = BY_KEY if letter.partition is None else letter.partition
            headers = None if letter.headers is None else list(letter.headers)
            try:
                self.produce(letter.topic, letter.key, letter.value, to, letter.timestamp, headers)
                self.dead_letters[letter.topic, type(error).__qualname__] += 1
            except ClientError as refusal:  # e.g. it is too large, like the record
                self.log.error("The dead letter could not be sent to topic %s: %s", letter.topic, refusal)
        return goes_on

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
        return f"Error encountered sending record to topic {where}{tasks} due to: {error}{advice}"

    def check_changelogs(self) -> None:
        """Raise StreamsError if a task's changelog was deleted; return if the broker does not answer."""
        missing = self.topics.missing_changelog(self._writers)
        if missing is not None:
            raise missing
