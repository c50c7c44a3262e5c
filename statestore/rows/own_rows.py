"""The rows of an operator's store in a store that a user wrote (Kafka Streams: KeyValueBytesStoreSupplier and others).

The user's store sees keys and values as bytes. Serdes, timestamps, record cache, changelog and expiry are those of the
store above, so that outputs and changelogs are the same whatever keeps the rows.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from typing_extensions import override

from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.context.task_context import TaskContext
from penstock.topology.context.timestamp_extractors import TIMESTAMP_MAX
from penstock.topology.records import Windowed

from .bytes_store import NO_MARKS, BytesStore, Marks, RawRow, Row

_LONG = struct.Struct(">q")
_WINDOW = struct.Struct(">qi")
_SESSION = struct.Struct(">qq")
_SEGMENT_BYTES = 8


class OwnStore(Protocol):
    """Runs the user's store: see CustomStore, which is that of processors, too."""

    @property
    def exposed(self) -> Any:
        """The user's store."""

    @property
    def persistent(self) -> bool:
        """Whether it keeps its data on disk."""

    def flush(self) -> None:
        """Let it write what waits in memory."""

    def commit(self, changelog_offset: int | None) -> None:
        """Commit it with this offset."""

    def committed_offset(self) -> int | None:
        """Return the offset of its last commit."""

    def note_restored(self, count: int, next_offset: int | None) -> None:
        """Count restored records, and commit some of them."""

    def persist(self, beside_writes: bool = False) -> None:
        """Commit restored records."""

    def passed_to(self, task: TaskContext) -> Any:
        """Move it to another task."""

    def close(self) -> None:
        """Close it."""


class OwnRows(BytesStore):
    """Rows whose keys are those of the changelog, in a user's store.

    It has no rollback: a task that is recycled has committed, and any other one closes its stores.
    """

    in_snapshots = False

    def __init__(self, store: OwnStore) -> None:
        self._store = store
        self._own = store.exposed
        self._marks: dict[str, int] = {}
        self._has_uncommitted = False
        self.persistent = store.persistent

    def moved_to(self, task: TaskContext) -> None:
        """Serve another task."""
        self._store.passed_to(task)

    @override
    def put(self, key: bytes, value: bytes | None) -> None:
        self._has_uncommitted = True
        self._put(key, value)

    @abstractmethod
    def _put(self, key: bytes, value: bytes | None) -> None:
        """Set or delete a row."""

    @override
    def has_uncommitted(self) -> bool:
        return self._has_uncommitted

    @override
    def commit(self, changelog_offset: int | None, marks: Marks = NO_MARKS) -> None:
        self._store.flush()
        self._store.commit(changelog_offset)
        self._marks.update(marks)
        self._has_uncommitted = False

    @override
    def rollback(self) -> None:
        pass

    @override
    def committed_offset(self) -> int | None:
        return self._store.committed_offset()

    @override
    def committed_mark(self, name: str) -> int | None:
        return self._marks.get(name)

    @override
    def restore(self, rows: Iterable[RawRow], next_offset: int | None, marks: Marks = NO_MARKS) -> None:
        count = 0
        for key, value in rows:
            self._put(key, value)
            count += 1
        self._marks.update(marks)
        self._store.note_restored(count, next_offset)

    @override
    def persist(self, beside_writes: bool = False) -> None:
        self._store.persist(beside_writes)

    @override
    def approximate_num_entries(self) -> int:
        count = getattr(self._own, "approximate_num_entries", None)
        return 0 if count is None else int(count())

    @override
    def close(self) -> None:
        self._store.close()


class OwnKeyValueRows(OwnRows):
    """Rows in a store with get, put and range."""

    @override
    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._own.get(key)
        return found

    def _put(self, key: bytes, value: bytes | None) -> None:
        self._own.put(key, value)

    @override
    def rows(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> list[Row]:
        found = [row for row in self._own.range(start, end) if end is None or row[0] < end]  # its range has both ends
        return found[::-1] if reverse else found


class OwnTimedRows(OwnRows):
    """Rows with times. Keys are those of Segments: segment, changelog key. interval_ms: of a segment."""

    def __init__(self, store: OwnStore, interval_ms: int) -> None:
        super().__init__(store)
        self._interval_ms = interval_ms

    @abstractmethod
    def by_time(self, first: int, last: int) -> list[Row]:
        """Return the rows with times of this range, in order of their times."""

    @override
    def scan(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> Iterator[Row]:
        found = self.by_time(0, TIMESTAMP_MAX)
        return iter(found[::-1] if reverse else found)

    def expire(self, first: int, end: int) -> None:
        """Delete the rows with times from first on and before end."""
        for key, _ in self.by_time(first, end - 1):
            self._put(key, None)

    def _in_segment(self, prefix: bytes, first: int, last: int) -> tuple[int, int]:
        """Return the part of a range of times that is in a segment."""
        begin = _LONG.unpack(prefix)[0] * self._interval_ms
        return max(first, begin), min(last, begin + self._interval_ms - 1)

    def _segment(self, time_ms: int) -> bytes:
        return _LONG.pack(time_ms // self._interval_ms)


class OwnWindowRows(OwnTimedRows):
    """Rows in a store with put, fetch, fetch_range and fetch_all.

    duplicates: each put adds a value, and the store itself drops what is older than its retention.
    """

    def __init__(self, store: OwnStore, interval_ms: int, duplicates: bool) -> None:
        super().__init__(store, interval_ms)
        self._duplicates = duplicates

    @override
    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._own.fetch(key[_SEGMENT_BYTES : -_WINDOW.size], self._start(key))
        return found

    def _put(self, key: bytes, value: bytes | None) -> None:
        if value is not None or not self._duplicates:
            self._own.put(key[_SEGMENT_BYTES : -_WINDOW.size], value, self._start(key))

    @staticmethod
    def _start(key: bytes) -> int:
        start: int = _WINDOW.unpack_from(key, len(key) - _WINDOW.size)[0]
        return start

    @override
    def expire(self, first: int, end: int) -> None:
        if not self._duplicates:
            super().expire(first, end)

    @override
    def rows(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> list[Row]:
        """Return the rows of a record key in a segment, as Segments.fetch asks for them."""
        assert start is not None
        assert end is not None
        prefix, key = start[:_SEGMENT_BYTES], start[_SEGMENT_BYTES : -_WINDOW.size]
        first, last = self._in_segment(prefix, self._start(start), self._start(end[:-1]))
        found = self._own.fetch_range(key, first, last) if first <= last else ()
        return [(prefix + self._key(key, at, number), value) for number, (at, value) in enumerate(found)]

    def _key(self, key: bytes, start: int, number: int) -> bytes:
        """Return the changelog key of a row; only duplicates are numbered."""
        return key + _WINDOW.pack(start, number if self._duplicates else 0)

    @override
    def by_time(self, first: int, last: int) -> list[Row]:
        found = sorted(((window.start, window.key, value) for window, value in self._own.fetch_all(first, last)))
        return [
            (self._segment(at) + self._key(key, at, number), value) for number, (at, key, value) in enumerate(found)
        ]


class OwnSessionRows(OwnTimedRows):
    """Rows in a store with put, fetch_session, find_sessions and find_sessions_ending."""

    @override
    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._own.fetch_session(*self._session(key))
        return found

    def _put(self, key: bytes, value: bytes | None) -> None:
        self._own.put(self._session(key), value)

    @staticmethod
    def _session(key: bytes) -> Windowed[bytes]:
        end, start = _SESSION.unpack_from(key, len(key) - _SESSION.size)
        return Windowed(key[_SEGMENT_BYTES : -_SESSION.size], start, end)

    @override
    def rows(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> list[Row]:
        """Return the rows of a record key in a segment, as Segments.fetch asks for them."""
        assert start is not None
        assert end is not None
        prefix, low, high = start[:_SEGMENT_BYTES], self._session(start), self._session(end[:-1])
        first, last = self._in_segment(prefix, low.end, high.end)
        if first > last:
            return []
        found = self._own.find_sessions(low.key, first, TIMESTAMP_MAX)
        rows = [self._row(session, value) for session, value in found if session.end <= last]
        return sorted(rows)

    def _row(self, session: Windowed[bytes], value: bytes) -> Row:
        return self._segment(session.end) + session.key + _SESSION.pack(session.end, session.start), value

    @override
    def by_time(self, first: int, last: int) -> list[Row]:
        found = sorted(
            self._own.find_sessions_ending(first, last), key=lambda row: (row[0].end, row[0].key, row[0].start)
        )
        return [self._row(session, value) for session, value in found]


def own_rows(builder: StoreBuilder, store: OwnStore, interval_ms: int) -> OwnRows:
    """Return the rows of a store of this kind. interval_ms: of the segments of stores with times."""
    if builder.kind in (StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW):
        return OwnWindowRows(store, interval_ms, builder.retain_duplicates)
    if builder.kind is StoreKind.SESSION:
        return OwnSessionRows(store, interval_ms)
    return OwnKeyValueRows(store)
