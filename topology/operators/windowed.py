"""Aggregations of a stream per key and time window: tumbling, hopping, unlimited."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from typing_extensions import override

from penstock.kernel.nodes import Node
from penstock.kernel.window_nodes import CalendarWindows as CompiledCalendar
from penstock.kernel.window_nodes import CloseEmitter, WindowAggregate, WindowedAggregate
from penstock.kernel.window_nodes import TimeWindows as FixedWindows

from ..common.user_functions import Aggregator, Initializer
from ..errors import TopologyError
from ..records import Window
from ..stores.windows import CalendarWindows, EmitStrategy, TimeWindows, Windows
from .counting import ReducerAsAggregator, counts
from .operator import NodeContext
from .table_operator import TableOperator
from .table_rows import window_rows_of
from .table_store import Getter, KTableValueGetter, KTableValueGetterSupplier
from .window_close import NEVER, close_emitter

W = TypeVar("W")
N = TypeVar("N", bound=WindowedAggregate)


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

    def _made(self, kind: Callable[..., N], node: NodeContext, *more: object) -> N:
        """Return a WindowedAggregate of this kind."""
        rows = window_rows_of(node, self.store_name, self.send_old_values, self.on_close)
        is_count = counts(self.initializer, self.aggregator) and rows.counts
        initializer: Initializer | None = self.initializer
        aggregator: Callable[..., object] = self.aggregator
        if isinstance(aggregator, ReducerAsAggregator):
            initializer, aggregator = None, aggregator.reducer
        emitter = self._emitter(node, node.store(self.store_name).fetch_all, True)
        child = node.child if emitter is None else None
        return kind(node.task, node.name, child, rows, node.dropped, initializer, aggregator, is_count, emitter, *more)

    def _emitter(
        self, node: NodeContext, fetch: Callable[[int, int], Iterable[tuple[object, object]]], timestamped: bool
    ) -> CloseEmitter | None:
        """Return what passes windows on as they close; None if their updates are forwarded. See close_emitter."""
        return close_emitter(node, self.store_name, self._closing, fetch, timestamped) if self.on_close else None

    @abstractmethod
    def _closing(self, last_close_time: int, close_time: int) -> tuple[int, int] | None:
        """Return the first and the last start (sessions: end) of the windows that close between two close times.

        None if there cannot be any.
        """


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
    def compile(self, node: NodeContext) -> Node:
        given = self.windows
        if type(given) is TimeWindows:
            windows = FixedWindows(given.size_ms, given.advance_ms, given.grace_ms)
        elif type(given) is CalendarWindows:
            windows = CompiledCalendar(given.window_of, given.grace_ms)
        else:
            windows = OtherWindows(given)
        compiled = self._made(WindowAggregate, node, windows)
        node.remembers_time(windows, "stream_time")
        node.on_time(compiled.advance_time)
        return compiled

    @override
    def _closing(self, last_close_time: int, close_time: int) -> tuple[int, int] | None:
        size, windows_for = self.windows.size_ms, self.windows.windows_for
        upper = close_time - size
        if last_close_time == NEVER:
            return 0, upper
        lower = max(0, last_close_time - size) + 1
        return None if windows_for(upper) == windows_for(lower - 1) else (lower, upper)


class OtherWindows(FixedWindows):
    """The windows of a timestamp of any other kind: without an end, or of a user's own class."""

    def __init__(self, windows: Windows) -> None:
        super().__init__(windows.size_ms, windows.size_ms, windows.grace_ms)
        self._windows_for = windows.windows_for
        self._found: Mapping[int, Window] = {}

    @override
    def starts(self, timestamp: int) -> list[int | None]:
        self.stream_time = max(self.stream_time, timestamp)
        close_time = self.stream_time - self.grace_ms
        self._found = self._windows_for(timestamp)
        return [start if end > close_time else None for start, (_, end) in self._found.items()]

    @override
    def end(self, start: int) -> int:
        return self._found[start][1]
