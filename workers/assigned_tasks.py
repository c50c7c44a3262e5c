"""Which of a thread's tasks is in which state (seed 004; Kafka Streams 2.x: AssignedTasks).

A registry only knows: what a state means for a task is the task's own business, and who decides is the TaskManager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Generic, TypeVar

from penstock.clients.log_context import PrefixedLogger, listed
from penstock.topology.errors import BrokerUnavailableError, LockError, TaskMigratedError
from penstock.topology.records import TaskId, TopicPartition

from .processor_state_manager import RecycledStores
from .task import Task

T = TypeVar("T", bound=Task)


class FirstError:
    """Collects what goes wrong while a series of actions is carried on; the first error is raised at the end."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def note(self, error: Exception | None) -> None:
        """Keep the error if it is the first."""
        self.error = self.error or error

    def reraise(self) -> None:
        """Raise the first error, if there was one."""
        if self.error is not None:
            raise self.error


class AssignedTasks(Generic[T]):
    """The tasks of one type: created, running and suspended ones by id, running ones also by partition."""

    def __init__(self, task_type_name: str, log: PrefixedLogger) -> None:
        self.task_type_name = task_type_name
        self.log = log
        self.created: dict[TaskId, T] = {}
        self.running: dict[TaskId, T] = {}
        self.running_by_partition: dict[TopicPartition, T] = {}
        self.suspended: dict[TaskId, T] = {}
        #: What ran before the last suspension: previous tasks of the next subscription.
        self.previous_active_tasks: set[TaskId] = set()

    def add_new_task(self, task: T) -> None:
        """Register a task that is not initialized yet."""
        self.created[task.task_id] = task

    def uninitialized_partitions(self) -> set[TopicPartition]:
        """Return the input partitions of new tasks with state stores."""
        return {p for task in self.created.values() if task.has_state_stores for p in task.input_partitions}

    def initialize_new_tasks(self) -> None:
        """Open the stores of created tasks, which then run or restore. Locked ones stay created until the next call."""
        if self.created:
            self.log.debug("Initializing %ss %s", self.task_type_name, listed(self.created))
        for task in list(self.created.values()):
            try:
                if task.initialize_state_stores():
                    self.transition_to_running(task)
                else:
                    self.log.debug("Transitioning %s %s to restoring", self.task_type_name, task.task_id)
                    self.add_to_restoring(task)
                del self.created[task.task_id]
            except LockError as error:
                self.log.trace("Could not create %s %s due to %s; will retry", self.task_type_name, task.task_id, error)
            except BrokerUnavailableError as error:
                self.on_unavailable(task, error)

    def on_unavailable(self, task: T, error: BrokerUnavailableError) -> None:
        """Act on brokers that do not tell what a task needs before it is opened; without a raise it is tried again."""
        raise error

    def add_to_restoring(self, task: T) -> None:
        """Register a task whose stores have to catch up first. Standby tasks never do: catching up is their work."""
        self.transition_to_running(task)

    def transition_to_running(self, task: T) -> None:
        """Mark a task as ready: this is the only way into the running registry."""
        self.log.debug("Transitioning %s %s to running", self.task_type_name, task.task_id)
        task.initialize_topology()
        self.running[task.task_id] = task
        for partition in task.input_partitions | task.changelog_partitions:
            self.running_by_partition[partition] = task

    def all_tasks_running(self) -> bool:
        """Return whether no task is in any other state."""
        return not self.created and not self.suspended

    def has_running_tasks(self) -> bool:
        """Return whether at least one task runs."""
        return bool(self.running)

    def running_task_for(self, partition: TopicPartition) -> T | None:
        """Return the running task that reads a partition or owns a changelog, None if there is none."""
        return self.running_by_partition.get(partition)

    def all_tasks(self) -> dict[TaskId, T]:
        """Return the tasks in all states."""
        return {**self.running, **self.suspended, **self.created}

    def all_assigned_task_ids(self) -> set[TaskId]:
        """Return the ids of the tasks in all states."""
        return set(self.all_tasks())

    def suspend(self, task_ids: Collection[TaskId] | None = None) -> None:
        """Suspend running tasks and close the others; None: all tasks.

        Every task gets its turn; raises the first error at the end.
        """
        first = FirstError()
        running = self._taken(self.running, task_ids)
        self.log.trace("Suspending running %s %s", self.task_type_name, listed(running))
        self.suspend_tasks(running.values(), first)
        self._close_not_running(task_ids, first)
        self.previous_active_tasks = set(running)
        for partition in [p for p, task in self.running_by_partition.items() if task.task_id in running]:
            del self.running_by_partition[partition]
        first.reraise()

    def _close_not_running(self, task_ids: Collection[TaskId] | None, first: FirstError) -> None:
        created = self._taken(self.created, task_ids)
        self.log.trace("Close created %s %s", self.task_type_name, listed(created))
        self.close_non_running_tasks(created.values(), first)

    def _taken(self, registry: dict[TaskId, T], task_ids: Collection[TaskId] | None) -> dict[TaskId, T]:
        """Remove tasks from a registry and return them; None: all of them."""
        return {task_id: registry.pop(task_id) for task_id in list(registry) if task_ids is None or task_id in task_ids}

    def suspend_tasks(self, tasks: Iterable[T], first: FirstError) -> None:
        """Suspend tasks; those that cannot be are closed."""
        for task in tasks:
            try:
                task.suspend()
                self.suspended[task.task_id] = task
            except TaskMigratedError:
                # The thread rebalances or shuts down already, so there is nothing more to be done about it.
                self.log.info(
                    "Failed to suspend %s %s since it got migrated to another thread already. "
                    "Closing it as zombie and move on.",
                    self.task_type_name,
                    task.task_id,
                )
                first.note(self.close_zombie_task(task))
            except Exception as error:
                self.log.exception(
                    "Suspending %s %s failed due to the following error:", self.task_type_name, task.task_id
                )
                first.note(error)
                self.close_zombie_task(task)

    def close_non_running_tasks(self, tasks: Iterable[T], first: FirstError) -> None:
        """Close tasks that have not processed anything; there is nothing to commit."""
        for task in tasks:
            try:
                task.close(clean=False)
            except Exception as error:
                self.log.exception("Failed to close %s, %s", self.task_type_name, task.task_id)
                first.note(error)

    def close_non_assigned_suspended_tasks(self, new_assignment: Mapping[TaskId, Collection[TopicPartition]]) -> None:
        """Close suspended tasks that are not assigned any more, or with other partitions."""
        for task in list(self.suspended.values()):
            if set(new_assignment.get(task.task_id, ())) == task.input_partitions:
                continue
            self.log.debug("Closing suspended and not re-assigned %s %s", self.task_type_name, task.task_id)
            try:
                task.close(clean=True)
            except Exception:
                self.log.exception(
                    "Failed to remove suspended %s %s due to the following error:", self.task_type_name, task.task_id
                )
                task.close(clean=False)
            del self.suspended[task.task_id]

    def recycle_suspended(
        self, successors: Mapping[TaskId, Collection[TopicPartition]]
    ) -> dict[TaskId, RecycledStores]:
        """Close the suspended tasks that go on here in the other role, but not their stores: return these."""
        recycled = {}
        for task in list(self.suspended.values()):
            if set(successors.get(task.task_id, ())) == task.input_partitions and task.has_state_stores:
                self.log.debug("Recycling suspended %s %s", self.task_type_name, task.task_id)
                del self.suspended[task.task_id]
                recycled[task.task_id] = task.recycle()
        return recycled

    def maybe_resume_suspended_task(self, task_id: TaskId, partitions: Collection[TopicPartition]) -> bool:
        """Let a suspended task run again if it is assigned with the same partitions. Returns whether it does."""
        task = self.suspended.get(task_id)
        if task is None:
            return False
        self.log.trace("found suspended %s %s", self.task_type_name, task_id)
        if task.input_partitions != set(partitions):
            self.log.warning(
                "couldn't resume task %s assigned partitions %s, task partitions %s",
                task_id,
                listed(partitions),
                listed(task.input_partitions),
            )
            return False
        del self.suspended[task_id]
        try:
            task.resume()
            self.transition_to_running(task)
        except TaskMigratedError:
            error = self.close_zombie_task(task)
            if error is not None:
                raise error from None
            raise
        self.log.trace("resuming suspended %s %s", self.task_type_name, task_id)
        return True

    def apply_to_running_tasks(self, action: Callable[[T], None], name: str = "commit") -> None:
        """Call action for every running task. name: of the action, for log lines.

        A task that has migrated is closed as a zombie and its error raised at once; other errors are raised when all
        tasks had their turn, the first one.
        """
        first = FirstError()
        for task in list(self.running.values()):
            try:
                action(task)
            except TaskMigratedError as error:
                self.log.info(
                    "Failed to %s %s %s since it got migrated to another thread already. "
                    "Closing it as zombie before triggering a new rebalance.",
                    name,
                    self.task_type_name,
                    task.task_id,
                )
                self.remove_zombie(task, error)
            except Exception as error:
                task.state_manager.raise_if_corrupted(error)
                self.log.exception(
                    "Failed to %s %s %s due to the following error:", name, self.task_type_name, task.task_id
                )
                first.note(error)
        first.reraise()

    def remove_zombie(self, task: T, error: TaskMigratedError) -> None:
        """Close a running task that belongs to another thread, forget it, and raise the error with the task in it."""
        failure = self.close_zombie_task(task)
        self._forget({task.task_id: task})
        if failure is not None:
            raise failure from error
        error.task = error.task or task
        raise error

    def close_zombie_task(self, task: T) -> Exception | None:
        """Close a task dirty. Returns what went wrong, if anything did."""
        try:
            task.close(clean=False)
        except Exception as error:  # noqa: BLE001  the caller decides
            self.log.warning(
                "Failed to close zombie %s %s due to %r; ignore and proceed.", self.task_type_name, task.task_id, error
            )
            return error
        return None

    def close(self, clean: bool) -> None:
        """Close the tasks in all states and forget them. Raises the first error of a clean close that failed dirty
        too.
        """
        first = FirstError()
        for task in self.all_tasks().values():
            try:
                task.close(clean)
            except Exception as error:
                self.log.exception(
                    "Failed while closing %s %s due to the following error:", self.task_type_name, task.task_id
                )
                self.log.info("Try to close %s %s unclean.", self.task_type_name, task.task_id)
                first.note(error)
                self.close_zombie_task(task)
        self.clear()
        first.reraise()

    def close_dirty(self, task_ids: Collection[TaskId]) -> None:
        """Close tasks in any state without a commit, and forget them."""
        tasks = {task_id: task for task_id, task in self.all_tasks().items() if task_id in task_ids}
        for task in tasks.values():
            self.close_zombie_task(task)
        self._forget(tasks)

    def _forget(self, tasks: Mapping[TaskId, T]) -> None:
        for registry in (self.running, self.suspended, self.created):
            self._taken(registry, tasks)
        for partition in [p for p, owner in self.running_by_partition.items() if owner.task_id in tasks]:
            del self.running_by_partition[partition]

    def clear(self) -> None:
        """Forget all tasks."""
        self.running_by_partition.clear()
        self.running.clear()
        self.created.clear()
        self.suspended.clear()

    def describe(self, indent: str = "") -> str:
        """Return a text that lists the tasks by state."""
        return (
            self._describe(self.running, indent, "Running:")
            + self._describe(self.suspended, indent, "Suspended:")
            + self._describe(self.created, indent, "New:")
        )

    def _describe(self, tasks: Mapping[TaskId, T], indent: str, name: str) -> str:
        return f"{indent}{name}\n" + "".join(task.describe(f"{indent}\t\t") for _, task in sorted(tasks.items()))
