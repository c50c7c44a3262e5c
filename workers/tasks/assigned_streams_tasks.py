"""The registry of active tasks (Kafka Streams 2.x: AssignedStreamsTasks)."""

from __future__ import annotations

from collections.abc import Callable, Collection

from penstock.clients.group.membership import RetriableCommitError
from penstock.clients.log_context import PrefixedLogger, listed
from penstock.topology.errors import BrokerUnavailableError, TaskMigratedError
from penstock.topology.records import TaskId, TopicPartition

from .assigned_tasks import AssignedTasks
from .stream_task import StreamTask
from .task_creator import AbstractTaskCreator
from .task_state import TaskState
from .task_timeouts import TaskTimeouts


class AssignedStreamsTasks(AssignedTasks[StreamTask]):
    """Active tasks. They run once their changelogs have been read and their input offsets are known."""

    task_type_name = "stream task"

    def __init__(self, creator: AbstractTaskCreator[StreamTask], timeouts: TaskTimeouts, log: PrefixedLogger) -> None:
        super().__init__(creator, timeouts, log)
        #: Tasks that a client's timeout has interrupted within a record: they must be reopened.
        self.interrupted: set[TaskId] = set()

    def starting_partitions(self, restored: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the input partitions of new tasks, and of those whose changelogs are among these."""
        ready = (task for task in self.restoring.values() if task.changelog_partitions <= set(restored))
        return {p for task in (*self.created.values(), *ready) for p in task.input_partitions}

    def update_restored(self, restored: Collection[TopicPartition]) -> None:
        """Let the tasks run whose changelogs are all among these, which have been read to their end."""
        if restored:
            self.log.trace(
                "Stream task changelog partitions that have completed restoring so far: %s", listed(restored)
            )
        for task in self.restoring.values():
            outstanding = task.changelog_partitions.difference(restored)
            if outstanding:
                self.log.trace(
                    "Stream task %s cannot resume processing yet since some of its changelog partitions "
                    "have not completed restoring: %s",
                    task.task_id,
                    listed(outstanding),
                )
                continue
            self.transition_to_running(task)
            if task.state is not TaskState.RUNNING:
                continue
            self.log.trace(
                "Stream task %s completed restoration as all its changelog partitions %s "
                "have been applied to restore state",
                task.task_id,
                listed(task.changelog_partitions),
            )

    def process(self, max_records: int) -> int:
        """Let every running task that has some process up to max_records. Returns how many records were processed.

        Tasks share the limit of async calls in flight. First all of them forward completed records; then the task with
        the fewest waiting records is first. Otherwise the first task would take every free place.
        """
        processed = 0
        tasks = [task for task in self.running.values() if task.has_work]
        if any(task.records_waiting for task in tasks):
            for task in tasks:
                try:
                    task.pass_on()
                except Exception as error:  # noqa: BLE001  raised or noted there
                    self.on_interrupted(task, "process", error)
            tasks.sort(key=lambda task: task.records_waiting)
        for task in tasks:
            try:
                processed += task.process(max_records)
            except Exception as error:  # noqa: BLE001
                self.on_interrupted(task, "process", error)
        return processed

    def punctuate(self) -> int:
        """Run due punctuations of every running task, by stream time and wall clock. Returns how many ran."""
        punctuated = 0
        for task in [task for task in self.running.values() if task.has_punctuations]:
            try:
                punctuated += task.maybe_punctuate_stream_time() + task.maybe_punctuate_system_time()
            except Exception as error:  # noqa: BLE001
                self.on_interrupted(task, "punctuate", error)
        return punctuated

    def maybe_commit_per_user_requested(self, commit: Callable[[Collection[StreamTask]], int]) -> int:
        """Commit the running tasks that asked for it, with the given function. Returns how many were committed."""
        requested = [task for task in self.running.values() if task.commit_requested and task.commit_needed]
        if not requested:
            return 0
        try:
            committed = commit(requested)
        except TaskMigratedError as error:
            for task in requested:
                self.log.info(
                    "Failed to commit %s since it got migrated to another thread already. "
                    "Closing it as zombie before triggering a new rebalance.",
                    task.task_id,
                )
            self.remove_zombie(requested[0], error)
        except (RetriableCommitError, BrokerUnavailableError):
            raise  # retried
        except Exception:
            self.log.exception(
                "Failed to commit StreamTask %s due to the following error:", listed(t.task_id for t in requested)
            )
            raise
        for task in requested:
            self.log.debug("Committed active task %s per user request in", task.task_id)
        return committed

    def records_to_delete(self) -> dict[TopicPartition, int]:
        """Return the offset before which committed records of each repartition partition can be deleted."""
        return {
            partition: offset
            for task in self.running.values()
            for partition, offset in task.purgeable_offsets().items()
        }

    def describe(self, indent: str = "") -> str:
        """Return a description of the tasks by state."""
        return super().describe(indent) + self._describe(self.restoring, indent, "Restoring:")

    def on_interrupted(self, task: StreamTask, name: str, error: Exception) -> None:
        """As ``on_failed``, but a task whose user's code gets no answer from a broker is noted: it must be reopened.

        Raises TaskTimeoutError if there was none for task.timeout.ms.
        """
        if not isinstance(error, BrokerUnavailableError):
            self.on_failed(task, name, error)
        self.timeouts.failed([task.task_id], f"a request of the user's code ({name})", error)
        self.interrupted.add(task.task_id)
