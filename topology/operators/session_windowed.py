"""Aggregations of a stream per key and session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from ..context.task_context import Process
from ..records import Change, Headers, ValueAndTimestamp, Windowed
from ..stores.windows import SessionWindows
from .aggregate import Aggregator
from .operator import NodeContext
from .table_store import Getter, KTableValueGetter, as_read, forwards_itself, new_row
from .window_close import CloseEmitter
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
    def compile(self, node: NodeContext) -> Process:
        dropped, gap, grace_ms = node.dropped, self.windows.inactivity_gap_ms, self.windows.grace_ms
        initializer, merger, find_sessions = (
            self.initializer,
            self.session_merger,
            node.store(self.store_name).find_sessions,
        )
        update = self._compile_update(node)
        emitter = _SessionEmitter(node, self.store_name, _closing_ends) if self.on_close else None
        send_old, stream_time, copy = self.send_old_values, -1, as_read(node.store(self.store_name))

        def aggregate(key: object, value: object, timestamp: int, headers: Headers) -> None:
            nonlocal stream_time
            if key is None:
                dropped("null key")
                return
            if timestamp > stream_time:
                stream_time = timestamp
            close_time = stream_time - grace_ms - gap
            start = end = timestamp
            replaced = merged = find_sessions(key, timestamp - gap, timestamp + gap)
            aggregate = initializer()
            if merged:
                if send_old:  # the merger may change its arguments in place
                    replaced = [(session, copy(old)) for session, old in merged]
                for (_, session_start, session_end), session_aggregate in merged:
                    aggregate = merger(key, aggregate, session_aggregate)
                    start, end = min(start, session_start), max(end, session_end)
            if end < close_time:
                dropped("expired window")
            else:
                update(new_row(Windowed, (key, start, end)), value, aggregate, replaced, timestamp, headers)
            if emitter is not None:
                emitter.emit(close_time, headers)

        def recall(value: int) -> None:
            nonlocal stream_time
            stream_time = value

        node.remembers(lambda: stream_time, recall)
        return aggregate

    def _compile_update(self, node: NodeContext) -> Any:
        """Return update(session, value, aggregate, merged, timestamp, headers), which replaces merged sessions."""
        task, forward, aggregator = node.task, node.forward, self.aggregator
        store = node.store(self.store_name)
        put_held, remove, hold, read = store.put_held, store.remove, store.values.hold, store.values.read
        forwards = not self.on_close and forwards_itself(node, store, self.send_old_values)
        send_old = self.send_old_values

        def update(
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

        return update


def _closing_ends(last_close_time: int, close_time: int) -> tuple[int, int] | None:
    """Return the first and last end of the sessions that close between two close times."""
    lower, upper = max(0, last_close_time), close_time - 1
    return None if 0 <= upper < lower else (lower, upper)


class _SessionEmitter(CloseEmitter):
    """Forwards sessions as they close, with their ends as timestamps."""

    @override
    def results(self, first: int, last: int) -> Iterator[tuple[Any, Any, int]]:
        for session, aggregate in self.store.find_sessions_ending(first, last):
            yield session, aggregate, session[2]
