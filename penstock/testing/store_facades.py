"""Facades of timestamped stores with plain values, for TopologyTestDriver (Kafka Streams: KeyValueStoreFacade …)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.statestore.stores.store_iterator import has_rows
from penstock.topology.records import ValueAndTimestamp

#: The timestamp of rows that a test writes (Kafka: ConsumerRecord.NO_TIMESTAMP).
NO_TIMESTAMP = -1


def _plain(row: Any) -> Any:
    return None if row is None else row[0]


def _timestamped(value: Any) -> ValueAndTimestamp | None:
    return None if value is None else ValueAndTimestamp(value, NO_TIMESTAMP)


class _Facade:
    """Delegates all other methods to the store, with plain values in their rows."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return _with_plain_rows(found) if callable(found) else found


def _with_plain_rows(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        found = method(*arguments, **options)
        return type(found)((key, _plain(row)) for key, row in found) if has_rows(found) else found

    return call


class KeyValueStoreFacade(_Facade):
    """A timestamped key-value store with plain values."""

    def get(self, key: Any) -> Any:
        """Return the value of a key, None if there is none."""
        return _plain(self._store.get(key))

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key; None deletes it."""
        self._store.put(key, _timestamped(value))

    def put_if_absent(self, key: Any, value: Any) -> Any:
        """Set the value of a key that has none; return the existing value."""
        return _plain(self._store.put_if_absent(key, _timestamped(value)))

    def put_all(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Put (key, value) pairs in order."""
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: Any) -> Any:
        """Delete a key; return the previous value."""
        return _plain(self._store.delete(key))


class WindowStoreFacade(_Facade):
    """A timestamped window store with plain values."""

    def put(self, key: Any, value: Any, window_start: int) -> None:
        """Set the value of a key's window; None deletes it."""
        self._store.put(key, _timestamped(value), window_start)

    def fetch(self, key: Any, time: int) -> Any:
        """Return the value of the window that starts at ``time``, None if there is none."""
        return _plain(self._store.fetch(key, time))
