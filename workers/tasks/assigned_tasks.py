"""A registry of a stream thread's tasks, with the operations on all of them (Kafka Streams 2.x: AssignedTasks).

A task holds its own state; Kafka's registries (created, restoring, running, suspended) are views by state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, NoReturn, TypeVar

from penstock.clients.log_context import PrefixedLogger, listed
from penstock.topology.errors import BrokerUnavailableError, LockError, TaskMigratedError
from penstock.topology.records import TaskId, TopicPartition

from .processor_state_manager import RecycledStores
from .task import Task
from .task_state import TaskState

T = TypeVar("T", bound=Task)


class FirstError:
    """Collects the errors of a series of actions that continues after an error; the first one is raised at the end."""

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
    """The tasks of one type, by id."""

    def __init__(self, task_type_name: str, log: PrefixedLogger) -> None:
        self.task_type_name = task_type_name
        self.log = log
        self._tasks: dict[TaskId, T] = {}
        self._by_partition: dict[TopicPartition, T] = {}

    def in_state(self, *states: TaskState) -> dict[TaskId, T]:
        """Return the tasks that are in one of these states."""
        return {task_id: task for task_id, task in self._tasks.items() if task.state in states}

    @property
    def created(self) -> dict[TaskId, T]:
        """Tasks whose stores are not open yet."""
        return self.in_state(TaskState.CREATED)

    @property
    def restoring(self) -> dict[TaskId, T]:
        """Tasks with open stores that are not ready to run."""
        return self.in_state(TaskState.RESTORING)

    @property
    def running(self) -> dict[TaskId, T]:
        """Tasks that process records, or (standby) read their changelogs."""
        return self.in_state(TaskState.RUNNING)

    @property
    def suspended(self) -> dict[TaskId, T]:
        """Tasks that wait, with open stores, for the end of a rebalance."""
        return self.in_state(TaskState.SUSPENDED)

    def add_new_task(self, task: T) -> None:
        """Register a task that is not initialized yet."""
        self._tasks[task.task_id] = task
        self._by_partition.update(dict.fromkeys(task.input_partitions | task.changelog_partitions, task))

    def _forget(self, tasks: Iterable[T]) -> None:
        for task in tasks:
            del self._tasks[task.task_id]
            for partition in task.input_partitions | task.changelog_partitions:
                if self._by_partition.get(partition) is task:
                    del self._by_partition[partition]

    def uninitialized_partitions(self) -> set[TopicPartition]:
        """Return the input partitions of new tasks with state stores."""
        return {p for task in self.created.values() if task.has_state_stores for p in task.input_partitions}

    def initialize_new_tasks(self, in_time: Callable[[], bool] = lambda: True) -> bool:
        """Open the stores of created tasks, which then run or restore. Locked tasks stay created and are retried.

        Opening takes milliseconds per store. Returns False if it ended early because in_time() is False.
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
                self.on_unavailable(task, error)
            if not in_time():
                return False
        return True

    def on_unavailable(self, task: T, error: BrokerUnavailableError) -> None:
        """Handle brokers that did not answer a request needed to open a task. Returning means to retry."""
        raise error

    def transition_to_running(self, task: T) -> None:
        """Move a task to RUNNING; no other method does."""
        self.log.debug("Transitioning %s %s to running", self.task_type_name, task.task_id)
        task.initialize_topology()

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

    def suspend(self, task_ids: Collection[TaskId] | None = None) -> None:
        """Suspend running tasks and close the others; None: all tasks.

        Raises the first error, after all tasks have been handled.
        """
        first = FirstError()
        running, restoring, created = (
            {task_id: task for task_id, task in tasks.items() if task_ids is None or task_id in task_ids}
            for tasks in (self.running, self.restoring, self.created)
        )
        self.log.trace("Suspending running %s %s", self.task_type_name, listed(running))
        self.suspend_tasks(running.values(), first)
        for state, tasks in (("restoring", restoring), ("created", created)):
            self.log.trace("Close %s %s %s", state, self.task_type_name, listed(tasks))
            self.close_non_running_tasks(tasks.values(), first)
        first.reraise()

    def suspend_tasks(self, tasks: Iterable[T], first: FirstError) -> None:
        """Suspend tasks; close those that cannot be suspended."""
        for task in tasks:
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
                first.note(self.close_zombie_task(task))
                self._forget([task])
            except Exception as error:
                self.log.exception(
                    "Suspending %s %s failed due to the following error:", self.task_type_name, task.task_id
                )
                first.note(error)
                self.close_zombie_task(task)
                self._forget([task])

    def close_non_running_tasks(self, tasks: Iterable[T], first: FirstError) -> None:
        """Close tasks that have not processed anything and have nothing to commit."""
        for task in tasks:
            try:
                task.close(clean=False)
            except Exception as error:
                self.log.exception("Failed to close %s, %s", self.task_type_name, task.task_id)
                first.note(error)
            self._forget([task])

    def close_non_assigned_suspended_tasks(self, new_assignment: Mapping[TaskId, Collection[TopicPartition]]) -> None:
        """Close suspended tasks that are no longer assigned, or assigned with other partitions."""
        for task in self.suspended.values():
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
            self._forget([task])

    def recycle_suspended(
        self, successors: Mapping[TaskId, Collection[TopicPartition]]
    ) -> dict[TaskId, RecycledStores]:
        """Close the suspended tasks that continue here in the other role, and return their open stores."""
        recycled = {}
        for task in self.suspended.values():
            if set(successors.get(task.task_id, ())) == task.input_partitions and task.has_state_stores:
                self.log.debug("Recycling suspended %s %s", self.task_type_name, task.task_id)
                self._forget([task])
                recycled[task.task_id] = task.recycle()
        return recycled

    def maybe_resume_suspended_task(self, task_id: TaskId, partitions: Collection[TopicPartition]) -> bool:
        """Resume a suspended task that is assigned with the same partitions. Returns whether it was resumed."""
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
        except TaskMigratedError:
            error = self.close_zombie_task(task)
            self._forget([task])
            if error is not None:
                raise error from None
            raise
        self.log.trace("resuming suspended %s %s", self.task_type_name, task_id)
        return True

    def apply_to_running_tasks(self, action: Callable[[T], None], name: str = "commit") -> None:
        """Call action for every running task. name: of the action, for log lines.

        Raises the error of a migrated task immediately; otherwise the first error, after all tasks.
        """
        first = FirstError()
        for task in self.running.values():
            try:
                with self.acting(task, name):
                    action(task)
            except TaskMigratedError:
                raise
            except Exception as error:  # noqa: BLE001  raised below
                first.note(error)
        first.reraise()

    @contextmanager
    def acting(self, task: T, name: str) -> Iterator[None]:
        """Log the errors of an action on a task, and close it as a zombie if it has migrated. All errors are raised."""
        try:
            yield
        except TaskMigratedError as error:
            self.log.info(
                "Failed to %s %s %s since it got migrated to another thread already. "
                "Closing it as zombie before triggering a new rebalance.",
                name,
                self.task_type_name,
                task.task_id,
            )
            self.remove_zombie(task, error)
        except BrokerUnavailableError:
            raise  # tried again
        except Exception as error:
            task.state_manager.raise_if_corrupted(error)
            self.log.exception(
                "Failed to %s %s %s due to the following error:", name, self.task_type_name, task.task_id
            )
            raise

    def remove_zombie(self, task: T, error: TaskMigratedError) -> NoReturn:
        """Close a running task that belongs to another thread, unregister it, and raise the error with the task set."""
        failure = self.close_zombie_task(task)
        self._forget([task])
        if failure is not None:
            raise failure from error
        error.task = error.task or task
        raise error

    def close_zombie_task(self, task: T) -> Exception | None:
        """Close a task dirty. Returns the error, if any."""
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
        first = FirstError()
        for task in self._tasks.values():
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
        """Close tasks in any state without a commit, and unregister them."""
        tasks = [task for task_id, task in self._tasks.items() if task_id in task_ids]
        for task in tasks:
            self.close_zombie_task(task)
        self._forget(tasks)

    def clear(self) -> None:
        """Forget all tasks."""
        self._tasks.clear()
        self._by_partition.clear()

    def describe(self, indent: str = "") -> str:
        """Return a text that lists the tasks by state."""
        return (
            self._describe(self.running, indent, "Running:")
            + self._describe(self.suspended, indent, "Suspended:")
            + self._describe(self.created, indent, "New:")
        )

    def _describe(self, tasks: Mapping[TaskId, T], indent: str, name: str) -> str:
        return f"{indent}{name}\n" + "".join(task.describe(f"{indent}\t\t") for _, task in sorted(tasks.items()))
