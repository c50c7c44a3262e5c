"""The registry of standby tasks (Kafka Streams 2.x: AssignedStandbyTasks)."""

from __future__ import annotations

from collections.abc import Collection

from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.records import TaskId, TopicPartition

from .assigned_tasks import AssignedTasks
from .standby_task import StandbyTask


class AssignedStandbyTasks(AssignedTasks[StandbyTask]):
    """Standby tasks. They run as soon as their stores are open."""

    task_type_name = "standby task"

    def create_task(
        self, task_id: TaskId, partitions: Collection[TopicPartition], topology: ProcessorTopology
    ) -> StandbyTask | None:
        """Return a standby task, None for a sub-topology without a changelog."""
        if not topology.changelog_topics:
            self.log.trace(
                "Skipped standby task %s with assigned partitions %s since it has no changelog", task_id, partitions
            )
            return None
        return StandbyTask(task_id, partitions, topology, self.environment)
