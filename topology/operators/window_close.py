"""Emitting the final results of windows that have closed (KIP-825)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import perf_counter

from penstock.kernel.window_nodes import CloseEmitter

from ..context.tallies import Tallies, average_and_maximum, rate_and_total
from .operator import NodeContext

#: Minimum wall-clock time between two emissions, in ms (Kafka Streams' internal configuration).
EMIT_INTERVAL_KEY = "__emit.interval.ms.kstreams.windowed.aggregation__"
EMIT_INTERVAL_MS = 1000

#: Its metrics: emitted records, and the time of an emission in ms.
EMIT = "window-aggregate-final-emit"

#: The last close time before the first emission (Kafka: ConsumerRecord.NO_TIMESTAMP).
NEVER = -1


def close_emitter(
    node: NodeContext,
    store_name: str,
    closing: Callable[[int, int], tuple[int, int] | None],
    fetch: Callable[[int, int], Iterable[tuple[object, object]]],
    timestamped: bool,
) -> CloseEmitter:
    """Return what passes on the windows of a store as they close.

    closing: see WindowedAggregator. fetch(first, last): the rows of these times, (windowed key, row). timestamped:
    whether a row has a timestamp; that of a session is its end.
    """
    task = node.task
    interval_ms = task.config.get(EMIT_INTERVAL_KEY, EMIT_INTERVAL_MS)
    if task.tallies is not None:
        fetch = _measured(fetch, node.name, task.tallies)
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


def _measured(
    fetch: Callable[[int, int], Iterable[tuple[object, object]]], name: str, tallies: Tallies
) -> Callable[[int, int], Iterator[tuple[object, object]]]:
    """Return fetch, which counts the rows and times the work on all of them, up to the request for the next one."""
    emitted = tallies.of_node(name, rate_and_total(EMIT))
    latency = tallies.of_node(name, average_and_maximum(f"{EMIT}-latency"))

    def measured(first: int, last: int) -> Iterator[tuple[object, object]]:
        began = perf_counter()
        for row in fetch(first, last):
            yield row
            emitted.add(1)
        latency.add((perf_counter() - began) * 1000)

    return measured
