"""Stores behind the record cache: their common part, and the key-value store (Kafka Streams: CachingKeyValueStore).

The cache keeps held values (values.py): a put serializes the value, or knows that it can be serialized. A flush writes
each changed key to the store below and to the changelog, and only then sends it downstream, with the record context of
its last put. The kernel's nodes work on the cells themselves, through cells().
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from typing_extensions import override

from penstock.kernel.cells import Cell
from penstock.kernel.nodes import Node
from penstock.kernel.rows import ChangedRows, StoredEntries, StoreIterator
from penstock.kernel.sinks import Changelog
from penstock.kernel.table_nodes import FlushedChanges
from penstock.topology.context.store_interfaces import CacheKeys, Cells, StoreBackend, StoreBuilder
from penstock.topology.context.tallies import CACHE_GROUP, Tallies, extremes
from penstock.topology.context.task_context import TaskContext
from penstock.topology.context.trace_context import trace_context
from penstock.topology.errors import ProcessorStateError
from penstock.topology.records import Headers, Message, ValueAndTimestamp
from penstock.topology.serdes.aggregates_serde import unchanged
from penstock.topology.serdes.serdes import Serdes, direct, same

from ..rows.bytes_store import BytesStore, RawRow, Row, merge
from ..stores.key_value_store import TaskKeyValueStore
from ..stores.segments import Segments
from ..stores.state_store import LONG, StateStore, StoreSerdes
from ..stores.values import TIMESTAMPED, Values, converted
from .thread_cache import ThreadCache

#: Types that the kernel knows, by Serde.exact or private. The kernel itself checks whether an object can be written.
NATIVE: Mapping[object, type] = {
    Serdes.int64().exact: int,
    Serdes.string().exact: str,
    Serdes.float64().exact: float,
    Serdes.bytes().exact: bytes,
    Serdes.json().private: dict,
    unchanged: tuple,
}
#: follower(store, changes, send) -> sent: may trace some of the changes of a flush; send(count) sends the first ones
#: downstream, the others are sent afterwards.
Follower = Callable[[str, int, Callable[[int], None]], int]
#: A changed entry in a flush: key, value, timestamp (ms), headers, message.
Changed = tuple[Any, Any, int, Headers, Message | None]


class CachingStore(StateStore):
    """Keeps puts in a cache. A subclass defines the cache keys, and how entries are written to and read from the store
    below.

    Cells and entries contain held values; see Values.
    """

    caching = True

    cache_keys: CacheKeys
    serdes: StoreSerdes
    values: Values

    def __init__(self, cache: ThreadCache) -> None:
        # StateStore.__init__ has run: the store below exists
        self._cache = cache.named(f"{self.task.task_id}-{self.name}", self.cache_keys, self._send, self._entry_size)
        self._deleting: set[object] = set()  # keys whose tombstones a flush has taken, but may not have written yet
        self._changes: FlushedChanges | None = None
        #: See Follower; called once per flush.
        self.follower: Follower | None = None
        self._send_old_values = False
        #: None for rows in memory, and for others that it cannot convert.
        self._stored: StoredEntries | None = None
        self._put = self._cache.table.putter(self.task, self._cache.grown)

    def _compile(self, segments: Segments | None) -> None:
        """Let StoredEntries read and write the rows below, if they go through a RowBuffer.

        segments: of a window or session store.
        """
        buffer, values = self.rows.buffer, self.values
        latest = None if segments is None else segments.latest
        if buffer is None or self.builder.plain_values or self.builder.keeps_headers:
            return
        if segments is not None and (latest is None or segments.indexed):
            return
        native = NATIVE.get(self.serdes.exact_value)
        self._stored = StoredEntries(
            buffer,
            latest,
            segments,
            0 if segments is None else segments.schema.suffix.size - LONG.size,
            values.with_timestamp,
            self.serdes.decode_value if values.exact else None,
            None if values.bytes_of is same else values.bytes_of,
            native is int,
            Changelog(self.task.output, self.name),
            self._write_each,
        )
        row_type = ValueAndTimestamp if values.exact and values.with_timestamp else None
        read = None if values.exact else values.read
        self._cache.table.loads(self._stored, self._deleting, read, row_type)

    @property
    def cache_bytes(self) -> float:
        """Estimated size of this store's cached entries."""
        return self._cache.size_bytes

    @abstractmethod
    def _write_entry(self, key: Any, held: Any) -> None:
        """Write an entry to the store below and the changelog; None deletes it."""

    @abstractmethod
    def _log_key(self, key: Any) -> bytes:
        """Return the changelog key of a cache key; raises what the key serde raises."""

    def _read_entry(self, key: Any) -> Any:
        """Return the entry of the store below."""
        return self._read_below(key) if self._stored is None else self._stored(key)

    @abstractmethod
    def _read_below(self, key: Any) -> Any:
        """Return the entry of the store below, if StoredEntries cannot."""

    def _entry_size(self, key: object, held: object) -> int:
        """Return the serialized size of an entry in bytes."""
        return len(self._log_key(key)) + len(self.values.to_row(held) or b"")

    @override
    def send_changes(self, name: str, child: Node, send_old_values: bool) -> bool:
        cells, timestamped, value_serde = self.cells(), self.builder.kind in TIMESTAMPED, self.serdes.value_serde
        self._changes = FlushedChanges(
            self.task,
            name,
            child,
            cells.key_serde,
            cells.decode_key,
            cells.form,
            cells.size_ms,
            cells.window_end,
            direct(cells.read),
            value_serde if value_serde.serializer else None,
            cells.bytes_serde is not None,
            timestamped,
            # In the format with headers a session's result has those of the stored aggregate, which has none.
            timestamped or not self.builder.headers_format,
        )
        self._send_old_values = send_old_values
        return True

    @abstractmethod
    def cells(self) -> Cells:
        """Return the cells of the cache."""

    def _getter(self, load: Callable[[Any], Any]) -> Callable[[Any], object]:
        """Return the function from a cache key to a value; load(cache key): reads an entry that is not cached."""
        get_cell, deleting, read = self._cache.table.get, self._deleting, self.values.read

        def get(key: Any) -> Any:
            cell = get_cell(key)
            if cell is None:
                return None if key in deleting else read(load(key))
            cell.used = True
            return read(cell.value)

        return get if self.task.tallies is None else self._measured(get, self.task.tallies)

    def _measured(self, get: Callable[[Any], object], tallies: Tallies) -> Callable[[Any], object]:
        """Return get, which measures the part of the reads that find their key cached (Kafka Streams: NamedCache)."""
        get_cell, hits, reads = self._cache.table.get, 0, 0
        tally = tallies.add(CACHE_GROUP, {"record-cache-id": self.name}, extremes("hit-ratio"))

        def measured(key: Any) -> object:
            nonlocal hits, reads
            reads += 1
            if get_cell(key) is not None:
                hits += 1
                tally.add(hits / reads)
            return get(key)

        return measured

    def _forwarded_getter(self) -> Callable[[Any], object]:
        """Return the function from a cache key to the value last sent downstream."""
        get_cell, deleting, find, read = self._cache.table.get, self._deleting, self._read_entry, self.values.read

        def get_forwarded(key: object) -> object:
            cell = get_cell(key)
            if cell is not None and not cell.is_changed:  # no pending change: it equals the store below
                return read(cell.value)
            return None if key in deleting else read(find(key))

        return get_forwarded

    def _cells(self, load: Callable[[Any], Cell], size_ms: int = 0) -> Cells:
        """Return the cells for the nodes of a topology; see Cells."""
        serdes, values = self.serdes, self.values
        return self._cache.cells(
            load,
            key_serde=serdes.key_serde,
            encode_key=serdes.direct_key,
            decode_key=serdes.decode_key,
            hold=values.hold_plain,
            read=values.read_plain,
            native=NATIVE.get(serdes.exact_value or serdes.private_value),
            bytes_serde=serdes.value_serde if values.bytes_of is same and serdes.value_serde.serializer else None,
            form=self.cache_keys,
            size_ms=size_ms,
            window_end=self.builder.window_end,
        )

    def flush(self) -> None:
        """Write and forward each changed key, in the order of the last puts; see StateStore.flush."""
        if self._cache.table.dirty_count:
            self._send(self._cache.take_dirty())

    def _send(self, changes: ChangedRows) -> None:
        """Send changed entries: first all of them to the store below and the changelog, then all of them downstream.

        Operators downstream may read or change this store.
        """
        task = self.task
        deleted = changes.deleted()
        self._deleting |= deleted
        context = task.timestamp, task.headers, task.message
        try:
            if self._changes is None:
                self._write_entries(changes)
            else:
                changes, olds = self._with_old(changes, bool(deleted))
                self._write_entries(changes)
                if self.follower is None:
                    self._changes.send(changes, olds)
                else:
                    self._send_followed(changes, olds, self.follower, self._changes)
            # Not after an error: the task then has the failed record.
            task.timestamp, task.headers, task.message = context
        finally:
            self._deleting -= deleted

    def _with_old(self, changes: ChangedRows, deletes: bool) -> tuple[ChangedRows, list[object] | None]:
        """Return the changes and the held values that they replace, None unless old values are sent.

        Keys that were both added and deleted since the last flush are left out.
        """
        find, send_old = self._read_entry, self._send_old_values
        if not send_old and not deletes:
            return changes, None
        if self._stored is not None:
            olds = self._stored.olds(changes, not send_old)
        else:
            olds = [find(change[0]) if send_old or change[1] is None else None for change in changes]
        if deletes:
            changes, olds = changes.effective(olds)
        return changes, olds if send_old else None

    def _write_entries(self, changes: ChangedRows) -> None:
        """Write changed entries to the store below and to the changelog."""
        if self._stored is not None and (self.values.logs_value or self.values.logs_value_and_timestamp):
            self._stored.write(changes)
        else:
            self._write_each(changes)

    def _write_each(self, changes: Iterable[Changed]) -> None:
        task, write = self.task, self._write_entry
        for key, held, task.timestamp, task.headers, task.message in changes:
            write(key, held)

    def _send_followed(
        self, changes: ChangedRows, olds: list[Any] | None, follower: Follower, downstream: FlushedChanges
    ) -> None:
        """Send changes downstream, as many as the follower traces first."""

        def send(places: range) -> None:
            downstream.send(changes.only(places), olds and olds[places.start : places.stop])

        sent = follower(self.name, len(changes), lambda count: send(range(count)))
        if sent:
            send(range(sent, len(changes)))
        else:  # nearly always: avoid copying the flush
            downstream.send(changes, olds)

    @override
    def rollback(self) -> None:
        self._cache.clear()
        super().rollback()

    @override
    def restore(self, messages: Sequence[Message], next_offset: int | None) -> None:
        """Raises ProcessorStateError if it would drop changes."""
        if changed := self._cache.table.dirty_count:
            raise ProcessorStateError(
                f"The store {self.name} of task {self.task.task_id} is to be restored, but {changed} of "
                "its entries have changed and are not written: a task must not run before its restore has ended"
            )
        self._cache.clear()
        super().restore(messages, next_offset)

    @override
    def detach(self) -> BytesStore:
        rows = super().detach()
        self._cache.close()
        return rows

    @override
    def close(self) -> None:
        self._cache.close()
        super().close()
        # Later calls reach the closed rows.
        self._stored = None
        self._put = self._put_below

    def _put_below(self, key: Any, held: Any) -> None:
        self.rows.put(key, held)


class CachingKeyValueStore(CachingStore, TaskKeyValueStore):
    """A key-value store, plain or timestamped, behind a record cache."""

    cache_keys = CacheKeys.PLAIN

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore, cache: ThreadCache) -> None:
        TaskKeyValueStore.__init__(self, builder, task, rows)
        CachingStore.__init__(self, cache)
        self._compile(None)
        self._evicts = builder.backend is StoreBackend.LRU
        self._get, self._get_forwarded = self._getter(self._load), self._forwarded_getter()

    @override
    def get(self, key: object) -> Any:
        found = self._get(self._encode_key(key))
        if self.contexts is not None:
            self.contexts.note(found, key, self._context)
        return found

    @override
    def get_forwarded(self, key: object) -> object:
        found = self._get_forwarded(self._encode_key(key))
        if self.contexts is not None:
            self.contexts.note(found, key, super()._context)
        return found

    @override
    def put(self, key: object, value: object) -> None:
        held = converted(self.builder, self.values.hold, value)
        self._put(self._encode_key(key), held)

    @override
    def put_held(self, key: object, held: object) -> None:
        self._put(self._encode_key(key), held)

    @override
    def _context(self, key: object) -> Headers:
        cell = self._cache.table.get(self.serdes.encode_key(key))
        return trace_context(cell.headers) if cell is not None and cell.is_changed else super()._context(key)

    def _load(self, key: Any) -> object:
        """Read an entry from the rows and keep it in the cache."""
        held = self._read_entry(key)
        if held is not None:
            self._cache.add_clean(key, held)
            self._cache.grown()
        return held

    def _load_cell(self, key: Any) -> Cell:
        held = self._read_entry(key)
        return self._cache.add_clean(key, None if key in self._deleting else held)

    @override
    def cells(self) -> Cells:
        return self._cells(self._load_cell)

    def _log_key(self, key: bytes) -> bytes:
        return key

    def _read_below(self, key: bytes) -> object:
        return self.values.from_row(self.rows.get(key))

    def _write_entry(self, key: bytes, held: object) -> None:
        self.rows.put(key, self.values.log_held(key, held))

    def _decoded(self, rows: Iterator[Row]) -> StoreIterator[tuple[Any, Any]]:
        decoded = super()._decoded(rows)
        if not self.builder.plain_values:
            return decoded
        # The rows have no timestamps, but the cache has them.
        get_cell, key_of, read = self._cache.table.get, self.serdes.encode_key, self.values.read
        cached = ((key, get_cell(key_of(key)), value) for key, value in decoded)
        return StoreIterator(
            (key, value if cell is None or cell.value is None else read(cell.value)) for key, cell, value in cached
        )

    def _scan(self, start: bytes | None, end: bytes | None, reverse: bool) -> Iterator[Row]:
        return merge(self.rows.scan(start, end, reverse), self._dirty_rows(start, end, reverse), reverse)

    def _dirty_rows(self, start: bytes | None, end: bytes | None, reverse: bool) -> list[RawRow]:
        """Return the dirty entries of a range as rows. It visits all dirty keys: scans of cached stores are slow."""
        to_row, cache = self.values.to_row, self._cache
        deleting = ((key, None) for key in self._deleting)
        # Clean entries equal the rows below, except those that a bounded store has evicted since.
        cached = cache.table.rows() if self._evicts else cache.table.changed()
        keys = chain(deleting, cached)  # a key that is being deleted may be dirty again
        found = {k: v for k, v in keys if (start is None or k >= start) and (end is None or k < end)}
        return [(key, to_row(found[key])) for key in sorted(found, reverse=reverse)]
