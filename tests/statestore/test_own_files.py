"""Folders and files below state.dir that another user has created, or could change: none is
followed, read or deleted.
"""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.statestore.directory.checkpoint import OffsetCheckpoint
from penstock.statestore.directory.own_files import open_own, read_own, write_atomically
from penstock.statestore.directory.snapshot import Snapshot, complete, new_snapshot
from penstock.statestore.directory.state_directory import FileLock, StateDirectory
from penstock.supervisor.source.topology_gate import read_engine, read_facts
from penstock.topology.errors import ProcessorStateError
from penstock.topology.records import TaskId, TopicPartition

ROOT = Path(__file__).resolve().parents[2]
TASK = TaskId(0, 1)
#: A user that owns nothing.
NOBODY = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")

#: The files of a state directory, and calls that open them.
OPENED: dict[str, Callable[[StateDirectory], object]] = {
    ".lock": StateDirectory.lock_application,
    ".locks/0_1": lambda state: state.lock(TASK),
    ".locks/process-id": StateDirectory.initialize_process_id,
    ".locks/topology": lambda state: FileLock(state.path / ".locks/topology", ""),
    "kafka-streams-process-metadata": StateDirectory.initialize_process_id,
    "topology.json": lambda state: read_facts(state.path / "topology.json"),
    "handed-over.json": lambda state: read_engine(state.path / "handed-over.json"),
    "global/.checkpoint": lambda state: OffsetCheckpoint(state.global_state_dir() / ".checkpoint").read(),
}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of this user that does not belong to Penstock."""
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    directory = StateDirectory(tmp_path / "state", "app")
    directory.global_state_dir()
    return directory


@pytest.mark.parametrize("name", OPENED)
def test_a_symbolic_link_is_refused_and_its_target_is_kept(name: str, state: StateDirectory, victim: Path) -> None:
    (state.path / name).symlink_to(victim)
    with pytest.raises(ProcessorStateError, match=r"is a symbolic link, which Penstock did not make: delete it"):
        OPENED[name](state)
    state.close()
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", OPENED)
def test_a_pipe_is_refused_without_waiting_for_its_writer(name: str, state: StateDirectory) -> None:
    os.mkfifo(state.path / name)
    with pytest.raises(ProcessorStateError, match=r"is no regular file, which Penstock did not make"):
        OPENED[name](state)
    state.close()


@as_root
@pytest.mark.parametrize("name", OPENED)
def test_a_file_of_another_user_is_refused_and_kept(name: str, state: StateDirectory) -> None:
    (state.path / name).write_text("theirs")
    os.chown(state.path / name, NOBODY, NOBODY)
    with pytest.raises(ProcessorStateError, match=r"belongs to the user .*: delete it, or change its owner"):
        OPENED[name](state)
    state.close()
    assert (state.path / name).read_text() == "theirs"


@as_root
@pytest.mark.parametrize("name", ["topology.json", "handed-over.json"])
def test_a_command_of_root_reads_the_files_of_a_services_user(name: str, state: StateDirectory) -> None:
    """`penstock plan` of a service with its own user; the folder is that user's, too."""
    write_atomically(state.path / name, "{}")
    for path in (state.path / name, (state.path / name).parent):
        os.chown(path, NOBODY, NOBODY)
    OPENED[name](state)
    with pytest.raises(ProcessorStateError, match="belongs to the user"):
        open_own(state.path / name, os.O_RDWR)


def test_a_written_file_replaces_links_and_leftovers(tmp_path: Path, victim: Path) -> None:
    """The target, and the temporary file beside it, whose name another user can guess."""
    (tmp_path / "file").symlink_to(victim)
    (tmp_path / f"file.{os.getpid()}.tmp").symlink_to(victim)
    write_atomically(tmp_path / "file", "ours")
    assert (victim.read_text(), read_own(tmp_path / "file")) == ("precious", "ours")
    OffsetCheckpoint(tmp_path / "file").write({TopicPartition("t", 0): 1})
    assert not (tmp_path / "file").is_symlink()


def test_child_programs_do_not_inherit_a_lock(state: StateDirectory) -> None:
    descriptor = open_own(state.path / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


def _folders(state_dir: Path) -> dict[str, Path]:
    return {
        "state.dir": state_dir,
        "application": state_dir / "app",
        "locks": state_dir / "app" / ".locks",
        "task": state_dir / "app" / "0_1",
        "global": state_dir / "app" / "global",
    }


def _use_all(state_dir: Path) -> None:
    state = StateDirectory(state_dir, "app")
    state.get_or_create_directory_for_task(TASK)
    state.global_state_dir()


@as_root
@pytest.mark.parametrize("which", _folders(Path()))
def test_a_folder_of_another_user_is_refused(which: str, tmp_path: Path) -> None:
    folder = _folders(tmp_path / "state")[which]
    folder.mkdir(parents=True)
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(ProcessorStateError, match=r"belongs to the user .*Set state\.dir to .*sudo -u .*chown"):
        _use_all(tmp_path / "state")
    assert list(folder.iterdir()) == []


@as_root
@pytest.mark.parametrize("which", _folders(Path()))
def test_a_link_of_another_user_to_our_folder_is_refused(which: str, tmp_path: Path) -> None:
    folder, ours = _folders(tmp_path / "state")[which], tmp_path / "ours"
    ours.mkdir(mode=0o750)
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(ours)
    os.chown(folder, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(ProcessorStateError, match="belongs to the user"):
        _use_all(tmp_path / "state")
    assert list(ours.iterdir()) == []


@pytest.mark.parametrize("which", _folders(Path()))
def test_a_world_writable_folder_is_refused(which: str, tmp_path: Path) -> None:
    folder = _folders(tmp_path / "state")[which]
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(ProcessorStateError, match=r"All users may write to .*mode 777.*chmod o-w"):
        _use_all(tmp_path / "state")


def test_a_shared_sticky_folder_may_contain_applications_folders(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o1777)
    _use_all(tmp_path / "state")


def test_a_users_own_link_to_another_disk_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "disk")
    _use_all(tmp_path / "state")
    assert (tmp_path / "disk" / "app").is_dir()


def test_a_new_state_dir_in_the_temporary_folder_is_private(tmp_path: Path) -> None:
    _use_all(tmp_path / "state")
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_a_snapshot_is_private_and_follows_no_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "topology.json").write_text("{}")
    with new_snapshot(tmp_path / "backup", "one") as path:
        (path / "topology.json").symlink_to(victim)
        complete(path, Snapshot("app", 0, "1", {}), tmp_path / "topology.json")
    assert victim.read_text() == "precious"
    assert stat.S_IMODE((tmp_path / "backup" / "one").stat().st_mode) == 0o750


#: Functions that open a file by its path; the modules that may use them: the helper, and the readers of RocksDB's
#: own log and options.
OPENING = {"open", "read_text", "write_text", "read_bytes", "write_bytes", "copyfile", "copy", "copy2", "touch"}
FILES = (
    *(ROOT / "statestore").rglob("*.py"),
    *(ROOT / "pipeline" / "handover").rglob("*.py"),
    ROOT / "supervisor" / "source" / "topology_gate.py",
    ROOT / "supervisor" / "source" / "state_places.py",
    *(ROOT / "supervisor" / "offline").rglob("*.py"),
)
ALLOWED = {
    ("statestore/directory/own_files.py", "open"),
    ("statestore/directory/snapshot.py", "read_text"),  # of a snapshot, which another user may have copied
    ("statestore/directory/snapshot.py", "copy2"),  # likewise, into a new folder
    ("statestore/checkpoints/bucket.py", "open"),  # of a load, into a new folder
    ("statestore/checkpoints/file_hashes.py", "open"),  # hard links of an upload
    ("statestore/rows/rocksdb_errors.py", "open"),  # RocksDB's log
    ("statestore/rows/rocksdb_limits.py", "read_text"),  # RocksDB's options, which only an open database has
}


def test_no_other_code_opens_files_of_a_state_directory() -> None:
    found = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
                if name in OPENING:
                    found.add((str(path.relative_to(ROOT)), name))
    assert found <= ALLOWED
