"""Stores that measure their calls, at metrics.recording.level DEBUG and TRACE (Kafka: MeteredKeyValueStore and others).

A measured store is of a class derived from that of the store, whose public methods time those below. Operators call
these methods, too, in place of reading rows in compiled code. Times in ns, as in Kafka Streams.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial, wraps
from itertools import count
from time import perf_counter_ns
from typing import Any, TypeVar

from typing_extensions import override

from penstock.kernel.nodes import Tally
from penstock.kernel.rows import StoreIterator
from penstock.topology.context.store_interfaces import StoreBackend, StoreKind
from penstock.topology.context.tallies import STORE_GROUP, Tallies, average_and_maximum, extremes
from penstock.topology.context.task_context import TaskContext

from .buffers.time_ordered_buffers import InMemoryTimeOrderedKeyValueChangeBuffer
from .stores.key_value_store import TaskKeyValueStore
from .stores.list_value_store import ListValueStore
from .stores.segmented_stores import TaskSessionStore, TaskWindowStore
from .stores.state_store import StateStore
from .stores.versioned_store import VersionedStore

S = TypeVar("S")
T = TypeVar("T")
#: The names of methods, by that of their metrics.
Calls = Mapping[str, tuple[str, ...]]

_KEY_VALUE = {
    "get": ("get", "get_row", "get_forwarded"),
    "put": ("put", "put_held", "put_row"),
    "put-if-absent": ("put_if_absent", "put_row_if_absent"),
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
#: The calls that are timed, by the class of the store.
_CALLS: Mapping[type[StateStore], Calls] = {
    TaskWindowStore: _WINDOW,
    TaskSessionStore: _SESSION,
    TaskKeyValueStore: _KEY_VALUE,
    VersionedStore: _KEY_VALUE,
    ListValueStore: _KEY_VALUE,
}
_RESTORE = "restore"
_TO_DISK: Calls = {"flush": ("flush",), "commit": ("commit",)}
#: The methods after which the size of a buffer is measured; the first one may replace a row by another.
_BUFFER_CHANGES = ("put_row", "evict_until", "evict_while")
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


def metered(kind: Callable[..., S], task: TaskContext) -> Callable[..., S]:
    """Return the class for a task's stores in place of this one: it measures, unless the level is INFO.

    Stores of some kinds are not measured in Kafka Streams either. opened() begins it.
    """
    return kind if task.tallies is None else _metered_class(kind)


def opened(store: Any, opening_ns: int) -> None:
    """Let a store of a metered class measure its calls from now on. opening_ns: how long it took to open it."""
    tallies = store.task.tallies
    if tallies is None:
        return
    if isinstance(store, _MeteredBuffer):
        store.measure_with(tallies)
    elif isinstance(store, _MeteredStore):
        store.meter = Meter(store, tallies, store.timed_calls)
        store.open_iterators = store.meter.open_since
        store.meter.was_opened(opening_ns)


@cache
def _metered_class(kind: Any) -> Any:
    if issubclass(kind, InMemoryTimeOrderedKeyValueChangeBuffer):
        methods = {name: _sized(getattr(kind, name)) for name in _BUFFER_CHANGES}
        return type(f"Metered{kind.__name__}", (_MeteredBuffer, kind), methods)
    calls = next((calls for base, calls in _CALLS.items() if issubclass(kind, base)), None)
    if calls is None:
        return kind
    present = {call: [name for name in names if hasattr(kind, name)] for call, names in {**calls, **_TO_DISK}.items()}
    methods = {name: _timed(getattr(kind, name), call) for call, names in present.items() for name in names}
    timed_calls = tuple(call for call, names in present.items() if names)
    return type(f"Metered{kind.__name__}", (_MeteredStore, kind), {**methods, "timed_calls": timed_calls})


class _MeteredStore(StateStore):
    """The base of stores that measure these calls."""

    timed_calls: tuple[str, ...]
    meter: Meter | None = None


class _MeteredBuffer(InMemoryTimeOrderedKeyValueChangeBuffer):
    """The base of buffers that measure their size."""

    _sizes: Tally | None = None
    _counts: Tally | None = None

    def measure_with(self, tallies: Tallies) -> None:
        """Measure from now on; a buffer may be passed to another task."""
        tags = {f"{scope(self)}-state-id": self.name}
        self._sizes = tallies.add(STORE_GROUP, tags, average_and_maximum("suppression-buffer-size"))
        self._counts = tallies.add(STORE_GROUP, tags, average_and_maximum("suppression-buffer-count"))

    def note_size(self) -> None:
        """Measure size and number of keys."""
        if self._sizes is not None and self._counts is not None:
            self._sizes.add(self.buffer_size())
            self._counts.add(self.num_records())


def _sized(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a buffer which measures the size that it leaves."""
    changes_always = method.__name__ == _BUFFER_CHANGES[0]

    @wraps(method)
    def sized(self: Any, *arguments: Any) -> Any:
        before = self.num_records()
        found = method(self, *arguments)
        if changes_always or self.num_records() != before:
            self.note_size()
        return found

    return sized


def _timed(method: Callable[..., Any], call: str) -> Callable[..., Any]:
    """Return a method of a store which measures its time."""

    @wraps(method)
    def timed(self: Any, *arguments: Any, **named: Any) -> Any:
        if self.meter is None:
            return method(self, *arguments, **named)
        return self.meter.timed(call, partial(method, self, *arguments, **named))

    return timed


class Meter:
    """Measures the calls of one store. open_since: when the open iterators were opened, by a number, in ms.

    calls: their names, which have metrics before the first call.
    """

    def __init__(self, store: StateStore, tallies: Tallies, calls: Iterable[str]) -> None:
        self._task, self._tallies = store.task, tallies
        self._tags = {f"{scope(store)}-state-id": store.name}
        self._is_inside = False  # a measured method may call others of the same store
        self._iterators = self._tally(average_and_maximum("iterator-duration"))
        self._ages = self._tally(extremes("record-e2e-latency")) if tallies.traces else None
        self._latencies = {call: self._latency(call) for call in (*calls, _RESTORE)}
        self._numbers = count()
        self.open_since: dict[int, int] = {}

    def _tally(self, names: Mapping[str, Any]) -> Tally:
        return self._tallies.add(STORE_GROUP, self._tags, names)

    def _latency(self, call: str) -> Tally:
        return self._tally({f"{call}-rate": "rate", **average_and_maximum(f"{call}-latency")})

    def was_opened(self, opening_ns: int) -> None:
        """Measure how long it took to open the store."""
        self._latencies[_RESTORE].add(opening_ns)

    def timed(self, call: str, method: Callable[[], object]) -> Any:
        """Call a method, and measure it unless another one calls it; a scan lasts until its iterator is closed."""
        if self._is_inside and call not in _TO_DISK:
            return method()
        before, self._is_inside = self._is_inside, True
        found, began = None, perf_counter_ns()
        try:
            found = method()
        finally:
            self._is_inside = before
            if not isinstance(found, StoreIterator):
                self._latencies[call].add(perf_counter_ns() - began)
        if self._ages is not None and call in _PUTS:
            self._ages.add(self._task.wall_clock_ms() - self._task.timestamp)
        return self._open(found, began, self._latencies[call]) if isinstance(found, StoreIterator) else found

    def _open(self, rows: StoreIterator[T], began: int, tally: Tally) -> StoreIterator[T]:
        number = next(self._numbers)
        self.open_since[number] = self._task.wall_clock_ms()
        return _MeteredIterator(rows, partial(self._closed, number, began, tally))

    def _closed(self, number: int, began: int, tally: Tally) -> None:
        lasted = perf_counter_ns() - began
        del self.open_since[number]
        tally.add(lasted)
        self._iterators.add(lasted)


class _MeteredIterator(StoreIterator[T]):
    """Calls closed() once: when it is closed or exhausted, or was dropped unclosed."""

    __slots__ = ("__weakref__", "_end")

    def __init__(self, rows: StoreIterator[T], closed: Callable[[], None]) -> None:
        super().__init__(rows)
        self._end = weakref.finalize(self, closed)
        self._end.atexit = False

    @override
    def __next__(self) -> T:
        try:
            return super().__next__()
        except StopIteration:
            self._end()
            raise

    @override
    def close(self) -> None:
        super().close()
        self._end()
