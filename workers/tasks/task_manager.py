"""Coordinates the tasks of one stream thread (Kafka Streams: TaskManager).

It decides what happens to tasks, and in which order. The registries know which task is in which state, the tasks
implement the states, and TaskCommits decides when to commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.clients.group.membership import RetriableCommitError
from penstock.clients.log_context import PrefixedLogger, listed
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.clients.reading.reader import Records
from penstock.statestore.directory.state_directory import StateDirectory
from penstock.topology.errors import BrokerUnavailableError, LockError, TaskMigratedError
from penstock.topology.records import TaskId, TopicPartition

from ..group.assignment.subscription_info import UNKNOWN_OFFSET_SUM
from ..restore.store_changelog_reader import StoreChangelogReader
from .asked_together import AskedTogether
from .assigned_standby_tasks import AssignedStandbyTasks
from .assigned_streams_tasks import AssignedStreamsTasks
from .assigned_tasks import NO_TASKS, AssignedTasks, TaskPartitions, raise_first
from .offset_reset import OffsetReset
from .partition_consumer import PartitionConsumer
from .processor_state_manager import checkpointed_offsets
from .streams_producer import StreamsProducer
from .task import Task
from .task_commits import NOT_COMMITTED, TaskCommits
from .task_creator import T

#: Deletes the records before these offsets; returns False if the previous deletion is still running.
Purge = Callable[[Mapping[TopicPartition, int]], bool]


@dataclass(eq=False)
class TaskManager:
    """The tasks of a stream thread. active, standby: the registries. commits: commits the active tasks.

    committed: reads the group's committed offsets.
    """

    active: AssignedStreamsTasks
    standby: AssignedStandbyTasks
    changelog_reader: StoreChangelogReader
    commits: TaskCommits
    consumer: PartitionConsumer
    producer: StreamsProducer
    state_directory: StateDirectory
    offset_reset: OffsetReset
    committed: AskedTogether[OffsetAndMetadata | None]
    purge: Purge
    log: PrefixedLogger

    def __post_init__(self) -> None:
        self.assigned_active_tasks: TaskPartitions = NO_TASKS
        self.assigned_standby_tasks: TaskPartitions = NO_TASKS
        self.partitions_by_host: Mapping[str, Collection[TopicPartition]] = {}
        self._full: set[TopicPartition] = set()
        #: Whether the last update_new_and_restoring_tasks has left tasks unopened because its time was over.
        self.opening = False

    # -- assignment

    def set_assignment_metadata(
        self, active_tasks: TaskPartitions, standby_tasks: TaskPartitions
    ) -> tuple[set[TaskId], set[TaskId]]:
        """Store the leader's assignment. The table in task_state.py has its consequences for the tasks here.

        Returns the active and the standby tasks that leave: no longer assigned, or with other partitions.
        """
        self.assigned_active_tasks = active_tasks
        self.assigned_standby_tasks = standby_tasks
        return self.active.leaving(active_tasks), self.standby.leaving(standby_tasks)

    def suspend_tasks_and_state(self, active: Collection[TaskId], standby: Collection[TaskId]) -> None:
        """Commit and suspend these tasks, the ones that leave. Raises the first error."""
        errors: list[Exception | None] = []
        if active:
            errors.append(self._commit_before_suspending(active))
        for suspend, task_ids in ((self.active.suspend, active), (self.standby.suspend, standby)):
            try:
                suspend(task_ids)
            except Exception as error:  # noqa: BLE001  continue with the other registry
                errors.append(error)
        raise_first(errors)

    def _commit_before_suspending(self, active: Collection[TaskId]) -> Exception | None:
        """Return an error, so that the tasks are suspended nevertheless."""
        running = [task for task_id, task in self.active.running.items() if task_id in active]
        try:
            self.commits.commit(running, enforce_checkpoint=True)
        except (RetriableCommitError, BrokerUnavailableError) as error:
            failed = f"Tasks {listed(active)} could not be committed before they leave"
            if self.commits.all_together:  # the next commit of the others would include their output
                return TaskMigratedError(f"{failed}, and their transaction is aborted: {error}")
            self.log.warning("%s; their last records will be processed again: %s", failed, error)
        except Exception as error:  # noqa: BLE001
            return error
        return None

    def create_tasks(self, assignment: Collection[TopicPartition]) -> None:
        """Close suspended tasks that have moved away, resume the others, and register new ones.

        assignment: all input partitions of this thread. Stores are opened later, by update_new_and_restoring_tasks.
        """
        active, standby = self.assigned_active_tasks, self.assigned_standby_tasks
        in_assignment = {task_id: p for task_id, p in active.items() if set(p) <= set(assignment)}
        self.standby.close_non_assigned_suspended_tasks(standby, in_assignment)
        self.active.close_non_assigned_suspended_tasks(active, standby)
        if active:
            self.log.debug("Adding assigned tasks as active: %s", shown(active))
        for task_id in sorted(active.keys() - in_assignment.keys()):
            self.log.warning(
                "Task %s owned partitions %s are not contained in the assignment %s",
                task_id,
                listed(active[task_id]),
                listed(assignment),
            )
        with self._asked_together(assignment):
            self._add_tasks("active", self.active, in_assignment, self.standby)
        if standby:
            self.log.debug("Adding assigned standby tasks %s", shown(standby))
        self._add_tasks("standby", self.standby, standby, self.active)
        new = self.active.uninitialized_partitions()
        self.log.trace("Pausing partitions: %s", listed(new))
        self.consumer.pause(new)

    @contextmanager
    def _asked_together(self, partitions: Collection[TopicPartition]) -> Iterator[None]:
        """Within this context, one request fetches the committed offsets of these partitions, and one their start
        offsets.
        """
        with self.committed.together(partitions), self.offset_reset.together(partitions):
            yield

    def _add_tasks(
        self, kind: str, registry: AssignedTasks[T], assigned: TaskPartitions, other: AssignedTasks[Any]
    ) -> None:
        """Resume suspended tasks and register new ones, with the stores of their predecessors of the other type."""
        owned = registry.all_assigned_task_ids() - registry.suspended.keys()
        new = {
            task_id: partitions
            for task_id, partitions in assigned.items()
            if task_id not in owned and not registry.maybe_resume_suspended_task(task_id, partitions)
        }
        if new:
            self.log.trace("New %s tasks to be created: %s", kind, shown(new))
            registry.timeouts.succeeded(new)  # failures from before they moved away do not count
            for task in registry.create_tasks(new):
                other.recycle(task)

    def handle_lost_all(self) -> None:
        """Close active tasks without a commit: others may own them by now. Standby tasks continue, because they write
        nothing.
        """
        self.commits.forget()
        self.producer.abort_transaction()
        self.active.close(clean=False)
        self.assigned_active_tasks = {}

    def handle_corruption(self, task_ids: Collection[TaskId]) -> None:
        """Close tasks with unusable state, delete the state, and restart them; the others are committed first."""
        if self.commits.all_together:  # the other tasks share the aborted transaction
            self.producer.abort_transaction()
            again = set(self.active.all_assigned_task_ids())
        else:
            again = set(task_ids)
            try:
                self.commits.commit([task for task_id, task in self.active.running.items() if task_id not in again])
            except (RetriableCommitError, BrokerUnavailableError) as error:
                self.log.warning(
                    "The other tasks could not be committed; they restart from their last commit: %s", error
                )
                again |= self.active.running.keys()
        self._recreate(self.active, again, task_ids)
        self._recreate(self.standby, set(task_ids), task_ids)

    def reopen(self, task_ids: Collection[TaskId]) -> None:
        """Close active tasks after a commit, and reopen them with the state on disk and the committed offsets.

        During a rebalance there is no commit, so work since the last one is repeated.
        """
        if self.commits.commit_all(enforce_checkpoint=True) == NOT_COMMITTED:
            self._open_uncommitted(task_ids)
        else:
            self._recreate(self.active, set(task_ids), ())

    def _open_uncommitted(self, task_ids: Collection[TaskId]) -> None:
        """Drop the work of these tasks since the last commit, and reopen them."""
        self.commits.wait()  # otherwise it might arrive after a later commit, and move the offsets back
        again = set(task_ids)
        if self.commits.all_together:  # the others share the transaction
            self.producer.abort_transaction()
            again = set(self.active.all_assigned_task_ids())
        self.log.warning("Reopening tasks %s from their last commit", listed(again))
        self._recreate(self.active, again, ())

    def _recreate(self, registry: AssignedTasks[T], again: set[TaskId], wiped: Collection[TaskId]) -> None:
        """Replace tasks with new ones, and delete the files of those in wiped."""
        tasks = {task_id: task for task_id, task in registry.all_tasks().items() if task_id in again}
        registry.close_dirty(tasks)
        for task_id in tasks.keys() & set(wiped):
            try:
                self.state_directory.wipe(task_id)
            except LockError as error:  # another process here has locked it; the damage will be detected again
                self.log.info("The files of task %s are not deleted now: %s", task_id, error)
        registry.create_tasks({task_id: task.input_partitions for task_id, task in tasks.items()})

    # -- restoring

    def update_new_and_restoring_tasks(self, in_time: Callable[[], bool] = lambda: True) -> bool:
        """Open new tasks while in_time(), and move restored ones to RUNNING. Returns True when all tasks run."""
        restored = self.changelog_reader.completed()
        with self._asked_together(self.active.starting_partitions(restored)):
            opened = self.active.initialize_new_tasks(in_time) and self.standby.initialize_new_tasks(in_time)
            self.opening = not opened
            self.active.update_restored(restored)
        if not self.active.all_tasks_running():
            return False
        assignment = self.consumer.assignment()
        self.log.trace("Resuming partitions %s", listed(assignment))
        self.consumer.resume(assignment)
        self._full.clear()
        return self.standby.all_tasks_running()

    def batch_due_ms(self) -> int | None:
        """Return the wall-clock time (ms) at which a waiting batch must be processed; None without one."""
        due = (task.batch_due_ms for task in self.active.running.values())
        return min((at for at in due if at is not None), default=None)

    def waits_for_locks(self) -> bool:
        """Return whether all tasks that are not running wait for locks held by another process here."""
        waiting = self.active.created or self.standby.created
        return bool(waiting) and not self.opening and not self.changelog_reader.restoring_active()

    def needs_initialization_or_restoration(self) -> bool:
        """Return whether some task is not running yet."""
        return not (self.active.all_tasks_running() and self.standby.all_tasks_running())

    # -- processing

    def add_records_to_tasks(self, records: Records) -> None:
        """Hand records to their tasks; records without a task were fetched before it left."""
        for partition, messages in records.items():
            task = self.active.running_task_for(partition)
            if task is not None:
                task.add_records(partition, messages)

    def has_buffered_records(self) -> bool:
        """Return whether a running task has records to process."""
        return any(task.num_buffered() for task in self.active.running.values())

    def process(self, max_records: int) -> int:
        """Let every running task process up to max_records. Returns how many records were processed."""
        processed = self.active.process(max_records)
        if self.active.interrupted:
            self._open_interrupted()
        return processed

    def punctuate(self) -> int:
        """Run the punctuations that are due. Returns how many ran."""
        punctuated = self.active.punctuate()
        if self.active.interrupted:
            self._open_interrupted()
        return punctuated

    def _open_interrupted(self) -> None:
        """Restart tasks that were interrupted within a record from their last commit, because a half-processed record
        must not count.
        """
        interrupted, self.active.interrupted = self.active.interrupted, set()
        self._open_uncommitted(interrupted)

    def balance_fetching(self, limit: int) -> None:
        """Pause partitions with more than limit buffered records, resume those with fewer."""
        full = {
            p
            for task in self.active.running.values()
            if task.num_buffered() > limit
            for p in task.full_partitions(limit)
        }
        self.consumer.pause(full - self._full)
        self.consumer.resume(self._full - full)
        self._full = full

    # -- background work

    def maybe_purge_committed_records(self) -> None:
        """Delete committed records of repartition topics."""
        records = self.active.records_to_delete()
        if records and self.purge(records):
            self.log.trace("Sent delete-records request: %s", records)

    def persist_one(self, now_ms: int) -> None:
        """Persist the stores of one task, if any is due: one at a time, to limit the load on the disk."""
        for task in (*self.active.running.values(), *self.active.restoring.values(), *self.standby.running.values()):
            if task.state_manager.persist_if_due(now_ms):
                self.log.debug("Persisted the stores of task %s", task.task_id)
                return

    # -- queries

    def all_tasks(self) -> dict[TaskId, Task]:
        """Return all tasks here, active and standby, running or not."""
        return {**self.active.all_tasks(), **self.standby.all_tasks()}

    def task_offset_sums(self) -> dict[TaskId, int]:
        """Return the position of each task's state on this machine; the leader bases the assignment on it (KIP-441).

        This is the sum of the changelog offsets of a task's stores; tasks without a changelog are left out. For closed
        tasks the checkpoint file counts, UNKNOWN_OFFSET_SUM without one. Tasks locked by another process on this host
        are left out, because that process reports them.
        """
        own = {task_id: task.offset_sum() for task_id, task in self.all_tasks().items()}
        sums = {task_id: offset_sum for task_id, offset_sum in own.items() if offset_sum is not None}
        for task_id in set(self.state_directory.tasks_on_disk()) - sums.keys():
            try:
                self.state_directory.lock(task_id)
            except LockError:
                continue
            try:
                offsets = checkpointed_offsets(self.state_directory, task_id, self.log)
            finally:
                self.state_directory.unlock(task_id)
            sums[task_id] = sum(offsets.values()) if offsets else UNKNOWN_OFFSET_SUM
        return sums

    def task_loads(self) -> dict[TaskId, int]:
        """Return the shares of this thread's time that active tasks use, in thousandths; without unknown ones."""
        loads = {task_id: task.load() for task_id, task in self.active.all_tasks().items()}
        return {task_id: load for task_id, load in loads.items() if load is not None}

    def describe(self, indent: str = "") -> str:
        """Return a description of several lines (Kafka Streams: toString)."""
        inner = f"{indent}\t\t"
        hosts = "".join(f"{inner}{host}: {listed(p)}\n" for host, p in sorted(self.partitions_by_host.items()))
        return (
            f"{indent}TaskManager\n{indent}\tMetadataState:\n{hosts}"
            f"{indent}\tActive tasks:\n{self.active.describe(inner)}"
            f"{indent}\tStandby tasks:\n{self.standby.describe(inner)}"
        )

    # -- end

    def shutdown(self, clean: bool) -> None:
        """Close all tasks; clean: after a commit. Raises the first error, after all tasks are closed."""
        errors: list[Exception] = []
        self.log.debug(
            "Shutting down all active tasks %s, standby tasks %s, suspended tasks %s, and suspended standby tasks %s",
            listed(self.active.running),
            listed(self.standby.running),
            listed(self.active.suspended),
            listed(self.standby.suspended),
        )
        if clean:
            try:
                self.commits.commit_all(enforce_checkpoint=True)
            except Exception as error:  # noqa: BLE001  raised below
                errors.append(error)
                clean = False
        if not clean:
            self.producer.abort_transaction(last=True)
        for close in (self.active.close, self.standby.close):
            try:
                close(clean)
            except Exception as error:  # noqa: BLE001  raised below
                errors.append(error)
        raise_first(errors)


def shown(tasks: TaskPartitions) -> str:
    """Return tasks with their partitions for a log line: {0_0=[in-0]}."""
    texts = (f"{task_id}={listed(partitions)}" for task_id, partitions in sorted(tasks.items()))
    return f"{{{', '.join(texts)}}}"
