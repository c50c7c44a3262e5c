"""Aggregations of a stream per key and session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from penstock.kernel.nodes import Node
from penstock.kernel.window_nodes import CachedSessions, SessionAggregate

from ..context.store_interfaces import StoreKind
from ..records import Change, Headers, ValueAndTimestamp, Windowed
from ..stores.windows import SessionWindows
from .aggregate import Aggregator
from .counting import count_merger, counts
from .operator import NodeContext
from .table_rows import cached_rows, cached_store
from .table_store import Getter, KTableValueGetter, as_read, forwards_itself
from .windowed import WindowedAggregator


@dataclass(eq=False)
class KStreamSessionWindowAggregate(WindowedAggregator[SessionWindows]):
    """Aggregates values per key and session; a record merges the sessions that it connects.

    session_merger(key, one aggregate, other) -> aggregate. Records without a key are dropped. The timestamp of a result
    is the end of its session. Merged sessions are deleted.
    """

    session_merger: Aggregator

    @override
    def _getter(self, node: NodeContext) -> KTableValueGetter:
        def getter(fetch_session: Callable[[Any, int, int], Any]) -> Getter:
            def get(session: Any) -> ValueAndTimestamp | None:
                aggregate = fetch_session(session[0], session[1], session[2])
                return None if aggregate is None else ValueAndTimestamp(aggregate, session[2])

            return get

        store = node.store(self.store_name)
        return KTableValueGetter(getter(store.fetch_session), get_forwarded=getter(store.fetch_session_forwarded))

    @override
    def compile(self, node: NodeContext) -> Node:
        store = node.store(self.store_name)
        sessions = None if self.on_close else self._cached(node)
        compiled = SessionAggregate(
            node.task,
            node.name,
            node.child,
            self.initializer,
            self.aggregator,
            self.session_merger,
            sessions,
            store.find_sessions,
            self._compile_update(node) if sessions is None else None,
            as_read(store) if sessions is None and self.send_old_values else None,
            self._emitter(node, store.find_sessions_ending, False),
            self.windows.inactivity_gap_ms,
            self.windows.grace_ms,
            node.dropped,
        )
        node.remembers_time(compiled, "stream_time")
        node.on_time(compiled.advance_time)
        return compiled

    @override
    def _closing(self, last_close_time: int, close_time: int) -> tuple[int, int] | None:
        lower, upper = max(0, last_close_time), close_time - 1
        return None if 0 <= upper < lower else (lower, upper)

    def _cached(self, node: NodeContext) -> CachedSessions | None:
        """Return the sessions in a record cache, which then passes changes on; None if there is none."""
        store = None if node.notes_rows else cached_store(node, self.store_name, StoreKind.SESSION)
        if store is None or store.builder.keeps_headers:
            return None
        forwards_itself(node, store, self.send_old_values)
        cells = store.cells()
        rows = cached_rows(node, cells)
        only_counts = counts(self.initializer, self.aggregator) and self.session_merger is count_merger
        is_count = only_counts and cells.native is int
        return CachedSessions(rows.updates, cells.key_serde, cells.encode_key, cells.grown, is_count)

    def _compile_update(self, node: NodeContext) -> Any:
        """Return replace(session, value, aggregate, merged, timestamp, headers) for a store without a cache."""
        task, forward, aggregator = node.task, node.forward, self.aggregator
        store = node.store(self.store_name)
        put_held, remove, hold, read = store.put_held, store.remove, store.values.hold, store.values.read
        forwards = not self.on_close and forwards_itself(node, store, self.send_old_values)
        send_old = self.send_old_values

        def replace(
            session: Windowed, value: object, aggregate: object, merged: list[Any], timestamp: int, headers: Headers
        ) -> None:
            if session[1] != timestamp or session[2] != timestamp:
                for old_session, old in merged:
                    task.timestamp = timestamp
                    task.headers = headers
                    remove(old_session)
                    if forwards:
                        forward(old_session, Change(None, old if send_old else None), old_session[2], None)
            held = hold(aggregator(session[0], value, aggregate))
            task.timestamp = timestamp
            task.headers = headers
            put_held(session, held)
            if forwards:
                forward(session, Change(read(held), None), session[2], None)

        return replace
