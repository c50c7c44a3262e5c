"""Window and session stores behind the record cache (Kafka Streams: CachingWindowStore, CachingSessionStore).

Cache keys are (key's bytes, window start) and (key's bytes, session end, session start). As in Kafka Streams, the cache
hides nothing: a row that the store below hides as expired is still visible while it is cached.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, cast

from typing_extensions import override

from penstock.kernel.cells import Cell
from penstock.topology.context.store_interfaces import CacheKeys, Cells, StoreBuilder
from penstock.topology.context.store_types import Rows
from penstock.topology.context.task_context import TaskContext
from penstock.topology.records import Windowed

from ..rows.bytes_store import BytesStore, RawRow, Row, merge
from ..stores.segmented_stores import PAIR, WINDOW_KEY_SCHEMA, TaskSessionStore, TaskWindowStore
from ..stores.segments import NOTHING_OBSERVED, Segments, TimedRow
from ..stores.state_store import LONG, LONG_MAX, Bounds
from ..stores.values import converted
from .caching_store import CachingStore
from .thread_cache import ThreadCache

#: The cache key of a row: (key, window start) or (key, session end, session start).
CacheKey = tuple[Any, ...]

_new = tuple.__new__
_pack_start = WINDOW_KEY_SCHEMA.suffix.pack


class CachingSegments(CachingStore):
    """The common part of caching window and session stores: cached rows merged into the rows of a scan."""

    segments: Segments

    def __init__(self, cache: ThreadCache) -> None:
        super().__init__(cache)
        self._compile(self.segments)

    def _overlay(self, stored: Iterator[Row], wanted: Callable[[Any], bool], reverse: bool) -> Iterator[Row]:
        """Iterate over stored rows, in scan order, merged with the cached ones for which wanted(cache key) holds."""
        order = self.segments.scan_order
        found = self._cached_rows(wanted)
        cached = [(order(key), None if value is None else (key, value)) for key, value in found]
        if not cached:
            return stored
        cached.sort(key=lambda pair: pair[0], reverse=reverse)
        ordered = ((order(row[0]), row) for row in stored)
        merged = merge(ordered, cached, reverse)  # rows in place of bytes
        return (row for _, row in merged)

    def _with_cached(self, stored: Iterator[Row], bounds: Bounds, time_from: int, time_to: int) -> Iterator[Row]:
        """Iterate over stored rows, and over the cached ones within bounds instead of these, in any order."""
        # The second part of a cache key is the time of the row.
        cached = dict(self._cached_rows(lambda key: bounds.has(key[0]) and time_from <= key[1] <= time_to))
        if not cached:
            return stored
        changed = [(key, data) for key, data in cached.items() if data is not None]
        return chain((row for row in stored if row[0] not in cached), changed)

    def _cached_rows(self, wanted: Callable[[Any], bool]) -> Iterator[RawRow]:
        time_of, interval, to_row = self.segments.schema.time_of, self.segments.interval_ms, self.values.to_row
        entries = chain(((key, None) for key in self._deleting), self._cache.table.rows())
        for key, held in entries:
            if wanted(key):
                log_key = self._log_key(key)
                yield LONG.pack(time_of(log_key) // interval) + log_key, to_row(held)

    @abstractmethod
    def _entries(self, record_key: Any, rows: list[TimedRow]) -> list[tuple[CacheKey, Any]]:
        """Return the cache keys and entries of rows of a record key."""

    def _read_below(self, key: CacheKey) -> object:
        row = self.segments.get(self._log_key(key), key[1])
        return None if row is None else self.values.from_row(row)

    def _cell_loader(self) -> Callable[[CacheKey], Cell]:
        """Return the function that loads an entry from the rows into the cache, for the kernel's nodes."""
        segments, deleting, read, add_clean = self.segments, self._deleting, self._read_entry, self._cache.add_clean

        def load(key: CacheKey) -> Cell:
            # Most rows are new when they are first read: no row that late was ever written, so the search is skipped.
            if NOTHING_OBSERVED < segments.observed_ms < key[1] or key in deleting:
                held = None
            else:
                held = read(key)
            return add_clean(key, held)

        return load

    def _key_values(self, record_key: bytes, time_from: int, time_to: int) -> list[tuple[Any, ...]]:
        """Return the rows of a record key with these times: the times of each, and its value, which is the caller's."""
        found = self._cache.table.key_values(record_key, time_from, time_to)
        return self._read_key_values(record_key, time_from, time_to) if found is None else found

    def _read_key_values(self, record_key: bytes, time_from: int, time_to: int) -> list[tuple[Any, ...]]:
        """The same, with rows that may be on disk."""
        stored = self._entries(record_key, self.segments.fetch(record_key, time_from, time_to))
        rows = {key: held for key, held in stored if key not in self._deleting}
        rows |= self._cache.table.cached(record_key, time_from, time_to)
        read = self.values.read
        return [(*key[1:], read(rows[key])) for key in sorted(rows) if rows[key] is not None]


class CachingWindowStore(CachingSegments, TaskWindowStore):
    """A window store behind a record cache."""

    cache_keys = CacheKeys.WINDOW

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore, cache: ThreadCache) -> None:
        TaskWindowStore.__init__(self, builder, task, rows)
        CachingSegments.__init__(self, cache)
        self._get, self._get_forwarded = self._getter(self._read_entry), self._forwarded_getter()

    @override
    def fetch(self, key: object, time: int) -> Any:
        return self._get((self._encode_key(key), time))

    @override
    def fetch_forwarded(self, key: object, time: int) -> object:
        return self._get_forwarded((self._encode_key(key), time))

    @override
    def put(self, key: object, value: object, window_start: int) -> None:
        held = converted(self.builder, self.values.hold, value)
        self.put_held(key, held, window_start)

    @override
    def put_held(self, key: object, held: object, window_start: int) -> None:
        cache_key = (self._encode_key(key), window_start)
        self._put(cache_key, held)

    def _log_key(self, key: CacheKey) -> bytes:
        return cast("bytes", key[0]) + _pack_start(key[1], 0)

    def _write_entry(self, key: CacheKey, held: object) -> None:
        self.put_row(key[0], held, key[1])

    def _entries(self, record_key: object, rows: list[TimedRow]) -> list[tuple[CacheKey, object]]:
        from_row = self.values.from_row
        return [((record_key, start), from_row(data)) for start, _, data in rows]

    @override
    def cells(self) -> Cells:
        """Only for windows that are still open: it does not check whether a row has expired."""
        return self._cells(self._cell_loader(), self._size_ms)

    @override
    def fetch_range(self, key: object, time_from: int, time_to: int) -> Rows[tuple[int, Any]]:
        record_key = self.serdes.encode_key(key)
        return Rows(self._key_values(record_key, time_from, time_to))

    def _bounded(self, bounds: Bounds, time_from: int, time_to: int) -> Iterator[Row]:
        return self._with_cached(super()._bounded(bounds, time_from, time_to), bounds, time_from, time_to)

    @override
    def _scan(self, time_from: int, time_to: int, reverse: bool) -> Iterator[Row]:
        stored = super()._scan(time_from, time_to, reverse)
        return self._overlay(stored, lambda key: time_from <= key[1] <= time_to, reverse)


class CachingSessionStore(CachingSegments, TaskSessionStore):
    """A session store behind a record cache."""

    cache_keys = CacheKeys.SESSION

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore, cache: ThreadCache) -> None:
        TaskSessionStore.__init__(self, builder, task, rows)
        CachingSegments.__init__(self, cache)
        self._get, self._get_forwarded = self._getter(self._read_entry), self._forwarded_getter()

    @override
    def put_held(self, session: Windowed, held: object) -> None:
        key, start, end = session
        cache_key = (self._encode_key(key), end, start)
        self._put(cache_key, held)

    @override
    def fetch_session(self, key: object, start: int, end: int) -> Any:
        return self._get((self.serdes.encode_key(key), end, start))

    @override
    def fetch_session_forwarded(self, key: object, start: int, end: int) -> object:
        return self._get_forwarded((self.serdes.encode_key(key), end, start))

    def _log_key(self, key: CacheKey) -> bytes:
        return cast("bytes", key[0]) + PAIR.pack(key[1], key[2])

    def _write_entry(self, key: CacheKey, held: object) -> None:
        self.put_row(key[0], key[2], key[1], held)

    def _entries(self, record_key: object, rows: list[TimedRow]) -> list[tuple[CacheKey, object]]:
        from_row = self.values.from_row
        return [((record_key, end, start), from_row(data)) for end, start, data in rows]

    @override
    def cells(self) -> Cells:
        return self._cells(self._cell_loader())

    @override
    def find_sessions(self, key: object, earliest_end: int, latest_start: int) -> Rows[tuple[Windowed, Any]]:
        record_key = self.serdes.encode_key(key)
        found = self._cache.table.sessions(Windowed, key, record_key, earliest_end, latest_start)
        if found is not None:
            return Rows(found)
        rows = self._read_key_values(record_key, earliest_end, LONG_MAX)
        return Rows([(_new(Windowed, (key, start, end)), value) for end, start, value in rows if start <= latest_start])

    def _bounded(self, bounds: Bounds, time_from: int, time_to: int) -> Iterator[Row]:
        return self._with_cached(super()._bounded(bounds, time_from, time_to), bounds, time_from, time_to)

    @override
    def _scan(self, earliest_end: int, latest_end: int, reverse: bool, hidden_too: bool = False) -> Iterator[Row]:
        stored = super()._scan(earliest_end, latest_end, reverse, hidden_too)
        return self._overlay(stored, lambda key: earliest_end <= key[1] <= latest_end, reverse)
