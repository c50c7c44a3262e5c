"""Aggregations of a stream per key and session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from penstock.kernel.nodes import Node
from penstock.kernel.window_nodes import SessionAggregate

from ..common.user_functions import Aggregator
from ..records import ValueAndTimestamp
from ..stores.windows import SessionWindows
from .counting import count_merger, counts
from .operator import NodeContext
from .table_rows import session_rows_of
from .table_store import Getter, KTableValueGetter
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
        is_count = counts(self.initializer, self.aggregator) and self.session_merger is count_merger
        rows = session_rows_of(node, self.store_name, self.send_old_values, self.on_close)
        emitter = self._emitter(node, store.find_sessions_ending, False)
        compiled = SessionAggregate(
            node.task,
            node.name,
            node.child if emitter is None else None,
            self.initializer,
            self.aggregator,
            self.session_merger,
            is_count,
            rows,
            store.find_sessions,
            emitter,
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
