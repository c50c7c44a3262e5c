"""The blobs of a store in Spark's state, which an executor also has as files: reads need no call to Spark's Java.

Python and Java need 200 µs and several copies for each value that they exchange. So a blob is written once, to Spark
and to a file, and never changed: what replaces it is another blob. A file that this executor does not have is fetched
from Spark once. Its name has a random version, because two attempts of a micro-batch write different blobs under the
same number.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.topology.errors import StreamsError


class Blobs(Protocol):
    """The storage of blobs, by number: one store's part of the state of a task.

    directory: on this machine, for the files of the blobs, of any stores; made when it is needed.
    """

    @property
    def directory(self) -> Path:
        """Return it; it need not exist."""

    def read(self, numbers: Sequence[int]) -> list[bytes | None]:
        """Return blobs, None for one that does not exist. Many at once are cheaper."""

    def write(self, number: int, data: bytes) -> None:
        """Keep a blob."""

    def remove(self, number: int) -> None:
        """Remove a blob, which must exist."""


class Blob(NamedTuple):
    """A blob that was written; size: in bytes."""

    number: int
    version: int
    size: int


class BlobFiles:
    """new_version: returns another number at each call, in all processes.

    Files may be removed at any time: they are fetched again.
    """

    def __init__(
        self, blobs: Blobs, new_version: Callable[[], int] = lambda: int.from_bytes(os.urandom(8)) >> 1
    ) -> None:
        self._blobs = blobs
        self._new_version = new_version

    def write(self, number: int, data: bytes) -> Blob:
        """Keep a blob."""
        blob = Blob(number, self._new_version(), len(data))
        self._blobs.write(number, data)
        self._keep(blob, data)
        return blob

    def remove(self, blob: Blob) -> None:
        """Remove a blob. Its file can still be read through an open descriptor."""
        self._blobs.remove(blob.number)
        self.forget(blob)

    def forget(self, blob: Blob) -> None:
        """Remove the file of a blob that was replaced by another one with its number."""
        self._path(blob).unlink(missing_ok=True)

    def opened(self, blob: Blob) -> int:
        """Return a descriptor of a blob's file. Raises StreamsError if neither this machine nor Spark has it."""
        try:
            file = os.open(self._path(blob), os.O_RDONLY)
        except FileNotFoundError:
            pass
        else:
            if os.fstat(file).st_size == blob.size:
                return file
            os.close(file)  # something else has changed it
        self._keep(blob, self._fetched(blob))
        return os.open(self._path(blob), os.O_RDONLY)

    def mapped(self, blob: Blob) -> mmap.mmap:
        """Return a blob's file in memory; raises as opened."""
        file = self.opened(blob)
        try:
            return mmap.mmap(file, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(file)

    def _fetched(self, blob: Blob) -> bytes:
        (found,) = self._blobs.read([blob.number])
        if found is None or len(found) != blob.size:
            has = "is not" if found is None else f"has {len(found)} bytes in place of {blob.size}"
            raise StreamsError(
                f"Blob {blob.number} of a store {has} in Spark's state, whose directory names it: the checkpoint is "
                "damaged. Start from another one, or from the input"
            )
        return found

    def _path(self, blob: Blob) -> Path:
        return self._blobs.directory / f"{blob.number}-{blob.version:016x}"

    def _keep(self, blob: Blob, data: bytes) -> None:
        """Write a blob's file; other processes see all of it or nothing."""
        path = self._path(blob)
        unfinished = path.with_name(f"new-{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(data)
            unfinished.replace(path)
        except OSError as error:
            raise StreamsError(
                f"{path} cannot be written: {error}. The rows of stores are there for reading, below "
                "spark.local.dir: check the disk"
            ) from error
