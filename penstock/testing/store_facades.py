"""Facades of stores whose rows a test sees in another form, for TopologyTestDriver (Kafka Streams: …StoreFacade)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from penstock.statestore.stores.store_iterator import has_rows
from penstock.topology.records import AggregationWithHeaders, ValueAndTimestamp, ValueTimestampHeaders

#: The timestamp of rows that a test writes (Kafka: ConsumerRecord.NO_TIMESTAMP).
NO_TIMESTAMP = -1


class View(NamedTuple):
    """Two functions between a store's value and the one that the test sees; neither gets None."""

    show: Callable[[Any], Any]
    hide: Callable[[Any], Any]


PLAIN = View(lambda row: row[0], lambda value: ValueAndTimestamp(value, NO_TIMESTAMP))
PLAIN_OF_HEADERS = View(lambda row: row[0], lambda value: ValueTimestampHeaders(value, NO_TIMESTAMP))
TIMESTAMPED_OF_HEADERS = View(lambda row: ValueAndTimestamp(*row[:2]), lambda value: ValueTimestampHeaders(*value))
AGGREGATION = View(lambda row: row[0], AggregationWithHeaders)
#: Operators keep no headers, in any format: see StoreBuilder.keeps_headers.
WITH_HEADERS = View(lambda row: ValueTimestampHeaders(*row), lambda value: ValueAndTimestamp(*value[:2]))
AGGREGATION_WITH_HEADERS = View(AggregationWithHeaders, lambda value: value[0])


class StoreFacade:
    """Delegates all methods to the store, with another view of its values."""

    def __init__(self, store: Any, view: View) -> None:
        self._store = store
        self._view = view

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._shown(found) if callable(found) else found

    def _show(self, value: Any) -> Any:
        return None if value is None else self._view.show(value)

    def _hide(self, value: Any) -> Any:
        return None if value is None else self._view.hide(value)

    def _shown(self, method: Callable[..., Any]) -> Callable[..., object]:
        def call(*arguments: Any, **options: object) -> Any:
            found = method(*arguments, **options)
            return type(found)((key, self._show(row)) for key, row in found) if has_rows(found) else found

        return call


class KeyValueStoreFacade(StoreFacade):
    """A key-value store."""

    def get(self, key: object) -> Any:
        """Return the value of a key, None if there is none."""
        return self._show(self._store.get(key))

    def put(self, key: object, value: object) -> None:
        """Set the value of a key; None deletes it."""
        self._store.put(key, self._hide(value))

    def put_if_absent(self, key: object, value: object) -> Any:
        """Set the value of a key that has none; return the existing value."""
        return self._show(self._store.put_if_absent(key, self._hide(value)))

    def put_all(self, entries: Iterable[tuple[object, object]]) -> None:
        """Put (key, value) pairs in order."""
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: object) -> Any:
        """Delete a key; return the previous value."""
        return self._show(self._store.delete(key))


class WindowStoreFacade(StoreFacade):
    """A window store."""

    def put(self, key: object, value: object, window_start: int) -> None:
        """Set the value of a key's window; None deletes it."""
        self._store.put(key, self._hide(value), window_start)

    def fetch(self, key: object, time: int) -> Any:
        """Return the value of the window that starts at ``time``, None if there is none."""
        return self._show(self._store.fetch(key, time))


class SessionStoreFacade(StoreFacade):
    """A session store."""

    def put(self, session: object, value: object) -> None:
        """Set the aggregate of a session; None deletes it."""
        self._store.put(session, self._hide(value))

    def fetch_session(self, key: object, start: int, end: int) -> Any:
        """Return the aggregate of exactly this session, None if there is none."""
        return self._show(self._store.fetch_session(key, start, end))
