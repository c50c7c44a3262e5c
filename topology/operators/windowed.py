"""Aggregations of a stream per key and time window: tumbling, hopping, unlimited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from typing_extensions import override

from penstock.kernel.cells import CalendarWindows as CalendarWindowStarts
from penstock.kernel.cells import TimeWindows as TimeWindowStarts
from penstock.kernel.nodes import Node
from penstock.kernel.table_nodes import Rows
from penstock.kernel.window_nodes import WindowAggregate

from ..context.store_interfaces import StoreKind
from ..context.task_context import Process
from ..errors import TopologyError
from ..records import Change, Headers, Windowed
from ..stores.windows import CalendarWindows, EmitStrategy, TimeWindows, Windows
from .aggregate import Aggregator, Initializer
from .counting import ReducerAsAggregator, counts
from .operator import NodeContext
from .table_operator import TableOperator
from .table_rows import cached_rows, cached_store, stored_window_rows
from .table_store import Getter, KTableValueGetter, KTableValueGetterSupplier, as_read, forwards_itself
from .window_close import NEVER, CloseEmitter

W = TypeVar("W")

#: The kernel computes with 64-bit integers.
LATE_MAX_MS = 1 << 61


@dataclass(eq=False)
class WindowedAggregator(TableOperator, Generic[W]):
    """Base of windowed aggregations: the window store, and when results are forwarded."""

    windows: W
    store_name: str
    emit_strategy: EmitStrategy
    initializer: Initializer
    aggregator: Aggregator

    @property
    def on_close(self) -> bool:
        """Whether only final results are forwarded."""
        return self.emit_strategy is EmitStrategy.ON_WINDOW_CLOSE

    @override
    def view(self) -> KTableValueGetterSupplier:
        return KTableValueGetterSupplier((self.store_name,), self._getter)

    def _getter(self, node: NodeContext) -> KTableValueGetter:
        def getter(fetch: Callable[[Any, int], Any]) -> Getter:
            return lambda windowed: fetch(windowed[0], windowed[1])

        store = node.store(self.store_name)
        return KTableValueGetter(getter(store.fetch), get_forwarded=getter(store.fetch_forwarded))


@dataclass(eq=False)
class KStreamWindowAggregate(WindowedAggregator[Windows]):
    """Aggregates values per key and window. A window accepts records until its grace period has passed.

    initializer() -> aggregate; aggregator(key, value, aggregate) -> aggregate, which it may change in place. Records
    without a key are dropped, those without a value are aggregated. A result carries the highest timestamp of its
    window.
    """

    def __post_init__(self) -> None:
        if self.on_close and not hasattr(self.windows, "advance_ms"):
            raise TopologyError(
                "ON_WINDOW_CLOSE strategy is only supported for TimeWindows and SlidingWindows for "
                "TimeWindowedKStream; use suppress(Suppressed.until_window_closes()) for other windows"
            )

    @override
    def compile(self, node: NodeContext) -> Process | Node:
        update = self._compile_update(node)
        compiled = self._compiled(node)
        if compiled is not None:
            return compiled
        dropped, windows, grace_ms = node.dropped, self.windows, self.windows.grace_ms
        emitter = CloseEmitter(node, self.store_name, self._closing) if self.on_close else None
        windows_for = windows.windows_for
        observed = self.observed(node)

        def aggregate(key: object, value: object, timestamp: int, headers: Headers) -> None:
            if key is None:
                dropped("null key")
                return
            if timestamp > observed[0]:
                observed[0] = timestamp
            close_time = observed[0] - grace_ms
            for start, (_, end) in windows_for(timestamp).items():
                if end > close_time:
                    update(key, value, timestamp, headers, start, end)
                else:
                    dropped("expired window")
            if emitter is not None:
                emitter.emit(close_time, headers)

        return aggregate

    def _closing(self, last_close_time: int, close_time: int) -> tuple[int, int] | None:
        size, windows_for = self.windows.size_ms, self.windows.windows_for
        upper = close_time - size
        if last_close_time == NEVER:
            return 0, upper
        lower = max(0, last_close_time - size) + 1
        return None if windows_for(upper) == windows_for(lower - 1) else (lower, upper)

    def observed(self, node: NodeContext) -> list[int]:
        """Return the one-element list with the highest timestamp (ms) that this node has seen, -1 before the first."""
        observed = [-1]
        node.remembers(lambda: observed[0], lambda value: observed.__setitem__(0, value))
        return observed

    def _compiled(self, node: NodeContext) -> Node | None:
        """Return the kernel's node if it knows the windows, and the store is cached or can be written in C."""
        rows = None if self.on_close else self._rows(node)
        windows = None if rows is None else self._starts(node)
        if rows is None or windows is None:
            return None
        is_count = counts(self.initializer, self.aggregator) and rows.counts
        initializer: Initializer | None = self.initializer
        aggregator: Callable[..., Any] = self.aggregator
        if isinstance(aggregator, ReducerAsAggregator):
            initializer, aggregator = None, aggregator.reducer
        return WindowAggregate(
            node.task, node.name, node.child, rows, node.dropped, windows, initializer, aggregator, is_count
        )

    def _starts(self, node: NodeContext) -> TimeWindowStarts | None:
        """Return the kernel's windows; None for a user's own kind of windows, and for those that may never close."""
        windows = self.windows
        if type(windows) is CalendarWindows and windows.grace_ms <= LATE_MAX_MS:
            return CalendarWindowStarts(self.observed(node), windows.window_of, windows.grace_ms)
        late_ms = windows.grace_ms + windows.size_ms
        if type(windows) is not TimeWindows or late_ms > LATE_MAX_MS:
            return None
        return TimeWindowStarts(self.observed(node), windows.size_ms, windows.advance_ms, late_ms)

    def _rows(self, node: NodeContext) -> Rows | None:
        """Return the rows in the cache or the write buffer; None if an update of them needs the store itself."""
        if node.notes_rows:
            return None
        cached = cached_store(node, self.store_name, StoreKind.TIMESTAMPED_WINDOW)
        if cached is not None:
            return cached_rows(node, cached.cells())
        return None if self.send_old_values else stored_window_rows(node, self.store_name)

    def _compile_update(self, node: NodeContext) -> Any:
        """Return update(key, value, timestamp, headers, start, end), which aggregates a record into one window."""
        initializer, aggregator = self.initializer, self.aggregator
        store = node.store(self.store_name)
        fetch, copy = store.fetch, as_read(store)
        put, wants_old = window_updater(node, store, self.send_old_values, self.on_close)

        def update(key: object, value: object, timestamp: int, headers: Headers, start: int, end: int) -> None:
            row, sent_old = fetch(key, start), None
            if row is None:
                old, newest = initializer(), timestamp
                if wants_old:
                    sent_old = initializer()
            else:
                old, newest = row
                if timestamp > newest:
                    newest = timestamp
                if wants_old:
                    sent_old = copy(old)  # the aggregator may change its argument in place
            new = aggregator(key, value, old)
            put(Windowed(key, start, end), new, sent_old, newest, timestamp, headers)

        return update


def window_updater(
    node: NodeContext, store: Any, send_old_values: bool, on_close: bool
) -> tuple[Callable[[Windowed, Any, Any, int, int, Headers], None], bool]:
    """As TableStore.updater, for a window store, whose keys are windowed."""
    task, forward, put_held = node.task, node.forward, store.put_held
    hold, read = store.values.hold_plain, store.values.read_plain
    forwards = not on_close and forwards_itself(node, store, send_old_values)

    def update(window: Windowed, new: object, old: object, newest: int, timestamp: int, headers: Headers) -> None:
        held = None if new is None else hold(new)
        task.timestamp = timestamp
        task.headers = headers
        put_held(window[0], None if held is None else (held, newest), window[1])
        if forwards:
            forward(window, Change(None if held is None else read(held), old), newest, headers)

    return update, send_old_values and forwards
