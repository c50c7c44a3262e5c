"""The index by record key of a cache of window or session rows.

Cache keys are tuples of the record key and the row's times, so that the keys of one record key sort by time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

from penstock.topology.context.store_interfaces import STAMP

from .thread_cache import NamedCache

#: The cache key of a row: (key, window start) or (key, session end, session start).
CacheKey = tuple[Any, ...]
#: read(cache key) -> (cache key, value) of this and all later rows of the record key in the store below.
ReadRows = Callable[[CacheKey], Iterable[tuple[CacheKey, Any]]]


class CachedRows:
    """Finds the cached rows of a record key, and loads those of the store below into the cache.

    Once the rows of a key are loaded, a fetch need not read the store below: all later changes of the key go through
    the cache, until something is evicted. Loaded rows (not put since) are hidden when they expire, as in the store
    below; rows put through the cache are not, as in Kafka Streams.
    """

    def __init__(self, cache: NamedCache, deleting: Set[object]) -> None:
        self._cache = cache
        self._deleting = deleting
        #: Puts add new keys to it.
        self._index = cache.table.index
        #: The start of the range of which the cache has all rows, by record key.
        self._complete: dict[object, CacheKey] = {}
        self._evictions = cache.evictions
        self.taken_in: set[CacheKey] = set()

    def hidden(self, cache_key: CacheKey) -> bool:
        """Return whether an expired row must be hidden: it was loaded, and not changed since."""
        if cache_key not in self.taken_in:
            return False
        cell = self._cache.entries.get(cache_key)
        return cell is None or not cell[STAMP]

    def sent(self, changes: Iterable[Sequence[object]]) -> None:
        """Note that changed rows are written below: from now on they count as put, and are visible."""
        if self.taken_in:
            self.taken_in.difference_update([change[0] for change in changes])

    def put(self, cache_key: CacheKey) -> None:
        """Index a cache key that is about to be put into the cache."""
        if self.taken_in:
            self.taken_in.discard(cache_key)
        if self._index.by_key is not None and cache_key not in self._cache.entries:
            self._index.add(cache_key)

    def find(self, low: CacheKey, high: CacheKey | None) -> Sequence[CacheKey]:
        """Return the cached keys with low <= key < high of low's record key, by time; None is open."""
        entries = self._cache.entries
        keys = self.index().get(low[0])
        if not keys or keys[-1] < low:
            return ()
        last = len(keys) if high is None else bisect_left(keys, high)
        return [key for key in keys[bisect_left(keys, low) : last] if key in entries]

    def index(self) -> dict[Any, list[CacheKey]]:
        """Return the cache keys by record key; built on first use, and rebuilt when it is outdated."""
        index, entries = self._index, self._cache.entries
        if index.by_key is None or index.is_outdated(len(entries)):
            by_key: dict[object, list[CacheKey]] = {}
            for cache_key in entries:
                by_key.setdefault(cache_key[0], []).append(cache_key)
            for keys in by_key.values():
                keys.sort()
            index.by_key, index.added = by_key, 0
        return index.by_key

    def take_in(self, low: CacheKey, read: ReadRows) -> bool:
        """Load the rows of low's record key, from low on, into the cache; return False if it has no room for them."""
        cache = self._cache
        if cache.evictions != self._evictions:
            self._forget()
        complete = self._complete.get(low[0])
        if complete is not None and complete <= low:
            return True
        self.index()
        for cache_key, value in read(low):
            if cache_key not in cache.entries and cache_key not in self._deleting:
                self._index.add(cache_key)
                cache.add_clean(cache_key, value)
                self.taken_in.add(cache_key)
        cache.grown()
        if cache.evictions != self._evictions:
            return False
        self._complete[low[0]] = low
        if len(self._complete) > 1000 + 2 * len(cache.entries):
            self._complete.clear()  # keys whose rows have all been deleted
        return True

    def _forget(self) -> None:
        """After an eviction no record key is known to have all its rows in the cache."""
        self._evictions = self._cache.evictions
        self._complete.clear()
        entries = self._cache.entries
        self.taken_in.difference_update([key for key in self.taken_in if key not in entries or entries[key][STAMP]])

    def clear(self) -> None:
        """Clear the index: the cache was cleared."""
        self._index.by_key = None
        self._complete.clear()
        self.taken_in.clear()
