"""Stores of all kinds, and how a row is put into each: store, key, time in ms, value."""

from __future__ import annotations

from typing import Any

from penstock import Serdes
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.records import Windowed

RETENTION_MS = 200_000  # three segments of a minute and more
SIZE_MS = 1_000
TIMES_MS = (0, 1_000, 59_000, 61_000, 150_000, 260_000, 600_000)


def builder(kind: StoreKind, **more: Any) -> StoreBuilder[Any]:
    """Return a store's declaration, with text keys and whole numbers as values. more: other fields."""
    values: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.int64(), "caching": True}
    if kind in (StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW, StoreKind.SESSION):
        values |= {"retention_ms": RETENTION_MS, "window_size_ms": SIZE_MS}
    if kind is StoreKind.VERSIONED_KEY_VALUE:
        values["history_retention_ms"] = RETENTION_MS
    return StoreBuilder("store", kind, **(values | more))


def put_plain(store: Any, key: str, _: int, value: int | None) -> None:
    """Put a value."""
    store.put(key, value)


def put_timestamped(store: Any, key: str, time_ms: int, value: int | None) -> None:
    """Put a value with its time."""
    store.put(key, None if value is None else (value, time_ms))


def put_window(store: Any, key: str, time_ms: int, value: int | None) -> None:
    """Put a value with the window's, or the version's, time."""
    store.put(key, value, time_ms)


def put_timestamped_window(store: Any, key: str, time_ms: int, value: int | None) -> None:
    """Put a value with its time, a millisecond after the window's."""
    store.put(key, None if value is None else (value, time_ms + 1), time_ms)


def put_session(store: Any, key: str, time_ms: int, value: int | None) -> None:
    """Put a session that ends at the time."""
    store.put(Windowed(key, max(time_ms - 500, 0), time_ms), value)
