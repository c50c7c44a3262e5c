"""Window and session stores behind the record cache (Kafka Streams: CachingWindowStore, CachingSessionStore).

Cache keys are (key, window start) and (key, start, end), where key is the object if equal keys have equal bytes, else
its bytes. As in Kafka Streams, the cache hides nothing: what the store below hides because it has expired can still be
seen while it is cached.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from penstock.topology.records import Windowed
from penstock.topology.store_interfaces import StoreBuilder
from penstock.topology.task_context import TaskContext

from .bytes_store import BytesStore, RawRow, Row, merge
from .caching_store import CachingStore
from .segments import Segments
from .session_store import SessionStore
from .state_store import LONG, null_key
from .thread_cache import NamedCache, ThreadCache
from .window_store import WindowStore

_new = tuple.__new__


class KeyIndex:
    """Which cache keys there are of one record key. It may name some that are gone.

    Built when first asked, from then on kept up by ``add``, and built anew after as many additions as there are
    entries: so it costs little per put, and what was evicted does not stay for long.
    """

    def __init__(self, cache: NamedCache) -> None:
        self._cache = cache
        self._by_key: dict[Any, set[Any]] | None = None
        self._added = 0

    def add(self, cache_key: Any) -> None:
        """Note a cache key."""
        if self._by_key is not None:
            self._added += 1
            self._by_key.setdefault(cache_key[0], set()).add(cache_key)

    def find(self, key: Any) -> Sequence[Any]:
        """Return the cache keys of a record key that are cached now, in no order."""
        cache = self._cache
        if self._by_key is None or self._added > 1000 + len(cache.dirty) + len(cache.clean):
            self._by_key = self._build()
            self._added = 0
        found = self._by_key.get(key, ())
        return [cache_key for cache_key in found if cache_key in cache.dirty or cache_key in cache.clean]

    def _build(self) -> dict[Any, set[Any]]:
        by_key: dict[Any, set[Any]] = {}
        for cache_key in chain(self._cache.clean, self._cache.dirty):
            by_key.setdefault(cache_key[0], set()).add(cache_key)
        return by_key

    def clear(self) -> None:
        """Forget all."""
        self._by_key = None


class CachingSegments(CachingStore):
    """What caching window and session stores share: cached rows laid over the rows of a scan."""

    segments: Segments
    _index: KeyIndex

    @abstractmethod
    def _log_key(self, key: Any) -> bytes:
        """Return the changelog key of a cache key."""

    def _overlay(self, stored: Iterator[Row], wanted: Callable[[Any], bool], reverse: bool) -> Iterator[Row]:
        """Iterate over stored rows, in scan order, with the cached ones that are wanted(cache key) laid over them."""
        order = self.segments.scan_order
        cached = [(order(row[0]), row if row[1] is not None else None) for row in self._cached_rows(wanted)]
        if not cached:
            return stored
        cached.sort(key=lambda pair: pair[0], reverse=reverse)
        ordered: Iterator[Any] = ((order(row[0]), row) for row in stored)
        merged: Iterator[Any] = merge(ordered, cached, reverse)  # type: ignore[arg-type]  # rows in place of bytes
        return (row for _, row in merged)

    def _cached_rows(self, wanted: Callable[[Any], bool]) -> Iterator[RawRow]:
        time_of, interval, encode = self.segments.schema.time_of, self.segments.interval_ms, self._encode
        entries = chain(
            self._cache.clean.items(),
            ((key, None) for key in self._deleting),
            ((key, entry[0]) for key, entry in self._cache.dirty.items()),
        )
        for key, value in entries:
            if wanted(key):
                log_key = self._log_key(key)
                data = None if value is None else encode(value)
                yield LONG.pack(time_of(log_key) // interval) + log_key, data

    @abstractmethod
    def _encode(self, value: Any) -> bytes | None:
        """Return the row bytes of a value."""

    def _entry_size(self, key: Any, value: Any) -> int:
        return len(self._log_key(key)) + len((None if value is None else self._encode(value)) or b"")

    def _cached_values(self, key: Any) -> dict[Any, Any]:
        """Return the cached values of a record key by cache key, None for deleted ones; they are the caller's own."""
        dirty, clean, copy = self._cache.dirty, self._cache.clean, self._copy
        found = {at: dirty[at][0] if at in dirty else clean[at] for at in self._index.find(key)}
        found |= {at: None for at in self._deleting if at[0] == key and at not in found}
        if copy is None:
            return found
        return {at: None if value is None else copy(value) for at, value in found.items()}


class CachingWindowStore(CachingSegments, WindowStore):
    """A window store behind a record cache. fetch, put and their twins are closures over the cache's dicts."""

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore, cache: ThreadCache) -> None:
        WindowStore.__init__(self, builder, task, rows)
        CachingStore.__init__(self, cache, self.values.copy)
        self._index = KeyIndex(self._cache)
        self._objects = self.serdes.cacheable_keys
        copy = self.values.copy
        vars(self).update(
            fetch=self._fetcher(self._getter(self._read_entry, copy)),
            fetch_for_update=self._fetcher(self._getter(self._read_entry, None)),
            put=self._window_putter(self._putter(copy)),
            put_owned=self._window_putter(self._putter(None)),
        )

    def _fetcher(self, get: Callable[[Any], Any]) -> Callable[[Any, int], Any]:
        encode_key = self._encode_key
        if self._objects:
            return lambda key, time: get((key, time))
        return lambda key, time: get((encode_key(key), time))

    def _window_putter(self, put: Callable[[Any, Any], None]) -> Callable[[Any, Any, int], None]:
        name, index, encode_key = self.name, self._index, None if self._objects else self._encode_key

        def put_window(key: Any, value: Any, window_start: int) -> None:
            if key is None:
                raise null_key(name)
            cache_key = (key if encode_key is None else encode_key(key), window_start)
            index.add(cache_key)
            put(cache_key, value)

        return put_window

    def _row_key(self, key: Any) -> bytes:
        return self._encode_key(key[0]) if self._objects else key[0]

    def _log_key(self, key: Any) -> bytes:
        return self._row_key(key) + LONG.pack(key[1]) + b"\0\0\0\0"

    def _object_key(self, key: Any) -> Any:
        return self._windowed(key[0] if self._objects else self.serdes.decode_key(key[0]), key[1])

    def _write_entry(self, key: Any, value: Any) -> None:
        self.put_row(self._row_key(key), value, key[1])

    def _read_entry(self, key: Any) -> Any:
        return self.fetch_row(self._row_key(key), key[1])

    def _encode(self, value: Any) -> bytes | None:
        return self.values.encode(value)

    def fetch_range(self, key: Any, time_from: int, time_to: int) -> Sequence[tuple[int, Any]]:
        """See WindowStore.fetch_range."""
        cached = self._cached_values(key if self._objects else self._encode_key(key))
        stored = super().fetch_range(key, time_from, time_to)
        if not cached:
            return stored
        found = dict(stored)
        found.update({start: value for (_, start), value in cached.items() if time_from <= start <= time_to})
        return sorted(((start, value) for start, value in found.items() if value is not None), key=lambda row: row[0])

    def _scan(self, time_from: int, time_to: int, reverse: bool) -> Iterator[Row]:
        stored = super()._scan(time_from, time_to, reverse)
        return self._overlay(stored, lambda key: time_from <= key[1] <= time_to, reverse)


class CachingSessionStore(CachingSegments, SessionStore):
    """A session store behind a record cache."""

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore, cache: ThreadCache) -> None:
        SessionStore.__init__(self, builder, task, rows)
        CachingStore.__init__(self, cache, self.values.copy)
        self._index = KeyIndex(self._cache)
        self._objects = self.serdes.cacheable_keys
        copy = self.values.copy
        self._get = self._getter(self._read_entry, copy)
        vars(self).update(
            put=self._session_putter(self._putter(copy)), put_owned=self._session_putter(self._putter(None))
        )

    def _session_putter(self, put: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        name, index, encode_key = self.name, self._index, None if self._objects else self._encode_key

        def put_session(session: Windowed, value: Any) -> None:
            key, start, end = session
            if key is None:
                raise null_key(name)
            cache_key = (key if encode_key is None else encode_key(key), start, end)
            index.add(cache_key)
            put(cache_key, value)

        return put_session

    def fetch_session(self, key: Any, start: int, end: int) -> Any:
        """See SessionStore.fetch_session."""
        return self._get((key if self._objects else self._encode_key(key), start, end))

    def _row_key(self, key: Any) -> bytes:
        return self._encode_key(key[0]) if self._objects else key[0]

    def _log_key(self, key: Any) -> bytes:
        return self._row_key(key) + LONG.pack(key[2]) + LONG.pack(key[1])

    def _object_key(self, key: Any) -> Any:
        return Windowed(key[0] if self._objects else self.serdes.decode_key(key[0]), key[1], key[2])

    def _write_entry(self, key: Any, value: Any) -> None:
        self.put_row(self._row_key(key), key[1], key[2], value)

    def _read_entry(self, key: Any) -> Any:
        return self.fetch_row(self._row_key(key), key[1], key[2])

    def _encode(self, value: Any) -> bytes | None:
        return self.values.encode(value)

    def find_sessions(self, key: Any, earliest_end: int, latest_start: int) -> Sequence[tuple[Windowed, Any]]:
        """See SessionStore.find_sessions."""
        cached = self._cached_values(key if self._objects else self._encode_key(key))
        stored = super().find_sessions(key, earliest_end, latest_start)
        if not cached:
            return stored
        found = {(session[2], session[1]): value for session, value in stored}
        for (_, start, end), value in cached.items():
            if end >= earliest_end and start <= latest_start:
                found[end, start] = value
        live = sorted((row for row in found.items() if row[1] is not None), key=lambda row: row[0])
        return [(_new(Windowed, (key, start, end)), value) for (end, start), value in live]

    def _scan(self, earliest_end: int, latest_end: int, reverse: bool, hidden_too: bool = False) -> Iterator[Row]:
        stored = super()._scan(earliest_end, latest_end, reverse, hidden_too)
        return self._overlay(stored, lambda key: earliest_end <= key[2] <= latest_end, reverse)
