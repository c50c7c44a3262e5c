"""Rows in memory: InMemoryKeyValueStore and the LRU store.

It is not in a folder because programs outside the project import it by this name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from typing_extensions import override

from penstock.kernel.rows import SortedKeys

from .rows.bytes_store import NO_MARKS, BytesStore, Marks, RawRow, Row, merge


class InMemoryStore(BytesStore):
    """A dict and, after the first scan, a sorted index. Not on disk: a new task restores it from the beginning."""

    def __init__(self) -> None:
        self._data: dict[bytes, bytes] = {}
        self._index: SortedKeys | None = None
        self._marks: dict[str, int] = {}
        self._contexts: dict[bytes, bytes] = {}
        self._undo: dict[bytes, bytes | None] = {}  # the old values of rows changed since the last commit
        self._undo_keys: SortedKeys | None = None  # their keys in order, maintained once it exists

    @override
    def get(self, key: bytes) -> bytes | None:
        return self._data.get(key)

    @override
    def put(self, key: bytes, value: bytes | None) -> None:
        old = self._data.get(key)
        self._keep_old(key, old)
        self._set(key, value, old)

    def _keep_old(self, key: bytes, old: bytes | None) -> None:
        if key not in self._undo:
            self._undo[key] = old
            if self._undo_keys is not None:
                self._undo_keys.add(key)

    def _forget_old(self) -> None:
        self._undo.clear()
        self._undo_keys = None

    def _set(self, key: bytes, value: bytes | None, old: bytes | None) -> None:
        if value is not None:
            self._data[key] = value
            if old is None and self._index is not None:
                self._index.add(key)
        elif old is not None:
            del self._data[key]
            if self._index is not None:
                self._index.remove(key)

    @override
    def rows(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> list[Row]:
        if self._index is None:
            self._index = SortedKeys(self._data)
        data = self._data
        found = [(key, data[key]) for key in self._index.between(start, end)]
        if reverse:
            found.reverse()
        return found

    @override
    def keep_context(self, key: bytes, context: bytes | None) -> None:
        """Not rolled back, because a context belongs to certain bytes of a row."""
        if context is None:
            self._contexts.pop(key, None)
        else:
            self._contexts[key] = context

    @override
    def context(self, key: bytes) -> bytes | None:
        return self._contexts.get(key)

    @override
    def approximate_num_entries(self) -> int:
        return len(self._data)

    @override
    def has_uncommitted(self) -> bool:
        return bool(self._undo)

    @override
    def commit(self, changelog_offset: int | None, marks: Marks = NO_MARKS) -> None:
        """Make rollback impossible; the offset is not kept."""
        self._forget_old()
        self._marks.update(marks)

    @override
    def rollback(self) -> None:
        for key, value in self._undo.items():
            self._set(key, value, self._data.get(key))
        self._forget_old()

    @override
    def committed_row(self, key: bytes) -> bytes | None:
        return self._undo[key] if key in self._undo else self._data.get(key)

    @override
    def committed_scan(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> Iterator[Row]:
        if self._undo_keys is None:
            self._undo_keys = SortedKeys(self._undo)
        replaced = [(key, self._undo[key]) for key in self._undo_keys.between(start, end)]
        if reverse:
            replaced.reverse()
        return merge(self.rows(start, end, reverse), replaced, reverse)

    @override
    def approximate_num_committed(self) -> int:
        added = sum(old is None and key in self._data for key, old in self._undo.items())
        deleted = sum(old is not None and key not in self._data for key, old in self._undo.items())
        return len(self._data) - added + deleted

    @override
    def committed_mark(self, name: str) -> int | None:
        return self._marks.get(name)

    @override
    def restore(self, rows: Iterable[RawRow], next_offset: int | None, marks: Marks = NO_MARKS) -> None:
        get, set_row = self._data.get, self._set
        for key, value in rows:
            set_row(key, value, get(key))
        self.commit(next_offset, marks)

    @override
    def close(self) -> None:
        self._data.clear()
        self._forget_old()
        self._index = None


class MemoryLRUCache(InMemoryStore):
    """At most max_entries rows in memory: a put beyond them evicts the least recently used row.

    Follows Kafka Streams' MemoryLRUCache. After a restore the order is that of the writes; reads are not restored.
    """

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self._recency: OrderedDict[bytes, None] = OrderedDict()
        self._max_entries = max_entries

    @override
    def get(self, key: bytes) -> bytes | None:
        value = self._data.get(key)
        if value is not None:
            self._recency.move_to_end(key)
        return value

    def _set(self, key: bytes, value: bytes | None, old: bytes | None) -> None:
        super()._set(key, value, old)
        if value is None:
            self._recency.pop(key, None)
            return
        self._recency[key] = None
        self._recency.move_to_end(key)
        if len(self._recency) > self._max_entries:
            self._evict()

    def make_room(self, key: bytes) -> bytes | None:
        """Evict the row that a put of this key would evict. Returns its key, None if there is room."""
        if key in self._recency or not self._recency or len(self._recency) < self._max_entries:
            return None
        return self._evict()

    def _evict(self) -> bytes:
        key = next(iter(self._recency))
        old = self._data[key]
        self._keep_old(key, old)
        self._set(key, None, old)
        return key

    @override
    def rollback(self) -> None:
        """Restored rows count as just used."""
        changed = list(self._undo.items())
        for key, _ in changed:
            self._set(key, None, self._data.get(key))
        for key, value in changed:
            self._set(key, value, None)
        self._forget_old()

    @override
    def close(self) -> None:
        super().close()
        self._recency.clear()
