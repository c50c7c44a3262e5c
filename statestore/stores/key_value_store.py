"""Key-value stores that write every update through to the rows and the changelog."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from zlib import crc32

from typing_extensions import override

from penstock.kernel.processors import KeyValueCalls
from penstock.kernel.rows import StoreIterator, after
from penstock.topology.context.processor_wrapper import KEY
from penstock.topology.context.store_interfaces import NodeRows, StoreBuilder, StoreKind
from penstock.topology.context.task_context import TaskContext
from penstock.topology.context.trace_context import TRACEPARENT, TRACESTATE, trace_context
from penstock.topology.records import Headers, Message
from penstock.topology.serdes.serdes import direct, takes_none

from ..memory_store import MemoryLRUCache
from ..rows.bytes_store import BytesStore, RawRow, Row
from .state_store import (
    Bounds,
    StateStore,
    newest_by_key,
    plain_rows,
    timestamped_rows,
)
from .values import LogValue, Values, refused, rows_for_nodes

log = logging.getLogger(__name__)


_CHECKSUM_BYTES = 4
_SEPARATOR = b"\0"


def keeps_contexts(builder: StoreBuilder, task: TaskContext) -> bool:
    """Return whether a store keeps trace contexts."""
    table = builder.kind is StoreKind.TIMESTAMPED_KEY_VALUE
    kept_elsewhere = builder.keeps_headers or builder.ttl is not None
    return table and builder.headers_format and not kept_elsewhere and task.config.get(KEY) is not None


class RowContexts:
    """Trace contexts of a table's rows: they link the reader of a row to the trace that wrote it.

    Only with dsl.store.format=HEADERS and a processor wrapper, and only for sampled records. In the changelog, the
    context is in the record's headers, where Kafka Streams' stores in that format have the headers of a value
    (KIP-1271). On disk, contexts are separate from the rows, which are the same with and without them. Each has a
    checksum of its row, so an untraced update invalidates it.
    """

    def __init__(self, task: TaskContext, rows: BytesStore) -> None:
        self._task = task
        self._rows = rows

    def keeping(self, log: LogValue) -> LogValue:
        """Wrap log to also store the context of the record being processed."""
        task, keep = self._task, self._rows.keep_context

        def log_and_keep(key: bytes, value: object) -> bytes | None:
            row = log(key, value)
            if row is None:
                keep(key, None)
            elif (context := trace_context(task.headers)) is not None:
                keep(key, _encode(row, context))
            return row

        return log_and_keep

    def note(self, found: object, key: object, context_of: Callable[[Any], Headers]) -> None:
        """Pass the context of the found row to the task, if requested."""
        if found is not None and self._task.row_contexts is not None:
            context = context_of(key)
            if context is not None:
                self._task.row_contexts.append(context)

    def of_row(self, row_key: bytes) -> Headers:
        """Return the context of a key's row; None without one."""
        kept = self._rows.context(row_key)
        row = None if kept is None else self._rows.get(row_key)
        if kept is None or row is None or kept[:_CHECKSUM_BYTES] != _checksum(row):
            return None
        parent, _, state = kept[_CHECKSUM_BYTES:].partition(_SEPARATOR)
        return [(TRACEPARENT, parent), (TRACESTATE, state)] if state else [(TRACEPARENT, parent)]

    def restore(self, messages: Sequence[Message], row_of: Callable[[Message], bytes | None]) -> None:
        """Store the contexts of changelog records."""
        for message in messages:
            key, row = message.key(), row_of(message)
            if key is not None and row is not None and (context := trace_context(message.headers())) is not None:
                self._rows.keep_context(key, _encode(row, context))


def _encode(row: bytes, context: Headers) -> bytes:
    found = dict(context or ())
    state = found.get(TRACESTATE)
    return _checksum(row) + (found[TRACEPARENT] or b"") + (_SEPARATOR + state if state else b"")


def _checksum(row: bytes) -> bytes:
    return crc32(row).to_bytes(_CHECKSUM_BYTES, "big")


class TaskKeyValueStore(KeyValueCalls, StateStore):
    """A key-value store, plain or timestamped, that writes every update through."""

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore) -> None:
        super().__init__(builder, task, rows)
        evictions = None
        if isinstance(rows, MemoryLRUCache) and builder.kind is StoreKind.KEY_VALUE:
            evictions = EvictionsLogged(task, rows)
        keeps = keeps_contexts(builder, task)
        self.values = Values(builder, task, self.serdes, evictions, keeps)
        #: None if the store keeps no contexts.
        self.contexts = RowContexts(task, rows) if keeps else None
        if self.contexts is not None:
            self.values.log_value = self.contexts.keeping(self.values.log_value)
            self.values.log_held = self.contexts.keeping(self.values.log_held)
        self._encode_key = self.serdes.encode_key
        self._decode = self._row_decoder()
        #: For scans, where nothing is None; None if they change nothing.
        self._decode_row_key, self._decode_row = direct(self.serdes.decode_key), direct(self._decode)
        self.work_on(
            rows.buffer,
            self._encode_key,
            self.serdes.writes_texts,
            self._decode_row,
            takes_none(self._decode),
            self.values.log_value,
            partial(refused, builder),
            None if self.contexts is None else partial(self.contexts.note, context_of=self._context),
        )

    @override
    def _over(self, rows: BytesStore) -> TaskKeyValueStore:
        return TaskKeyValueStore(self.builder, self.task, rows)

    def _row_decoder(self) -> Callable[[bytes | None], object]:
        """Return the function from the bytes of a row, None without one, to its value."""
        return self.values.decode

    @override
    def read_row(self, key: bytes, row: bytes) -> tuple[object, object]:
        return self.serdes.decode_key(key), self._decode(row)

    @override
    def close(self) -> None:
        super().close()
        self.leave()

    def get_stored(self, key: object) -> Any:
        """Return the value of a key as in the rows; a cache may have a newer one."""
        return TaskKeyValueStore.get(self, key)

    def get_forwarded(self, key: object) -> object:
        """Return the value as of the last changes sent downstream; a cache may have newer ones."""
        return self.get(key)

    def put_held(self, key: object, held: object) -> None:
        """Put a held value, made by values.hold()."""
        row_key = self._encode_key(key)
        self.rows.put(row_key, self.values.log_held(row_key, held))

    def _context(self, key: object) -> Headers:
        """Return the trace context of a key's row."""
        return None if self.contexts is None else self.contexts.of_row(self._encode_key(key))

    def put_if_absent(self, key: object, value: object) -> Any:
        """Set the value of a key that has none; return the previous value."""
        old = self.get(key)
        if old is None:
            self.put(key, value)
        return old

    def delete(self, key: object) -> Any:
        """Delete a key; return the previous value."""
        old = self.get(key)
        self.put(key, None)
        return old

    def put_all(self, entries: Iterable[tuple[object, object]]) -> None:
        """Put (key, value) pairs one after the other."""
        for key, value in entries:
            self.put(key, value)

    def range(self, key_from: object = None, key_to: object = None) -> StoreIterator[tuple[Any, Any]]:
        """Iterate over the (key, value) rows with key_from <= key <= key_to in the order of the keys' bytes.

        None leaves a side open. The iterator shows the rows as of now. Close it or exhaust it.
        """
        return self._range(key_from, key_to, False)

    def reverse_range(self, key_from: object = None, key_to: object = None) -> StoreIterator[tuple[Any, Any]]:
        """Iterate like range, from the highest key down."""
        return self._range(key_from, key_to, True)

    def all(self) -> StoreIterator[tuple[Any, Any]]:
        """Iterate over all rows in the order of the keys' bytes."""
        return self._decoded(self._scan(None, None, False))

    def reverse_all(self) -> StoreIterator[tuple[Any, Any]]:
        """Iterate over all rows, from the highest key down."""
        return self._decoded(self._scan(None, None, True))

    def prefix_scan(
        self, prefix: Any, serializer: Callable[[Any], bytes | None] | None = None
    ) -> StoreIterator[tuple[Any, Any]]:
        """Iterate over the rows whose key bytes begin with a prefix (KIP-614).

        prefix: bytes, or an object for serializer (by default the key's).
        """
        if serializer is not None or not isinstance(prefix, bytes):
            prefix = (serializer or self._encode_key)(prefix)
        return self._decoded(self._scan(prefix, after(prefix), False))

    def approximate_num_entries(self) -> int:
        """Return the approximate number of rows, without those that are only in the cache."""
        return self.rows.approximate_num_entries()

    def _range(self, key_from: object, key_to: object, reverse: bool) -> StoreIterator[tuple[Any, Any]]:
        start = None if key_from is None else self._encode_key(key_from)
        end = None if key_to is None else self._encode_key(key_to) + b"\0"
        if start is not None and end is not None and start >= end:
            log.warning(
                "Store %s: the range from %r to %r has no rows, its end lies before its start. The order is that of "
                "the serialized keys: numbers below zero come last",
                self.name,
                key_from,
                key_to,
            )
            return StoreIterator(())
        return self._decoded(self._scan(start, end, reverse))

    def _scan(self, start: bytes | None, end: bytes | None, reverse: bool) -> Iterator[Row]:
        return self.rows.scan(start, end, reverse)

    @override
    def stored_rows(self, bounds: Bounds) -> Iterator[Row]:
        start, end = bounds.start, bounds.end
        return iter(()) if start is not None and end is not None and start >= end else self._scan(start, end, False)

    def _decoded(self, rows: Iterator[Row]) -> StoreIterator[tuple[Any, Any]]:
        return StoreIterator(rows, self._decode_row_key, self._decode_row)

    @override
    def timestamped_rows(self) -> NodeRows | None:
        return rows_for_nodes(self, self.values.logs_timestamped) if type(self) is TaskKeyValueStore else None

    @override
    def restore(self, messages: Sequence[Message], next_offset: int | None) -> None:
        if self.contexts is not None:
            self.contexts.restore(newest_by_key(messages), self.values.row_of)
        super().restore(messages, next_offset)

    @override
    def restored_rows(self, messages: Sequence[Message]) -> Iterable[RawRow]:
        if self.rows.persistent:  # in memory the order of the records may matter: see MemoryLRUCache
            messages = newest_by_key(messages)
        if self.builder.keeps_headers:
            row_of = self.values.row_of
            return [(key, row_of(message)) for message in messages if (key := message.key()) is not None]
        return timestamped_rows(messages) if self.values.with_timestamp else plain_rows(messages)


@dataclass(frozen=True)
class EvictionsLogged:
    """The output of a store that evicts rows: it writes the tombstone of an evicted row before the put.

    With this order a restore keeps the same rows; in the other order, the restored put would evict another row. Kafka
    Streams: ChangeLoggingKeyValueBytesStore, which has the listener for plain values only.
    """

    task: TaskContext
    rows: MemoryLRUCache

    def log_change(
        self, store_name: str, key: bytes, value: bytes | None, timestamp: int | None, headers: Headers = None
    ) -> None:
        """Write a change, and before it the tombstone of the row that it evicts."""
        evicted = None if value is None else self.rows.make_room(key)
        if evicted is not None:
            self.task.output.log_change(store_name, evicted, None, self.task.timestamp)
        self.task.output.log_change(store_name, key, value, timestamp, headers)
