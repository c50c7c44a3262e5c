"""Records that wait at an operator, for the result of an async function or for a batch to fill.

Results are forwarded with the message, timestamp, headers and stream time of their input record. Operators downstream
see what they would see after a plain function.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ..context.function_times import FunctionTimes
from ..context.task_context import Process, TaskContext
from ..records import Headers, Message, TopicPartition
from .record_context import process_as_input


class Held:
    """A waiting record, with the task's context when it arrived.

    stream_time_ms: the task's stream time at this record; before_ms: its stream time at the operator's previous record,
    -1 if there was none.
    """

    __slots__ = ("before_ms", "call", "headers", "key", "message", "stream_time_ms", "timestamp", "value")

    def __init__(
        self, task: TaskContext, before_ms: int, key: object, value: object, timestamp: int, headers: Headers
    ) -> None:
        self.message: Message | None = task.message
        self.before_ms = before_ms
        self.stream_time_ms = task.stream_time_ms
        self.key = key
        self.value = value
        self.timestamp = timestamp
        self.headers = headers
        self.call: Any = None

    def pass_on(self, task: TaskContext, process: Process) -> None:
        """Process the record in its own context, then restore the context of the current record."""
        newest_ms = task.stream_time_ms
        task.stream_time_ms = self.stream_time_ms
        try:
            process_as_input(task, self.message, process, self.key, self.value, self.timestamp, self.headers)
        finally:
            task.stream_time_ms = newest_ms


class WaitingRecords(ABC):
    """The records that wait at one operator of one task.

    in_order: whether results are forwarded in the order of their records. replayable: whether only a source and
    stateless operators have processed these records. They can then be read again after a crash, so a commit need not
    wait for them. drains_at_commit: whether a commit nevertheless makes it forward the results that are ready. times:
    statistics of the operator's function. rows: how many rows a sink has written; None for other operators.
    """

    in_order = True
    replayable = False
    drains_at_commit = False
    rows: int | None = None
    _seen_ms = -1

    def __init__(self, name: str) -> None:
        self.name = name
        self.times = FunctionTimes()

    def hold(self, task: TaskContext, key: object, value: object, timestamp: int, headers: Headers) -> Held:
        """Return an arrived record with its context."""
        held = Held(task, self._seen_ms, key, value, timestamp, headers)
        self._seen_ms = task.stream_time_ms
        return held

    @abstractmethod
    def held(self) -> Sequence[Held]:
        """Return the waiting records, oldest first."""

    def in_flight(self) -> int:
        """Return the number of running calls. Other records wait for their turn or for a batch."""
        return sum(held.call is not None and held.call.in_flight for held in self.held())

    def due_ms(self) -> int | None:
        """Return the wall-clock time in ms at which the records are ready; None for calls, which end at any time."""
        return None

    @abstractmethod
    def room(self) -> int:
        """Return how many more records process() can take without blocking."""

    @abstractmethod
    def advance(self) -> int:
        """Forward the results that are ready, and return their number."""

    @abstractmethod
    def drain(self) -> int:
        """Forward all results, blocking until no record waits, and return their number."""

    @abstractmethod
    def cancel(self) -> None:
        """Discard the waiting records; the task's next owner reads them again."""

    def dead_letter_sent(self) -> None:  # noqa: B027  most have nothing to do
        """Note that some operator of the task has sent a dead letter, which is not committed yet."""

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:  # noqa: B027  most have nothing to do
        """Note that all that was sent so far is in Kafka. offsets: the next ones of the input that were committed."""


class Waiting:
    """The waiting records of one task, by operator in topology order."""

    def __init__(self, operators: Sequence[WaitingRecords]) -> None:
        self.operators = operators

    def __len__(self) -> int:
        return sum(len(operator.held()) for operator in self.operators)

    def due_ms(self) -> int | None:
        """Return the earliest wall-clock time in ms at which a record is ready; None if all wait for calls."""
        return min((due for operator in self.operators if (due := operator.due_ms()) is not None), default=None)

    def room(self, wanted: int) -> int:
        """Return how many of the wanted records can be processed without blocking."""
        return min((operator.room() for operator in self.operators), default=wanted)

    def advance(self) -> int:
        """Forward the results that are ready, and return their number."""
        return sum(operator.advance() for operator in self.operators)

    def drain(self) -> int:
        """Forward everything that must not wait during a commit, blocking for it, and return the number of results."""
        drained = (one for one in self.operators if one.drains_at_commit or not self._may_stay(one))
        return sum(operator.drain() for operator in drained)

    def drain_all(self) -> int:
        """Forward all results, and return their number."""
        return sum(operator.drain() for operator in self.operators)

    def drain_calls(self) -> int:
        """Forward the results of all calls, let batches wait for more records, and return the number of results."""
        drained = (one for one in self.operators if one.drains_at_commit or one.due_ms() is None)
        return sum(operator.drain() for operator in drained)

    def dead_letter_sent(self) -> None:
        """Note that the task has sent a dead letter."""
        for operator in self.operators:
            operator.dead_letter_sent()

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note that all that was sent so far is in Kafka: a commit has covered it, with these offsets of the input."""
        for operator in self.operators:
            operator.committed(offsets)

    def settled(self) -> bool:
        """Return whether the task may commit: waiting records had no effect yet and are read again after a crash."""
        return all(self._may_stay(operator) or not operator.held() for operator in self.operators)

    @staticmethod
    def _may_stay(operator: WaitingRecords) -> bool:
        return operator.replayable and operator.in_order and all(held.message is not None for held in operator.held())

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the offset of the oldest waiting record of each partition."""
        found: dict[TopicPartition, int] = {}
        for operator in self.operators:
            for held in operator.held():
                message = held.message
                if message is not None:
                    partition = TopicPartition(message.topic(), message.partition())
                    found[partition] = min(message.offset(), found.get(partition, message.offset()))
        return found

    def stream_time_ms(self) -> int | None:
        """Return the stream time at the oldest waiting record; None if nothing waits."""
        return min((held.stream_time_ms for operator in self.operators for held in operator.held()), default=None)

    def passed_on_ms(self) -> int | None:
        """Return the stream time up to which everything was forwarded; None if nothing waits."""
        return min((held.before_ms for operator in self.operators for held in operator.held()), default=None)

    def cancel(self) -> None:
        """Discard the waiting records of all operators."""
        for operator in self.operators:
            operator.cancel()
