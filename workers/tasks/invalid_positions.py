"""Input positions that are not on the brokers, until they are reset (Kafka Streams: StreamThread.resetOffsets)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.clients.log_context import PrefixedLogger
from penstock.topology.errors import BrokerUnavailableError, StreamsError
from penstock.topology.records import TaskId, TopicPartition

from .offset_reset import OffsetReset
from .partition_consumer import InvalidOffsetError, PartitionConsumer
from .task_timeouts import TaskTimeouts

RESETTING = "resetting offsets"


@dataclass(eq=False)
class InvalidPositions:
    """Resets them by the sources' policies, once the brokers return the offsets.

    A position is often lost together with a broker, so the new leader may not be available yet. task_of: returns the
    running task that reads a partition, None if there is none.
    """

    consumer: PartitionConsumer
    offset_reset: OffsetReset
    timeouts: TaskTimeouts
    task_of: Callable[[TopicPartition], TaskId | None]
    log: PrefixedLogger

    def __post_init__(self) -> None:
        self._found: dict[TopicPartition, InvalidOffsetError] = {}

    def add(self, error: InvalidOffsetError) -> None:
        """Reset these partitions."""
        self._found |= dict.fromkeys(error.partitions, error)

    def reset(self) -> None:
        """Seek to the offsets given by the policies; the next call repeats unanswered requests.

        Raises StreamsError if a policy forbids it, TaskTimeoutError after ``task.timeout.ms`` of failures.
        """
        assigned = self.consumer.assignment()
        self._found = {partition: error for partition, error in self._found.items() if partition in assigned}
        if not self._found:
            return
        task_ids = {task_id for p in self._found if (task_id := self.task_of(p)) is not None}
        try:
            self.consumer.seek(self.offset_reset.offsets(self._found))
        except BrokerUnavailableError as error:
            self.timeouts.failed(task_ids, RESETTING, error)
            return
        except StreamsError as refused:
            raise refused from next(iter(self._found.values()))
        for message in sorted({str(error) for error in self._found.values()}):
            self.log.warning("%s; reset", message)
        self._found = {}
        self.timeouts.succeeded(task_ids, RESETTING)
