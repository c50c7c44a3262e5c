"""Rows on disk: a RocksDB with a write buffer between commits (Kafka Streams: RocksDBStore).

Layout: column family ``default`` has the rows, ``offsets`` the changelog offset under one key (KIP-1035). RocksDB's own
log is off, because the changelog is the log. ``atomic_flush`` writes both column families to disk together, so after a
SIGKILL the store has matching data and offset of an earlier moment.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NoReturn, cast
from weakref import WeakSet

from rocksdict import (
    AccessType,
    Checkpoint,
    CompactOptions,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
    WriteOptions,
)
from typing_extensions import override

from penstock.kernel.rows import DiskRows, LatestRows, RowBuffer, in_order, next_rows, read_rows, write_batch
from penstock.topology.errors import ProcessorStateError

from .bytes_store import NO_MARKS, BytesStore, Marks, RawRow, Row, merge
from .recent_rows import BUFFERED_ROW_OVERHEAD_BYTES, SAMPLE_ROWS, RecentRows, bytes_of_a_row
from .rocksdb_errors import DISK_FULL, failed_call, open_error, reports_corruption, unwritten_memtables
from .rocksdb_limits import WriteLimits
from .rocksdb_resources import RocksDBConfig, RocksDBResources, process_resources

log = logging.getLogger(__name__)

OFFSETS = "offsets"
#: The column family with the rows' contexts; created by the first one.
CONTEXTS = "contexts"
OFFSET_KEY = b"changelog-offset"
#: Properties: entries that are only in memory.
IN_MEMTABLES = ("rocksdb.num-entries-active-mem-table", "rocksdb.num-immutable-mem-table")
#: Property: number of failed flushes and compactions.
BACKGROUND_ERRORS = "rocksdb.background-errors"
#: Properties: whether writes must wait for room, and the allowed write rate in bytes per second.
WRITES_STOPPED, DELAYED_WRITE_RATE = "rocksdb.is-write-stopped", "rocksdb.actual-delayed-write-rate"
#: Properties: running flushes and compactions, which make room.
AT_WORK = ("rocksdb.num-running-flushes", "rocksdb.num-running-compactions")
ROOM_POLL_SECONDS = 0.001
#: Batches of at least this many rows are sorted first: RocksDB then finds the position of each row in its memtable from
#: the previous one. Rows of smaller batches are too far apart for sorting to pay off.
SORTED_BATCH_ROWS = 8_000
#: RocksDB starts this many threads to open a database's files, even if it has none; that takes longer than the rest.
FILE_OPENING_THREADS = 16
#: A scan reads up to this many rows, or bytes, at once. Most scans end there and leave the cursor to the next one.
SCAN_ROWS, SCAN_BYTES = 64, 64 << 10
NO_LIMIT = 1 << 62
#: RocksDB's error for a write that would have to wait, but must not.
WRITE_STALL = "Write stall"
#: The part of uncommitted_max_bytes that may wait for a later commit: 4 MiB, which is written in some 20 ms.
WAITING_PART = 16
#: Number of attempts of a flush that leaves entries in memory.
FLUSH_ATTEMPTS = 5
_number = struct.Struct(">q")


class RocksDBStore(BytesStore):
    """An ordered map on disk.

    path: the database's directory, created if missing. request_commit: called when more than
    ``resources.config.uncommitted_max_bytes`` are uncommitted. read_only: open an existing database, for queries.
    configure: changes the options before the database is opened. keeps_statistics: RocksDB counts and times what it
    does, which takes time at each call; see rocksdb_statistics.py. Raises TaskCorruptedError if the files are damaged,
    LockError if the database is open elsewhere, ProcessorStateError for anything else.
    """

    persistent = True
    buffer: RowBuffer

    def __init__(
        self,
        path: Path,
        resources: RocksDBResources | None = None,
        request_commit: Callable[[], None] | None = None,
        read_only: bool = False,
        configure: Callable[[Options], None] | None = None,
        keeps_statistics: bool = False,
    ) -> None:
        self.path = path
        self._keeps_statistics = keeps_statistics
        self._resources = resources or process_resources()
        self._request_commit = request_commit
        self._db = self._open(read_only, configure)
        self._offsets = self._db.get_column_family(OFFSETS)
        self._offsets_handle = self._db.get_column_family_handle(OFFSETS)
        self._contexts: Rdict | None = self._db.get_column_family(CONTEXTS) if self._has_contexts else None
        self._write_options = write_options()
        self._limits = WriteLimits(self._db, path, self._resources.config.write_buffer_total_bytes)
        if not read_only:
            self._limits.raise_for_debt()
        self._first_check = max(1, resources_rows(self._resources.config))
        self.buffer = RowBuffer(self._reader(), self._check_size, self._first_check, self._refill)
        self._recent: RecentRows | None = RecentRows(self.buffer)
        self._latest: LatestRows | None = None
        self._kept_bytes = 0
        self._uncommitted_contexts: dict[bytes, bytes | None] = {}
        self._deleted_ranges: list[tuple[bytes, bytes]] = []
        self._disk = DiskRows(self._db.iter, self._follow, self._failed, SCAN_ROWS, SCAN_BYTES)
        self._scans: WeakSet[Generator[list[Row], None, None]] = WeakSet()
        self._closed = False
        self._resources.open_stores += 1

    def _open(self, read_only: bool, configure: Callable[[Options], None] | None) -> Rdict:
        access = AccessType.read_only() if read_only else AccessType.read_write()
        options = self._resources.rows_options()
        options.set_max_file_opening_threads(min(FILE_OPENING_THREADS, 1 + len(list(self.path.glob("*.sst")))))
        if self._keeps_statistics:
            options.enable_statistics()
        self._options = options  # which has the statistics
        if configure is not None:
            configure(options)
            options.set_atomic_flush(True)  # regardless of configure: consistency of data and offset depends on it
        families = {"default": options, OFFSETS: self._resources.offsets_options()}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._has_contexts = (self.path / "CURRENT").exists() and CONTEXTS in Rdict.list_cf(str(self.path))
            if self._has_contexts:
                families[CONTEXTS] = self._resources.offsets_options()
            return Rdict(str(self.path), options, column_families=families, access_type=access)
        except OSError as error:
            raise ProcessorStateError(
                f"Cannot make the directory of the store {self.path}: {error}; check state.dir and its permissions"
            ) from error
        except Exception as error:  # rocksdict raises nothing more specific
            raise open_error(self.path, error) from error

    def _reader(self) -> Callable[[bytes], bytes | None]:
        return reader(self._db, self.path)

    @override
    def get(self, key: bytes) -> bytes | None:
        """Raises TaskCorruptedError for damaged files, as all reads do."""
        row: bytes | None = self.buffer.get(key)
        return row

    @override
    def put(self, key: bytes, value: bytes | None) -> None:
        self.buffer.put(key, value)

    def _check_size(self) -> None:
        """Request a commit if the write buffer is too large, estimated from its newest rows; otherwise set when to
        check again.
        """
        count, row_bytes = len(self.buffer), bytes_of_a_row(self.buffer.newest(SAMPLE_ROWS))
        limit = self._resources.config.uncommitted_max_bytes
        if count * row_bytes < limit:
            self.buffer.check_at = count + max(1, int((limit / row_bytes - count) / 2))
        else:
            self.buffer.check_at = count + self._first_check
            if self._request_commit is not None:
                self._request_commit()

    @override
    def rows(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> list[Row]:
        found, buffered = self._disk.read(start, end, reverse), self.buffer.between(start, end, reverse)
        return list(merge(found, buffered, reverse)) if buffered else found

    @override
    def scan(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> Iterator[Row]:
        rows, buffered = self._disk.scan(start, end, reverse), self.buffer.between(start, end, reverse)
        return merge(rows, buffered, reverse) if buffered else rows

    @override
    def committed_row(self, key: bytes) -> bytes | None:
        return self._reader()(key)

    @override
    def committed_scan(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> Iterator[Row]:
        return self._disk.scan(start, end, reverse)

    def _follow(
        self, cursor: RdictIter, first: list[Row], start: bytes | None, end: bytes | None, reverse: bool
    ) -> Iterator[Row]:
        """Return the first rows of a scan, and those from the cursor's on."""
        at = cursor.key()
        if reverse or at is None:
            following = self._following(cursor, end, start, reverse)
        else:  # one call for a row in place of three
            items = cast("Iterator[Row]", self._db.items(from_key=at))
            following = self._ascending(cursor, items, end)
        self._scans.add(following)
        return chain(first, chain.from_iterable(following))

    def _following(
        self, cursor: RdictIter, end: bytes | None, start: bytes | None, reverse: bool
    ) -> Generator[list[Row], None, None]:
        """Yield the rows of a scan from the cursor's on, in lists."""
        more = True
        while more:
            rows, more = self._read(cursor, end, start, reverse, SCAN_ROWS, SCAN_BYTES)
            yield rows

    def _ascending(
        self, cursor: RdictIter, items: Iterator[Row], end: bytes | None
    ) -> Generator[list[Row], None, None]:
        """Yield the same rows in ascending order. cursor: as of the same moment as items, which report no errors."""
        more, last = True, cast("bytes", cursor.key())
        while more:
            rows, more = next_rows(items, end, SCAN_ROWS, SCAN_BYTES)
            last = rows[-1][0] if rows else last
            yield rows
        cursor.seek(last)
        rest, _ = self._read(cursor, end, None, False, 2, NO_LIMIT)  # raises for a damaged block
        if len(rest) > 1:
            raise failed_call(self.path, "read", Exception("a scan has ended before its last row"))

    def _read(
        self, cursor: RdictIter, end: bytes | None, start: bytes | None, reverse: bool, rows: int, size: int
    ) -> tuple[list[Row], bool]:
        """Return rows from the cursor's position on, and whether there may be more; see read_rows."""
        try:
            return read_rows(cursor, start if reverse else end, reverse, rows, size)
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more specific
            self._failed(error)

    def _failed(self, error: Exception) -> NoReturn:
        raise failed_call(self.path, "read", error) from error

    @override
    def delete_range(self, start: bytes, end: bytes) -> None:
        buffered = self.buffer.between(start, end)
        for key, _ in buffered:
            del self.buffer.rows[key]
        if buffered:
            self.buffer.index = None
        self._deleted_ranges.append((start, end))

    @override
    def latest_rows(self, second_size: int, interval_ms: int) -> LatestRows:
        """Return them; they replace the recently committed rows."""
        self._recent, self.buffer.read_room = None, 0
        self._latest = LatestRows(self.buffer, second_size, interval_ms, self._room)
        return self._latest

    @override
    def approximate_num_entries(self) -> int:
        return self.approximate_num_committed() + len(self.buffer)

    @override
    def approximate_num_committed(self) -> int:
        return self._db.property_int_value("rocksdb.estimate-num-keys") or 0

    def properties(self, names: Iterable[str]) -> dict[str, float]:
        """Return numeric properties of the database, named without "rocksdb."; 0 for a missing one."""
        return {name: float(self._db.property_int_value(f"rocksdb.{name}") or 0) for name in names}

    def statistics(self) -> str:
        """Return RocksDB's statistics since the database was opened, as text; empty if it keeps none."""
        return (self._options.get_statistics() or "") if self._keeps_statistics else ""

    @override
    def has_uncommitted(self) -> bool:
        return bool(self.buffer or self._deleted_ranges)

    @override
    def can_wait(self) -> bool:
        count, limit = len(self.buffer), self._resources.config.uncommitted_max_bytes // WAITING_PART
        return not count or count * bytes_of_a_row(self.buffer.newest(SAMPLE_ROWS)) < limit

    @override
    def commit(self, changelog_offset: int | None, marks: Marks = NO_MARKS) -> None:
        """Raises ProcessorStateError if the disk is full or fails."""
        is_large = len(self.buffer) >= SORTED_BATCH_ROWS
        rows = self.buffer.in_order() if is_large else self.buffer.rows.items()
        self._write(rows, changelog_offset, marks, is_restore=False)
        if self._latest is not None:
            self._keep(self._latest.fit())
        elif self._recent is not None:
            if self._deleted_ranges:
                self._recent.drop(self._deleted_ranges)
            self._keep(self._recent.take(self._room()))
        self._forget_uncommitted()

    def _refill(self) -> None:
        if self._recent is not None:
            self._keep(self._recent.refill(self._room()))

    def _room(self) -> int:
        return self._resources.recent_room(self._kept_bytes)

    def _keep(self, size: int) -> None:
        """Note how many bytes of committed rows are in memory."""
        self._resources.recent_bytes += size - self._kept_bytes
        self._kept_bytes = size

    @override
    def restore(self, rows: Iterable[RawRow], next_offset: int | None, marks: Marks = NO_MARKS) -> None:
        """Raises ProcessorStateError if the disk is full or fails."""
        last = dict(rows)  # the last record of a key counts
        given = in_order(last) if len(last) >= SORTED_BATCH_ROWS else last.items()
        self._write(given, next_offset, marks, is_restore=True)
        if self._recent is not None:
            self._recent.clear()
            self._keep(0)
        self._forget_uncommitted()

    def _write(self, rows: Collection[RawRow], offset: int | None, marks: Marks, is_restore: bool) -> None:
        """Write a batch; if RocksDB would stall the write (no room in its memtables, or throttling), wait here instead.
        A restore raises RocksDB's limits before it waits.

        A write that waits inside RocksDB holds the GIL. After a background flush has failed for lack of space, it would
        wait forever.
        """
        pause = ROOM_POLL_SECONDS
        self._limits.lower_limits()
        while not (batch := self._batch(rows, offset, marks)).is_empty():
            self._disk.release()
            size = batch.size_in_bytes()
            try:
                self._db.write(batch, self._write_options)
                return
            except Exception as error:  # rocksdict raises nothing more specific
                if WRITE_STALL not in str(error):
                    raise failed_call(self.path, "write to", error, DISK_FULL) from error
            if is_restore and self._limits.raise_limits():
                continue
            stopped, rate = (self._db.property_int_value(name) for name in (WRITES_STOPPED, DELAYED_WRITE_RATE))
            if stopped:
                self._wait_for_room()
            elif rate:  # a refused write counts as written, so wait for two; double the pause if that is not enough
                pause = max(2 * pause, 2 * size / rate)
                time.sleep(pause)

    def _wait_for_room(self) -> None:
        """Wait until there is room; raises ProcessorStateError if no flush or compaction runs or can be started."""
        while self._db.property_int_value(WRITES_STOPPED):
            if any(self._db.property_int_value(name) for name in AT_WORK):
                time.sleep(ROOM_POLL_SECONDS)  # RocksDB notifies only the writers that wait inside it
            else:
                self.persist()

    def _batch(self, rows: Collection[RawRow], offset: int | None, marks: Marks) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for start, end in self._deleted_ranges:
            batch.delete_range(start, end)
        write_batch(rows, put, delete)
        if offset is not None:
            put(OFFSET_KEY, _number.pack(offset), self._offsets_handle)
        for name, number in marks.items():
            put(name.encode(), _number.pack(number), self._offsets_handle)
        if self._uncommitted_contexts:
            self._add_contexts(batch)
        return batch

    def _add_contexts(self, batch: WriteBatch) -> None:
        if self._contexts is None:
            self._contexts = self._db.create_column_family(CONTEXTS, self._resources.offsets_options())
        family = self._db.get_column_family_handle(CONTEXTS)
        for key, context in self._uncommitted_contexts.items():
            if context is None:
                batch.delete(key, family)
            else:
                batch.put(key, context, family)

    @override
    def keep_context(self, key: bytes, context: bytes | None) -> None:
        self._uncommitted_contexts[key] = context

    @override
    def context(self, key: bytes) -> bytes | None:
        if key in self._uncommitted_contexts or self._contexts is None:
            return self._uncommitted_contexts.get(key)
        return reader(self._contexts, self.path)(key)

    def _forget_uncommitted(self) -> None:
        self.buffer.clear()
        self._uncommitted_contexts.clear()
        self._deleted_ranges.clear()
        self.buffer.check_at = self._first_check

    def belongs_to(self, request_commit: Callable[[], None]) -> None:
        """Request commits from another task from now on, which takes over the open store."""
        self._request_commit = request_commit

    @override
    def rollback(self) -> None:
        self._forget_uncommitted()

    @override
    def committed_offset(self) -> int | None:
        return self._number(OFFSET_KEY)

    @override
    def committed_mark(self, name: str) -> int | None:
        return self._number(name.encode())

    def _number(self, key: bytes) -> int | None:
        data = reader(self._offsets, self.path)(key)
        return None if data is None else int(_number.unpack(data)[0])

    def persist(self, beside_writes: bool = False) -> None:
        """Write the memtables to files; raises ProcessorStateError if the disk is full or fails, TaskCorruptedError if
        a compaction has met a damaged file meanwhile.

        rocksdict can only flush a single column family, not both atomically. But compacting the offsets, a handful of
        rows, starts with an atomic flush of all column families. It releases the GIL meanwhile.
        """
        try:
            before = self._db.property_int_value(BACKGROUND_ERRORS)
            # If the last commit has filled a memtable, RocksDB flushes it at the same time, and may then not wait for
            # the following memtable.
            for _ in range(FLUSH_ATTEMPTS):
                left = self._flush()
                if beside_writes or not any(left):
                    break
            # compact_range does not report failures. During writes there are always entries in memory.
            failed = self._db.property_int_value(BACKGROUND_ERRORS) != before if beside_writes else any(left)
            if failed:
                self._raise_damage()
                raise unwritten_memtables(self.path, left)
        except Exception as error:  # rocksdict raises nothing more specific
            raise failed_call(self.path, "flush", error, DISK_FULL) from error

    def _raise_damage(self) -> None:
        """Raise RocksDB's error if a compaction has met a damaged file: it then refuses writes, an empty one too."""
        try:
            self._db.write(WriteBatch(raw_mode=True), self._write_options)
        except Exception as error:  # rocksdict raises nothing more specific
            if reports_corruption(error):
                raise

    def _flush(self) -> list[int | None]:
        """Flush, and return what is left in memory: entries and memtables of both column families."""
        options = CompactOptions()
        options.set_exclusive_manual_compaction(False)  # do not wait for the compactions of the rows
        self._offsets.compact_range(None, None, options)
        return [family.property_int_value(name) for family in (self._db, self._offsets) for name in IN_MEMTABLES]

    @override
    def checkpoint(self, path: Path) -> None:
        """Copy the committed state to a database at path, with hard links if possible.

        Raises ProcessorStateError if the disk is full, or path exists.
        """
        self.persist()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            Checkpoint(self._db).create_checkpoint(str(path))
        except Exception as error:  # rocksdict raises nothing more specific
            raise failed_call(self.path, f"copy to {path}", error) from error

    @override
    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._resources.open_stores -= 1
        self._forget_uncommitted()
        self.buffer.recent = {}
        self._keep(0)
        self._disk.release()
        for scan in list(self._scans):  # an open iterator would keep the database, and its lock, open
            scan.close()
        # Rdict.close flushes a single column family. Offsets on disk without their rows would hide, after a crash, that
        # these are missing: the rows come first, and if they fail, the others are dropped unflushed.
        try:
            for family in (self._db, self._contexts, self._offsets):
                if family is not None:
                    family.close()
        except Exception as error:  # rocksdict raises nothing more specific
            raise failed_call(self.path, "close", error, DISK_FULL) from error
        finally:  # an open handle keeps the files locked
            del self._offsets_handle, self._offsets, self._contexts


def reader(family: Rdict, path: Path) -> Callable[[bytes], bytes | None]:
    """Return the get of a column family, with the errors of the store at path."""
    get = family.get

    def read_row(key: bytes) -> bytes | None:
        try:
            return cast("bytes | None", get(key))
        except Exception as error:  # rocksdict raises nothing more specific
            raise failed_call(path, "read", error) from error

    return read_row


def write_options() -> WriteOptions:
    """Return options that disable RocksDB's own log, and let a write fail instead of waiting."""
    options = WriteOptions()
    options.disable_wal = True  # type: ignore[assignment,method-assign]  # a property, whatever rocksdict's stub says
    options.no_slowdown = True
    return options


def resources_rows(config: RocksDBConfig) -> int:
    """Return the number of buffered rows after which to check their size."""
    return config.uncommitted_max_bytes // (8 * BUFFERED_ROW_OVERHEAD_BYTES)
