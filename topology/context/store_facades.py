"""Facades of stores whose values a reader sees in another form (Kafka Streams: …StoreFacade)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, NamedTuple, NoReturn, Self

from ..errors import StreamsError
from ..query.isolation_level import IsolationLevel
from ..records import ValueAndTimestamp
from .store_interfaces import StoreBuilder, StoreKind
from .store_types import Closeable, Rows


class View(NamedTuple):
    """Two functions between a store's value and the one that a reader sees; neither gets None."""

    show: Callable[[Any], Any]
    hide: Callable[[Any], Any]


class StoreFacade:
    """Delegates all methods to the store, with another view of its values."""

    def __init__(self, store: Any, view: View) -> None:
        self._store = store
        self._view = view

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._shown(found) if callable(found) else found

    def read_only(self, isolation: IsolationLevel) -> Self:
        """Return the store for reads of an isolation level, with the same view of its values."""
        return type(self)(self._store.read_only(isolation), self._view)

    def _show(self, value: object) -> Any:
        return None if value is None else self._view.show(value)

    def _hide(self, value: object) -> Any:
        return None if value is None else self._view.hide(value)

    def _row(self, row: tuple[object, Any]) -> tuple[object, Any]:
        return row[0], self._show(row[1])

    def _shown(self, method: Callable[..., object]) -> Callable[..., object]:
        @wraps(method)
        def call(*arguments: Any, **options: object) -> object:
            found: Any = method(*arguments, **options)
            return found.mapped(self._row) if isinstance(found, Closeable) else found

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


class VersionedStoreFacade(StoreFacade):
    """A versioned key-value store."""

    def get(self, key: object, as_of: int | None = None) -> Any:
        """Return the newest version of a key, or the one that was valid at as_of; None if there was none."""
        return self._show(self._store.get(key, as_of))

    def get_versions(self, key: object, time_from: int, time_to: int) -> Rows[Any]:
        """Return the versions that were valid at any time from time_from to time_to, newest first."""
        return Rows(map(self._show, self._store.get_versions(key, time_from, time_to)))

    def put(self, key: object, value: object, timestamp: int) -> int:
        """Set the value of a key from a time on; None deletes it."""
        return self._store.put(key, self._hide(value), timestamp)  # type: ignore[no-any-return]

    def delete(self, key: object, timestamp: int) -> Any:
        """Delete a key from a time on; return the version that was valid then."""
        return self._show(self._store.delete(key, timestamp))


def view_of_results(builder: StoreBuilder) -> View | None:
    """Return the view of a store for its readers, None if they see its values unchanged; see Serde.results."""
    results = getattr(builder.value_serde, "results", None)
    if results is None:
        return None

    def of_row(row: Any) -> ValueAndTimestamp:
        return ValueAndTimestamp(results(row[0]), row[1])

    def of_version(row: Any) -> Any:
        return row._replace(value=results(row.value))

    def refuse(_: object) -> NoReturn:
        raise StreamsError(
            f"The store {builder.name} has the states of aggregates, which only their aggregation writes: readers see "
            "the results, from which it cannot continue"
        )

    if builder.kind is StoreKind.VERSIONED_KEY_VALUE:
        return View(of_version, refuse)
    return View(results if builder.kind is StoreKind.SESSION else of_row, refuse)


def for_readers(store: object) -> Any:
    """Return a task's store as processors, queries and tests see it."""
    builder = getattr(store, "builder", None)
    if not isinstance(builder, StoreBuilder):  # a user's own kind of store
        return store
    view = view_of_results(builder)
    if view is None:
        return store
    return _FACADES.get(builder.kind, KeyValueStoreFacade)(store, view)


_FACADES: Mapping[StoreKind, type[StoreFacade]] = {
    StoreKind.TIMESTAMPED_WINDOW: WindowStoreFacade,
    StoreKind.SESSION: SessionStoreFacade,
    StoreKind.VERSIONED_KEY_VALUE: VersionedStoreFacade,
}
