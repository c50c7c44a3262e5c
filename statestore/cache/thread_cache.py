"""The record cache of one stream thread: ``statestore.cache.max.bytes`` over all its cached stores.

Kafka Streams' ThreadCache and NamedCache. An entry has the bytes of a value, or an object that stands for them (see
values.py). It is a *cell*, a list that is changed in place, because that is the hottest path there is: an update of a
cached key costs one look-up and a few assignments. Stores and fused sources read and write the cells directly.

What an entry costs is what Kafka Streams counts, the serialized key and value and a fixed overhead, so that a
configured size holds as many entries as it does there; the Python objects take three to five times as much. Serialized
sizes are sampled, since measuring each entry would cost more than caching it. What was flushed costs what an entry
read from the store costs there: its record context is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, islice
from operator import itemgetter
from typing import Any

from penstock.kernel import cells as compiled
from penstock.topology.context.store_interfaces import HEADERS, KEY, MESSAGE, STAMP, TIMESTAMP, USED, VALUE, Cell, Cells
from penstock.topology.records import Headers, Message

#: What Kafka Streams adds for each entry (NamedCache.LRUNode 24, LRUCacheEntry 1, ProcessorRecordContext 20).
ENTRY_OVERHEAD_BYTES = 45
#: And for the context of a record that changed it: the topic's name, here taken as 25 characters.
CONTEXT_BYTES = 25
#: How many entries are serialized to estimate the size of all.
SAMPLE = 16
#: A full cache is emptied down to this share, so that evicting and measuring happen once in many puts.
EVICT_TO = 0.95
#: When only dirty entries are left to evict, the longest unchanged of them are sent on: at least this share of all.
FLUSH_SHARE = 8

#: A changed entry as a flush sees it: key, value, timestamp (ms), headers, message.
Changed = tuple[Any, Any, int, Headers, Message | None]
_stamp_of = itemgetter(STAMP)
_change_of = itemgetter(KEY, VALUE, TIMESTAMP, HEADERS, MESSAGE)


class NamedCache:
    """The part of a ThreadCache that one store uses.

    entries: cell by cache key, the first to come first; dirty: those of them that the store below does not have yet;
    next_stamp(): the stamp of the next put. table: the kernel's CellTable, None without it. flush(changes): sends
    changed entries on. size_of(key, value): serialized size in bytes of an entry.
    """

    __slots__ = (
        "_check_at",
        "_flush",
        "_owner",
        "_size_of",
        "dirty",
        "entries",
        "entry_bytes",
        "evictions",
        "name",
        "new_cell",
        "next_stamp",
        "table",
    )

    def __init__(
        self,
        owner: ThreadCache,
        name: str,
        flush: Callable[[list[Changed]], None],
        size_of: Callable[[Any, Any], int],
    ) -> None:
        self.name = name
        self.entries: dict[Any, Cell] = {}
        self.dirty: list[Cell] = []
        self.table = None if compiled is None else compiled.CellTable(self.entries, self.dirty)
        self.new_cell: Callable[..., Cell] = _list_of if compiled is None else compiled.Cell
        self.next_stamp: Callable[[], int] = count(1).__next__ if self.table is None else self.table.next_stamp
        self._check_at = 1
        self.evictions = 0  # how often entries were dropped
        self.entry_bytes = float(ENTRY_OVERHEAD_BYTES)
        self._owner = owner
        self._flush = flush
        self._size_of = size_of

    @property
    def size_bytes(self) -> float:
        """Estimated size of all entries."""
        return len(self.entries) * self.entry_bytes + len(self.dirty) * CONTEXT_BYTES

    def cells(self, load: Callable[[Any], Cell], **of_the_store: Any) -> Cells:
        """Return what a fused source uses of this cache; of_the_store: the fields of Cells that the store knows."""
        dirty = self.dirty.append
        return Cells(self.entries.get, load, dirty, self.next_stamp, self.grown, table=self.table, **of_the_store)

    def add_clean(self, key: Any, value: Any) -> Cell:
        """Add what the store below has, None for nothing, and return its cell; call grown() when it is in use."""
        cell = self.entries[key] = self.new_cell(value, 0, 0, None, None, False, key)
        return cell

    def check_at(self, count: int) -> None:
        """Say from how many entries on a new one may be one too many."""
        self._check_at = count
        if self.table is not None:
            self.table.check_at = count

    def grown(self) -> None:
        """Make room if this new entry was one too many. Call it after each entry that was not there before."""
        if len(self.entries) >= self._check_at:
            self._measure()
            self._owner.make_room(self)

    def _measure(self) -> None:
        sample = list(islice(reversed(self.entries.items()), SAMPLE))
        if sample:
            total = sum(self._size_of(key, cell[VALUE]) for key, cell in sample)
            self.entry_bytes = total / len(sample) + ENTRY_OVERHEAD_BYTES

    def take_dirty(self, most: int | None = None) -> list[Changed]:
        """Return what has changed, in the order of the last puts, and count it as clean; most: not more, the oldest.

        The entries of deleted keys go. With most, which asks for room, the others count as not used for long: they
        changed before all that stay dirty.
        """
        if self.table is not None:
            changes: list[Changed] = self.table.take_dirty(most)
            return changes
        dirty, entries = self.dirty, self.entries
        dirty.sort(key=_stamp_of)
        taken = dirty[:most]
        del dirty[:most]
        changes = list(map(_change_of, taken))
        for cell in taken:
            cell[STAMP] = 0
            cell[MESSAGE] = None  # lets go of the record
            if most is not None:
                cell[USED] = False
            if cell[VALUE] is None:
                del entries[cell[KEY]]
        return changes

    def evict(self, wanted: int) -> None:
        """Drop entries that were not used for long. If clean ones do not suffice, dirty ones are sent on first.

        Kafka Streams sends all dirty ones then. To send only the longest unchanged gives the others time to change
        again, which halves what is written when a cache is somewhat too small.
        """
        self.evictions += 1
        left = self.evict_clean(wanted)
        while left and self.dirty:
            self._flush(self.take_dirty(max(left, len(self.dirty) // FLUSH_SHARE)))
            left = self.evict_clean(left)

    def evict_clean(self, wanted: int) -> int:
        """Drop up to wanted clean entries, the first to come first; those used since only when it is their turn again.

        Returns how many are still wanted.
        """
        if self.table is not None:
            left: int = self.table.evict_clean(wanted)
            return left
        entries = self.entries
        for _ in range(2):
            victims: list[Any] = []
            passed: list[tuple[Any, Cell]] = []
            for key, cell in entries.items():
                if len(victims) == wanted:
                    break
                if cell[STAMP]:
                    continue
                if cell[USED]:
                    cell[USED] = False
                    passed.append((key, cell))
                else:
                    victims.append(key)
            for key in victims:
                del entries[key]
            for key, cell in passed:  # to the end of the queue
                del entries[key]
                entries[key] = cell
            wanted -= len(victims)
            if not wanted:
                break
        return wanted

    def clear(self) -> None:
        """Forget everything, dirty entries too."""
        self.entries.clear()
        self.dirty.clear()
        self.check_at(1)

    def close(self) -> None:
        """Forget everything and give the room back."""
        self.clear()
        self._owner.forget(self)


def _list_of(*fields: Any) -> Cell:
    return list(fields)


class ThreadCache:
    """The caches of all stores of one thread. max_bytes 0: nothing is cached, build_store makes stores without."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._caches: list[NamedCache] = []

    def named(
        self, name: str, flush: Callable[[list[Changed]], None], size_of: Callable[[Any, Any], int]
    ) -> NamedCache:
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

    def make_room(self, cache: NamedCache) -> None:
        """Evict from this cache if all caches together are too large, and say when it should be measured again."""
        excess = self.size_bytes() - self.max_bytes
        if excess > 0:
            wanted = excess + (1 - EVICT_TO) * min(self.max_bytes, cache.size_bytes)
            cache.evict(int(wanted / cache.entry_bytes) + 1)  # what goes is clean, and what comes has changed
        room = int(max(0, self.max_bytes - self.size_bytes()) / (cache.entry_bytes + CONTEXT_BYTES))
        entries = len(cache.entries)
        cache.check_at(entries + max(1, min(entries, room // 2)))
