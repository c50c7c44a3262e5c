"""Translates RocksDB's errors: rocksdict raises plain Exceptions with a text, or nothing at all."""

from __future__ import annotations

from pathlib import Path
from shutil import disk_usage

from penstock.topology.errors import LockError, ProcessorStateError, StreamsError, TaskCorruptedError

#: How much of the end of RocksDB's log is searched, in bytes.
LOG_TAIL_BYTES = 64 << 10
#: The advice about a failed write.
DISK_FULL = "; is the disk full?"


def is_corruption(error: BaseException | None) -> bool:
    """Return whether a damaged file of a RocksDB caused an error.

    Only a store's own error counts: the text proves nothing, because it may come from a serde.
    """
    while error is not None:
        if isinstance(error, TaskCorruptedError):
            return True
        error = error.__cause__
    return False


def reports_corruption(error: Exception) -> bool:
    """Return True if an open database itself has reported, as the error of a call, that one of its files is damaged."""
    return str(error).startswith("Corruption:")


def failed_call(path: Path, what: str, error: Exception, advice: str = "") -> StreamsError:
    """Translate an error of an open database: TaskCorruptedError for damaged files, otherwise ProcessorStateError.

    what: the operation, e.g. "write to"; advice: what to check, unless the files were removed.
    """
    if reports_corruption(error):
        return damaged(path, error)
    if not (path / "CURRENT").exists():
        advice = "; its files were removed while it was open. The next start restores the missing data"
    return ProcessorStateError(f"Cannot {what} the store {path}: {error}{advice}")


def open_error(path: Path, error: Exception) -> StreamsError:
    """Translate the failure to open a database."""
    text = str(error).replace(str(path), "")  # a store may be called clock, or corrupted-orders
    if "hile lock file" in text or "lock hold by current process" in text:
        return LockError(f"The store {path} is open elsewhere, in this process or another: {error}; try again")
    if "orruption" in text or ("No such file" in text and path.exists()):
        return damaged(path, error)
    return ProcessorStateError(f"Cannot open the store {path}: {error}; check state.dir, its permissions and the disk")


def damaged(path: Path, error: Exception) -> TaskCorruptedError:
    """Return the error of a database with damaged files; the task's state manager adds the task."""
    return TaskCorruptedError(f"The store {path} is damaged: {error}; delete the task's directory and restore it")


def unwritten_memtables(path: Path, left: list[int | None]) -> OSError:
    """Return the error of a flush that failed silently. left: entries and memtables of each column family."""
    free_mb = disk_usage(path).free >> 20
    said = last_complaint(path)
    return OSError(
        f"memtables were not written ({free_mb} MB free, entries and memtables left: {left}"
        + (f"; RocksDB's log: {said})" if said else ")")
    )


def last_complaint(path: Path) -> str:
    """Return the last error or warning in a database's own log, "" if its end has none."""
    log = path / "LOG"
    if not log.exists():  # a rocksdb.config.setter has put it elsewhere
        return ""
    with log.open("rb") as tail:
        tail.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
        lines = tail.read().decode(errors="replace").splitlines()
    return next((line for line in reversed(lines) if "[ERROR]" in line or "[WARN]" in line), "")
