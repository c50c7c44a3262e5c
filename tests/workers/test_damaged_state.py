"""Files of a task that were damaged while no process ran: the thread starts anyway and continues counting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.statestore.directory.checkpoint import CHECKPOINT_FILE_NAME
from penstock.statestore.directory.state_directory import FileLock, StateDirectory
from penstock.topology.errors import TaskCorruptedError
from penstock.topology.records import TaskId
from tests.direct_kafka import DirectKafka
from tests.workers.counting import IN, OUT, counting, counts, feed
from tests.workers.thread_stage import Application


@pytest.mark.parametrize("content", [b"\xf1\x00\xff", b"", b"0\n7\n", b"0\n1\napp-counts-changelog 0 99999999\n"])
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_a_damaged_checkpoint_is_ignored(
    cluster: DirectKafka, application: Callable[..., Application], guarantee: str, content: bytes
) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    app = application(counting(), processing_guarantee=guarantee)
    feed(cluster, "aab")
    app.thread().until_idle().close()
    (note,) = Path(app.stage.state_dir).rglob(CHECKPOINT_FILE_NAME)
    note.write_bytes(content)
    feed(cluster, "a")
    app.thread().until_idle().commit()
    assert counts(cluster) == {"a": 3, "b": 1}


def test_damaged_files_are_deleted_later_while_another_process_holds_their_lock(
    cluster: DirectKafka, application: Callable[..., Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream thread that joins locks each task's directory for a moment, to report the task's offsets."""
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    app = application(counting())
    feed(cluster, "aab")
    app.thread().until_idle().close()
    (current,) = Path(app.stage.state_dir).rglob("CURRENT")
    current.write_bytes(b"")
    refused: list[TaskId] = []

    def wipe_while_another_looks(directory: StateDirectory, task_id: TaskId) -> None:
        if refused:
            wipe(directory, task_id)
            return
        refused.append(task_id)
        with FileLock(directory._lock_path(task_id), ""):
            wipe(directory, task_id)

    wipe = StateDirectory.wipe
    monkeypatch.setattr(StateDirectory, "wipe", wipe_while_another_looks)
    feed(cluster, "a")
    app.thread().until_idle().commit()
    assert refused
    assert counts(cluster) == {"a": 3, "b": 1}


def test_a_thread_that_finds_damage_after_its_tasks_have_moved_rejoins(
    cluster: DirectKafka, application: Callable[..., Application]
) -> None:
    """The other tasks are committed before the damaged one restarts, and the group refuses that commit."""
    cluster.create_topic(IN, 2)
    cluster.create_topic(OUT, 1)
    feed(cluster, "a", partition=0)
    thread = application(counting()).thread().until_idle()
    thread.commit()
    feed(cluster, "b", partition=1)
    thread.step(2)
    active, process = thread.task_manager.active, thread.task_manager.active.process

    def damaged(max_records: int) -> int:
        active.process = process
        raise TaskCorruptedError("a file is damaged", [TaskId(0, 0)])

    active.process = damaged
    cluster.refuse("OffsetCommit", "UNKNOWN_MEMBER_ID", times=1)
    before = cluster.requests["OffsetCommit"]
    thread.step()
    assert cluster.requests["OffsetCommit"] == before + 1
    assert not active.all_tasks()
    thread.until_idle().commit()
    assert counts(cluster) == {"a": 1, "b": 1}
