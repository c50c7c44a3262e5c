"""What RocksDB's errors mean: rocksdict raises plain Exceptions with a text, or nothing at all."""

from __future__ import annotations

from pathlib import Path
from shutil import disk_usage

from penstock.topology.errors import LockError, ProcessorStateError, TaskCorruptedError

#: How much of the end of RocksDB's log is looked through, in bytes.
LOG_TAIL_BYTES = 64 << 10


def is_corruption(error: BaseException | None) -> bool:
    """Return whether a damaged file of a RocksDB is what an error began with."""
    while error is not None:
        if type(error) is Exception and str(error).startswith("Corruption:"):
            return True
        error = error.__cause__
    return False


def open_error(path: Path, error: Exception) -> Exception:
    """Return what the failure to open a database means for its task."""
    text = str(error)
    if "lock" in text.lower() and "corrupt" not in text.lower():
        return LockError(f"The store {path} is open elsewhere, in this process or another: {text}; try again")
    if "corrupt" in text.lower() or ("No such file" in text and path.exists()):
        return TaskCorruptedError(f"The store {path} is damaged: {text}; delete the task's directory and restore it")
    return ProcessorStateError(f"Cannot open the store {path}: {text}; check state.dir, its permissions and the disk")


def unwritten_memtables(path: Path, left: list[int | None]) -> OSError:
    """Return the error of a flush that failed without a word. left: entries and memtables of each column family."""
    free_mb = disk_usage(path).free >> 20
    said = last_complaint(path)
    return OSError(
        f"memtables were not written ({free_mb} MB free, entries and memtables left: {left}"
        + (f"; RocksDB's log: {said})" if said else ")")
    )


def last_complaint(path: Path) -> str:
    """Return the last error or warning in a database's own log, an empty text if its end has none."""
    log = path / "LOG"
    if not log.exists():  # a rocksdb.config.setter has put it elsewhere
        return ""
    with log.open("rb") as tail:
        tail.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
        lines = tail.read().decode(errors="replace").splitlines()
    return next((line for line in reversed(lines) if "[ERROR]" in line or "[WARN]" in line), "")
