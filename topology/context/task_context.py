"""What a compiled operator and a state store may ask of the task they run in.

workers.StreamTask, penstock.testing's driver, the simulation and pipeline's Spark task implement TaskContext; operators
and stores see nothing else of them. That is why the same operators run in all four.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..records import Headers, Message, TaskId

if TYPE_CHECKING:
    from ..processor_api import StreamsMetrics
    from .async_calls import AsyncCalls

#: A downstream operator: (key, value, timestamp in ms, headers). Values of tables are Changes.
Process = Callable[[Any, Any, int, Headers], None]


class Cancellable(Protocol):
    """A scheduled punctuation."""

    def cancel(self) -> None:
        """Fire no more."""


class TaskContext(Protocol):
    """One task, as seen from its operators and stores."""

    application_id: str
    task_id: TaskId
    #: Effective configuration by Kafka Streams' dotted names, typed values.
    config: Mapping[str, Any]

    #: The input record being processed; None while punctuating or restoring.
    message: Message | None
    #: Timestamp (ms) of the record at the operator that runs now. The source sets it for each input record. An operator
    #: that has changed a timestamp and writes into a store whose ``put`` takes none sets it before it does.
    timestamp: int
    #: Headers of the record at the operator that runs now, kept like timestamp.
    headers: Headers
    #: Highest timestamp (ms) of all input records of the task so far, -1 before the first.
    stream_time_ms: int
    #: Times (ms) that operators want to find again after a restart, by store name: committed with the offsets and
    #: there again before the topology is compiled (Kafka Streams: ProcessorMetadata).
    processor_metadata: dict[str, int]

    @property
    def state_dir(self) -> Path:
        """The task's directory, made if need be; raises StreamsError where tasks have none."""

    @property
    def streams_metrics(self) -> StreamsMetrics:
        """The metrics that processors add; raises StreamsError where they cannot."""

    @property
    def async_calls(self) -> AsyncCalls:
        """What runs the calls of async functions; raises StreamsError where tasks have none."""

    def wall_clock_ms(self) -> int:
        """Return the wall clock in ms: cached per iteration in a stream thread, mocked in tests."""

    def store(self, name: str) -> Any:
        """Return the task's state store of this name; raises UnknownStateStoreError."""

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: Headers,
        partition: int | None = None,
    ) -> None:
        """Hand a serialized record to the producer. partition None: the producer's murmur2 partitioner chooses."""

    def log_change(
        self, store_name: str, key: bytes, value: bytes | None, timestamp: int | None, headers: Headers = None
    ) -> None:
        """Write a store's update to its changelog topic, to the task's own partition.

        timestamp None leaves it to the producer, as Kafka Streams does for its buffers.
        """

    def partition_count(self, topic: str) -> int:
        """Return how many partitions an output or internal topic has (topic by its full name)."""

    def internal_topic(self, name: str) -> str:
        """Return the full name of an internal topic: ``<application.id>-<name>``; user topics stay as they are."""

    def schedule(self, interval_ms: int, punctuation: Any, callback: Callable[[int], None]) -> Cancellable:
        """Call ``callback(timestamp_ms)`` each interval_ms of Punctuation.STREAM_TIME or WALL_CLOCK_TIME."""

    def request_commit(self) -> None:
        """Ask for a commit as soon as the current records are processed."""

    def record_dropped(self, node: str, reason: str) -> None:
        """Count a record that an operator drops by its rules (late, null key …) in the dropped-records sensor."""
