"""Aggregations of a stream per key and sliding window (KIP-450)."""

from __future__ import annotations

from typing import NoReturn

from typing_extensions import override

from penstock.kernel.nodes import Node
from penstock.kernel.window_nodes import SlidingWindowAggregate

from ..errors import StreamsError
from ..stores.windows import SlidingWindows
from .operator import NodeContext
from .table_store import as_read
from .window_close import NEVER
from .windowed import WindowedAggregator


class KStreamSlidingWindowAggregate(WindowedAggregator[SlidingWindows]):
    """Aggregates values per key and sliding window. Records without key or value are dropped."""

    @override
    def compile(self, node: NodeContext) -> Node:
        def refuse() -> NoReturn:
            raise StreamsError(
                f"Window end must be greater than window start ({node.name}): sliding windows need a time "
                "difference of at least 1 ms"
            )

        store, windows = node.store(self.store_name), self.windows
        copy = None if store.values.exact else as_read(store)
        times = windows.time_difference_ms, windows.grace_ms
        compiled = self._made(SlidingWindowAggregate, node, store.fetch_range, copy, refuse, *times)
        node.remembers_time(compiled, "stream_time")
        node.on_time(compiled.advance_time)
        return compiled

    @override
    def _closing(self, last_close_time: int, close_time: int) -> tuple[int, int]:
        difference = self.windows.time_difference_ms
        lower = 0 if last_close_time == NEVER else max(0, last_close_time - difference)
        return lower, close_time - difference - 1
