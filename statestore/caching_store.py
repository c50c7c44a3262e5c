"""Stores behind the record cache: what all of them share, and the key-value one (Kafka Streams: CachingKeyValueStore).

The cache keeps objects. At a flush each changed key is serialized once, written below and to the changelog, and only
then sent downstream, with the record context of its last put. get and put are closures over the cache's dicts, because
they are called for each record; a fused source does what they do in line (topology/fusion.py), through cells().
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any

from penstock.topology.errors import ProcessorStateError
from penstock.topology.records import Headers, Message
from penstock.topology.serdes import ITSELF, Inline
from penstock.topology.store_interfaces import (
    HEADERS,
    KEY,
    MESSAGE,
    STAMP,
    TIMESTAMP,
    USED,
    VALUE,
    Cell,
    Cells,
    StoreBackend,
    StoreBuilder,
)
from penstock.topology.task_context import TaskContext

from .bytes_store import BytesStore, RawRow, Row, merge
from .key_value_store import KeyValueStore
from .state_store import LONG, StateStore, StoreSerdes, null_key
from .thread_cache import Changed, ThreadCache

#: listener(key, new value, old value, timestamp in ms, headers); see StateStore.set_flush_listener.
FlushListener = Callable[[Any, Any, Any, int, Headers], None]
#: follower(store, changes, send) -> sent: may watch some of the changes of a flush on their way downstream; send(count)
#: sends the first ones, and the others are sent afterwards.
Follower = Callable[[str, int, Callable[[int], None]], int]
Copy = Callable[[Any], Any] | None


class CachingStore(StateStore):
    """Puts wait in a cache. A subclass says what a cache key is and how an entry is written and read below.

    copy: makes a private copy of a value, None where values cannot be changed.
    """

    def __init__(self, cache: ThreadCache, copy: Copy) -> None:
        # StateStore.__init__ has run: the store below is there
        self._cache = cache.named(f"{self.task.task_id}-{self.name}", self._send, self._entry_size)
        self._copy = copy
        self._deleting: set[Any] = set()  # keys whose tombstones a flush has taken but perhaps not yet written
        self._listener: FlushListener | None = None
        self._downstream: Callable[[Iterable[Any], Iterable[Any]], None] | None = None
        #: See Follower; asked once for each flush.
        self.follower: Follower | None = None
        self._send_old_values = False

    @property
    def cache_bytes(self) -> float:
        """Estimated size of what the cache holds of this store."""
        return self._cache.size_bytes

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

    def _getter(self, load: Callable[[Any], Any], copy: Copy, as_row: Copy = None) -> Callable[[Any], Any]:
        """Return the function from a cache key to a value; load(cache key) is asked for what is not cached.

        as_row: makes what callers get of a cached value, if they may see it.
        """
        get_cell, deleting = self._cache.entries.get, self._deleting

        def get(key: Any) -> Any:
            cell = get_cell(key)
            if cell is None:
                return None if key in deleting else load(key)
            cell[USED] = True
            return cell[VALUE]

        copy = copy or as_row
        if copy is None:
            return get

        def get_copy(key: Any) -> Any:
            value = get(key)
            return None if value is None else copy(value)

        return get_copy

    def _putter(self, copy: Copy) -> Callable[[Any, Any], None]:
        """Return the function that puts a value under a cache key."""
        name, task, cache = self.name, self.task, self._cache
        entries, get_cell, new_cell = cache.entries, cache.entries.get, cache.new_cell
        make_dirty, next_stamp = cache.dirty.append, cache.next_stamp

        def put(key: Any, value: Any) -> None:
            cell = get_cell(key)
            if cell is not None:
                if not cell[STAMP]:
                    make_dirty(cell)
                cell[VALUE] = value
                cell[STAMP] = next_stamp()
                cell[TIMESTAMP] = task.timestamp
                cell[HEADERS] = task.headers
                cell[MESSAGE] = task.message
                cell[USED] = True
            elif key is None:
                raise null_key(name)
            else:
                stamp = next_stamp()
                cell = entries[key] = new_cell(value, stamp, task.timestamp, task.headers, task.message, False, key)
                make_dirty(cell)
                cache.grown()

        if copy is None:
            return put

        def put_copy(key: Any, value: Any) -> None:
            put(key, None if value is None else copy(value))

        return put_copy

    def flush(self) -> None:
        """Send each changed key on, in the order of the last puts; see StateStore.flush."""
        if self._cache.dirty:
            self._send(self._cache.take_dirty())

    def _send(self, changes: Sequence[Changed]) -> None:
        """Send changed entries on: first all of them below and to the changelog, then all of them downstream.

        What is downstream may read this store, or change it.
        """
        task = self.task
        deleted = {change[0] for change in changes if change[1] is None}
        self._deleting |= deleted
        context = task.timestamp, task.headers, task.message
        try:
            if self._listener is None:
                self._write_entries(changes)
            else:
                changes, olds = self._with_old(changes, bool(deleted))
                self._write_entries(changes)
                if self.follower is not None:
                    changes, olds = self._send_followed(changes, iter(olds), self.follower, self._listener)
                self._send_downstream(changes, olds, self._listener)
        finally:
            task.timestamp, task.headers, task.message = context
            self._deleting -= deleted

    def _with_old(self, changes: Sequence[Changed], deletes: bool) -> tuple[Sequence[Changed], Iterable[Any]]:
        """Return the changes and the value that each replaces, which is None unless old values are sent.

        Without those keys that came and went since the last flush: they leave no trace.
        """
        read, send_old = self._read_entry, self._send_old_values
        if not send_old and not deletes:
            return changes, repeat(None)
        found = [(change, read(change[0]) if send_old or change[1] is None else None) for change in changes]
        found = [(change, old) for change, old in found if change[1] is not None or old is not None]
        return [change for change, _ in found], [old if send_old else None for _, old in found]

    def set_downstream(self, send: Callable[[Iterable[Any], Iterable[Any]], None]) -> None:
        """See StateStore.set_downstream."""
        if self._copy is None:  # else each value goes downstream as a copy
            self._downstream = send

    def _write_entries(self, changes: Iterable[Changed]) -> None:
        """Write changed entries below and to the changelog."""
        task, write = self.task, self._write_entry
        for key, value, task.timestamp, task.headers, task.message in changes:
            write(key, value)

    def _send_followed(
        self, changes: Sequence[Changed], olds: Iterator[Any], follower: Follower, listener: FlushListener
    ) -> tuple[Sequence[Changed], Iterator[Any]]:
        """Send the first changes on, as many as the follower wants to see; returns the others and their old values."""

        def send(count: int) -> None:
            self._send_downstream(changes[:count], olds, listener)

        sent = follower(self.name, len(changes), send)
        return changes[sent:] if sent else changes, olds  # nearly always none: a flush is not copied for nothing

    def _send_downstream(self, changes: Iterable[Changed], olds: Iterable[Any], listener: FlushListener) -> None:
        task, object_key, copy = self.task, self._object_key, self._copy
        if self._downstream is not None:
            self._downstream(changes, olds)
            return
        for (key, value, timestamp, headers, message), old in zip(changes, olds, strict=False):
            task.timestamp, task.headers, task.message = timestamp, headers, message
            new = value if copy is None or value is None else copy(value)
            listener(object_key(key), new, old, timestamp, headers)

    def rollback(self) -> None:
        """See StateStore.rollback."""
        self._cache.clear()
        super().rollback()

    def restore(self, messages: Sequence[Message], next_offset: int | None) -> None:
        """See StateStore.restore. Raises ProcessorStateError if there are changes that it would drop."""
        if self._cache.dirty:
            raise ProcessorStateError(
                f"The store {self.name} of task {self.task.task_id} is to be restored, but {len(self._cache.dirty)} of "
                "its entries have changed and are not written: a task must not run before its restore has ended"
            )
        self._cache.clear()
        super().restore(messages, next_offset)

    def detach(self) -> BytesStore:
        """See StateStore.detach."""
        rows = super().detach()
        self._cache.close()
        return rows

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
        CachingStore.__init__(self, cache, self._copier())
        encode_key = self.serdes.encode_key
        objects = self.serdes.cacheable_keys
        #: From a cache key to the row's key and to the object.
        self._row_key: Callable[[Any], bytes] = encode_key if objects else _same
        self._cache_key: Callable[[Any], Any] = _same if objects else encode_key
        self._decode_key: Callable[[Any], Any] = _same if objects else self.serdes.decode_key
        self._evicts = builder.backend is StoreBackend.LRU
        get, get_for_update, put, put_owned = self._access()
        if not objects:
            get, get_for_update = _by_bytes(get, encode_key), _by_bytes(get_for_update, encode_key)
            put, put_owned = _put_by_bytes(put, encode_key), _put_by_bytes(put_owned, encode_key)
        vars(self).update(get=get, get_for_update=get_for_update, put=put, put_owned=put_owned)

    def _copier(self) -> Copy:
        """Return what makes a caller's own value of a cached one."""
        return self.values.copy

    def _access(self) -> tuple[Callable[..., Any], ...]:
        """Return get, get_for_update, put and put_owned by cache key."""
        copy = self.values.copy
        get, get_for_update = self._getter(self._load, copy, self.values.as_row), self._getter(self._load, None)
        return get, get_for_update, self._putter(copy), self._putter(None)

    def _below(self, key: Any) -> Any:
        """Return what a cell is to have of the store below."""
        return self._decode(self.rows.get(self._row_key(key)))

    def _row(self, value: Any) -> bytes | None:
        """Return the row of what a cell has."""
        return self.values.encode(value)

    def _load(self, key: Any) -> Any:
        """Read a value from the rows and keep it in the cache."""
        value = self._below(key)
        if value is not None:
            self._cache.add_clean(key, value)
            self._cache.grown()
        return value

    def _load_cell(self, key: Any) -> Cell:
        return self._cache.add_clean(key, None if key in self._deleting else self._below(key))

    def cells(self) -> Cells | None:
        """See StateStore.cells."""
        if not self.serdes.cacheable_keys:
            return None
        return self._cache.cells(self._load_cell, self._own_value(), ITSELF)

    def _own_value(self) -> Inline:
        """See Cells.own_value."""
        return private_value(self.serdes)

    def _write_entry(self, key: Any, value: Any) -> None:
        row_key = self._row_key(key)
        self.rows.put(row_key, self._log_value(row_key, value))

    def _write_entries(self, changes: Iterable[Changed]) -> None:
        """See CachingStore._write_entries. In line for the store of most tables: it runs for each changed key."""
        if not self.values.logs_value_and_timestamp:
            super()._write_entries(changes)
            return
        task, write, put, name, serdes = self.task, self._write_entry, self.rows.put, self.name, self.serdes
        row_key = serdes.key_of if serdes.cacheable_keys else self._row_key
        encode, log_change, pack = serdes.value_of, self.task.log_change, LONG.pack
        for key, value, timestamp, headers, message in changes:
            data = None if value is None or value[0] is None else encode(value[0])
            if data is None:
                task.timestamp, task.headers, task.message = timestamp, headers, message
                write(key, value)
            else:
                row, newest = row_key(key), value[1]
                log_change(name, row, data, newest)
                put(row, pack(newest) + data)

    def _read_entry(self, key: Any) -> Any:
        return self._decode(self.rows.get(self._row_key(key)))

    def _object_key(self, key: Any) -> Any:
        return self._decode_key(key)

    def _entry_size(self, key: Any, value: Any) -> int:
        row = None if value is None else self._row(value)
        return len(self._row_key(key)) + len(row or b"")

    def _decoded(self, rows: Iterator[Row]) -> Iterator[tuple[Any, Any]]:
        decoded = super()._decoded(rows)
        if not self.builder.plain_values:
            return decoded
        # The rows have no timestamps, but the cache has them.
        get_cell, key_of = self._cache.entries.get, self._cache_key
        cached = ((key, get_cell(key_of(key), (None,))[VALUE], value) for key, value in decoded)
        as_row = self.values.as_row or _same
        return ((key, value if found is None else as_row(found)) for key, found, value in cached)

    def _scan(self, start: bytes | None, end: bytes | None, reverse: bool) -> Iterator[Row]:
        return merge(self.rows.scan(start, end, reverse), self._dirty_rows(start, end, reverse), reverse)

    def _dirty_rows(self, start: bytes | None, end: bytes | None, reverse: bool) -> list[RawRow]:
        """Return the dirty entries of a range as rows. It looks at all dirty keys: scans of cached stores are slow."""
        row_key, to_row, cache = self._row_key, self._row, self._cache
        deleting = ((row_key(key), None) for key in self._deleting)
        # Clean entries are the rows below, except those that a bounded store has evicted meanwhile.
        looked_at = cache.entries.values() if self._evicts else cache.dirty
        cached = ((row_key(cell[KEY]), cell[VALUE]) for cell in looked_at if cell[STAMP] or cell[VALUE])
        keys = chain(deleting, cached)  # a key that is being deleted may be dirty again
        found = {k: v for k, v in keys if (start is None or k >= start) and (end is None or k < end)}
        rows = ((key, None if found[key] is None else to_row(found[key])) for key in sorted(found, reverse=reverse))
        return list(rows)


def private_value(serdes: StoreSerdes) -> Inline:
    """Return the expression from a cached (value, timestamp) to a value of the reader's own; see Cells.own_value."""
    copy = serdes.copy_value
    return Inline("{}[0]", {}) if copy is None else Inline("{copy}({}[0])", {"copy": copy})


def _same(key: Any) -> Any:
    return key


def _by_bytes(get: Callable[[bytes], Any], encode_key: Callable[[Any], bytes]) -> Callable[[Any], Any]:
    return lambda key: get(encode_key(key))


def _put_by_bytes(put: Callable[[bytes, Any], None], encode_key: Callable[[Any], bytes]) -> Callable[[Any, Any], None]:
    return lambda key, value: put(encode_key(key), value)
