"""The record cache of one stream thread: ``statestore.cache.max.bytes`` over all its cached stores.

Kafka Streams' ThreadCache and NamedCache, with objects in place of bytes. A store reads and writes its NamedCache's two
dicts directly, because that is the hottest path there is:

- ``dirty``: cache key -> (value, timestamp, headers, message) in the order in which keys last became dirty;
- ``clean``: cache key -> value, oldest first.

A key is in at most one of them. What an entry costs is what Kafka Streams counts, the serialized key and value and a
fixed overhead, so that a configured size holds as many entries as it does there; the Python objects take three to five
times as much. Serialized sizes are sampled, since measuring each entry would cost more than caching it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice
from typing import Any, NamedTuple

from penstock.topology.records import Headers, Message

#: What Kafka Streams adds for each entry: list and map nodes, record context (NamedCache.LRUNode, LRUCacheEntry).
ENTRY_OVERHEAD_BYTES = 100
#: How many entries are serialized to estimate the size of all.
SAMPLE = 16
#: A full cache is emptied down to this share, so that evicting and measuring happen once in many puts.
EVICT_TO = 0.9


class Dirty(NamedTuple):
    """A value that the store below does not have yet, and the record context of its put."""

    value: Any
    timestamp: int
    headers: Headers
    message: Message | None


class NamedCache:
    """The part of a ThreadCache that one store uses.

    flush: sends all dirty entries on and makes them clean; called when a dirty entry must go. size_of(key, value):
    serialized size in bytes of an entry.
    """

    __slots__ = ("_flush", "_owner", "_size_of", "check_at", "clean", "dirty", "entry_bytes", "evictions", "name")

    def __init__(
        self, owner: ThreadCache, name: str, flush: Callable[[], None], size_of: Callable[[Any, Any], int]
    ) -> None:
        self.name = name
        self.dirty: dict[Any, tuple[Any, int, Headers, Message | None]] = {}
        self.clean: dict[Any, Any] = {}
        self.check_at = 1
        self.evictions = 0  # how often entries were dropped
        self.entry_bytes = float(ENTRY_OVERHEAD_BYTES)
        self._owner = owner
        self._flush = flush
        self._size_of = size_of

    @property
    def size_bytes(self) -> float:
        """Estimated size of all entries."""
        return (len(self.dirty) + len(self.clean)) * self.entry_bytes

    def grown(self) -> None:
        """Make room if this new entry was one too many. Call it after each entry that was not there before."""
        if len(self.dirty) + len(self.clean) >= self.check_at:
            self._measure()
            self._owner.make_room(self)

    def _measure(self) -> None:
        newest = ((key, entry[0]) for key, entry in reversed(self.dirty.items()))
        sample = list(islice(chain(newest, reversed(self.clean.items())), SAMPLE))
        if sample:
            total = sum(self._size_of(key, value) for key, value in sample)
            self.entry_bytes = total / len(sample) + ENTRY_OVERHEAD_BYTES

    def evict(self, entries: int) -> None:
        """Drop the oldest entries; if clean ones do not suffice, all dirty ones are flushed first, as Kafka's are."""
        clean = self.clean
        if entries > len(clean) and self.dirty:
            self._flush()
        self.evictions += 1
        for key in list(islice(clean, entries)):
            del clean[key]

    def clear(self) -> None:
        """Forget everything, dirty entries too."""
        self.dirty.clear()
        self.clean.clear()
        self.check_at = 1

    def close(self) -> None:
        """Forget everything and give the room back."""
        self.clear()
        self._owner.forget(self)


class ThreadCache:
    """The caches of all stores of one thread. max_bytes 0: nothing is cached, build_store makes stores without."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._caches: list[NamedCache] = []

    def named(self, name: str, flush: Callable[[], None], size_of: Callable[[Any, Any], int]) -> NamedCache:
        """Return a new cache for one store; see NamedCache."""
        cache = NamedCache(self, name, flush, size_of)
        self._caches.append(cache)
        return cache

    def forget(self, cache: NamedCache) -> None:
        """Take a closed cache out of the account."""
        self._caches = [other for other in self._caches if other is not cache]

    def size_bytes(self) -> int:
        """Return the estimated size of all entries of all stores."""
        return int(sum(cache.size_bytes for cache in self._caches))

    def resize(self, max_bytes: int) -> None:
        """Change the bound, e.g. because the process now has more threads; evicts what is too much."""
        self.max_bytes = max_bytes
        for cache in self._caches:
            self.make_room(cache)

    def make_room(self, cache: NamedCache) -> None:
        """Evict from this cache if all caches together are too large, and say when it should be measured again."""
        excess = self.size_bytes() - self.max_bytes
        if excess > 0:
            wanted = excess + (1 - EVICT_TO) * min(self.max_bytes, cache.size_bytes)
            cache.evict(int(wanted / cache.entry_bytes) + 1)
        room = int(max(0, self.max_bytes - self.size_bytes()) / cache.entry_bytes)
        count = len(cache.dirty) + len(cache.clean)
        cache.check_at = count + max(1, min(count, room // 2))
