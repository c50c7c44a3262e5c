"""Emitting the final results of windows that have closed (KIP-825)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.kernel.window_nodes import CloseEmitter

from .operator import NodeContext

#: Minimum wall-clock time between two emissions, in ms (Kafka Streams' internal configuration).
EMIT_INTERVAL_KEY = "__emit.interval.ms.kstreams.windowed.aggregation__"
EMIT_INTERVAL_MS = 1000

#: The last close time before the first emission (Kafka: ConsumerRecord.NO_TIMESTAMP).
NEVER = -1


def close_emitter(
    node: NodeContext,
    store_name: str,
    closing: Callable[[int, int], tuple[int, int] | None],
    fetch: Callable[[int, int], Iterable[tuple[Any, Any]]],
    timestamped: bool,
) -> CloseEmitter:
    """Return what passes on the windows of a store as they close.

    closing: see WindowedAggregator. fetch(first, last): the rows of these times, (windowed key, row). timestamped:
    whether a row has a timestamp; that of a session is its end.
    """
    task = node.task
    interval_ms = task.config.get(EMIT_INTERVAL_KEY, EMIT_INTERVAL_MS)
    emitter = CloseEmitter(
        task,
        node.name,
        node.child,
        store_name,
        closing,
        fetch,
        timestamped,
        task.processor_metadata,
        task.wall_clock_ms,
        interval_ms,
    )
    node.remembers_time(emitter, "next_time_to_emit")
    return emitter
