"""The limits at which RocksDB slows down or stops writes: higher ones for a large restore."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rocksdict import Rdict

from .rocksdb_errors import DISK_FULL, failed_call

#: Options that limit the sorted runs which wait for a compaction, and their values for a restore. RocksDB's own are 20
#: and 36. The more runs wait, the more of them one compaction merges.
RUNS = {"level0_slowdown_writes_trigger": 128, "level0_stop_writes_trigger": 160}
#: One memtable is filled while another one is flushed.
MEMTABLES = "max_write_buffer_number"
MEMTABLE_BYTES = "write_buffer_size"
#: Property: the sorted runs that no compaction has merged yet.
NEW_RUNS = "rocksdb.num-files-at-level0"


class WriteLimits:
    """The limits of one database, which a restore raises at the first write that would have to wait.

    A restore writes faster than one thread compacts. With RocksDB's limits it waits for merges of few runs, each of
    which is merged again. So it lets more and larger runs wait; reads have to look into all of them meanwhile. The
    former limits return once the compaction has caught up. memtables_bytes: the memory of memtables.
    """

    def __init__(self, db: Rdict, path: Path, memtables_bytes: int) -> None:
        self._db = db
        self._path = path
        self._memtables_bytes = memtables_bytes
        #: The former values while the limits are raised.
        self._former: dict[str, int] | None = None

    @property
    def are_raised(self) -> bool:
        """Whether raise_limits() is in effect."""
        return self._former is not None

    def raise_limits(self) -> bool:
        """Raise the limits; return whether they were lower before. Higher ones of the user stay.

        Raises ProcessorStateError if the disk is full or fails.
        """
        if self._former is not None:
            return False
        sizes = {MEMTABLES: 2, MEMTABLE_BYTES: self._memtables_bytes // 2}
        former = options_of(self._path, (*RUNS, *sizes))
        higher = {name: value for name, value in RUNS.items() if value > former[name]}
        if sizes[MEMTABLE_BYTES] > former[MEMTABLE_BYTES]:
            higher |= sizes
        self._former = {name: former[name] for name in higher}
        self._set(higher)
        return bool(higher)

    def lower_limits(self) -> None:
        """Return to the former limits if they are raised, and so few runs wait that no write has to."""
        if self._former is None:
            return
        limit = min((self._former[name] for name in RUNS if name in self._former), default=max(RUNS.values()))
        if (self._db.property_int_value(NEW_RUNS) or 0) <= limit // 2:
            former, self._former = self._former, None
            self._set(former)

    def raise_for_debt(self) -> None:
        """Raise the limits of a database that was closed before its compactions had caught up."""
        if (self._db.property_int_value(NEW_RUNS) or 0) > min(RUNS.values()) // 8:
            self.raise_limits()

    def _set(self, values: dict[str, int]) -> None:
        if values:
            try:
                self._db.set_options({name: str(value) for name, value in values.items()})
            except Exception as error:  # rocksdict raises nothing more specific
                raise failed_call(self._path, "change the options of", error, DISK_FULL) from error


def options_of(path: Path, names: Collection[str]) -> dict[str, int]:
    """Return options of the rows of an open database from the file to which RocksDB writes each change."""
    file = max(path.glob("OPTIONS-*[0-9]"))  # the numbers have six digits
    _, _, rows = file.read_text("utf-8").partition('[CFOptions "default"]')
    lines = (line.strip().partition("=") for line in rows.partition("\n[")[0].splitlines())
    return {name: int(value) for name, _, value in lines if name in names}
