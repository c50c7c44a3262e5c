"""Applies the group's assignments to a stream thread (Kafka Streams: StreamsRebalanceListener).

The listener changes the thread's state and calls the TaskManager. It opens no stores and reads no changelogs: the loop
does that, for a bounded time per iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from penstock.clients.clock import Clock
from penstock.clients.log_context import PrefixedLogger, listed
from penstock.clients.state_machine import StateMachine
from penstock.topology.errors import MissingSourceTopicError, TaskAssignmentError
from penstock.topology.records import TaskId, TopicPartition

from ..control.stream_thread_state import StreamThreadState
from ..metrics.sensors import Sensor, ThreadMetrics
from ..tasks.task_manager import TaskManager
from .assignment.subscription_info import AssignorError


@dataclass(eq=False)
class RebalanceListener:
    """shutdown_to_error: called when a member requests a shutdown of the whole application.

    metrics: gets the time that each call takes (KIP-1216).
    """

    task_manager: TaskManager
    states: StateMachine[StreamThreadState]
    clock: Clock
    shutdown_to_error: Callable[[], None]
    log: PrefixedLogger
    metrics: ThreadMetrics

    def __post_init__(self) -> None:
        self.last_partition_assigned_ms = self.clock.monotonic_ms()

    def on_partitions_assigned(self, partitions: Collection[TopicPartition], error: AssignorError) -> None:
        """Apply the assignment: all partitions of this thread, including those that it keeps.

        Raises MissingSourceTopicError or TaskAssignmentError if the leader could not assign anything.
        """
        if error is AssignorError.SHUTDOWN_REQUESTED:
            self.log.error("A Penstock client in this application is requesting to shutdown the application")
            self.states.transition_to(StreamThreadState.PENDING_SHUTDOWN)
            self.shutdown_to_error()
            return
        if error is AssignorError.INCOMPLETE_SOURCE_TOPIC_METADATA:
            self.log.error("Received error code %s. %s", error.name, error.description)
            raise MissingSourceTopicError("One or more source topics were missing during rebalance")
        if error is not AssignorError.NONE:
            self.log.error("Received error code %s. %s", error.name, error.description)
            raise TaskAssignmentError("Hit an unexpected exception during task assignment phase of rebalance")
        if self.states.transition_to(StreamThreadState.PARTITIONS_ASSIGNED) is None:
            return  # shutting down: the assignment is released immediately
        start_ms = self.last_partition_assigned_ms = self.clock.monotonic_ms()
        try:
            self.task_manager.create_tasks(partitions)
        finally:
            self._took(self.metrics.tasks_assigned, start_ms)

    def on_partitions_revoked(
        self, partitions: Collection[TopicPartition], active: Collection[TaskId], standby: Collection[TaskId]
    ) -> None:
        """Commit and suspend the tasks that move away, with their partitions; all others continue."""
        self.log.debug(
            "Current state %s: revoked partitions %s because of consumer rebalance.\n"
            "\tcurrently assigned active tasks: %s\n\tcurrently assigned standby tasks: %s\n",
            self.states.state.name,
            listed(partitions),
            listed(self.task_manager.active.all_assigned_task_ids()),
            listed(self.task_manager.standby.all_assigned_task_ids()),
        )
        self.states.transition_to(StreamThreadState.PARTITIONS_REVOKED)
        start_ms = self.clock.monotonic_ms()
        try:
            self.task_manager.suspend_tasks_and_state(active, standby)
        finally:
            self.log.info("partition revocation took %s ms.", self._took(self.metrics.tasks_revoked, start_ms))

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Close all active tasks without a commit: other threads may own them by now."""
        self.log.info(
            "at state %s: partitions %s lost due to missed rebalance.\n"
            "\tlost active tasks: %s\n\tlost assigned standby tasks: %s\n",
            self.states.state.name,
            listed(partitions),
            listed(self.task_manager.active.all_assigned_task_ids()),
            listed(self.task_manager.standby.all_assigned_task_ids()),
        )
        start_ms = self.clock.monotonic_ms()
        try:
            self.task_manager.handle_lost_all()
        finally:
            self.log.info("partitions lost took %s ms.", self._took(self.metrics.tasks_lost, start_ms))

    def _took(self, sensor: Sensor, start_ms: int) -> int:
        """Record and return the time since start_ms."""
        now_ms = self.clock.monotonic_ms()
        sensor.record(now_ms - start_ms, now_ms)
        return now_ms - start_ms
