"""The interface of a task for its compiled operators and state stores.

stream_task.StreamTask, penstock.testing's driver, the simulation and pipeline's Spark task implement TaskContext.
Operators and stores use nothing else of them, so the same operators run in all four.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.kernel.nodes import RecordContext, set_types

from ..errors import StreamsError
from ..records import Change, Headers, Message, TaskId, Windowed
from .tallies import tallies_for
from .timers import Timers

if TYPE_CHECKING:
    from ..processor_api import Punctuation, StreamsMetrics
    from .async_calls import AsyncCalls
    from .sink_interfaces import SinkWriter
    from .task_output import TaskOutput

set_types(Change, Windowed)

#: A downstream operator: (key, value, timestamp in ms, headers). Values of tables are Changes.
Process = Callable[[Any, Any, int, Headers], None]


class Cancellable(Protocol):
    """A scheduled punctuation."""

    def cancel(self) -> None:
        """Stop firing."""


class TaskContext(RecordContext):
    """One task, as seen from its operators and stores.

    Partial tasks, e.g. those that only open stores, override the part they support; the rest raises StreamsError.
    """

    #: The runner of async functions; only tasks with compiled operators have it.
    async_calls: AsyncCalls

    def __init__(self, task_id: TaskId, config: Mapping[str, Any], output: TaskOutput) -> None:
        self.task_id = task_id
        self.output = output
        #: Effective configuration by Kafka Streams' dotted names, typed values.
        self.config = config
        self.application_id: str = config["application.id"]
        #: The input record being processed; None while punctuating or restoring.
        self.message: Message | None = None
        #: Timestamp (ms) of the record at the current operator. The source sets it for each input record. An operator
        #: that changes a timestamp sets it before writing to a store whose ``put`` takes no timestamp.
        self.timestamp = -1
        #: Headers of the record at the current operator, maintained like timestamp.
        self.headers: Headers = None
        #: The trace contexts of rows that operators have read, while being collected; see WrappedProcessor.
        self.row_contexts: list[Headers] | None = None
        #: Highest timestamp (ms) of all input records of the task so far, -1 before the first.
        self.stream_time_ms = -1
        #: Times (ms) that operators need after a restart, by store name: committed with the offsets, and restored
        #: before the topology is compiled (Kafka Streams: ProcessorMetadata).
        self.processor_metadata: dict[str, int] = {}
        #: What is measured beyond the level INFO; None at this level.
        self.tallies = tallies_for(config)
        #: The open sinks outside of Kafka, by their nodes, before the topology is compiled.
        self.sink_writers: dict[str, SinkWriter] = {}
        #: What is due at a time in the task's stores.
        self.timers = Timers(self)

    @property
    def state_dir(self) -> Path:
        """The task's directory, created if necessary."""
        raise self._refusal("state_dir")

    #: Whether stores keep the tombstones of forwarded records until the commit; see Removals.
    holds_removals = False

    @property
    def streams_metrics(self) -> StreamsMetrics:
        """The metrics that processors add."""
        raise self._refusal("streams_metrics")

    def wall_clock_ms(self) -> int:
        """Return the wall clock in ms: cached per iteration in a stream thread, mocked in tests."""
        raise self._refusal("wall_clock_ms()")

    def store(self, name: str) -> Any:
        """Return the task's state store of this name; raises UnknownStateStoreError."""
        raise self._refusal(f"store({name})")

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of an output or internal topic (by its full name)."""
        raise self._refusal(f"partition_count({topic})")

    def internal_topic(self, name: str) -> str:
        """Return the full name of an internal topic: ``<application.id>-<name>``; user topics stay as they are."""
        return f"{self.application_id}-{name}"

    def schedule(
        self, interval_ms: int, punctuation: Punctuation, callback: Callable[[int], None], start_ms: int | None = None
    ) -> Cancellable:
        """Call ``callback(timestamp_ms)`` every interval_ms of Punctuation.STREAM_TIME or WALL_CLOCK_TIME.

        start_ms: see punctuation_queue.first_due_ms.
        """
        raise self._refusal("schedule()")

    def request_commit(self) -> None:
        """Request a commit as soon as the current records are processed; ignored by a task without commits."""

    def record_dropped(self, node: str, reason: str) -> None:
        """Count a record that an operator drops by its rules (late, null key …) in the dropped-records sensor."""

    def record_dead_letter(self, node: str, error: Exception, topic: str) -> None:
        """Count a dead letter that is written because of an exception in a node."""

    def _refusal(self, what: str) -> StreamsError:
        return StreamsError(f"Task {self.task_id}: a {type(self).__name__} does not support {what}")
