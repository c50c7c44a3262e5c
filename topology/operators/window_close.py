"""Emitting the final results of windows that have closed (KIP-825)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from ..records import Change, Headers
from .operator import NodeContext

#: Least wall-clock time between two emissions, in ms (Kafka Streams' internal configuration).
EMIT_INTERVAL_KEY = "__emit.interval.ms.kstreams.windowed.aggregation__"
EMIT_INTERVAL_MS = 1000

#: There was no emission yet (Kafka: ConsumerRecord.NO_TIMESTAMP).
NEVER = -1


class EmitRange(ABC):
    """Which windows are final at a close time and were not at an earlier one."""

    @abstractmethod
    def starts(self, last_close_time: int, close_time: int) -> tuple[int, int] | None:
        """Return the first and last start (for sessions: end) of such windows, None if there cannot be any.

        last_close_time is NEVER before the first emission.
        """


class EmitThrottle:
    """Lets something happen at most once in an interval of the wall clock."""

    def __init__(self, node: NodeContext) -> None:
        self.wall_clock_ms = node.task.wall_clock_ms
        self.interval_ms: int = node.task.config.get(EMIT_INTERVAL_KEY, EMIT_INTERVAL_MS)
        self.next_time_to_emit = 0
        node.remembers(lambda: self.next_time_to_emit, lambda value: setattr(self, "next_time_to_emit", value))

    def due(self) -> bool:
        """Return whether the interval has passed; if so, the next one begins."""
        now = self.wall_clock_ms()
        if now < self.next_time_to_emit:
            return False
        self.next_time_to_emit = now + self.interval_ms
        return True


class CloseEmitter:
    """Forwards the windows of one store as they close (Kafka Streams: AbstractKStreamTimeWindowAggregateProcessor).

    How far it came is kept in the task's processor metadata, which is committed with the offsets: after a restart no
    result is sent again.
    """

    def __init__(self, node: NodeContext, store_name: str, emit_range: EmitRange) -> None:
        self.forward = node.forward
        self.store = node.store(store_name)
        self.store_name = store_name
        self.emit_range = emit_range
        self.throttle = EmitThrottle(node)
        self.metadata = node.task.processor_metadata
        self.last_close_time = self.metadata.get(store_name, NEVER)

    def emit(self, close_time: int, headers: Headers) -> None:
        """Forward what has closed; headers are those of the record that moved stream time."""
        last = self.last_close_time
        if not self.throttle.due() or (last != NEVER and last >= close_time):
            return
        found = self.emit_range.starts(last, close_time)
        if found is None or found[1] < 0:
            return
        for windowed, value, timestamp in self.results(*found):
            self.forward(windowed, Change(value, None), timestamp, headers)
        self.last_close_time = close_time
        self.metadata[self.store_name] = close_time

    def results(self, first: int, last: int) -> Iterator[tuple[Any, Any, int]]:
        """Yield (windowed key, value, timestamp) of the windows that start from first to last."""
        for windowed, (value, timestamp) in self.store.fetch_all(first, last):
            yield windowed, value, timestamp
