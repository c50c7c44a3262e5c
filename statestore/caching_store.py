"""Stores behind the record cache: what all of them share, and the key-value one (Kafka Streams: CachingKeyValueStore).

The cache keeps objects. At a flush each changed key is serialized once, written below and to the changelog, and only
then sent downstream, with the record context of its last put.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from penstock.topology.records import Headers, Message
from penstock.topology.store_interfaces import StoreBackend, StoreBuilder
from penstock.topology.task_context import TaskContext

from .bytes_store import BytesStore, RawRow, Row, merge
from .key_value_store import KeyValueStore
from .state_store import StateStore, null_key
from .thread_cache import ThreadCache

#: listener(key, new value, old value, timestamp in ms, headers); see StateStore.set_flush_listener.
FlushListener = Callable[[Any, Any, Any, int, Headers], None]
Copy = Callable[[Any], Any] | None


class CachingStore(StateStore):
    """Puts wait in a cache. A subclass says what a cache key is and how an entry is written and read below.

    copy: makes a private copy of a value, None where values cannot be changed.
    """

    def __init__(self, cache: ThreadCache, copy: Copy) -> None:
        # StateStore.__init__ has run: the store below is there
        self._cache = cache.named(f"{self.task.task_id}-{self.name}", self.flush, self._entry_size)
        self._copy = copy
        self._deleting: set[Any] = set()  # keys whose tombstones a flush has taken but perhaps not yet written
        self._listener: FlushListener | None = None
        self._send_old_values = False

    @abstractmethod
    def _write_entry(self, key: Any, value: Any) -> None:
        """Write a value below and to the changelog, None to delete."""

    @abstractmethod
    def _read_entry(self, key: Any) -> Any:
        """Return the value below, an object of the caller's own."""

    @abstractmethod
    def _object_key(self, key: Any) -> Any:
        """Return the key that a flush listener gets for a cache key."""

    @abstractmethod
    def _entry_size(self, key: Any, value: Any) -> int:
        """Return the serialized size of an entry in bytes."""

    @property
    def caching(self) -> bool:
        """Return True: see StateStore.caching."""
        return True

    def set_flush_listener(self, listener: FlushListener, send_old_values: bool) -> bool:
        """See StateStore.set_flush_listener."""
        self._listener = listener
        self._send_old_values = send_old_values
        return True

    def _getter(self, load: Callable[[Any], Any], copy: Copy) -> Callable[[Any], Any]:
        """Return the function from a cache key to a value; load(cache key) is asked for what is not cached."""
        clean, pop_clean, get_dirty, deleting = (
            self._cache.clean,
            self._cache.clean.pop,
            self._cache.dirty.get,
            self._deleting,
        )

        def get(key: Any) -> Any:
            entry = get_dirty(key)
            if entry is not None:
                return entry[0]
            value = pop_clean(key, None)
            if value is None:
                return None if key in deleting else load(key)
            clean[key] = value  # now the youngest
            return value

        if copy is None:
            return get

        def get_copy(key: Any) -> Any:
            value = get(key)
            return None if value is None else copy(value)

        return get_copy

    def _putter(self, copy: Copy) -> Callable[[Any, Any], None]:
        """Return the function that puts a value under a cache key."""
        name, task, dirty, grown = self.name, self.task, self._cache.dirty, self._cache.grown
        pop_dirty, pop_clean = self._cache.dirty.pop, self._cache.clean.pop

        def put(key: Any, value: Any) -> None:
            if pop_dirty(key, None) is not None or pop_clean(key, None) is not None:
                dirty[key] = (value, task.timestamp, task.headers, task.message)
            elif key is None:
                raise null_key(name)
            else:
                dirty[key] = (value, task.timestamp, task.headers, task.message)
                grown()

        if copy is None:
            return put

        def put_copy(key: Any, value: Any) -> None:
            put(key, None if value is None else copy(value))

        return put_copy

    def flush(self) -> None:
        """Send each changed key on, in the order of the last puts; see StateStore.flush."""
        dirty, clean, task = self._cache.dirty, self._cache.clean, self.task
        if not dirty:
            return
        entries = dirty.copy()
        dirty.clear()  # before anything is sent: what is downstream may read this store, or change it
        deleted = set()
        for key, entry in entries.items():
            if entry[0] is None:
                deleted.add(key)
            else:
                clean[key] = entry[0]
        self._deleting |= deleted
        context = task.timestamp, task.headers, task.message
        try:
            if self._listener is None:
                self._write_all(entries.items())
            else:
                self._send_all(entries.items(), self._listener)
        finally:
            task.timestamp, task.headers, task.message = context
            self._deleting -= deleted

    def _write_all(self, entries: Iterable[tuple[Any, Any]]) -> None:
        task, write = self.task, self._write_entry
        for key, (value, timestamp, headers, message) in entries:
            task.timestamp, task.headers, task.message = timestamp, headers, message
            write(key, value)

    def _send_all(self, entries: Iterable[tuple[Any, Any]], listener: FlushListener) -> None:
        task, write, read, send_old = self.task, self._write_entry, self._read_entry, self._send_old_values
        object_key, copy = self._object_key, self._copy
        for key, (value, timestamp, headers, message) in entries:
            task.timestamp, task.headers, task.message = timestamp, headers, message
            old = read(key) if send_old or value is None else None
            if value is None and old is None:
                continue  # a key that came and went since the last flush leaves no trace
            write(key, value)
            new = value if copy is None or value is None else copy(value)
            listener(object_key(key), new, old if send_old else None, timestamp, headers)

    def rollback(self) -> None:
        """See StateStore.rollback."""
        self._cache.clear()
        super().rollback()

    def restore(self, messages: Sequence[Message], next_offset: int | None) -> None:
        """See StateStore.restore."""
        self._cache.clear()
        super().restore(messages, next_offset)

    def close(self) -> None:
        """See StateStore.close."""
        self._cache.close()
        super().close()


class CachingKeyValueStore(CachingStore, KeyValueStore):
    """A key-value store, plain or timestamped, behind a record cache.

    Cache keys are the keys themselves if equal keys have equal bytes, else their bytes. get, get_for_update, put and
    put_owned are closures over the cache's dicts, because they are called for each record.
    """

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore, cache: ThreadCache) -> None:
        KeyValueStore.__init__(self, builder, task, rows)
        CachingStore.__init__(self, cache, self.values.copy)
        encode_key = self.serdes.encode_key
        objects = self.serdes.cacheable_keys
        #: From a cache key to the row's key and to the object.
        self._row_key: Callable[[Any], bytes] = encode_key if objects else _same
        self._cache_key: Callable[[Any], Any] = _same if objects else encode_key
        self._decode_key: Callable[[Any], Any] = _same if objects else self.serdes.decode_key
        self._evicts = builder.backend is StoreBackend.LRU
        copy = self.values.copy
        get, get_for_update = self._getter(self._load, copy), self._getter(self._load, None)
        put, put_owned = self._putter(copy), self._putter(None)
        if not objects:
            get, get_for_update = _by_bytes(get, encode_key), _by_bytes(get_for_update, encode_key)
            put, put_owned = _put_by_bytes(put, encode_key), _put_by_bytes(put_owned, encode_key)
        vars(self).update(get=get, get_for_update=get_for_update, put=put, put_owned=put_owned)

    def _load(self, key: Any) -> Any:
        """Read a value from the rows and keep it in the cache."""
        value = self._decode(self.rows.get(self._row_key(key)))
        if value is not None:
            self._cache.clean[key] = value
            self._cache.grown()
        return value

    def _write_entry(self, key: Any, value: Any) -> None:
        row_key = self._row_key(key)
        self.rows.put(row_key, self._log_value(row_key, value))

    def _read_entry(self, key: Any) -> Any:
        return self._decode(self.rows.get(self._row_key(key)))

    def _object_key(self, key: Any) -> Any:
        return self._decode_key(key)

    def _entry_size(self, key: Any, value: Any) -> int:
        data = None if value is None else self.values.encode(value)
        return len(self._row_key(key)) + len(data or b"")

    def _decoded(self, rows: Iterator[Row]) -> Iterator[tuple[Any, Any]]:
        decoded = super()._decoded(rows)
        if not self.builder.plain_values:
            return decoded
        # The rows have no timestamps, but the cache has them.
        dirty, clean, key_of = self._cache.dirty, self._cache.clean, self._cache_key
        cached = ((key, dirty.get(key_of(key), (None,))[0] or clean.get(key_of(key)), value) for key, value in decoded)
        return ((key, value if found is None else found) for key, found, value in cached)

    def _scan(self, start: bytes | None, end: bytes | None, reverse: bool) -> Iterator[Row]:
        return merge(self.rows.scan(start, end, reverse), self._dirty_rows(start, end, reverse), reverse)

    def _dirty_rows(self, start: bytes | None, end: bytes | None, reverse: bool) -> list[RawRow]:
        """Return the dirty entries of a range as rows. It looks at all dirty keys: scans of cached stores are slow."""
        row_key, encode = self._row_key, self.values.encode
        deleting = ((row_key(key), None) for key in self._deleting)
        dirty = ((row_key(key), entry[0]) for key, entry in self._cache.dirty.items())
        # Clean entries are the rows below, except those that a bounded store has evicted meanwhile.
        clean = ((row_key(key), value) for key, value in self._cache.clean.items() if self._evicts)
        keys = chain(deleting, clean, dirty)  # a key that is being deleted may be dirty again
        found = {k: v for k, v in keys if (start is None or k >= start) and (end is None or k < end)}
        rows = ((key, None if found[key] is None else encode(found[key])) for key in sorted(found, reverse=reverse))
        return list(rows)


def _same(key: Any) -> Any:
    return key


def _by_bytes(get: Callable[[bytes], Any], encode_key: Callable[[Any], bytes]) -> Callable[[Any], Any]:
    return lambda key: get(encode_key(key))


def _put_by_bytes(put: Callable[[bytes, Any], None], encode_key: Callable[[Any], bytes]) -> Callable[[Any, Any], None]:
    return lambda key, value: put(encode_key(key), value)
