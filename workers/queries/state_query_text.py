"""Interactive queries v2 in text form, for HTTP: keys are text, and results are JSON."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from penstock.statestore.stores.segmented_stores import TaskWindowStore
from penstock.statestore.stores.state_store import StateStore
from penstock.statestore.view.spelling import read_key
from penstock.topology.context.store_interfaces import StoreBuilder
from penstock.topology.query.state_queries import (
    KeyQuery,
    Query,
    TimestampedKeyQuery,
    TimestampedKeyWithHeadersQuery,
    VersionedKeyQuery,
    WindowKeyQuery,
)
from penstock.topology.records import Record, ValueAndTimestamp, VersionedRecord, Windowed

from .store_answers import ShownResult
from .store_reads import to_json

#: The fields of queries that are keys.
_KEYS = ("key", "lower_bound", "upper_bound")

_OF_ONE_ROW = (KeyQuery, TimestampedKeyQuery, TimestampedKeyWithHeadersQuery, VersionedKeyQuery)


def read_query(query: Query, builder: StoreBuilder) -> Query:
    """Return a query with the keys that its texts spell. Raises BadKeyError."""
    texts = {field.name: getattr(query, field.name) for field in fields(query) if field.name in _KEYS}  # type: ignore[arg-type]
    keys = {name: read_key(text, builder.key_serde, builder.name) for name, text in texts.items() if text is not None}
    return replace(query, **keys)  # type: ignore[type-var]


def shown_result(query: Any, result: Any, store: StateStore, rows_max: int) -> ShownResult:
    """Return the result of a store: null, a row, or a list of rows."""
    if not isinstance(query, _OF_ONE_ROW):
        rows = [_row(query, one, store) for one in result[:rows_max]]
        return ShownResult(to_json(rows), len(result) > rows_max)
    return ShownResult(to_json(None if result is None else _row(query, result, store)))


def _row(query: Any, found: Any, store: StateStore) -> dict[str, Any]:
    """Return a row: key, window, value, timestamp, headers and valid_to, if the result of the query has them."""
    if isinstance(found, Record):
        return {**_key(found.key), "value": found.value, "timestamp": found.timestamp, "headers": found.headers or []}
    key, value = (query.key, found) if type(found) is not tuple or isinstance(query, _OF_ONE_ROW) else found
    if isinstance(query, WindowKeyQuery):
        assert isinstance(store, TaskWindowStore)
        key = Windowed(query.key, key, store.window_end(key))
    if isinstance(value, ValueAndTimestamp | VersionedRecord):
        return {**_key(key), **value._asdict()}
    return {**_key(key), "value": value}


def _key(key: object) -> dict[str, object]:
    return {"key": key.key, "window": key.window._asdict()} if isinstance(key, Windowed) else {"key": key}
