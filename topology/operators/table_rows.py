"""The rows of a table for a compiled node: in the record cache, or in the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from penstock.kernel.sinks import Changelog
from penstock.kernel.table_nodes import CachedRows, PythonRows, RowGetter, Rows, StoredRows
from penstock.kernel.window_nodes import PythonSessions, StoredSessions, StoredWindowRows

from ..context.store_interfaces import Cells, NodeRows, StoreKind
from ..context.timers import ExpiringRows, OnDue
from ..serdes.serdes import direct
from .operator import NodeContext
from .table_store import (
    KTableValueGetter,
    TableStore,
    Update,
    as_read,
    forwards_itself,
    session_updaters,
    window_updater,
)

S = TypeVar("S")


def cached_store(node: NodeContext, name: str, kind: StoreKind) -> Any:
    """Return the store if it is of this kind and has cells; None if it does not cache and forwards each update."""
    store = node.store(name)
    return store if store.builder.kind is kind and store.cells() is not None else None


def cached_rows(node: NodeContext, cells: Cells) -> CachedRows:
    """Return the rows in a record cache."""
    updates = cells.table.updates(cells.load, cells.hold, direct(cells.read), cells.native)
    return CachedRows(node.task, updates, cells.key_serde, cells.encode_key, cells.grown, node.keeps_messages)


def rows_of(node: NodeContext, name: str, sends_old: bool, replaces: bool = False) -> Rows:
    """Return the rows of a table's store.

    sends_old: whether changes have the old value, too. replaces: each update replaces the row, regardless of the old
    one.
    """
    found = compiled_rows(node, name, sends_old, replaces)
    if found is not None:
        return found
    store = TableStore(node, name)
    update, wants_old = store.updater(node, sends_old)
    expires = isinstance(store.store, ExpiringRows)
    if expires:
        store.store.expires_to(_deletes(node, store, update, wants_old))
    # A table that counts these rows would subtract the initializer's value, which it has never added.
    return PythonRows(node.task, store.get, update, store.as_read, wants_old, sends_initial=not expires)


def _deletes(node: NodeContext, store: TableStore, update: Update, wants_old: bool) -> OnDue:
    """Return a function that deletes a row that has expired, and passes the change on with the time of its end."""

    def delete(key: object, due_ms: int) -> None:
        def deleted(timestamp: int) -> None:
            row = store.get(key) if wants_old else None
            update(key, None, None if row is None else row[0], timestamp, timestamp, None)

        node.punctuated(deleted, due_ms)

    return delete


def compiled_rows(node: NodeContext, name: str, sends_old: bool, replaces: bool) -> Rows | None:
    """Return the rows in the cache or the write buffer; None if an update of them needs the store itself."""
    if node.notes_rows:
        return None
    cached = cached_store(node, name, StoreKind.TIMESTAMPED_KEY_VALUE)
    if cached is not None:
        forwards_itself(node, cached, sends_old)
        return cached_rows(node, cached.cells())
    return None if sends_old and not replaces else stored_rows(node, name, sends_old)


def window_rows_of(node: NodeContext, name: str, sends_old: bool, on_close: bool) -> Rows:
    """Return the rows of a window store, for a WindowedAggregate. on_close: its CloseEmitter passes them on."""
    found = compiled_window_rows(node, name, sends_old, on_close)
    if found is not None:
        return found
    store = node.store(name)
    fetch = store.fetch
    update, wants_old = window_updater(node, store, sends_old, on_close)
    return PythonRows(node.task, lambda windowed: fetch(windowed[0], windowed[1]), update, as_read(store), wants_old)


def compiled_window_rows(node: NodeContext, name: str, sends_old: bool, on_close: bool) -> Rows | None:
    """Return the rows in the cache or the write buffer; None if an update of them needs the store itself."""
    if node.notes_rows:
        return None
    cached = cached_store(node, name, StoreKind.TIMESTAMPED_WINDOW)
    if cached is not None:
        if not on_close:
            forwards_itself(node, cached, sends_old)
        return cached_rows(node, cached.cells())
    return None if sends_old and not on_close else stored_window_rows(node, name)


def session_rows_of(node: NodeContext, name: str, sends_old: bool, on_close: bool) -> Rows:
    """Return the sessions of a store, for a SessionAggregate. on_close: its CloseEmitter passes them on."""
    found = compiled_session_rows(node, name, sends_old, on_close)
    if found is not None:
        return found
    store = node.store(name)
    put, remove = session_updaters(node, store, sends_old, on_close)
    return PythonSessions(node.task, put, remove, as_read(store) if sends_old else None)


def compiled_session_rows(node: NodeContext, name: str, sends_old: bool, on_close: bool) -> Rows | None:
    """Return the sessions in the cache or the write buffer; None if an update of them needs the store itself."""
    if node.notes_rows:
        return None
    cached = None if on_close else cached_store(node, name, StoreKind.SESSION)
    if cached is not None and not cached.builder.keeps_headers:
        forwards_itself(node, cached, sends_old)
        return cached_rows(node, cached.cells())
    store = node.store(name)
    rows = store.session_rows()
    if rows is None:
        return None
    more = sends_old and not on_close, store.segments, store.serdes.decode_key
    return _made(StoredSessions, node, name, rows, *more)


def row_getter(getter: KTableValueGetter, sent: bool = False) -> RowGetter:
    """Return access to the rows of another table. sent: as it has last passed them on, see KTableValueGetter."""
    get, cells, rows = getter.get_forwarded if sent else getter.get, getter.cells, getter.rows
    if cells is not None:
        read, bytes_serde = direct(cells.read), cells.bytes_serde
        return RowGetter(get, sent, cells.table, None, cells.key_serde, cells.encode_key, read, bytes_serde)
    if rows is not None:
        # Without an own serializer its bytes are those of another topic.
        bytes_serde = None if rows.value_serde.serializer is None else rows.value_serde
        read = rows.decode_value
        return RowGetter(get, sent, None, rows.buffer, rows.key_serde, rows.encode_key, read, bytes_serde)
    return RowGetter(get)


def stored_rows(node: NodeContext, name: str, sends_old: bool = False) -> StoredRows | None:
    """Return the rows of a store without a cache; None if an update of them needs the store itself."""
    rows = None if node.notes_rows else node.store(name).timestamped_rows()
    return None if rows is None else _made(StoredRows, node, name, rows, sends_old)


def stored_window_rows(node: NodeContext, name: str) -> StoredWindowRows | None:
    """Return the rows of a window store without a cache; None if an update of them needs the store itself."""
    store = node.store(name)
    rows = store.timestamped_rows()
    if rows is None:
        return None
    more = store.segments, store.serdes.decode_key, store.values.decode
    return _made(StoredWindowRows, node, name, rows, *more)


def _made(kind: Callable[..., S], node: NodeContext, name: str, rows: NodeRows, *more: object) -> S:
    return kind(
        node.task,
        rows.buffer,
        Changelog(node.task.output, name),
        rows.key_serde,
        rows.encode_key,
        rows.value_serde,
        rows.encode_value,
        rows.decode_value,
        rows.exact_value,
        rows.exact_value_type,
        rows.log_headers,
        *more,
    )
