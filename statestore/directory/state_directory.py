"""The directory of an application's state on this machine (Kafka Streams: StateDirectory).

    <state.dir>/<application.id>/
        kafka-streams-process-metadata    the process id: it identifies the application after a restart
        .lock                             held by the application's supervisor
        .locks/<task id>                  held by the process that owns the task
        <task id>/stores/<store>          a RocksDB
        <task id>/custom/<store>          files of a user's own store
    <task id>/transfers/              files of checkpoints that are being uploaded or loaded
        global/stores/<store>             stores of global tables

All stream threads of an application share these directories, and each is a separate process, so a task's lock is a file
lock (flock). The kernel releases it when its holder dies; the lock files stay, and have no meaning while unlocked. They
are outside the task's directory, because a lock on a deleted file no longer excludes other processes.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from uuid import UUID, uuid4

from penstock.topology.errors import LockError, ProcessorStateError
from penstock.topology.records import TaskId

from .own_files import check_folder, open_own, read_own, write_atomically

log = logging.getLogger(__name__)

PROCESS_FILE_NAME = "kafka-streams-process-metadata"
LOCK_FILE_NAME = ".lock"
LOCKS_DIRECTORY = ".locks"
GLOBAL_DIRECTORY = "global"
#: The folder of the stores in a task directory. Not Kafka Streams' ``rocksdb``, whose databases have another layout.
#: Defined here because the supervisor needs it, too, and must not load RocksDB (34 MB) for that.
STORES_DIRECTORY = "stores"
#: The folder of the files of users' own stores.
CUSTOM_DIRECTORY = "custom"
#: The folder of files on their way to and from object storage (penstock.checkpoint.uri).
TRANSFERS_DIRECTORY = "transfers"


class StateDirectory:
    """The state directory of one application, for one process.

    state_dir: the configuration's ``state.dir``. wall_clock_ms: the clock for the ages of directories.
    allow_group_write: ``allow.os.group.write.access``. Missing directories are created, readable by the group; a new
    state.dir below the directory for temporary files is for this user only. Raises ProcessorStateError if they cannot
    be created or written, or if other users can change their files.
    """

    def __init__(
        self,
        state_dir: str | Path,
        application_id: str,
        wall_clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        allow_group_write: bool = False,
    ) -> None:
        self.path = Path(state_dir) / application_id
        self._wall_clock_ms = wall_clock_ms
        self._is_temporary = self.path.is_relative_to(tempfile.gettempdir())
        self._mode = 0o770 if allow_group_write else 0o750
        self._application_lock: FileLock | None = None
        self._locks: dict[TaskId, FileLock] = {}
        top_mode = 0o700 if self._is_temporary and not allow_group_write else self._mode
        self._make(Path(state_dir), top_mode, shared=True)
        for path in (self.path, self.path / LOCKS_DIRECTORY):
            self._make(path, self._mode)

    def _make(self, path: Path, mode: int, shared: bool = False) -> Path:
        try:
            if not path.is_dir():
                path.mkdir(parents=True, exist_ok=True, mode=mode)
        except OSError as error:
            raise ProcessorStateError(
                f"The state directory {path} doesn't exist and couldn't be created: {error}; check state.dir"
            ) from error
        check_folder(path, shared=shared)
        if not os.access(path, os.W_OK | os.X_OK):
            raise ProcessorStateError(f"The state directory {path} is not writable by this user; check state.dir")
        return path

    def lock_application(self) -> None:
        """Exclude other instances of the application from this directory, until close or the end of this process.

        Raises LockError if another process has locked it: two instances on one machine need different ``state.dir``.
        """
        if self._application_lock is None:
            if self._is_temporary:
                log.warning(
                    "state.dir is %s, below the directory for temporary files: the operating system may clear it, and "
                    "all state must then be restored. Set state.dir to a place that lasts",
                    self.path.parent,
                )
            self._application_lock = FileLock(
                self.path / LOCK_FILE_NAME,
                f"Unable to initialize state: another instance of this application runs in the state directory "
                f"{self.path}; stop it, or give each its own state.dir",
            )

    def initialize_process_id(self) -> UUID:
        """Return the id of this application on this machine, the same after a restart; created if missing."""
        file = self.path / PROCESS_FILE_NAME
        with FileLock(self.path / LOCKS_DIRECTORY / "process-id", f"{file} is being written", wait=True):
            found = _read_process_id(file)
            if found is None:
                found = uuid4()
                log.info("No process id found on disk, got fresh process id %s", found)
                write_atomically(file, json.dumps({"processId": str(found)}))
            return found

    def lock(self, task_id: TaskId) -> None:
        """Acquire the lock of a task, unless this process already has it.

        Raises LockError, with the holder's process id, if another process has it: retry in the next iteration.
        """
        if task_id not in self._locks:
            self._locks[task_id] = FileLock(
                self._lock_path(task_id), f"Failed to lock the state directory for task {task_id}"
            )

    def unlock(self, task_id: TaskId) -> None:
        """Release the lock of a task, if this process has it."""
        lock = self._locks.pop(task_id, None)
        if lock is not None:
            lock.release()
            log.debug("Released state dir lock for task %s", task_id)

    def locked_tasks(self) -> frozenset[TaskId]:
        """Return the tasks whose locks this process holds."""
        return frozenset(self._locks)

    def _lock_path(self, task_id: TaskId) -> Path:
        return self.path / LOCKS_DIRECTORY / str(task_id)

    def directory_for_task(self, task_id: TaskId) -> Path:
        """Return the path of a task's directory, which may not exist."""
        return self.path / str(task_id)

    def get_or_create_directory_for_task(self, task_id: TaskId) -> Path:
        """Return a task's directory; raises ProcessorStateError if it cannot be created."""
        return self._make(self.directory_for_task(task_id), self._mode)

    def global_state_dir(self) -> Path:
        """Return the directory of the global tables' stores; raises ProcessorStateError if it cannot be created."""
        return self._make(self.path / GLOBAL_DIRECTORY, self._mode)

    def tasks_on_disk(self) -> list[TaskId]:
        """Return the tasks that have state in this directory, lowest first."""
        return sorted(task_id for task_id, path in self._task_directories() if has_stores(path))

    def _task_directories(self) -> Iterator[tuple[TaskId, Path]]:
        for path in self.path.iterdir():
            parts = path.name.split("_")
            if len(parts) == 2 and all(part.isascii() and part.isdigit() for part in parts) and path.is_dir():
                yield TaskId.parse(path.name), path

    def clean(self, older_than_ms: int) -> list[TaskId]:
        """Delete the directories of tasks that no process has locked or used for this long; return those tasks.

        Kafka Streams: cleanRemovedTasks, with ``state.cleanup.delay.ms``.
        """
        found = list(self._task_directories())
        return [task_id for task_id, path in found if self._clean(task_id, path, older_than_ms)]

    def _clean(self, task_id: TaskId, path: Path, older_than_ms: int) -> bool:
        age_ms = self._wall_clock_ms() - self._last_used_ms(task_id, path)
        if age_ms <= older_than_ms:
            return False
        try:
            lock = FileLock(self._lock_path(task_id), "")
        except LockError:
            return False
        with lock:
            log.info(
                "Deleting obsolete state directory %s for task %s as %sms has elapsed (cleanup delay is %sms).",
                path.name,
                task_id,
                age_ms,
                older_than_ms,
            )
            _delete(path)
        return True

    def _last_used_ms(self, task_id: TaskId, path: Path) -> int:
        """Return when a task's lock was last released or acquired; a Java application's directory has no such lock."""
        used = self._lock_path(task_id)
        return (used if used.exists() else path).stat().st_mtime_ns // 1_000_000

    def wipe(self, task_id: TaskId) -> None:
        """Delete a task's state, which cannot be trusted: it will be restored.

        The task's stores must be closed. Raises LockError if another process has locked the task, ProcessorStateError
        if something cannot be deleted.
        """
        path = self.directory_for_task(task_id)
        if task_id in self._locks:
            _delete(path)
            return
        with FileLock(self._lock_path(task_id), f"Failed to lock the state directory for task {task_id}"):
            _delete(path)

    def close(self) -> None:
        """Release all locks."""
        for task_id in list(self._locks):
            self.unlock(task_id)
        if self._application_lock is not None:
            self._application_lock.release()
            self._application_lock = None


class FileLock:
    """An exclusive lock, released by the kernel when the process dies. A context manager that releases it.

    The file contains the id of the last process that locked it. refused: the text of a LockError. wait: block until it
    is free.
    """

    def __init__(self, path: Path, refused: str, wait: bool = False) -> None:
        try:
            descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
            self._file: IO[str] = os.fdopen(descriptor, "r+", encoding="ascii", errors="replace")
            try:
                self._take(wait, refused)
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise ProcessorStateError(f"Cannot lock {path}: {error}; check the disk and its permissions") from error

    def _take(self, wait: bool, refused: str) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockError(f"{refused} (held by process {self._file.read() or 'unknown'})") from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        """Release the lock, and set the file's time."""
        if not self._file.closed:
            os.utime(self._file.fileno())
            self._file.close()

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def _read_process_id(file: Path) -> UUID | None:
    try:
        return UUID(json.loads(read_own(file))["processId"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("Failed to read json process file %s (%s): a fresh process id replaces it", file, error)
        return None


def has_stores(path: Path) -> bool:
    """Return whether a task directory has Penstock's stores; a Java application's files are not used."""
    return any(any((path / folder).glob("*")) for folder in (STORES_DIRECTORY, CUSTOM_DIRECTORY))


def _delete(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ProcessorStateError(f"Cannot delete the state directory {path}: {error}; delete it by hand") from error
