"""Takes this stream thread's part of a snapshot, between two batches."""

from __future__ import annotations

from pathlib import Path

from penstock.statestore.directory.checkpoint import CHECKPOINT_FILE_NAME, OffsetCheckpoint
from penstock.statestore.directory.snapshot import checkpoint_stores

from ..control.messages import QueryResult, TakeSnapshot
from ..tasks.task_manager import TaskManager


def take(command: TakeSnapshot, task_manager: TaskManager) -> QueryResult:
    """Return the changelog offsets, by store by task, of all tasks here with open stores, or the error.

    Errors are returned, not raised, because the stores are only read.
    """
    try:
        return QueryResult(command.id, _offsets(Path(command.directory), task_manager))
    except Exception as error:  # noqa: BLE001  reported; processing continues
        return QueryResult(command.id, error=f"{type(error).__name__}: {error}")


def _offsets(directory: Path, task_manager: TaskManager) -> dict[str, dict[str, int | None]]:
    taken = {}
    for task_id, task in (task_manager.active.all_tasks() | task_manager.standby.all_tasks()).items():
        manager, target = task.state_manager, directory / str(task_id)
        offsets = checkpoint_stores(manager.stores, target)
        if offsets:
            known = {p: at for p, name in manager.changelogs.items() if (at := offsets.get(name)) is not None}
            OffsetCheckpoint(target / CHECKPOINT_FILE_NAME).write(known)
            taken[str(task_id)] = offsets
    return taken
