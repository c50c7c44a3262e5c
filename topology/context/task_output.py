"""Where the records of a task go."""

from __future__ import annotations

from typing import NoReturn, Protocol

from ..errors import StreamsError
from ..records import Headers


class RecordOutput(Protocol):
    """Takes the serialized records of a task."""

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: Headers,
        partition: int | None = None,
    ) -> None:
        """Write a record to a topic. partition None: the producer's murmur2 partitioner chooses."""


class ChangeOutput(Protocol):
    """Takes the updates of a task's stores (Kafka Streams: the context's logChange)."""

    def log_change(
        self, store_name: str, key: bytes, value: bytes | None, timestamp: int | None, headers: Headers = None
    ) -> None:
        """Write a store's update to its changelog topic, to the task's own partition.

        With timestamp None the producer sets it, as in Kafka Streams' buffers.
        """


class TaskOutput(RecordOutput, ChangeOutput, Protocol):
    """Takes all that a task writes (Kafka Streams: RecordCollector)."""


class NoOutput:
    """The output of a task that must not write, e.g. a standby task. reason: for the error."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def send(self, topic: str, *_: object) -> NoReturn:
        """Raise StreamsError."""
        raise StreamsError(f"{self._reason}, but a record was sent to {topic}")

    def log_change(self, store_name: str, *_: object) -> NoReturn:
        """Raise StreamsError."""
        raise StreamsError(f"{self._reason}, but a change of {store_name} was logged")
