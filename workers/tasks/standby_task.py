"""A task that keeps its stores up to date without processing records (Kafka Streams: StandbyTask)."""

from __future__ import annotations

from collections.abc import Collection

from typing_extensions import override

from penstock.topology.context.task_output import NoOutput
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.records import TaskId, TopicPartition

from .task import Task, TaskEnvironment
from .task_state import TaskState


class StandbyTask(Task):
    """Follows its changelogs, so that it can become active without a long restore."""

    kind = "standby-task"

    def __init__(
        self,
        task_id: TaskId,
        input_partitions: Collection[TopicPartition],
        topology: ProcessorTopology,
        environment: TaskEnvironment,
    ) -> None:
        output = NoOutput("A standby task writes nothing")
        super().__init__(task_id, input_partitions, topology, environment, output)

    def initialize_state_stores(self) -> bool:
        """Open the stores. Returns True, because a standby task is running as soon as its stores are open.

        Raises LoadingError while a checkpoint is being loaded.
        """
        self._load_checkpoint()
        self._open_stores(None)
        return True

    def initialize_topology(self) -> None:
        """Change to RUNNING; a standby task has no topology to run."""
        self._states.transition_to(TaskState.RUNNING)
        self.environment.checkpoints.proved(self.task_id)

    def suspend(self) -> None:
        """Change to SUSPENDED."""
        if self.state is not TaskState.SUSPENDED:
            self.metrics.leave(None, self.environment.time.now_ms)
            self.log.info("Suspended from %s", self.state.name)
            self._states.transition_to(TaskState.SUSPENDED)

    @override
    def record_dropped(self, node: str, reason: str) -> None:
        """Count a row that a store dropped, e.g. because it has expired."""
        self.metrics.dropped_records += 1
