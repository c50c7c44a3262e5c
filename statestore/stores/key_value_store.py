"""Key-value stores that write each update through: to the rows and to the changelog."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from typing_extensions import override

from penstock.kernel import rows as compiled
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind, TimestampedRows
from penstock.topology.context.task_context import TaskContext
from penstock.topology.records import Headers, Message
from penstock.topology.serdes.serdes import ITSELF, inline

from ..memory_store import MemoryLRUCache
from ..rows.bytes_store import BytesStore, RawRow, Row, after
from .row_contexts import RowContexts, keeps_contexts
from .state_store import (
    StateStore,
    StoreSerdes,
    newest_by_key,
    plain_rows,
    plain_value,
    timestamped_rows,
    timestamped_value,
)
from .store_iterator import StoreIterator
from .values import LogChange, Values

log = logging.getLogger(__name__)


class KeyValueStore(StateStore):
    """A key-value store, plain or timestamped, that writes each update through."""

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore) -> None:
        super().__init__(builder, task, rows)
        self.serdes = StoreSerdes(builder, self.changelog_topic)
        log_change = None
        if isinstance(rows, MemoryLRUCache) and builder.kind is StoreKind.KEY_VALUE:
            log_change = _evictions_logged(task, rows)
        keeps = keeps_contexts(builder, task)
        self.values = Values(builder, task, self.serdes, log_change, keeps)
        #: None if the store keeps none.
        self.contexts = RowContexts(task, rows) if keeps else None
        if self.contexts is not None:
            self.values.log_value = self.contexts.keeping(self.values.log_value)
            self.values.log_held = self.contexts.keeping(self.values.log_held)
        self._encode_key = self.serdes.encode_key
        self._decode = self.values.decode
        self._log_value = self.values.log_value
        if rows.compiled_rows is not None:
            get = compiled.getter(rows.compiled_rows, self._encode_key, self._decode)
            put = compiled.putter(rows.compiled_rows, self._encode_key, self._log_value)
            vars(self).update(get=get, put=put)
        if self.contexts is not None:
            vars(self)["get"] = self.contexts.noting(self.get, self._context)

    def get(self, key: Any) -> Any:
        """Return the value of a key, None if there is none. The object is the caller's own."""
        return self._decode(self.rows.get(self._encode_key(key)))

    def get_forwarded(self, key: Any) -> Any:
        """Return what get returned when changes were last sent downstream: a cache has changes that were not."""
        return self.get(key)

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key; None deletes it. The object stays the caller's own.

        Raises what the serdes raise for a key or value that they cannot write; the store is then as before.
        """
        row_key = self._encode_key(key)
        self.rows.put(row_key, self._log_value(row_key, value))

    def put_held(self, key: Any, held: Any) -> None:
        """Put what values.hold() has made of a value."""
        row_key = self._encode_key(key)
        self.rows.put(row_key, self.values.log_held(row_key, held))

    def _context(self, key: Any) -> Headers:
        """Return the trace context of a key's row."""
        return None if self.contexts is None else self.contexts.of_row(self._encode_key(key))

    def put_if_absent(self, key: Any, value: Any) -> Any:
        """Set the value of a key that has none; return the value that it had."""
        old = self.get(key)
        if old is None:
            self.put(key, value)
        return old

    def delete(self, key: Any) -> Any:
        """Delete a key; return the value that it had."""
        old = self.get(key)
        self.put(key, None)
        return old

    def put_all(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Put (key, value) pairs one after the other."""
        for key, value in entries:
            self.put(key, value)

    def range(self, key_from: Any = None, key_to: Any = None) -> StoreIterator[tuple[Any, Any]]:
        """Iterate over the (key, value) rows with key_from <= key <= key_to in the order of the keys' bytes.

        None leaves a side open. The rows are those of this moment. Close the iterator or exhaust it.
        """
        return StoreIterator(self._range(key_from, key_to, False))

    def reverse_range(self, key_from: Any = None, key_to: Any = None) -> StoreIterator[tuple[Any, Any]]:
        """Iterate like range, from the highest key down."""
        return StoreIterator(self._range(key_from, key_to, True))

    def all(self) -> StoreIterator[tuple[Any, Any]]:
        """Iterate over all rows in the order of the keys' bytes."""
        return StoreIterator(self._decoded(self._scan(None, None, False)))

    def reverse_all(self) -> StoreIterator[tuple[Any, Any]]:
        """Iterate over all rows, from the highest key down."""
        return StoreIterator(self._decoded(self._scan(None, None, True)))

    def prefix_scan(
        self, prefix: Any, serializer: Callable[[Any], bytes | None] | None = None
    ) -> StoreIterator[tuple[Any, Any]]:
        """Iterate over the rows whose key bytes begin with a prefix (KIP-614).

        prefix: bytes, or an object for serializer (by default the key's).
        """
        if serializer is not None or not isinstance(prefix, bytes):
            prefix = (serializer or self._encode_key)(prefix)
        return StoreIterator(self._decoded(self._scan(prefix, after(prefix), False)))

    def approximate_num_entries(self) -> int:
        """Return about how many rows the store has; what only the cache holds does not count."""
        return self.rows.approximate_num_entries()

    def _range(self, key_from: Any, key_to: Any, reverse: bool) -> Iterator[tuple[Any, Any]]:
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
            return iter(())
        return self._decoded(self._scan(start, end, reverse))

    def _scan(self, start: bytes | None, end: bytes | None, reverse: bool) -> Iterator[Row]:
        return self.rows.scan(start, end, reverse)

    def _decoded(self, rows: Iterator[Row]) -> Iterator[tuple[Any, Any]]:
        decode_key, decode = self.serdes.decode_key, self._decode
        return ((decode_key(key), decode(data)) for key, data in rows)

    @override
    def timestamped_rows(self) -> TimestampedRows | None:
        if type(self) is not KeyValueStore or not self.rows.persistent or not self.values.logs_value_and_timestamp:
            return None
        serdes = self.serdes
        encode, decode = inline(serdes.encode_value), inline(serdes.decode_value)
        if encode.takes_none or (decode.takes_none and decode != ITSELF):  # nothing is known about them
            return None
        return TimestampedRows(
            key_serde=serdes.key_serde,
            encode_key=serdes.inline_key,
            encode_value=encode,
            decode_value=decode,
            exact_value=serdes.exact_value,
            exact_value_type=serdes.exact_value_type,
            get=self.rows.get,
            put=self.rows.put,
            table=self.rows.compiled_rows,
        )

    @override
    def restore(self, messages: Sequence[Message], next_offset: int | None) -> None:
        if self.contexts is not None:
            row_of = timestamped_value if self.values.with_timestamp else plain_value
            self.contexts.restore(newest_by_key(messages), row_of)
        super().restore(messages, next_offset)

    @override
    def restored_rows(self, messages: Sequence[Message]) -> Iterable[RawRow]:
        if self.rows.persistent:  # in memory the order of the records may count: see MemoryLRUCache
            messages = newest_by_key(messages)
        return timestamped_rows(messages) if self.values.with_timestamp else plain_rows(messages)


def _evictions_logged(task: TaskContext, rows: MemoryLRUCache) -> LogChange:
    """Return a log_change that writes a tombstone for the row that a put evicts, before the put itself.

    In that order a restore keeps the rows that were kept: the other way round the put would evict a row again, by the
    order of the writes. Kafka Streams: ChangeLoggingKeyValueBytesStore, which has the listener for plain values only.
    """

    def log_change(
        store_name: str, key: bytes, value: bytes | None, timestamp: int | None, headers: Headers = None
    ) -> None:
        evicted = None if value is None else rows.make_room(key)
        if evicted is not None:
            task.log_change(store_name, evicted, None, task.timestamp)
        task.log_change(store_name, key, value, timestamp, headers)

    return log_change
