"""Rows as JSON, selected by keys and times given as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Any

import orjson

from penstock.statestore.stores.key_value_store import KeyValueStore
from penstock.statestore.stores.segmented_stores import LONG_MAX, SessionStore, WindowStore
from penstock.statestore.stores.state_store import StateStore
from penstock.statestore.stores.versioned_store import VersionedStore
from penstock.statestore.view.spelling import BadKeyError, read_key
from penstock.statestore.view.store_view import parts_of, plain, rows_of_key
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.serdes.serdes import Serdes, as_serde

from ..control.messages import ReadStore
from .store_answers import Row

READABLE = (
    *(StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.VERSIONED_KEY_VALUE),
    *(StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW, StoreKind.SESSION),
)


def check_readable(builder: StoreBuilder) -> None:
    """Raise BadKeyError for an operator's internal store."""
    if builder.kind not in READABLE:
        raise BadKeyError(f"The store {builder.name} is a {builder.kind.value}, which cannot be read from outside.")


def rows_of(request: ReadStore, store: StateStore, task: str) -> Generator[Row, None, None]:
    """Yield all rows of a task's store that match a request. Raises BadKeyError."""
    builder: StoreBuilder = store.builder
    check_readable(builder)
    encode = _order(builder)
    if isinstance(store, WindowStore | SessionStore):
        rows = _window_rows(request, store, builder)
    else:
        assert isinstance(store, KeyValueStore | VersionedStore)  # see READABLE
        rows = _key_value_rows(request, store, builder)
    for key, value in rows:
        order = encode(key.key) + b"%020d" % key.start if builder.windowed else encode(key)
        if builder.windowed or not request.after or order.hex() != request.after:
            yield Row(order, row_json(key, value, builder), task)


def page_after(request: ReadStore, store: StateStore, rows: tuple[Row, ...]) -> str | None:
    """Return the position after which the next page starts: the last key, and for windows and sessions the number of
    rows.
    """
    if request.after is None or len(rows) <= request.limit:
        return None
    windowed = store.builder.windowed
    return str(int(request.after or 0) + request.limit) if windowed else rows[request.limit - 1].order.hex()


def _key(text: str, builder: StoreBuilder) -> Any:
    return read_key(text, builder.key_serde, builder.name)


def _order(builder: StoreBuilder) -> Callable[[Any], bytes]:
    serde = as_serde(builder.key_serde)
    return lambda key: (serde.serialize("", key) if serde is not None else None) or b""


def _bounds(request: ReadStore, builder: StoreBuilder) -> tuple[Any, Any]:
    low, high = (None if text is None else _key(text, builder) for text in (request.key_from, request.key_to))
    serde = as_serde(builder.key_serde)
    if request.after and not builder.windowed and serde is not None:
        low = serde.deserialize("", bytes.fromhex(request.after))
    return low, high


#: (key, value), as store_view.rows_of_key gives them
_Found = Iterator[tuple[Any, Any]]


def _key_value_rows(request: ReadStore, store: KeyValueStore | VersionedStore, builder: StoreBuilder) -> _Found:
    versioned = isinstance(store, VersionedStore)
    if request.time_from is not None or (request.time_to is not None and not versioned):
        names = "time_from= is" if versioned else "time_from= and time_to= are"
        raise BadKeyError(f"{names} for window and session stores, and {builder.name} is a {builder.kind.value} store.")
    if request.key is not None and isinstance(store, VersionedStore) and request.time_to is not None:
        key = _key(request.key, builder)
        value = store.get(key, request.time_to)
        return iter(()) if value is None else iter([(key, value)])
    if request.key is not None:
        return rows_of_key(store, _key(request.key, builder))
    if isinstance(store, VersionedStore):
        raise BadKeyError(f"The versioned store {builder.name} can only be read key by key.")
    if request.prefix is not None:
        return iter(store.prefix_scan(_prefix(request.prefix, builder)) if request.prefix else store.all())
    return iter((store.reverse_range if request.reverse else store.range)(*_bounds(request, builder)))


def _prefix(text: str, builder: StoreBuilder) -> bytes:
    if as_serde(builder.key_serde) is not Serdes.bytes():
        return text.encode()
    prefix: bytes = _key(text, builder)
    return prefix


def _window_rows(request: ReadStore, store: WindowStore | SessionStore, builder: StoreBuilder) -> _Found:
    if request.prefix is not None:
        raise BadKeyError(f"prefix= is for key-value stores, and {builder.name} is a {builder.kind.value} store.")
    first = 0 if request.time_from is None else request.time_from
    last = LONG_MAX if request.time_to is None else request.time_to
    if request.key is not None:
        return rows_of_key(store, _key(request.key, builder), first, last, reverse=request.reverse)
    fetch_keys = store.backward_fetch_keys if request.reverse else store.fetch_keys
    return islice(fetch_keys(*_bounds(request, builder), first, last), int(request.after or 0), None)


def row_json(key: Any, value: Any, builder: StoreBuilder) -> bytes:
    """Return {"key", "value"}, and "window", "timestamp" and "valid_to" if the row has them."""
    row: dict[str, Any] = {"key": key}
    if builder.windowed:
        row = {"key": key.key, "window": {"start": key.start, "end": key.end}}
    return to_json({**row, **parts_of(builder.kind, value)})


def to_json(value: Any) -> bytes:
    """Return JSON. Bytes are written as in spelling.py, other objects that JSON cannot represent as their repr."""
    try:
        return orjson.dumps(plain(value))
    except TypeError:  # a number of more than 64 bits, which orjson cannot write
        return json.dumps(plain(value)).encode()
