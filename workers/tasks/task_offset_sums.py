"""The position of each task's state on this machine; the leader bases the assignment on it (KIP-441)."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.clients.log_context import PrefixedLogger
from penstock.statestore.directory.checkpoint import CHECKPOINT_FILE_NAME, OffsetCheckpoint
from penstock.statestore.directory.state_directory import StateDirectory
from penstock.topology.errors import LockError, ProcessorStateError
from penstock.topology.records import TaskId

from ..group.assignment.subscription_info import LATEST_OFFSET, UNKNOWN_OFFSET_SUM
from .stream_task import StreamTask
from .task import Task
from .task_state import TaskState


def task_offset_sums(tasks: Mapping[TaskId, Task], directory: StateDirectory, log: PrefixedLogger) -> dict[TaskId, int]:
    """Return the sum of the changelog offsets of each task's stores, without tasks that have no changelog.

    tasks: those of this process. For closed tasks the checkpoint file counts. Tasks locked by another process on this
    host are left out, because that process reports them.
    """
    sums = {
        task_id: _offset_sum(task)
        for task_id, task in tasks.items()
        if (task.state is not TaskState.CREATED or task.state_manager.has_adopted)
        and task.state_manager.changelog_offsets()
    }
    for task_id in set(directory.tasks_on_disk()) - sums.keys():
        try:
            directory.lock(task_id)
        except LockError:
            continue
        try:
            sums[task_id] = _noted_offset_sum(task_id, directory, log)
        finally:
            directory.unlock(task_id)
    return sums


def _offset_sum(task: Task) -> int:
    """Return the sum of a task's changelog offsets, LATEST_OFFSET for a running active task."""
    if task.kind == StreamTask.kind and task.state is TaskState.RUNNING:
        return LATEST_OFFSET
    return sum(offset or 0 for offset in task.state_manager.changelog_offsets().values())


def _noted_offset_sum(task_id: TaskId, directory: StateDirectory, log: PrefixedLogger) -> int:
    """Return the sum from a closed task's checkpoint file. The file is only a hint; a damaged one is ignored."""
    checkpoint = OffsetCheckpoint(directory.directory_for_task(task_id) / CHECKPOINT_FILE_NAME)
    try:
        offsets = checkpoint.read()
    except ProcessorStateError as error:
        log.warning("%s. It is deleted, because it is only a hint.", error)
        checkpoint.delete()
        offsets = {}
    return sum(offsets.values()) if offsets else UNKNOWN_OFFSET_SUM
