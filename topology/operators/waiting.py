"""Records that wait at an operator: for the answer of an async function, or for others to make a batch with.

What comes out later comes out as if its input record were processed then: with its message, timestamp, headers and
stream time, so that what stands behind the operator sees what it would see behind a plain function.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ..context.function_times import FunctionTimes
from ..context.task_context import Process, TaskContext
from ..records import Headers, Message, TopicPartition
from .record_context import process_as_input


class Held:
    """A record that waits, with what the task knew when it came.

    stream_time_ms: the task's, with this record; before_ms: with the one that came here before it, -1 if none has.
    """

    __slots__ = ("before_ms", "call", "headers", "key", "message", "stream_time_ms", "timestamp", "value")

    def __init__(
        self, task: TaskContext, before_ms: int, key: Any, value: Any, timestamp: int, headers: Headers
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
        """Process the record as if it came now; then continue with the current one."""
        newest_ms = task.stream_time_ms
        task.stream_time_ms = self.stream_time_ms
        try:
            process_as_input(task, self.message, process, self.key, self.value, self.timestamp, self.headers)
        finally:
            task.stream_time_ms = newest_ms


class WaitingRecords(ABC):
    """The records that wait at one operator of one task.

    in_order: they come out as they came in. replayable: only the records of a source that nothing else has seen come
    here, so that what waits may be read again after a crash: a commit need not wait for it. name: the operator's;
    times: what is counted of its function.
    """

    in_order = True
    replayable = False
    _seen_ms = -1

    def __init__(self, name: str) -> None:
        self.name = name
        self.times = FunctionTimes()

    def hold(self, task: TaskContext, key: Any, value: Any, timestamp: int, headers: Headers) -> Held:
        """Return a record that has come, to be kept."""
        held = Held(task, self._seen_ms, key, value, timestamp, headers)
        self._seen_ms = task.stream_time_ms
        return held

    @abstractmethod
    def held(self) -> Sequence[Held]:
        """Return what waits, the oldest first."""

    def in_flight(self) -> int:
        """Return how many calls run now; other records wait for their turn, or for a batch."""
        return sum(held.call is not None and held.call.in_flight for held in self.held())

    def due_ms(self) -> int | None:
        """Return the wall-clock time at which what waits is ready, in ms; None for calls, which say when they end."""
        return None

    @abstractmethod
    def room(self) -> int:
        """Return how many more records may come before process() has to wait."""

    @abstractmethod
    def advance(self) -> int:
        """Pass on what is ready. Returns how many records that were."""

    @abstractmethod
    def drain(self) -> int:
        """Wait until nothing is left, passing on all. Returns how many records that were."""

    @abstractmethod
    def cancel(self) -> None:
        """Forget what waits: it will be read again, by this task's next owner."""


class Waiting:
    """All that waits in one task, by operator, in the order of the topology."""

    def __init__(self, operators: Sequence[WaitingRecords]) -> None:
        self.operators = operators

    def __len__(self) -> int:
        return sum(len(operator.held()) for operator in self.operators)

    def due_ms(self) -> int | None:
        """Return the wall-clock time at which something will be ready, in ms; None if nothing waits for a time."""
        return min((due for operator in self.operators if (due := operator.due_ms()) is not None), default=None)

    def room(self, wanted: int) -> int:
        """Return how many of so many records may be processed now."""
        return min((operator.room() for operator in self.operators), default=wanted)

    def advance(self) -> int:
        """Pass on what is ready. Returns how many records that were."""
        return sum(operator.advance() for operator in self.operators)

    def drain(self) -> int:
        """Pass on all that a commit may not leave behind, waiting for it. Returns how many records that were."""
        return sum(operator.drain() for operator in self.operators if not self._may_stay(operator))

    def drain_all(self) -> int:
        """Pass on all. Returns how many records that were."""
        return sum(operator.drain() for operator in self.operators)

    def settled(self) -> bool:
        """Return whether a commit may be made: what waits will be read again after a crash, and has had no effect."""
        return all(self._may_stay(operator) or not operator.held() for operator in self.operators)

    @staticmethod
    def _may_stay(operator: WaitingRecords) -> bool:
        return operator.replayable and operator.in_order and all(held.message is not None for held in operator.held())

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the offset of the oldest record that waits, of each partition."""
        found: dict[TopicPartition, int] = {}
        for operator in self.operators:
            for held in operator.held():
                message = held.message
                if message is not None:
                    partition = TopicPartition(message.topic(), message.partition())
                    found[partition] = min(message.offset(), found.get(partition, message.offset()))
        return found

    def stream_time_ms(self) -> int | None:
        """Return the stream time with the oldest record that waits; None if nothing waits."""
        return min((held.stream_time_ms for operator in self.operators for held in operator.held()), default=None)

    def passed_on_ms(self) -> int | None:
        """Return the stream time up to which all has been passed on; None if nothing waits."""
        return min((held.before_ms for operator in self.operators for held in operator.held()), default=None)

    def cancel(self) -> None:
        """Forget what waits."""
        for operator in self.operators:
            operator.cancel()
