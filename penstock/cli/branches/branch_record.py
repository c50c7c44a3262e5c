"""The files that remember the branches of an application: ``branches/NAME.json`` in its state directory.

A file is written before anything else of its branch. So an interrupted command can be repeated, and deletes exactly the
topics that it made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.statestore.directory.own_files import read_own, write_atomically
from penstock.statestore.directory.state_directory import FileLock
from penstock.supervisor.source.state_places import application_directory
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ProcessorStateError
from penstock.topology.records import TopicPartition

FOLDER = "branches"
LOCK_FILE_NAME = ".lock"


@dataclass(frozen=True, slots=True)
class BranchRecord:
    """A branch. topics: those that it has made, or is about to. cut_ms: since 1970, None while it is not complete.

    inputs: by application, the topics that its tasks read. outputs: by output topic of the original, the offsets by
    partition after which the branch begins. original_prefix: for the outputs of the original while it is the shadow.
    writer_since_ms: when the branch began to write the real outputs, None while the original does. points: by topic,
    the offsets by partition at which both were exchanged the last time.
    """

    name: str
    sink_prefix: str
    created_ms: int
    topics: tuple[str, ...]
    inputs: Mapping[str, list[str]]
    cut_ms: int | None = None
    outputs: Mapping[str, list[int]] = field(default_factory=dict)
    original_prefix: str = ""
    writer_since_ms: int | None = None
    points: Mapping[str, list[int]] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        """Whether the branch is complete."""
        return self.cut_ms is not None


class BranchRecords:
    """The branches of one application. Raises ProcessorStateError for files that cannot be read or written."""

    def __init__(self, config: StreamsConfig) -> None:
        self._folder = application_directory(config) / FOLDER

    def all(self) -> list[BranchRecord]:
        """Return all branches, by name."""
        return [_read(path) for path in sorted(self._folder.glob("*.json"))]

    def get(self, name: str) -> BranchRecord | None:
        """Return a branch, None if there is none of this name."""
        path = self._path(name)
        return _read(path) if path.exists() else None

    def save(self, record: BranchRecord) -> None:
        """Write a branch's file."""
        self._folder.mkdir(exist_ok=True, mode=0o700)
        write_atomically(self._path(record.name), json.dumps(asdict(record), indent=1) + "\n")

    def remove(self, name: str) -> None:
        """Delete a branch's file."""
        self._path(name).unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other exchanges of this application on this host; raises LockError if there is one."""
        self._folder.mkdir(exist_ok=True, mode=0o700)
        lock = FileLock(self._folder / LOCK_FILE_NAME, "Another command exchanges branches of this application now")
        try:
            yield
        finally:
            lock.release()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, list[int]]:
    """Return the offsets of all partitions of some topics: by topic, in the order of the partitions."""
    found: dict[str, list[int]] = {}
    for partition, offset in sorted(offsets.items()):
        found.setdefault(partition.topic, []).append(offset)
    return found


def _read(path: Path) -> BranchRecord:
    try:
        found: dict[str, Any] = json.loads(read_own(path))
        return BranchRecord(**{**found, "topics": tuple(found["topics"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProcessorStateError(
            f"The file of a branch {path} cannot be read: {error}. Delete the branch's topics by hand, then the file"
        ) from error
