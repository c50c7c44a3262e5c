"""Stores that measure their calls, at metrics.recording.level DEBUG and TRACE (Kafka: MeteredKeyValueStore and others).

At level INFO a store is not changed at all. Measured, its public methods are replaced by ones that call and time them;
operators then call these methods, too, in place of reading rows in compiled code. Times in ns, as in Kafka Streams.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter_ns
from typing import Any, TypeVar

from typing_extensions import override

from penstock.kernel.nodes import Tally
from penstock.topology.context.store_interfaces import StoreBackend, StoreKind
from penstock.topology.context.tallies import STORE_GROUP, Tallies, average_and_maximum, extremes

from .buffers.time_ordered_buffers import InMemoryTimeOrderedKeyValueChangeBuffer
from .stores.state_store import StateStore
from .stores.store_iterator import StoreIterator

T = TypeVar("T")

_KEY_VALUE = {
    "get": ("get", "get_row", "get_forwarded"),
    "put": ("put", "put_held"),
    "put-if-absent": ("put_if_absent",),
    "put-all": ("put_all",),
    "delete": ("delete",),
    "range": ("range", "reverse_range"),
    "all": ("all", "reverse_all"),
    "prefix-scan": ("prefix_scan",),
}
_WINDOW = {
    "put": ("put", "put_held"),
    "fetch": (
        "fetch",
        "fetch_forwarded",
        "fetch_range",
        "backward_fetch_range",
        "fetch_keys",
        "backward_fetch_keys",
        "fetch_all",
        "backward_fetch_all",
        "all",
        "backward_all",
    ),
}
_SESSION = {
    "put": ("put", "put_held"),
    "remove": ("remove",),
    "fetch": (
        "fetch",
        "backward_fetch",
        "fetch_session",
        "fetch_session_forwarded",
        "find_sessions",
        "backward_find_sessions",
        "find_sessions_ending",
        "fetch_keys",
        "backward_fetch_keys",
        "all",
    ),
}
#: The methods that are measured, by the name of their metrics and the kind of store.
_CALLS: Mapping[StoreKind, Mapping[str, tuple[str, ...]]] = {
    StoreKind.KEY_VALUE: _KEY_VALUE,
    StoreKind.TIMESTAMPED_KEY_VALUE: _KEY_VALUE,
    StoreKind.VERSIONED_KEY_VALUE: _KEY_VALUE,
    StoreKind.LIST_VALUE: _KEY_VALUE,
    StoreKind.FOREIGN_KEY_SUBSCRIPTION: _KEY_VALUE,
    StoreKind.WINDOW: _WINDOW,
    StoreKind.TIMESTAMPED_WINDOW: _WINDOW,
    StoreKind.SESSION: _SESSION,
}
#: The calls after which a row is as old as its record.
_PUTS = ("put", "put-if-absent")

_SCOPES = {
    StoreKind.WINDOW: "window-",
    StoreKind.TIMESTAMPED_WINDOW: "window-",
    StoreKind.SESSION: "session-",
}


def scope(store: StateStore) -> str:
    """Return the first part of the tag that names a store, as Kafka Streams' suppliers' metricsScope.

    E.g. "rocksdb", "rocksdb-window", "in-memory-session", "in-memory-suppression".
    """
    kind = store.builder.kind
    if kind is StoreKind.SUPPRESS_BUFFER:
        return "in-memory-suppression"
    if store.builder.backend is StoreBackend.LRU:
        return "in-memory-lru"
    if store.builder.backend is StoreBackend.CUSTOM:
        return "custom"
    where = "rocksdb" if store.persistent else "in-memory"
    return f"{where}-{_SCOPES.get(kind, '')}".rstrip("-")


def metered(store: Any, tallies: Tallies, opening_ns: int) -> None:
    """Let a store measure its calls, if Kafka Streams measures those of its kind.

    opening_ns: how long it took to open it.
    """
    if isinstance(store, InMemoryTimeOrderedKeyValueChangeBuffer):
        _meter_buffer(store, tallies)
    elif store.builder.kind in _CALLS:
        _Meter(store, tallies, opening_ns)


class _Meter:
    """Measures the calls of one store."""

    def __init__(self, store: StateStore, tallies: Tallies, opening_ns: int) -> None:
        self._store, self._tallies = store, tallies
        self._tags = {f"{scope(store)}-state-id": store.name}
        self._is_inside = False  # a measured method may call others of the same store
        self._iterators = self._tally(average_and_maximum("iterator-duration"))
        self._open_since: dict[int, int] = {}
        store.open_iterators = self._open_since
        self._ages = self._tally(extremes("record-e2e-latency")) if tallies.traces else None
        for call, methods in _CALLS[store.builder.kind].items():
            present = [name for name in methods if hasattr(store, name)]
            tally = self._latency(call) if present else None
            for name in present:
                setattr(store, name, self._timed(getattr(store, name), tally, self._ages if call in _PUTS else None))
        for call in ("flush", "commit"):
            setattr(store, call, _timed(getattr(store, call), self._latency(call)))
        self._latency("restore").add(opening_ns)

    def _tally(self, names: Mapping[str, Any]) -> Tally:
        return self._tallies.add(STORE_GROUP, self._tags, names)

    def _latency(self, call: str) -> Tally:
        return self._tally({f"{call}-rate": "rate", **average_and_maximum(f"{call}-latency")})

    def _timed(self, method: Callable[..., Any], tally: Any, ages: Tally | None) -> Callable[..., Any]:
        """Return a method that measures itself; a scan lasts until its iterator is closed. ages: of rows it puts."""
        task = self._store.task

        def call(*arguments: Any, **named: Any) -> Any:
            if self._is_inside:
                return method(*arguments, **named)
            self._is_inside, found, began = True, None, perf_counter_ns()
            try:
                found = method(*arguments, **named)
            finally:
                self._is_inside = False
                if not isinstance(found, StoreIterator):
                    tally.add(perf_counter_ns() - began)
            if ages is not None:
                ages.add(task.wall_clock_ms() - task.timestamp)
            return self._open(found, began, tally) if isinstance(found, StoreIterator) else found

        return call

    def _open(self, rows: StoreIterator[T], began: int, tally: Tally) -> StoreIterator[T]:
        iterator = _MeteredIterator(rows, self._closed, began, tally)
        self._open_since[id(iterator)] = self._store.task.wall_clock_ms()
        return iterator

    def _closed(self, number: int, began: int, tally: Tally) -> None:
        lasted = perf_counter_ns() - began
        del self._open_since[number]
        tally.add(lasted)
        self._iterators.add(lasted)


class _MeteredIterator(StoreIterator[T]):
    """Calls closed(its id, began, tally) once: when it is closed or exhausted, or was dropped unclosed."""

    __slots__ = ("__weakref__", "_end")

    def __init__(self, rows: StoreIterator[T], closed: Callable[..., None], began: int, tally: Tally) -> None:
        super().__init__(rows)
        self._end = weakref.finalize(self, closed, id(self), began, tally)
        self._end.atexit = False

    @override
    def __iter__(self) -> Iterator[T]:
        return self  # the rows below would not report their end

    @override
    def __next__(self) -> T:
        try:
            return next(self._rows)
        except StopIteration:
            self._end()
            raise

    @override
    def close(self) -> None:
        super().close()
        self._end()


def _timed(method: Callable[..., Any], tally: Tally) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        began = perf_counter_ns()
        try:
            return method(*arguments, **named)
        finally:
            tally.add(perf_counter_ns() - began)

    return call


def _meter_buffer(buffer: InMemoryTimeOrderedKeyValueChangeBuffer, tallies: Tallies) -> None:
    """Measure a buffer's size and number of keys after each change."""
    tags = {f"{scope(buffer)}-state-id": buffer.name}
    size = tallies.add(STORE_GROUP, tags, average_and_maximum("suppression-buffer-size"))
    count = tallies.add(STORE_GROUP, tags, average_and_maximum("suppression-buffer-count"))

    def noting(name: str) -> Callable[..., Any]:
        method = getattr(type(buffer), name)  # a recycled buffer may be measured already

        def call(*arguments: Any) -> Any:
            before = buffer.num_records() if name != "put_row" else -1
            method(buffer, *arguments)
            if buffer.num_records() != before:
                size.add(buffer.buffer_size())
                count.add(buffer.num_records())

        return call

    for name in ("put_row", "evict_until", "evict_while"):
        setattr(buffer, name, noting(name))
