"""Creates tasks (Kafka Streams: ActiveTaskCreator and StandbyTaskCreator, in 1.0 TaskCreator)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.clients.log_context import PrefixedLogger, listed
from penstock.topology.errors import TopologyError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.records import TaskId, TopicPartition

from .standby_task import StandbyTask
from .stream_task import StreamTask, TaskClients
from .task import Task, TaskEnvironment

T = TypeVar("T", bound=Task)


@dataclass(eq=False)
class AbstractTaskCreator(ABC, Generic[T]):
    """Creates the tasks of one type. topologies: read at each call, because patterns may match other topics by then."""

    topologies: Iterable[ProcessorTopology]
    environment: TaskEnvironment
    log: PrefixedLogger

    def create_tasks(self, tasks: Mapping[TaskId, Collection[TopicPartition]]) -> list[T]:
        """Return new tasks, in state CREATED, for ids and their input partitions.

        Raises TopologyError for a sub-topology that does not exist here.
        """
        created = []
        topologies = {topology.subtopology: topology for topology in self.topologies}
        for task_id, partitions in sorted(tasks.items()):
            topology = topologies.get(task_id.subtopology)
            if topology is None:
                raise TopologyError(
                    f"Task {task_id} is assigned, but this process's topology has no sub-topology "
                    f"{task_id.subtopology}. All processes of an application must run the same topology; deploy the "
                    "same version everywhere."
                )
            task = self.create_task(task_id, partitions, topology)
            if task is not None:
                self.log.trace("Created task %s with assigned partitions %s", task_id, listed(partitions))
                self.environment.metrics.task_created.record(1, self.environment.time.now_ms)
                created.append(task)
        return created

    @abstractmethod
    def create_task(
        self, task_id: TaskId, partitions: Collection[TopicPartition], topology: ProcessorTopology
    ) -> T | None:
        """Return one task, None if it would have nothing to do."""


@dataclass(eq=False)
class TaskCreator(AbstractTaskCreator[StreamTask]):
    """Creates active tasks."""

    clients: TaskClients

    def create_task(
        self, task_id: TaskId, partitions: Collection[TopicPartition], topology: ProcessorTopology
    ) -> StreamTask:
        """Return an active task."""
        return StreamTask(task_id, partitions, topology, self.environment, self.clients)


class StandbyTaskCreator(AbstractTaskCreator[StandbyTask]):
    """Creates standby tasks."""

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
