"""One exception tree. Names follow Kafka Streams, with Python's suffix."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from .records import TaskId


class PenstockError(Exception):
    """The base class of Penstock's exceptions."""


class ConfigError(PenstockError):
    """A configuration key or value is invalid; the message names the key, the value and the expected values."""


class TopologyError(PenstockError):
    """The topology is invalid (Kafka Streams: TopologyException); the message names the operator and what to do."""


class HandedOverError(TopologyError):
    """The application was handed over to another engine: this one would continue from old state."""


class BranchError(HandedOverError):
    """The application is a branch that is not complete, or its outputs must (or must not) have a prefix."""


class LostOffsetsError(TopologyError):
    """The group has no committed offsets of input that the application's state contains already."""


class StreamsError(PenstockError):
    """A stream thread cannot continue (Kafka Streams: StreamsException)."""


class EventLoopError(StreamsError):
    """The async functions of a process can no longer run; it must be replaced. No record is at fault.

    A lifespan could not be opened in time or has ended, or a function or lifespan blocks the event loop.
    """


class ProcessorStateError(StreamsError):
    """A state store failed (Kafka Streams: ProcessorStateException)."""


class MigratedTask(Protocol):
    """The part of a task that a log line about its migration needs."""

    @property
    def task_id(self) -> TaskId:
        """The task's id."""

    def describe(self, indent: str = "") -> str:
        """Return a description of several lines."""


class TaskMigratedError(StreamsError):
    """Another thread owns the task: this thread missed a rebalance (TaskMigratedException).

    The thread closes its tasks without committing and rejoins the group. task: the one that detected it, None if the
    group membership did.
    """

    def __init__(self, message: str, task: MigratedTask | None = None) -> None:
        super().__init__(message)
        self.task = task


class TaskCorruptedError(StreamsError):
    """The state of tasks is unreliable and must be wiped and restored (TaskCorruptedException).

    task_ids: the affected tasks.
    """

    def __init__(self, message: str, task_ids: Collection[TaskId] = ()) -> None:
        super().__init__(message)
        self.task_ids = frozenset(task_ids)


class TaskTimeoutError(StreamsError):
    """A task's broker requests have failed for longer than ``task.timeout.ms`` (KIP-572; TimeoutException).

    task_id: the affected task.
    """

    def __init__(self, message: str, task_id: TaskId | None = None) -> None:
        super().__init__(message)
        self.task_id = task_id


class LockError(StreamsError):
    """The directory of a task is locked by another process; try again in the next loop (LockException)."""


class TaskAssignmentError(StreamsError):
    """No assignment could be made (TaskAssignmentException)."""


class MissingSourceTopicError(StreamsError):
    """A source topic does not exist (MissingSourceTopicException)."""


class SerializationError(StreamsError):
    """A key or value cannot be serialized or deserialized; the message names topic, partition and offset if known."""


class UnknownStateStoreError(StreamsError):
    """No store has this name (UnknownStateStoreException)."""


class StateStoreTypeError(StreamsError):
    """The store is of another kind than the method or its arguments; another attempt would fail in the same way."""


class InvalidStateStoreError(StreamsError):
    """The store cannot be queried now, e.g. while it is restored or after its task moved; try again."""


class BrokerUnavailableError(StreamsError):
    """The broker could not be reached within the stated time."""


class SchemaRegistryUnavailableError(BrokerUnavailableError):
    """The schema registry could not be reached: the task retries for task.timeout.ms, and no handler is called."""
