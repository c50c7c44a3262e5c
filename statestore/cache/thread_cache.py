"""The record cache of one stream thread: ``statestore.cache.max.bytes`` over all its cached stores.

Kafka Streams' ThreadCache and NamedCache. An entry has the bytes of a value, or an equivalent object (see values.py).
It is a *cell*, which is changed in place, because this is the hottest path: an update of a cached key costs one look-up
and a few assignments. Stores and nodes read and write the cells directly (kernel/cells.pyx).

The size of an entry is counted as in Kafka Streams: the serialized key and value plus a fixed overhead, so that a
configured size holds as many entries as there. The Python objects take three to five times as much memory. Serialized
sizes are sampled, because measuring each entry would cost more than caching it. A flushed entry counts like one read
from the store: its record context is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.kernel.cells import Cell, CellTable
from penstock.kernel.rows import ChangedRows
from penstock.topology.context.store_interfaces import CacheKeys, Cells

#: Kafka Streams' overhead per entry (NamedCache.LRUNode 24, LRUCacheEntry 1, ProcessorRecordContext 20).
ENTRY_OVERHEAD_BYTES = 45
#: The size of the context of a record that changed it: the topic's name, here assumed to have 25 characters.
CONTEXT_BYTES = 25
#: Number of entries serialized to estimate the size of all.
SAMPLE = 16
#: A full cache is emptied down to this share, so that it is evicted and measured only once in many puts.
EVICT_TO = 0.95
#: A new entry may make a cache larger than its limit by this share of its entries: measuring costs more than a put.
CHECK_SHARE = 100


class NamedCache:
    """The part of a ThreadCache that one store uses.

    table: its cells. flush(changes): writes and forwards changed entries. size_of(key, value): serialized size in bytes
    of an entry.
    """

    __slots__ = (
        "_flush",
        "_owner",
        "_size_of",
        "entry_bytes",
        "name",
        "table",
    )

    def __init__(
        self,
        owner: ThreadCache,
        name: str,
        keys: CacheKeys,
        flush: Callable[[ChangedRows], None],
        size_of: Callable[[Any, Any], int],
    ) -> None:
        self.name = name
        self.table = CellTable(keys)
        self.entry_bytes = float(ENTRY_OVERHEAD_BYTES)
        self._owner = owner
        self._flush = flush
        self._size_of = size_of

    @property
    def size_bytes(self) -> float:
        """Estimated size of all entries."""
        return len(self.table) * self.entry_bytes + self.table.dirty_count * CONTEXT_BYTES

    def cells(self, load: Callable[[Any], Cell], **of_the_store: Any) -> Cells:
        """Return this cache's interface for nodes; of_the_store: the fields of Cells given by the store."""
        return Cells(load, self.grown, self.table, **of_the_store)

    def add_clean(self, key: object, value: object) -> Cell:
        """Add an entry of the store below (None: no entry), and return its cell; call grown() when it is in use."""
        return self.table.add_clean(key, value)

    def check_at(self, count: int) -> None:
        """Set the number of entries from which on a new one may require an eviction."""
        self.table.check_at = count

    def grown(self) -> None:
        """Evict if the cache is full. Call it after each new entry."""
        if len(self.table) >= self.table.check_at:
            self._measure()
            self._owner.make_room(self)

    def _measure(self) -> None:
        sample = self.table.sample(SAMPLE)
        if sample:
            total = sum(self._size_of(key, value) for key, value in sample)
            self.entry_bytes = total / len(sample) + ENTRY_OVERHEAD_BYTES

    def take_dirty(self) -> ChangedRows:
        """Return the changed entries, in the order of the last puts, and mark them as clean.

        The entries of deleted keys are removed.
        """
        return self.table.take_dirty()

    def evict(self, wanted: int) -> None:
        """Drop the least recently used entries. If clean ones do not suffice, dirty ones are flushed first.

        Kafka Streams then flushes all dirty entries. Flushing only the longest unchanged ones gives the others time to
        change again, which halves the writes of a cache that is slightly too small.
        """
        self.table.evict(wanted, self._flush)

    def evict_clean(self, wanted: int) -> int:
        """Drop up to wanted clean entries, oldest first; entries used since are moved to the end of the queue.

        Returns how many are left to drop.
        """
        return self.table.evict_clean(wanted)

    def clear(self) -> None:
        """Drop all entries, including dirty ones."""
        self.table.clear()

    def close(self) -> None:
        """Drop all entries and release their memory."""
        self.clear()
        self._owner.forget(self)


class ThreadCache:
    """The caches of all stores of one thread. max_bytes 0: no caching; build_store then makes uncached stores."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._caches: list[NamedCache] = []

    def named(
        self,
        name: str,
        keys: CacheKeys,
        flush: Callable[[ChangedRows], None],
        size_of: Callable[[Any, Any], int],
    ) -> NamedCache:
        """Return a new cache for one store; see NamedCache."""
        cache = NamedCache(self, name, keys, flush, size_of)
        self._caches.append(cache)
        return cache

    def forget(self, cache: NamedCache) -> None:
        """Unregister a closed cache."""
        self._caches = [other for other in self._caches if other is not cache]

    def size_bytes(self) -> int:
        """Return the estimated size of all entries of all stores."""
        return int(sum(cache.size_bytes for cache in self._caches))

    def make_room(self, cache: NamedCache) -> None:
        """Evict from this cache if all caches together are too large, and set when to measure them again."""
        excess = self.size_bytes() - self.max_bytes
        if excess > 0:
            wanted = excess + (1 - EVICT_TO) * min(self.max_bytes, cache.size_bytes)
            cache.evict(int(wanted / cache.entry_bytes) + 1)  # evicted entries are clean, and new ones are dirty
        room = int(max(0, self.max_bytes - self.size_bytes()) / (cache.entry_bytes + CONTEXT_BYTES))
        entries = len(cache.table)
        cache.check_at(entries + max(1, entries // CHECK_SHARE, min(entries, room // 2)))
