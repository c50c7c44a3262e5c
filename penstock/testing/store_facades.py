"""Timestamped stores that look like plain ones, for TopologyTestDriver (Kafka Streams: KeyValueStoreFacade …)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.statestore.stores.store_iterator import Rows, StoreIterator
from penstock.topology.records import ValueAndTimestamp

#: The timestamp of rows that a test writes (Kafka: ConsumerRecord.NO_TIMESTAMP).
NO_TIMESTAMP = -1


def _plain(row: Any) -> Any:
    return None if row is None else row[0]


def _timestamped(value: Any) -> ValueAndTimestamp | None:
    return None if value is None else ValueAndTimestamp(value, NO_TIMESTAMP)


class _Facade:
    """Methods without values are the store's own."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _unwrapped(rows: Iterable[tuple[Any, Any]]) -> StoreIterator[tuple[Any, Any]]:
    return StoreIterator((key, _plain(row)) for key, row in rows)


def _unwrapped_rows(rows: Iterable[tuple[Any, Any]]) -> Rows[tuple[Any, Any]]:
    return Rows((key, _plain(row)) for key, row in rows)


class KeyValueStoreFacade(_Facade):
    """A timestamped key-value store with plain values."""

    def get(self, key: Any) -> Any:
        """Return the value of a key, None if there is none."""
        return _plain(self._store.get(key))

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key; None deletes it."""
        self._store.put(key, _timestamped(value))

    def put_if_absent(self, key: Any, value: Any) -> Any:
        """Set the value of a key that has none; return the value that it had."""
        return _plain(self._store.put_if_absent(key, _timestamped(value)))

    def put_all(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Put (key, value) pairs one after the other."""
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: Any) -> Any:
        """Delete a key; return the value that it had."""
        return _plain(self._store.delete(key))

    def range(self, key_from: Any = None, key_to: Any = None) -> StoreIterator[tuple[Any, Any]]:
        """Iterate over the rows with key_from <= key <= key_to."""
        return _unwrapped(self._store.range(key_from, key_to))

    def reverse_range(self, key_from: Any = None, key_to: Any = None) -> StoreIterator[tuple[Any, Any]]:
        """Iterate like range, from the highest key down."""
        return _unwrapped(self._store.reverse_range(key_from, key_to))

    def all(self) -> StoreIterator[tuple[Any, Any]]:
        """Iterate over all rows."""
        return _unwrapped(self._store.all())

    def reverse_all(self) -> StoreIterator[tuple[Any, Any]]:
        """Iterate over all rows, from the highest key down."""
        return _unwrapped(self._store.reverse_all())

    def prefix_scan(self, *arguments: Any) -> StoreIterator[tuple[Any, Any]]:
        """Iterate over the rows whose key bytes begin with a prefix."""
        return _unwrapped(self._store.prefix_scan(*arguments))


class WindowStoreFacade(_Facade):
    """A timestamped window store with plain values."""

    def put(self, key: Any, value: Any, window_start: int) -> None:
        """Set the value of a key's window; None deletes it."""
        self._store.put(key, _timestamped(value), window_start)

    def fetch(self, key: Any, time: int) -> Any:
        """Return the value of the window that starts then, None if there is none."""
        return _plain(self._store.fetch(key, time))

    def fetch_range(self, key: Any, time_from: int, time_to: int) -> Rows[tuple[int, Any]]:
        """Return (window start, value) of a key."""
        return _unwrapped_rows(self._store.fetch_range(key, time_from, time_to))

    def backward_fetch_range(self, key: Any, time_from: int, time_to: int) -> Rows[tuple[int, Any]]:
        """Return what fetch_range returns, latest first."""
        return _unwrapped_rows(self._store.backward_fetch_range(key, time_from, time_to))

    def fetch_keys(self, key_from: Any, key_to: Any, time_from: int, time_to: int) -> StoreIterator[tuple[Any, Any]]:
        """Iterate over (Windowed, value) of a range of keys."""
        return _unwrapped(self._store.fetch_keys(key_from, key_to, time_from, time_to))

    def backward_fetch_keys(
        self, key_from: Any, key_to: Any, time_from: int, time_to: int
    ) -> StoreIterator[tuple[Any, Any]]:
        """Iterate like fetch_keys, backward."""
        return _unwrapped(self._store.backward_fetch_keys(key_from, key_to, time_from, time_to))

    def fetch_all(self, time_from: int, time_to: int) -> StoreIterator[tuple[Any, Any]]:
        """Iterate over (Windowed, value) of all keys."""
        return _unwrapped(self._store.fetch_all(time_from, time_to))

    def backward_fetch_all(self, time_from: int, time_to: int) -> StoreIterator[tuple[Any, Any]]:
        """Iterate like fetch_all, backward."""
        return _unwrapped(self._store.backward_fetch_all(time_from, time_to))

    def all(self) -> StoreIterator[tuple[Any, Any]]:
        """Iterate over (Windowed, value) of everything."""
        return _unwrapped(self._store.all())

    def backward_all(self) -> StoreIterator[tuple[Any, Any]]:
        """Iterate like all, backward."""
        return _unwrapped(self._store.backward_all())
