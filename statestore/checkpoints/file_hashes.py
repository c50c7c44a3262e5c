"""SHA-256 of files, remembered: RocksDB's table files never change, and a checkpoint of gigabytes has few new ones."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from ..directory.own_files import read_own, write_atomically


class FileHashes:
    """Remembers hashes in a file, by inode, size and time of change. Hard links of a file have one entry."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._known: dict[str, str] = {}
        self._used: dict[str, str] = {}
        with contextlib.suppress(FileNotFoundError, ValueError):  # a damaged memory: everything is read again
            known = json.loads(read_own(memory))
            if isinstance(known, dict):
                self._known = {str(key): str(value) for key, value in known.items()}

    def of(self, path: Path) -> str:
        """Return the SHA-256 of a file, in hex."""
        found = path.stat()
        key = f"{found.st_dev}-{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"
        if path.suffix != ".sst" or key not in self._known:  # the others are small, and may be written again
            with path.open("rb") as file:
                self._known[key] = hashlib.file_digest(file, "sha256").hexdigest()
        self._used[key] = self._known[key]
        return self._known[key]

    def save(self) -> None:
        """Remember the hashes of the files that were asked for; raises ProcessorStateError if the disk is full."""
        write_atomically(self._memory, json.dumps(self._used))
