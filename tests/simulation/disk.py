"""The disk of one host, as RocksDB without a write-ahead log uses it: a crash loses commits that were not persisted.

A store's files are a list of committed batches. ``commit`` and ``restore`` append one; ``persist`` and ``close`` make
all of them durable. After a SIGKILL the durable ones remain, and any number of the following ones, because memtables
may be written at any time, but always whole batches in order (``atomic_flush``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.statestore.directory.state_directory import STORES_DIRECTORY
from penstock.statestore.memory_store import InMemoryStore
from penstock.statestore.rows.bytes_store import NO_MARKS, BytesStore, Marks, RawRow
from penstock.topology.errors import LockError, ProcessorStateError, TaskCorruptedError
from tests.simulation.faults import Points

#: The error of a failed write.
DISK_ERROR = "the simulated disk is full"


@dataclass
class Batch:
    """What one commit or restore wrote."""

    rows: dict[bytes, bytes | None]
    offset: int | None
    marks: dict[str, int]


@dataclass
class Files:
    """One store on disk. lasting: number of durable batches; user: the process that has it open."""

    rows: dict[bytes, bytes] = field(default_factory=dict)
    offset: int | None = None
    marks: dict[str, int] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    lasting: int = 0
    corrupted: bool = False
    user: DiskRows | None = None

    def settle(self, survivors: int) -> None:
        """Keep only the first batches, and make them durable."""
        for batch in self.batches[:survivors]:
            for key, value in batch.rows.items():
                if value is None:
                    self.rows.pop(key, None)
                else:
                    self.rows[key] = value
            if batch.offset is not None:
                self.offset = batch.offset
            self.marks |= batch.marks
        self.batches.clear()
        self.lasting = 0


class Disk:
    """The stores of one host by path. Each has a marker file in the real state directory.

    fails: called at each write; returns whether it fails. is_damaged_inside: called at each batch of a restore; returns
    whether it finds a damaged block, which opening the store did not.
    """

    def __init__(self, chance: random.Random, fails: Callable[[], bool], is_damaged_inside: Callable[[], bool]) -> None:
        self._chance = chance
        self.fails = fails
        self.is_damaged_inside = is_damaged_inside
        self._files: dict[Path, Files] = {}

    def open_rows(self, points: Points, commits_early: Callable[[], bool]) -> Callable[..., BytesStore]:
        """Return the replacement of build_rows in one process (penstock.statestore.store_factory.OpenRows)."""

        def open_rows(builder: Any, task: Any, directory: Path | None) -> BytesStore:
            assert directory is not None
            path = directory / STORES_DIRECTORY / builder.name
            return points.call("open store", lambda: DiskRows(self, self._open(path), points, task, commits_early))

        return open_rows

    def _open(self, path: Path) -> Files:
        marker = path / "CURRENT"
        if not marker.exists():  # it was wiped, or never existed
            self._files.pop(path, None)
            path.mkdir(parents=True, exist_ok=True)
            marker.touch()
        files = self._files.setdefault(path, Files())
        if files.user is not None:
            raise LockError(f"The store {path.name} is open elsewhere")
        if files.corrupted:
            raise TaskCorruptedError(f"The store {path.name} is damaged")
        return files

    def crash(self, points: Points) -> None:
        """Apply the effect of a SIGKILL to the stores of a killed process."""
        for files in self._files.values():
            if files.user is not None and files.user.points is points:
                files.settle(self._chance.randint(files.lasting, len(files.batches)))
                files.user = None

    def corrupt(self) -> str | None:
        """Damage one store that no process has open; return which, None if there is none."""
        closed = [path for path, files in self._files.items() if files.user is None and path.exists()]
        if not closed:
            return None
        path = self._chance.choice(closed)
        self._files[path].corrupted = True
        return f"{path.parent.parent.name}/{path.name}"

    def open_stores(self) -> list[str]:
        """Return the open stores."""
        return [str(path) for path, files in self._files.items() if files.user is not None]


class DiskRows(InMemoryStore):
    """RocksDBStore on the simulated disk. A write may raise ProcessorStateError, as on a disk that is full."""

    def __init__(self, disk: Disk, files: Files, points: Points, task: Any, commits_early: Callable[[], bool]) -> None:
        super().__init__()
        self._disk = disk
        files.settle(len(files.batches))
        files.user = self
        self.points = points
        self._files = files
        self._data = dict(files.rows)
        self._offset = files.offset
        self._marks = dict(files.marks)
        self._task = task
        self._commits_early = commits_early

    def belongs_to(self, request_commit: Callable[[], None]) -> None:
        """Become the store of another task."""
        self._task = None

    def put(self, key: bytes, value: bytes | None) -> None:
        super().put(key, value)
        if self._task is not None and self._commits_early():
            self._task.request_commit()

    def commit(self, changelog_offset: int | None, marks: Marks = NO_MARKS) -> None:
        rows = {key: self._data.get(key) for key in self._undo}
        self.points.call("commit store", lambda: self._append(Batch(rows, changelog_offset, dict(marks))))
        super().commit(changelog_offset, marks)

    def restore(self, rows: Iterable[RawRow], next_offset: int | None, marks: Marks = NO_MARKS) -> None:
        if self._disk.is_damaged_inside():
            raise TaskCorruptedError("A store is damaged inside")
        written = dict(rows)
        self.points.call("restore store", lambda: self._append(Batch(written, next_offset, dict(marks))))
        for key, value in written.items():
            self._set(key, value, self._data.get(key))
        super().commit(next_offset, marks)

    def _write(self) -> None:
        if self._disk.fails():
            raise ProcessorStateError(DISK_ERROR)

    def _append(self, batch: Batch) -> None:
        self._write()
        if batch.rows or batch.offset is not None or batch.marks:
            self._files.batches.append(batch)
        if batch.offset is not None:
            self._offset = batch.offset

    def committed_offset(self) -> int | None:
        return self._offset

    def persist(self, beside_writes: bool = False) -> None:
        def last() -> None:
            self._write()
            self._files.lasting = len(self._files.batches)

        self.points.call("persist store", last)

    def close(self) -> None:
        if self._files.user is not self:
            return

        def give_back() -> None:
            self._files.settle(len(self._files.batches))
            self._files.user = None
            self._write()

        self.points.call("close store", give_back)
        super().close()
