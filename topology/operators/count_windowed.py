"""Aggregations of a stream per key and number of records."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from ..common.user_functions import Aggregator, Initializer
from ..context.task_context import Process
from ..records import Headers, ValueAndTimestamp, Windowed
from ..serdes.count_windows_serde import CountWindow
from ..stores.windows import CountWindows
from .operator import NodeContext, Operator


@dataclass(eq=False)
class KStreamCountWindowAggregate(Operator):
    """Aggregates values per key and window of a number of records, and forwards the aggregate of a full window.

    Records without key or value are dropped. The store has the windows of a key that are not full yet. A result has the
    window from the smallest to the largest timestamp of its records, and the latter as its timestamp.
    """

    windows: CountWindows
    store_name: str
    initializer: Initializer
    aggregator: Aggregator

    @override
    def compile(self, node: NodeContext) -> Process:
        task, store, forward = node.task, node.store(self.store_name), node.forward
        size, advance = self.windows.size, self.windows.advance
        initializer, aggregator = self.initializer, self.aggregator

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            if key is None or value is None:
                node.dropped("null key or value")
                return
            task.timestamp = timestamp
            row = store.get(key)
            windows = [] if row is None else row.value
            if not windows or windows[-1].records == advance:
                windows.append(CountWindow(0, timestamp, timestamp, initializer()))
            updated = [
                CountWindow(
                    window.records + 1,
                    min(window.start, timestamp),
                    max(window.end, timestamp),
                    aggregator(key, value, window.aggregate),
                )
                for window in windows
            ]
            full = updated.pop(0) if updated[0].records == size else None
            store.put(key, ValueAndTimestamp(updated, timestamp) if updated else None)
            if full is not None:
                forward(Windowed(key, full.start, full.end), full.aggregate, full.end, headers)

        return process
