"""The operator of to_sink(): collects records, and writes them in batches to a sink outside of Kafka."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import override

from ..context.sink_interfaces import (
    RefusedRowError,
    RefusedRowsError,
    Sink,
    SinkContext,
    SinkFencedError,
    SinkRecord,
    SinkUnavailableError,
)
from ..context.task_context import Process, TaskContext
from ..errors import TaskMigratedError, TaskTimeoutError
from ..records import Headers, TopicPartition
from ..serdes.serdes import Serde, or_default
from .operator import NodeContext, Operator
from .waiting import Held, WaitingRecords

logger = logging.getLogger(__name__)

#: Pauses between attempts, in ms: the first is for deadlocks and serialization failures, the longest for a database
#: that restarts.
RETRY_MS = (50, 100, 200, 500, 1_000, 2_000, 5_000)
#: How often the offset in the sink moves while no record makes a row, in ms: much less than topics keep records.
OFFSETS_MS = 60_000


@dataclass(eq=False)
class SinkOperator(Operator):
    """Writes records to a sink: up to max_records at a time, and each after max_wait_ms at most."""

    reads_record_metadata = True

    sink: Sink
    max_records: int
    max_wait_ms: int
    key_serde: Serde | None = None
    value_serde: Serde | None = None

    def context(self, name: str, task: TaskContext, application_id: str) -> SinkContext:
        """Return what the sink needs to know of a task. name: of this node."""
        key_serde, value_serde = or_default(self.key_serde, task.config, True), self.value_serde
        return SinkContext(application_id, name, key_serde, or_default(value_serde, task.config, False))

    @override
    def compile(self, node: NodeContext) -> Process:
        batch = SinkBatch(self, node)
        node.waits(batch)
        return batch.process


class SinkBatch(WaitingRecords):
    """The records of one task that are not in the sink yet.

    A batch is written between two input records, so all rows of a record are in the same transaction. Offsets that the
    group gets do not pass the records held here.

    Rows that the sink refuses are handled as failures of their records. Dead letters, of any operator of the task, must
    not be lost, and are in Kafka once the task has committed, so what follows them is written after that commit.

    Records that make no row, e.g. behind a filter, move the offset in the sink after a commit that has covered them:
    otherwise the topic may delete the records at that offset, and a restart would not find it.
    """

    drains_at_commit = True
    rows: int

    def __init__(self, operator: SinkOperator, node: NodeContext) -> None:
        super().__init__(node.name)
        self.rows = 0
        self._operator = operator
        self._task: TaskContext = node.task
        self._writer = node.task.sink_writers[node.name]
        self._held: list[Held] = []
        self._since_ms = 0  # when the oldest record arrived
        #: The refused ones of the held records, by index.
        self._refused: set[int] = set()
        #: Whether the commit of dead letters is awaited.
        self._awaits_commit = False
        self._failures = 0
        self._failing_since_ms = self._retry_ms = 0
        self._error = RefusedRowError("")
        #: The records of the last attempt, and their next offsets.
        self._attempted_records = 0
        self._attempted: Mapping[TopicPartition, int] = {}
        #: The offsets in the sink, as far as this object has written them, and when it did.
        self._stored: dict[TopicPartition, int] = {}
        self._stored_ms = -OFFSETS_MS

        def refuse(key: object, value: object, timestamp: int, headers: Headers) -> None:
            raise self._error

        self._refuse = node.guarded(node.own(refuse))

    def process(self, key: object, value: object, timestamp: int, headers: Headers) -> None:
        """Add a record."""
        if not self._held:
            self._since_ms = self._task.wall_clock_ms()
        self._held.append(self.hold(self._task, key, value, timestamp, headers))

    @override
    def held(self) -> Sequence[Held]:
        return self._held

    @override
    def room(self) -> int:
        return max(self._operator.max_records - len(self._held), 0)

    @override
    def due_ms(self) -> int | None:
        if not self._held or self._awaits_commit:
            return None
        due_ms = self._since_ms if self._refused or not self.room() else self._since_ms + self._operator.max_wait_ms
        return max(due_ms, self._retry_ms)

    @override
    def advance(self) -> int:
        due_ms = self.due_ms()
        return self.drain() if due_ms is not None and due_ms <= self._task.wall_clock_ms() else 0

    @override
    def drain(self) -> int:
        """Write what is held, unless it must wait: for a commit, or for the next attempt."""
        if not self._held or self._awaits_commit or self._task.wall_clock_ms() < self._retry_ms:
            return 0
        return self._attempt()

    @override
    def dead_letter_sent(self) -> None:
        """The offset in the sink must not pass its record before it is committed."""
        self._awaits_commit = True
        self._task.request_commit()

    @override
    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Dead letters are committed: what is held may be written. Without rows the offsets move."""
        self._awaits_commit = False
        if self._held or self._task.wall_clock_ms() < max(self._stored_ms + OFFSETS_MS, self._retry_ms):
            return
        ahead = {partition: offset for partition, offset in offsets.items() if offset > self._stored.get(partition, -1)}
        if ahead:
            self._attempt(ahead)

    @override
    def cancel(self) -> None:
        self._held.clear()
        self._refused.clear()

    def _attempt(self, ahead: Mapping[TopicPartition, int] | None = None) -> int:
        """Write the batch. Returns how many records are not held any more, or were refused.

        ahead: offsets to write instead, of records that made no rows.
        """
        self.times.calls += 1
        self.times.retries += self._failures > 0
        began = time.perf_counter()
        before = len(self._held)
        refused: Mapping[int, RefusedRowError] = {}
        try:
            self._write(ahead or {})
        except RefusedRowsError as error:
            refused = error.refused
        except SinkUnavailableError as error:
            self._postpone(error)
            return before - len(self._held)
        except SinkFencedError as error:
            raise TaskMigratedError(f"Sink {self.name} of task {self._task.task_id}: {error}") from error
        finally:
            self.times.note(time.perf_counter() - began)
        if refused:
            return before - len(self._held) + self._handle(refused)
        if self._failures:
            logger.info("Sink %s of task %s writes again", self.name, self._task.task_id)
        self._failures = self._retry_ms = 0
        return before

    def _write(self, ahead: Mapping[TopicPartition, int]) -> None:
        if self._failures:
            self._forget_written()
        self._attempted_records, self._attempted = len(self._held), ahead or self._offsets()
        if self._held or ahead:
            records = [as_record(each) for i, each in enumerate(self._held) if i not in self._refused]
            self._writer.write(records, self._attempted)
        self._note_written()

    def _forget_written(self) -> None:
        """Forget the records of an attempt that failed and was successful: only its answer was lost."""
        stored = self._writer.offsets()
        if all(stored.get(partition) == offset for partition, offset in self._attempted.items()):
            self._note_written()

    def _note_written(self) -> None:
        """Forget the records of the last attempt, which are in the sink."""
        count = self._attempted_records
        self.rows += count - sum(i < count for i in self._refused)
        del self._held[:count]
        self._refused = {i - count for i in self._refused if i >= count}
        self._stored |= self._attempted
        self._stored_ms = self._task.wall_clock_ms()

    def _offsets(self) -> dict[TopicPartition, int]:
        """Return the next offset of each partition after the records that are held."""
        found: dict[tuple[str, int], int] = {}
        for held in self._held:
            if (message := held.message) is not None:
                found[message.topic(), message.partition()] = message.offset() + 1
        return {TopicPartition(*partition): offset for partition, offset in found.items()}

    def _handle(self, reasons: Mapping[int, RefusedRowError]) -> int:
        """Let the exception handler decide about refused rows; it raises, or may send dead letters."""
        kept = [i for i in range(len(self._held)) if i not in self._refused]
        refused = {kept[i]: reason for i, reason in reasons.items()}
        try:
            for i, self._error in refused.items():
                self._held[i].pass_on(self._task, self._refuse)
        except BaseException:
            self.cancel()  # the task is closed
            raise
        self._refused |= refused.keys()
        return len(refused)

    def _postpone(self, error: SinkUnavailableError) -> None:
        """Try again later; raises TaskTimeoutError after task.timeout.ms."""
        now_ms, task_id = self._task.wall_clock_ms(), self._task.task_id
        if not self._failures:
            self._failing_since_ms = now_ms
        pause_ms = RETRY_MS[min(self._failures, len(RETRY_MS) - 1)]
        self._failures += 1
        self._retry_ms = now_ms + pause_ms
        for_ms, limit_ms = now_ms - self._failing_since_ms, self._task.config["task.timeout.ms"]
        if for_ms >= limit_ms:
            self.cancel()
            raise TaskTimeoutError(
                f"Task {task_id} did not make progress within {for_ms} ms (task.timeout.ms={limit_ms}): writing to "
                f"{self._operator.sink} in sink {self.name} fails: {str(error).rstrip('.')}. Check the database and "
                "the network between; if it may be away for longer, raise task.timeout.ms.",
                task_id,
            ) from error
        logger.warning(
            "Sink %s of task %s could not write %d records to %s, attempt %d; tries again in %d ms: %s",
            self.name,
            task_id,
            len(self._held),
            self._operator.sink,
            self._failures,
            pause_ms,
            error,
        )


def as_record(held: Held) -> SinkRecord:
    """Return a waiting record as a sink gets it."""
    return SinkRecord(held.key, held.value, held.timestamp, held.headers)
