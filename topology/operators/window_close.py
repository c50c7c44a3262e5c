"""Emitting the final results of windows that have closed (KIP-825)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..records import Change, Headers
from .operator import NodeContext

#: Minimum wall-clock time between two emissions, in ms (Kafka Streams' internal configuration).
EMIT_INTERVAL_KEY = "__emit.interval.ms.kstreams.windowed.aggregation__"
EMIT_INTERVAL_MS = 1000

#: The last close time before the first emission (Kafka: ConsumerRecord.NO_TIMESTAMP).
NEVER = -1


#: starts(last close time, close time): the first and last start (sessions: end) of the windows that have closed since
#: the last close time; None if there cannot be any.
Starts = Callable[[int, int], tuple[int, int] | None]


class CloseEmitter:
    """Forwards the windows of one store as they close (Kafka Streams: AbstractKStreamTimeWindowAggregateProcessor).

    The last close time is kept in the task's processor metadata, which is committed with the offsets, so that no result
    is emitted again after a restart.
    """

    def __init__(self, node: NodeContext, store_name: str, starts: Starts) -> None:
        self.forward = node.forward
        self.store = node.store(store_name)
        self.store_name = store_name
        self.starts = starts
        self.metadata = node.task.processor_metadata
        self.last_close_time = self.metadata.get(store_name, NEVER)
        self.wall_clock_ms = node.task.wall_clock_ms
        self.interval_ms: int = node.task.config.get(EMIT_INTERVAL_KEY, EMIT_INTERVAL_MS)
        self.next_time_to_emit = 0
        node.remembers(lambda: self.next_time_to_emit, lambda value: setattr(self, "next_time_to_emit", value))

    def emit(self, close_time: int, headers: Headers) -> None:
        """Forward the windows that have closed. headers: those of the record that advanced stream time."""
        last, now = self.last_close_time, self.wall_clock_ms()
        if now < self.next_time_to_emit:
            return
        self.next_time_to_emit = now + self.interval_ms
        if last != NEVER and last >= close_time:
            return
        found = self.starts(last, close_time)
        if found is None or found[1] < 0:
            return
        for windowed, value, timestamp in self.results(*found):
            self.forward(windowed, Change(value, None), timestamp, headers)
        self.last_close_time = close_time
        self.metadata[self.store_name] = close_time

    def results(self, first: int, last: int) -> Iterator[tuple[Any, Any, int]]:
        """Yield (windowed key, value, timestamp) of the windows whose start is between first and last."""
        for windowed, (value, timestamp) in self.store.fetch_all(first, last):
            yield windowed, value, timestamp
