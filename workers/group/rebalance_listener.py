"""What the group's decisions do to a stream thread (Kafka Streams: StreamsRebalanceListener).

The listener changes states and calls the TaskManager. It opens no store and reads no changelog: the loop does, a
bounded piece at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from penstock.clients.clock import Clock
from penstock.clients.log_context import PrefixedLogger, listed
from penstock.clients.state_machine import StateMachine
from penstock.topology.errors import MissingSourceTopicError, TaskAssignmentError
from penstock.topology.records import TaskId, TopicPartition

from ..control.stream_thread_state import StreamThreadState
from ..tasks.task_manager import TaskManager
from .assignment.subscription_info import AssignorError


class RebalanceListener:
    """shutdown_to_error: called when a member asks the whole application to shut down."""

    def __init__(
        self,
        task_manager: TaskManager,
        states: StateMachine[StreamThreadState],
        clock: Clock,
        shutdown_to_error: Callable[[], None],
        log: PrefixedLogger,
    ) -> None:
        self.last_partition_assigned_ms = clock.monotonic_ms()
        self._task_manager = task_manager
        self._states = states
        self._clock = clock
        self._shutdown_to_error = shutdown_to_error
        self._log = log

    def on_partitions_assigned(self, partitions: Collection[TopicPartition], error: AssignorError) -> None:
        """Take over all partitions that are assigned to this thread, those it had before too.

        Raises MissingSourceTopicError or TaskAssignmentError if the leader could not assign anything.
        """
        if error is AssignorError.SHUTDOWN_REQUESTED:
            self._log.error("A Penstock client in this application is requesting to shutdown the application")
            self._states.transition_to(StreamThreadState.PENDING_SHUTDOWN)
            self._shutdown_to_error()
            return
        if error is AssignorError.INCOMPLETE_SOURCE_TOPIC_METADATA:
            self._log.error("Received error code %s. %s", error.name, error.description)
            raise MissingSourceTopicError("One or more source topics were missing during rebalance")
        if error is not AssignorError.NONE:
            self._log.error("Received error code %s. %s", error.name, error.description)
            raise TaskAssignmentError("Hit an unexpected exception during task assignment phase of rebalance")
        if self._states.transition_to(StreamThreadState.PARTITIONS_ASSIGNED) is None:
            return  # shutting down: what is assigned now is given back at once
        self.last_partition_assigned_ms = self._clock.monotonic_ms()
        self._task_manager.create_tasks(partitions)

    def on_partitions_revoked(
        self, partitions: Collection[TopicPartition], active: Collection[TaskId], standby: Collection[TaskId]
    ) -> None:
        """Commit and suspend the tasks that move away, with their partitions; all others continue."""
        self._log.debug(
            "Current state %s: revoked partitions %s because of consumer rebalance.\n"
            "\tcurrently assigned active tasks: %s\n\tcurrently assigned standby tasks: %s\n",
            self._states.state.name,
            listed(partitions),
            listed(self._task_manager.active.all_assigned_task_ids()),
            listed(self._task_manager.standby.all_assigned_task_ids()),
        )
        self._states.transition_to(StreamThreadState.PARTITIONS_REVOKED)
        start_ms = self._clock.monotonic_ms()
        try:
            self._task_manager.suspend_tasks_and_state(active, standby)
        finally:
            self._log.info("partition revocation took %s ms.", self._clock.monotonic_ms() - start_ms)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Close all active tasks without a commit: other threads may own them by now."""
        self._log.info(
            "at state %s: partitions %s lost due to missed rebalance.\n"
            "\tlost active tasks: %s\n\tlost assigned standby tasks: %s\n",
            self._states.state.name,
            listed(partitions),
            listed(self._task_manager.active.all_assigned_task_ids()),
            listed(self._task_manager.standby.all_assigned_task_ids()),
        )
        start_ms = self._clock.monotonic_ms()
        try:
            self._task_manager.handle_lost_all()
        finally:
            self._log.info("partitions lost took %s ms.", self._clock.monotonic_ms() - start_ms)
