"""A task that keeps its stores up to date and processes nothing (Kafka Streams: StandbyTask)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.statestore.store_factory import build_store
from penstock.topology.context.task_context import Cancellable
from penstock.topology.errors import StreamsError

from .task import Task
from .task_state import TaskState


class StandbyTask(Task):
    """Follows its changelogs, so that it can become active without a long restore."""

    kind = "standby-task"

    def initialize_state_stores(self) -> bool:
        """Open the stores; True, because a standby task runs as soon as it can follow."""
        self.state_manager.open(
            lambda builder, directory, recycled: build_store(
                builder, self, directory, None, recycled=recycled, open_rows=self.environment.open_rows
            )
        )
        self.environment.changelogs.register(self)
        self._transition_to(TaskState.RESTORING)
        self.log.info("Initialized")
        return True

    def initialize_topology(self) -> None:
        """Go to RUNNING: there is no topology to run."""
        self._transition_to(TaskState.RUNNING)

    def suspend(self) -> None:
        """Go to SUSPENDED."""
        if self.state is not TaskState.SUSPENDED:
            self.log.info("Suspended from %s", self.state.name)
            self._transition_to(TaskState.SUSPENDED)

    # What TaskContext has beyond a Task: stores are made to ask for none of it while they restore.

    def request_commit(self) -> None:
        """Do nothing: what a standby task restores is committed batch by batch."""

    def send(self, topic: str, *_: Any) -> None:
        """Refuse."""
        raise self._does_not("write", topic)

    def partition_count(self, topic: str) -> int:
        """Refuse."""
        raise self._does_not("write", topic)

    def schedule(self, interval_ms: int, punctuation: Any, callback: Callable[[int], None]) -> Cancellable:
        """Refuse."""
        raise self._does_not("schedule", "punctuations")

    def record_dropped(self, node: str, reason: str) -> None:
        """Count a row that a store did not take, e.g. because it has expired."""
        self.metrics.drop(self.environment.time.now_ms)

    def _does_not(self, what: str, to: str) -> StreamsError:
        return StreamsError(f"{self.log.prefix}a standby task does not {what} {to}")
