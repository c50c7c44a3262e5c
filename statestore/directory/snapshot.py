"""Snapshots of an application's stores on this host: a directory from which another machine can start.

    <directory>/<name>/
        snapshot.json              the manifest, written last
        topology.json              the description of the topology that the stores are from
        <task id>/.checkpoint      the changelog offsets, as in a task's directory
        <task id>/stores/<store>   a checkpoint of the store's RocksDB: its files, hard links where that is possible

Each store contains its changelog offset, so a task that opens it replays only later records.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.topology.errors import ConfigError, ProcessorStateError
from penstock.topology.records import TaskId

from ..stores.state_store import StateStore
from .checkpoint import CHECKPOINT_FILE_NAME
from .own_files import read_own, write_atomically
from .state_directory import STORES_DIRECTORY, StateDirectory

MANIFEST_NAME = "snapshot.json"
MANIFEST_VERSION = 1
TOPOLOGY_NAME = "topology.json"
#: Suffix of the name of an incomplete snapshot.
PARTIAL = ".partial"

#: Mode of a new snapshot: readable by the group, like a state directory.
FOLDER_MODE = 0o750
#: For an application that systemd runs.
READ_ONLY_HINT = " A service may write only to its state: add ReadWritePaths= to its unit (systemctl edit)."
#: Limit of file systems.
NAME_BYTES_MAX = 255

#: Changelog offsets by store, None for a store without one, by task.
Offsets = Mapping[str, Mapping[str, int | None]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The manifest of a complete snapshot. time_ms: start time, since 1970; tasks: see Offsets."""

    application_id: str
    time_ms: int
    penstock_version: str
    tasks: Offsets

    @property
    def stores(self) -> int:
        """The number of its stores, over all tasks."""
        return sum(len(stores) for stores in self.tasks.values())


def checkpoint_stores(stores: Mapping[str, StateStore], directory: Path) -> dict[str, int | None]:
    """Write checkpoints of a task's open stores into a snapshot; return their offsets.

    All are as of the task's last commit. Stores in memory and custom ones are left out. Raises
    ProcessorStateError if the disk is full, or a checkpoint already exists.
    """
    offsets = {}
    for name, store in stores.items():
        if store.rows.persistent and store.rows.in_snapshots:
            store.rows.checkpoint(directory / STORES_DIRECTORY / name)
            offsets[name] = store.committed_offset()
    return offsets


@contextmanager
def new_snapshot(directory: Path, name: str) -> Iterator[Path]:
    """Yield the directory to fill. At the end of the block it gets its final name; after an error it is deleted.

    Raises ConfigError if the name is taken or invalid, or if the directory cannot be created.
    """
    _check_name(directory, name)
    final, partial = directory / name, directory / (name + PARTIAL)
    try:
        if final.exists():
            raise ConfigError(f"The snapshot {final} exists already: choose another name, or delete it.")
        shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
        directory.mkdir(parents=True, exist_ok=True)
        partial.mkdir(mode=FOLDER_MODE)
    except OSError as error:
        hint = READ_ONLY_HINT if error.errno == errno.EROFS else ""
        raise ConfigError(f"The snapshot {final} cannot be made: {error.strerror}.{hint}") from error
    try:
        yield partial
        os.replace(partial, final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _check_name(directory: Path, name: str) -> None:
    if name != Path(name).name or name in (".", "..") or not name.isprintable():
        raise ConfigError(f"{name!r} cannot name a snapshot: it must be the name of a folder in {directory}.")
    if name.endswith(PARTIAL):
        raise ConfigError(f"{name!r} cannot name a snapshot: {PARTIAL} stands for one that is not complete.")
    if len(os.fsencode(name + PARTIAL)) > NAME_BYTES_MAX:
        raise ConfigError(f"{name[:20]}… cannot name a snapshot: it is too long for the name of a folder.")


def complete(path: Path, snapshot: Snapshot, topology: Path) -> None:
    """Write the manifest. topology: the description in the state directory, copied if it exists."""
    if topology.exists():
        write_atomically(path / TOPOLOGY_NAME, read_own(topology))
    write_atomically(
        path / MANIFEST_NAME, json.dumps({"version": MANIFEST_VERSION, **asdict(snapshot)}, indent=1) + "\n"
    )


def read_snapshot(path: Path) -> Snapshot:
    """Return a snapshot's manifest; raises ConfigError if it is missing, damaged, or of a newer version of Penstock."""
    try:
        values = json.loads((path / MANIFEST_NAME).read_text(encoding="utf-8"))
        return _checked(values)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(
            f"{path} is not a snapshot: it has no {MANIFEST_NAME}. `penstock snapshot list` shows all."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"The snapshot {path} cannot be read: {error}.") from error


def _checked(values: object) -> Snapshot:
    """Return the checked manifest; raises ValueError."""
    match values:
        case {
            "version": version,
            "application_id": str(application_id),
            "time_ms": int(time_ms),
            "penstock_version": str(penstock_version),
            "tasks": dict(tasks),
        }:
            if version != MANIFEST_VERSION:
                raise ValueError("it is of another version of Penstock")
        case _:
            raise ValueError(f"its {MANIFEST_NAME} is damaged")
    for task, stores in tasks.items():
        if str(TaskId.parse(task)) != task or not isinstance(stores, dict):
            raise ValueError(f"its {MANIFEST_NAME} is damaged at task {task}")
        if not all(isinstance(offset, int | None) for offset in stores.values()):
            raise ValueError(f"its {MANIFEST_NAME} has invalid offsets for task {task}")
    return Snapshot(application_id, time_ms, penstock_version, tasks)


def snapshots_in(directory: Path, report: Callable[[str], None]) -> list[tuple[Path, Snapshot]]:
    """Return the complete snapshots in a directory, the oldest first.

    report: called with the error of each unreadable one; the others remain usable.
    """
    found = []
    for path in sorted(each.parent for each in directory.glob(f"*/{MANIFEST_NAME}")):
        if not path.name.endswith(PARTIAL):
            try:
                found.append((path, read_snapshot(path)))
            except ConfigError as error:
                report(str(error))
    return sorted(found, key=lambda each: (each[1].time_ms, each[0].name))


def size_bytes(path: Path) -> int:
    """Return the size of all files in a directory; hard links count in full."""
    return sum(found.st_size for file in path.rglob("*") if stat.S_ISREG((found := file.lstat()).st_mode))


def checkpoint_closed(state: StateDirectory, path: Path) -> dict[str, dict[str, int | None]]:
    """Write checkpoints of all stores of a stopped application into a snapshot; return their offsets.

    The caller holds the application's lock. Raises what opening a store raises.
    """
    from ..rows.rocksdb_store import RocksDBStore  # 34 MB, which other users of this module must not load

    offsets: dict[str, dict[str, int | None]] = {}
    for task in state.tasks_on_disk():
        source, target = state.directory_for_task(task), path / str(task)
        target.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        offsets[str(task)] = {}
        for directory in sorted((source / STORES_DIRECTORY).glob("*")):
            store = RocksDBStore(directory)
            try:
                store.checkpoint(target / STORES_DIRECTORY / directory.name)
                offsets[str(task)][directory.name] = store.committed_offset()
            finally:
                store.close()
        if (source / CHECKPOINT_FILE_NAME).exists():
            write_atomically(target / CHECKPOINT_FILE_NAME, read_own(source / CHECKPOINT_FILE_NAME))
    return offsets


def restore(path: Path, state: StateDirectory, force: bool, say: Callable[[str], None]) -> list[str]:
    """Copy the tasks of a snapshot into a state directory, whose application the caller has locked; return the tasks.

    Files that RocksDB never changes are hard-linked if possible. force: replace existing state of tasks. say: called
    with each task. Raises ConfigError for existing state and for an incomplete snapshot, before anything is changed;
    ProcessorStateError if the disk is full.
    """
    snapshot = read_snapshot(path)
    _check_files(path, snapshot)
    there = {str(task) for task in state.tasks_on_disk()} & snapshot.tasks.keys()
    if there and not force:
        raise ConfigError(
            f"{state.path} has state of the tasks {', '.join(sorted(there))} already. --force replaces it; a task's "
            "newer state is lost, and restored from its changelog."
        )
    try:
        for task in sorted(snapshot.tasks, key=TaskId.parse):
            say(task)
            target = state.directory_for_task(TaskId.parse(task))
            state.wipe(TaskId.parse(task))
            shutil.copytree(path / task, target, copy_function=_link_or_copy)
        if (path / TOPOLOGY_NAME).exists():
            write_atomically(state.path / TOPOLOGY_NAME, (path / TOPOLOGY_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProcessorStateError(f"The snapshot {path} cannot be copied into {state.path}: {error}") from error
    return sorted(snapshot.tasks)


def _check_files(path: Path, snapshot: Snapshot) -> None:
    """Raise ConfigError unless a snapshot has all its tasks, and no foreign folders and files."""
    for task in snapshot.tasks:
        if not (path / task).is_dir():
            raise ConfigError(f"The snapshot {path} is incomplete: it has no folder of task {task}. Copy it again.")
    for file in path.rglob("*"):
        mode = file.lstat().st_mode
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            kind = "a symbolic link" if stat.S_ISLNK(mode) else "no file"
            raise ConfigError(
                f"The snapshot {path} was not made by Penstock: {file.relative_to(path)} is {kind}. Copy it "
                "again, with its files in place of links."
            )


def _link_or_copy(source: str, target: str) -> str:
    """Hard-link a table file, which never changes; copy other files, and all files to another file system."""
    if source.endswith(".sst"):
        try:
            os.link(source, target)
            return target
        except OSError:
            pass
    return str(shutil.copy2(source, target))
