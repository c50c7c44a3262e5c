"""A registry of a stream thread's tasks, with the operations on all of them (Kafka Streams 2.x: AssignedTasks).

A task holds its own state; Kafka's registries (created, restoring, running, suspended) are views by state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import ClassVar, Generic, NoReturn

from penstock.clients.log_context import PrefixedLogger, listed
from penstock.topology.errors import BrokerUnavailableError, LockError, TaskMigratedError
from penstock.topology.records import TaskId, TopicPartition

from .task import Task
from .task_creator import AbstractTaskCreator, T
from .task_state import STEPS, Step, TaskState
from .task_timeouts import TaskTimeouts

#: The input partitions of each task.
TaskPartitions = Mapping[TaskId, Collection[TopicPartition]]
NO_TASKS: TaskPartitions = MappingProxyType({})

#: The operation that lets a task run, in messages.
READING_OFFSETS = "reading the offsets to start from"


def raise_first(errors: Iterable[Exception | None]) -> None:
    """Raise the first error of a series of actions that has continued after errors; None: an action without one."""
    for error in errors:
        if error is not None:
            raise error


class AssignedTasks(Generic[T]):
    """The tasks of one type, by id."""

    #: The type in log lines.
    task_type_name: ClassVar[str]

    def __init__(self, creator: AbstractTaskCreator[T], timeouts: TaskTimeouts, log: PrefixedLogger) -> None:
        self.creator = creator
        self.timeouts = timeouts
        self.log = log
        self._tasks: dict[TaskId, T] = {}
        self._by_partition: dict[TopicPartition, T] = {}

    @property
    def created(self) -> dict[TaskId, T]:
        """Tasks whose stores are not open yet."""
        return {task_id: task for task_id, task in self._tasks.items() if task.state is TaskState.CREATED}

    @property
    def restoring(self) -> dict[TaskId, T]:
        """Tasks with open stores that are not ready to run."""
        return {task_id: task for task_id, task in self._tasks.items() if task.state is TaskState.RESTORING}

    @property
    def running(self) -> dict[TaskId, T]:
        """Tasks that process records, or (standby) read their changelogs."""
        return {task_id: task for task_id, task in self._tasks.items() if task.state is TaskState.RUNNING}

    @property
    def suspended(self) -> dict[TaskId, T]:
        """Tasks that wait, with open stores, for the end of a rebalance."""
        return {task_id: task for task_id, task in self._tasks.items() if task.state is TaskState.SUSPENDED}

    def create_tasks(self, tasks: TaskPartitions) -> list[T]:
        """Create and register tasks for ids and their input partitions; see AbstractTaskCreator.create_tasks."""
        created = self.creator.create_tasks(tasks)
        for task in created:
            self._tasks[task.task_id] = task
            self._by_partition.update(dict.fromkeys(task.input_partitions | task.changelog_partitions, task))
        return created

    def _forget(self, task: T) -> None:
        del self._tasks[task.task_id]
        for partition in task.input_partitions | task.changelog_partitions:
            if self._by_partition.get(partition) is task:
                del self._by_partition[partition]

    def uninitialized_partitions(self) -> set[TopicPartition]:
        """Return the input partitions of new tasks with state stores."""
        return {p for task in self.created.values() if task.has_state_stores for p in task.input_partitions}

    def initialize_new_tasks(self, in_time: Callable[[], bool] = lambda: True) -> bool:
        """Open the stores of created tasks, which then run or restore. Locked tasks stay created and are retried.

        Opening takes milliseconds per store. Returns False if it ended early because in_time() is False. Raises
        TaskTimeoutError if the brokers have not answered a request that a task needs for task.timeout.ms.
        """
        created = self.created
        if created:
            self.log.debug("Initializing %ss %s", self.task_type_name, listed(created))
        for task in created.values():
            try:
                if task.initialize_state_stores():
                    self.transition_to_running(task)
                else:
                    self.log.debug("Transitioning %s %s to restoring", self.task_type_name, task.task_id)
            except LockError as error:
                self.log.trace("Could not create %s %s due to %s; will retry", self.task_type_name, task.task_id, error)
            except BrokerUnavailableError as error:
                self.timeouts.failed([task.task_id], "opening the stores", error)
            if not in_time():
                return False
        return True

    def transition_to_running(self, task: T) -> None:
        """Move a task to RUNNING; no other method does. It stays as it is if the brokers do not return its offsets now.

        Raises TaskTimeoutError if they have not for task.timeout.ms.
        """
        self.log.debug("Transitioning %s %s to running", self.task_type_name, task.task_id)
        try:
            task.initialize_topology()
        except BrokerUnavailableError as error:
            self.timeouts.failed([task.task_id], READING_OFFSETS, error)
        else:
            self.timeouts.succeeded([task.task_id], READING_OFFSETS)

    def all_tasks_running(self) -> bool:
        """Return whether all tasks are running."""
        return all(task.state is TaskState.RUNNING for task in self._tasks.values())

    def running_task_for(self, partition: TopicPartition) -> T | None:
        """Return the running task that reads a partition or owns a changelog, None if there is none."""
        task = self._by_partition.get(partition)
        return task if task is not None and task.state is TaskState.RUNNING else None

    def all_tasks(self) -> dict[TaskId, T]:
        """Return the tasks in all states."""
        return dict(self._tasks)

    def all_assigned_task_ids(self) -> set[TaskId]:
        """Return the ids of the tasks in all states."""
        return set(self._tasks)

    def input_partitions(self, task_ids: Collection[TaskId] | None = None) -> set[TopicPartition]:
        """Return the input partitions of these tasks; None: of all."""
        ids = self._tasks.keys() if task_ids is None else task_ids
        return {p for task_id in ids for p in self._tasks[task_id].input_partitions}

    # -- assignment

    def next_steps(self, assigned: TaskPartitions, in_other_role: TaskPartitions = NO_TASKS) -> dict[TaskId, Step]:
        """Return the next step of each task, by the table in task_state.py.

        assigned: the tasks of this type that the thread has from now on. in_other_role: its tasks of the other type.
        """
        steps = {}
        for task_id, task in self._tasks.items():
            step = STEPS[task.state]
            if set(assigned.get(task_id, ())) == task.input_partitions:
                steps[task_id] = step.stays
            elif task.topology.changelog_topics and set(in_other_role.get(task_id, ())) == task.input_partitions:
                steps[task_id] = step.changes_role
            else:
                steps[task_id] = step.leaves
        return steps

    def leaving(self, assigned: TaskPartitions) -> set[TaskId]:
        """Return the ids of the tasks that are no longer assigned, or with other partitions."""
        steps = self.next_steps(assigned)
        return {task_id for task_id, step in steps.items() if step not in (Step.KEEP, Step.RESUME)}

    def suspend(self, task_ids: Collection[TaskId] | None = None) -> None:
        """Suspend running tasks and close those that do not run yet, which have nothing to commit; None: all tasks.

        Raises the first error, after all tasks have been handled.
        """
        errors: list[Exception | None] = []
        for state in (TaskState.RUNNING, TaskState.RESTORING, TaskState.CREATED):
            ids = self._tasks.keys() if task_ids is None else task_ids
            tasks = {task_id: task for task_id, task in self._tasks.items() if task_id in ids and task.state is state}
            if STEPS[state].leaves is Step.SUSPEND:
                self.log.trace("Suspending running %s %s", self.task_type_name, listed(tasks))
                errors += [self._suspend(task) for task in tasks.values()]
            else:
                self.log.trace("Close %s %s %s", state.name.lower(), self.task_type_name, listed(tasks))
                errors += [self._close(task, False, "Failed to close %s, %s") for task in tasks.values()]
        raise_first(errors)

    def _suspend(self, task: T) -> Exception | None:
        """Suspend a task; close it if it cannot be suspended. Returns the error."""
        try:
            task.suspend()
        except TaskMigratedError:
            # The thread is already rebalancing or shutting down, so nothing else is necessary.
            self.log.info(
                "Failed to suspend %s %s since it got migrated to another thread already. "
                "Closing it as zombie and move on.",
                self.task_type_name,
                task.task_id,
            )
            return self.close_zombie_task(task)
        except Exception as error:
            self.log.exception("Suspending %s %s failed due to the following error:", self.task_type_name, task.task_id)
            self.close_zombie_task(task)
            return error
        return None

    def _close(self, task: T, clean: bool, failed: str) -> Exception | None:
        """Close and unregister a task; one that fails is closed dirty. failed: is logged then. Returns the error."""
        try:
            task.close(clean)
        except Exception as error:
            self.log.exception(failed, self.task_type_name, task.task_id)
            self.log.info("Try to close %s %s unclean.", self.task_type_name, task.task_id)
            self.close_zombie_task(task)
            return error
        self._forget(task)
        return None

    def close_non_assigned_suspended_tasks(
        self, new_assignment: TaskPartitions, in_other_role: TaskPartitions = NO_TASKS
    ) -> None:
        """Close the suspended tasks that neither stay nor have a successor in the other role; see next_steps."""
        steps = self.next_steps(new_assignment, in_other_role)
        for task_id, task in self.suspended.items():
            if steps[task_id] is Step.CLOSE:
                self.log.debug("Closing suspended and not re-assigned %s %s", self.task_type_name, task_id)
                self._close(task, True, "Failed to remove suspended %s %s due to the following error:")

    def recycle(self, successor: Task) -> None:
        """Pass the open stores of the suspended task to its successor of the other type, if there is one here."""
        task = self.suspended.get(successor.task_id)
        if task is not None:
            self.log.debug("Recycling suspended %s %s", self.task_type_name, task.task_id)
            successor.state_manager.adopt(task.recycle())  # if it raises, this task still has its stores
            self._forget(task)

    def maybe_resume_suspended_task(self, task_id: TaskId, partitions: Collection[TopicPartition]) -> bool:
        """Resume a suspended task that is assigned with the same partitions. Returns whether it was resumed.

        A rebalance leaves one behind that was interrupted by an error after it had suspended its tasks.
        """
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
        try:
            task.resume()
            self.transition_to_running(task)
        except TaskMigratedError as error:
            self.remove_zombie(task, error)
        self.log.trace("resuming suspended %s %s", self.task_type_name, task_id)
        return True

    # -- actions on running tasks

    def apply_to_running_tasks(self, action: Callable[[T], None]) -> None:
        """Call action, which is part of a commit, for every running task.

        Raises the error of a migrated task immediately; otherwise the first error, after all tasks.
        """
        errors: list[Exception] = []
        for task in self.running.values():
            try:
                action(task)
            except Exception as failed:  # noqa: BLE001  raised below
                try:
                    self.on_failed(task, "commit", failed)
                except TaskMigratedError:
                    raise
                except Exception as error:  # noqa: BLE001
                    errors.append(error)
        raise_first(errors)

    def on_failed(self, task: T, name: str, error: Exception) -> NoReturn:
        """Log the error of an action on a running task, and raise it. A migrated task is closed as a zombie.

        name: of the action, for log lines. Call it while the error is handled.
        """
        if isinstance(error, TaskMigratedError):
            self.log.info(
                "Failed to %s %s %s since it got migrated to another thread already. "
                "Closing it as zombie before triggering a new rebalance.",
                name,
                self.task_type_name,
                task.task_id,
            )
            self.remove_zombie(task, error)
        if not isinstance(error, BrokerUnavailableError):  # which is tried again
            task.state_manager.raise_if_corrupted(error)
            self.log.exception(
                "Failed to %s %s %s due to the following error:", name, self.task_type_name, task.task_id
            )
        raise error

    def remove_zombie(self, task: T, error: TaskMigratedError) -> NoReturn:
        """Close a running task that belongs to another thread, unregister it, and raise the error with the task set."""
        failure = self.close_zombie_task(task)
        if failure is not None:
            raise failure from error
        error.task = error.task or task
        raise error

    # -- end

    def close_zombie_task(self, task: T) -> Exception | None:
        """Close a task dirty, and unregister it. Returns the error, if any."""
        self._forget(task)
        try:
            task.close(clean=False)
        except Exception as error:  # noqa: BLE001  the caller decides
            self.log.warning(
                "Failed to close zombie %s %s due to %r; ignore and proceed.", self.task_type_name, task.task_id, error
            )
            return error
        return None

    def close(self, clean: bool) -> None:
        """Close and unregister all tasks; a task that fails is closed dirty. Raises the first error."""
        failed = "Failed while closing %s %s due to the following error:"
        errors = [self._close(task, clean, failed) for task in self.all_tasks().values()]
        self.clear()
        raise_first(errors)

    def clear(self) -> None:
        """Forget all tasks."""
        self._tasks.clear()
        self._by_partition.clear()

    def close_dirty(self, task_ids: Collection[TaskId]) -> None:
        """Close tasks in any state without a commit, and unregister them."""
        for task in [task for task_id, task in self._tasks.items() if task_id in task_ids]:
            self.close_zombie_task(task)

    def describe(self, indent: str = "") -> str:
        """Return a text that lists the tasks by state."""
        return (
            self._describe(self.running, indent, "Running:")
            + self._describe(self.suspended, indent, "Suspended:")
            + self._describe(self.created, indent, "New:")
        )

    def _describe(self, tasks: Mapping[TaskId, T], indent: str, name: str) -> str:
        return f"{indent}{name}\n" + "".join(task.describe(f"{indent}\t\t") for _, task in sorted(tasks.items()))
