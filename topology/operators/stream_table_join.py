"""Joins of a stream with a table or a global table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from penstock.kernel.nodes import Node
from penstock.kernel.table_nodes import StreamTableJoin

from ..common.user_functions import KeyValueMapper
from ..context.task_context import Process
from ..errors import StreamsError
from ..records import Headers, ProcessorRecordContext
from .operator import NodeContext, Operator
from .record_context import record_context, with_record_context
from .table_rows import row_getter
from .table_store import KTableValueGetterSupplier


@dataclass(eq=False)
class KStreamGlobalKTableJoin(Operator):
    """Joins each record with the row of a global table under mapper(key, value).

    joiner(left, right), or (key, left, right) with with_key; key is the stream's. With with_mapped_key (stream's key,
    mapped key, left, right) (KIP-1340). Records without value or, in an inner join, without mapped key are dropped.
    """

    value_getter_supplier: KTableValueGetterSupplier
    joiner: Callable[..., Any]
    mapper: KeyValueMapper
    left_join: bool
    with_key: bool = False
    with_mapped_key: bool = False

    @override
    def compile(self, node: NodeContext) -> Node:
        rows = row_getter(self.value_getter_supplier.compile(node))
        keys = 2 if self.with_mapped_key else int(self.with_key)
        join = node.task, node.name, node.child, self.joiner, keys, self.left_join, node.dropped
        return StreamTableJoin(*join, rows, None, self.mapper)


@dataclass(eq=False)
class KStreamKTableJoin(Operator):
    """Joins each record with its key's row; a versioned table is read as of the record's timestamp.

    joiner(left, right), or (key, left, right) with with_key. With grace_ms, records wait in the buffer store_name until
    stream time is more than grace_ms ahead of them (KIP-923). Records without a value or, in an inner join, without a
    key are dropped.
    """

    value_getter_supplier: KTableValueGetterSupplier
    joiner: Callable[..., Any]
    left_join: bool
    grace_ms: int | None = None
    store_name: str | None = None
    with_key: bool = False

    def __post_init__(self) -> None:
        self.reads_record_metadata = self.grace_ms is not None  # the buffer stores it

    @override
    def compile(self, node: NodeContext) -> Process | Node:
        getter = self.value_getter_supplier.compile(node)
        parts = node.task, node.name, node.child, self.joiner, int(self.with_key), self.left_join, node.dropped
        join = StreamTableJoin(*parts, row_getter(getter), getter.get_as_of, None)
        if self.grace_ms is None:
            return join
        if getter.get_as_of is None:
            raise StreamsError(f"KTable must be versioned to use a grace period in a stream table join ({node.name})")
        return self._buffered(node, node.own(join.receive))

    def _buffered(self, node: NodeContext, join: Process) -> Process:
        task, dropped, left_join = node.task, node.dropped, self.left_join
        buffer = node.store(str(self.store_name))
        stream_time = -1
        join_held = node.guarded(join)

        def emit(key: object, value: object, context: ProcessorRecordContext) -> None:
            with_record_context(task, context, join_held, key, value)

        def always() -> bool:
            return True

        def buffered_table_join(key: object, value: object, timestamp: int, headers: Headers) -> None:
            nonlocal stream_time
            stream_time = max(stream_time, timestamp)
            if value is None or (key is None and not left_join):
                dropped("null join key or value")
            elif buffer.put(stream_time, key, value, record_context(task, timestamp, headers)):
                buffer.evict_while(always, emit)
            else:
                join(key, value, timestamp, headers)

        def recall(value: int) -> None:
            nonlocal stream_time
            stream_time = value

        def advance(time_ms: int) -> None:
            nonlocal stream_time
            if time_ms > stream_time:
                stream_time = time_ms
                buffer.observe(time_ms)
                buffer.evict_while(always, emit)

        node.remembers(lambda: stream_time, recall)
        node.on_time(advance)
        return buffered_table_join
