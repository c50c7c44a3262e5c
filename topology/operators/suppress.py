"""Suppression of intermediate updates (KIP-328)."""

from __future__ import annotations

from typing import Any, NamedTuple

from typing_extensions import override

from penstock.kernel.nodes import Node
from penstock.kernel.window_nodes import Suppress

from ..context.tallies import rate_and_total
from ..errors import StreamsError
from ..records import Change, Headers, ProcessorRecordContext, ValueAndTimestamp
from ..serdes.windowed_serdes import WindowedSerde
from .operator import NodeContext
from .record_context import record_context, with_record_context
from .table_operator import TableOperator
from .table_store import NO_TIMESTAMP, Getter, KTableValueGetter, KTableValueGetterSupplier, Table


class SuppressedInternal(NamedTuple):
    """A Suppressed, resolved for its table. A limit of None means no limit."""

    time_to_wait_ms: int
    until_window_closes: bool
    max_records: int | None
    max_bytes: int | None
    emit_early_when_full: bool


class KTableSuppressProcessor(TableOperator):
    """Holds updates back until their window closes or their time limit has passed.

    store_name: the buffer. A key keeps the time of its first update in the buffer. Raises StreamsError if the buffer is
    full and must not emit early.
    """

    reads_record_metadata = True

    def __init__(self, suppressed: SuppressedInternal, store_name: str, parent: Table) -> None:
        self.suppressed = suppressed
        self.store_name = store_name
        self.parent = parent
        parent.enable_sending_old_values(True)

    @override
    def enable_sending_old_values(self, force_materialization: bool) -> bool:
        return self.parent.enable_sending_old_values(force_materialization)

    @override
    def view(self) -> KTableValueGetterSupplier:
        """Return how the suppressed table is read: without the updates that are still held back."""
        parent = self.parent.value_getter_supplier()

        def compile_getter(node: NodeContext) -> KTableValueGetter:
            prior_value_for_buffered = node.store(self.store_name).prior_value_for_buffered

            def getter(get_parent: Getter) -> Getter:
                def get(key: object) -> ValueAndTimestamp | None:
                    prior = prior_value_for_buffered(key)
                    if prior is None:
                        return get_parent(key)
                    return None if prior[0] is None else ValueAndTimestamp(prior[0], NO_TIMESTAMP)

                return get

            table = parent.compile(node)
            return KTableValueGetter(getter(table.get), get_forwarded=getter(table.get_forwarded))

        return KTableValueGetterSupplier((self.store_name, *parent.store_names), compile_getter)

    @override
    def compile(self, node: NodeContext) -> Node:
        task, forward = node.task, node.guarded(node.forward)
        wait_ms = self.suppressed.time_to_wait_ms
        until_window_closes = self.suppressed.until_window_closes
        buffer = node.store(self.store_name)
        put, evict_until, encode_key = buffer.put_row, buffer.evict_until, buffer.serdes.encode_key
        make_room = self._make_room(node, buffer)
        stream_time = -1

        tally = None if task.tallies is None else task.tallies.of_node(node.name, rate_and_total("suppression-emit"))

        def emit(key: object, change: Change, context: ProcessorRecordContext) -> None:
            if change[0] is not None or not until_window_closes:
                with_record_context(task, context, forward, key, change)
                if tally is not None:
                    tally.add(1)

        def suppress_row(
            row_key: bytes, buffer_time: int, new: object, old: object, timestamp: int, headers: Headers
        ) -> None:
            nonlocal stream_time
            put(buffer_time, row_key, new, old, record_context(task, timestamp, headers))
            if timestamp > stream_time:
                stream_time = timestamp
                evict_until(timestamp - wait_ms, emit)
            elif buffer_time <= stream_time - wait_ms:
                evict_until(stream_time - wait_ms, emit)
            if make_room is not None:
                make_room(emit)

        def recall(value: int) -> None:
            nonlocal stream_time
            stream_time = value

        def advance(time_ms: int) -> None:
            nonlocal stream_time
            if time_ms > stream_time:
                stream_time = time_ms
                evict_until(time_ms - wait_ms, emit)

        node.remembers(lambda: stream_time, recall)
        node.on_time(advance)
        serde = buffer.serdes.key_serde
        inner, times_size = (serde.inner, serde.times_size) if isinstance(serde, WindowedSerde) else (None, 0)
        return Suppress(node.task, node.name, suppress_row, until_window_closes, serde, inner, times_size, encode_key)

    def _make_room(self, node: NodeContext, buffer: Any) -> Any:
        """Return a function that emits early, or raises, while the buffer exceeds its limits; None without limits."""
        name = node.name
        max_records = self.suppressed.max_records
        max_bytes = self.suppressed.max_bytes
        if max_records is None and max_bytes is None:
            return None
        emits_early = self.suppressed.emit_early_when_full

        def over_capacity() -> bool:
            return (max_records is not None and buffer.num_records() > max_records) or (
                max_bytes is not None and buffer.buffer_size() > max_bytes
            )

        def make_room(emit: Any) -> None:
            if not over_capacity():
                return
            if not emits_early:
                raise StreamsError(
                    f"{name} buffer exceeded its max capacity. Currently "
                    f"[{buffer.num_records()}/{_shown(max_records)}] records and "
                    f"[{buffer.buffer_size()}/{_shown(max_bytes)}] bytes."
                )
            buffer.evict_while(over_capacity, emit)

        return make_room


def _shown(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)
