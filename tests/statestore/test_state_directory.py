"""A task's directory belongs to one process at a time, and nothing that a process leaves behind blocks the next one."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from penstock.statestore.directory.checkpoint import OFFSET_UNKNOWN, OffsetCheckpoint
from penstock.statestore.directory.state_directory import PROCESS_FILE_NAME, StateDirectory
from penstock.topology.errors import LockError, ProcessorStateError
from penstock.topology.records import TaskId, TopicPartition

TASK = TaskId(0, 1)
#: A test does not take so long.
OLD_MS = 3_600_000
HOLDER = """
import sys
from penstock.statestore.directory.state_directory import StateDirectory
from penstock.topology.records import TaskId

directory = StateDirectory(sys.argv[1], "app")
directory.lock(TaskId(0, 1))
directory.lock_application()
print("locked", flush=True)
sys.stdin.read()
"""


class Clock:
    def __init__(self) -> None:
        self.now_ms = 10**15  # long after every file of this run

    def __call__(self) -> int:
        return self.now_ms


def make(tmp_path: Path, clock: Clock | None = None) -> StateDirectory:
    return StateDirectory(tmp_path, "app", clock or Clock())


def with_store(directory: StateDirectory, task_id: TaskId) -> Path:
    path = directory.get_or_create_directory_for_task(task_id)
    (path / "stores" / "counts").mkdir(parents=True)
    return path


def test_a_lock_excludes_others_until_it_is_released(tmp_path: Path) -> None:
    one, other = make(tmp_path), make(tmp_path)
    one.lock(TASK)
    one.lock(TASK)
    with pytest.raises(LockError, match=rf"Failed to lock .* task 0_1 \(held by process {os.getpid()}\)"):
        other.lock(TASK)
    other.lock(TaskId(0, 2))
    assert one.locked_tasks() == {TASK}
    one.unlock(TASK)
    one.unlock(TASK)
    other.lock(TASK)
    assert other.locked_tasks() == {TASK, TaskId(0, 2)}
    other.close()
    one.lock(TASK)
    one.close()


def test_a_killed_processs_locks_are_free(tmp_path: Path) -> None:
    directory = make(tmp_path)
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(LockError, match=f"held by process {holder.pid}"):
            directory.lock(TASK)
        with pytest.raises(LockError, match="another instance of this application runs in the state directory"):
            directory.lock_application()
        with pytest.raises(LockError, match=f"held by process {holder.pid}"):
            directory.wipe(TASK)
        os.kill(holder.pid, signal.SIGKILL)
    directory.lock(TASK)
    directory.lock_application()
    directory.close()


def test_the_process_id_is_the_same_after_a_restart_and_readable_by_java(tmp_path: Path) -> None:
    found = make(tmp_path).initialize_process_id()
    assert make(tmp_path).initialize_process_id() == found
    assert json.loads((tmp_path / "app" / PROCESS_FILE_NAME).read_text()) == {"processId": str(found)}
    given = uuid.uuid4()
    (tmp_path / "app" / PROCESS_FILE_NAME).write_text(json.dumps({"processId": str(given), "more": 1}))
    assert make(tmp_path).initialize_process_id() == given


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"processId": "x"}', '{"processId": null}'])
def test_a_damaged_process_file_is_replaced(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = make(tmp_path)
    (tmp_path / "app" / PROCESS_FILE_NAME).write_text(text)
    found = directory.initialize_process_id()
    assert "Failed to read json process file" in caplog.text
    assert directory.initialize_process_id() == found


def test_tasks_on_disk_are_those_with_stores(tmp_path: Path) -> None:
    directory = make(tmp_path)
    for task_id in (TaskId(1, 10), TaskId(1, 9), TaskId(0, 3)):
        with_store(directory, task_id)
    directory.get_or_create_directory_for_task(TaskId(2, 0))
    directory.global_state_dir()
    (tmp_path / "app" / "0_x").mkdir()
    (tmp_path / "app" / "5_5").write_text("a file")
    java = directory.get_or_create_directory_for_task(TaskId(3, 0))
    (java / "rocksdb" / "counts").mkdir(parents=True)
    assert directory.tasks_on_disk() == [TaskId(0, 3), TaskId(1, 9), TaskId(1, 10)]


def test_unused_task_directories_are_cleaned_once_they_are_old(tmp_path: Path) -> None:
    clock = Clock()
    directory, other = make(tmp_path, clock), make(tmp_path, clock)
    for partition in range(4):
        with_store(directory, TaskId(0, partition))
    directory.lock(TaskId(0, 0))  # still locked by us
    other.lock(TaskId(0, 1))  # locked by another process
    directory.lock(TaskId(0, 2))
    os.utime(tmp_path / "app" / ".locks" / "0_2", (0, 0))  # it was locked long ago and used until now
    directory.unlock(TaskId(0, 2))
    used_ms = (tmp_path / "app" / ".locks" / "0_2").stat().st_mtime_ns // 1_000_000
    clock.now_ms = used_ms
    assert directory.clean(older_than_ms=OLD_MS) == []
    clock.now_ms = used_ms + OLD_MS + 1
    assert sorted(directory.clean(older_than_ms=OLD_MS)) == [TaskId(0, 2), TaskId(0, 3)]
    assert directory.tasks_on_disk() == [TaskId(0, 0), TaskId(0, 1)]
    directory.close()
    other.close()


def test_a_wiped_task_has_nothing_on_disk_and_keeps_its_lock(tmp_path: Path) -> None:
    directory = make(tmp_path)
    directory.lock(TASK)
    with_store(directory, TASK)
    directory.wipe(TASK)
    directory.wipe(TASK)
    assert not directory.directory_for_task(TASK).exists()
    with pytest.raises(LockError):
        make(tmp_path).lock(TASK)
    directory.unlock(TASK)
    with_store(directory, TASK)
    directory.wipe(TASK)
    assert directory.tasks_on_disk() == []


def test_the_error_names_a_state_dir_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProcessorStateError, match=r"file.* couldn't be created.*check state\.dir"):
        StateDirectory(tmp_path / "file", "app")


def test_the_error_names_a_read_only_state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # root may write anywhere, so in a container a real directory without permission would be written
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ProcessorStateError, match=r"is not writable by this user; check state\.dir"):
        StateDirectory(tmp_path, "app")


def test_directories_are_private(tmp_path: Path) -> None:
    path = with_store(make(tmp_path), TASK)
    assert path.stat().st_mode & 0o777 == 0o750
    group = StateDirectory(tmp_path / "other", "app", allow_group_write=True)
    umask = os.umask(0)
    os.umask(umask)
    assert group.get_or_create_directory_for_task(TASK).stat().st_mode & 0o777 == 0o770 & ~umask


def test_a_temporary_directory_gives_a_warning(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level(logging.WARNING):
        directory = StateDirectory(tmp_path, "app")
        assert caplog.text == ""  # commands read it as well
        directory.lock_application()
        directory.close()
    assert "the operating system may clear it" in caplog.text


OFFSETS = {TopicPartition("a-changelog", 0): 12, TopicPartition("b-changelog", 3): OFFSET_UNKNOWN}


def test_a_checkpoint_has_kafka_streams_format(tmp_path: Path) -> None:
    checkpoint = OffsetCheckpoint(tmp_path / ".checkpoint")
    assert checkpoint.read() == {}
    checkpoint.write(OFFSETS)
    assert checkpoint.path.read_text() == "0\n2\na-changelog 0 12\nb-changelog 3 -4\n"
    assert checkpoint.read() == OFFSETS
    checkpoint.write({})
    assert not checkpoint.path.exists()
    checkpoint.delete()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n0\n", "unknown version 1"),
        ("0\n2\na 0 1\n", "expected 2 entries but found 1"),
        ("0\n1\na 0\n", "not enough values"),
        ("", "list index out of range"),
        ("0\n1\n\xf1 0 1\n", "'utf-8' codec can't decode byte"),
    ],
)
def test_the_error_names_a_damaged_checkpoint(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / ".checkpoint").write_text(text, encoding="latin-1")
    with pytest.raises(ProcessorStateError, match=f"checkpoint file .* is damaged: {message}"):
        OffsetCheckpoint(tmp_path / ".checkpoint").read()


def test_a_failed_write_keeps_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = OffsetCheckpoint(tmp_path / ".checkpoint")
    checkpoint.write(OFFSETS)

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(ProcessorStateError, match="No space left on device"):
        checkpoint.write({TopicPartition("a-changelog", 0): 99})
    with pytest.raises(ValueError, match="negative offset -1"):
        checkpoint.write({TopicPartition("a-changelog", 0): -1})
    assert checkpoint.read() == OFFSETS
    assert [path.name for path in tmp_path.iterdir()] == [".checkpoint"]
