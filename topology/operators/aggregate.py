"""Aggregations of a stream per key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ..context.store_interfaces import StoreKind
from ..context.task_context import Process
from ..records import Headers
from .fused_cells import cached_store
from .fused_update import FusedUpdate
from .operator import NodeContext
from .table_operator import StoredTable
from .table_store import TableStore

if TYPE_CHECKING:
    from ..run.fusion import LoopCode, Names

Initializer = Callable[[], Any]
Aggregator = Callable[[Any, Any, Any], Any]
Reducer = Callable[[Any, Any], Any]


class KStreamAggregator(StoredTable):
    """What KStreamAggregate and KStreamReduce share."""

    @override
    def flushed_store(self, node: NodeContext) -> Any:
        return cached_store(node, self.store_name, StoreKind.TIMESTAMPED_KEY_VALUE)

    @override
    def fuse(self, code: LoopCode, names: Names) -> bool:
        """Fuse over a cached store, or one whose rows a loop can write itself."""
        update = self.fused_update(code, names, self.store_name)
        if update is None:
            return False
        with code.block(f"if {names.held_key} is None or {names.value} is None:"):
            code.drop("null key or value")
        with code.block("else:"):
            self.write_update(update, names)
        return True

    @abstractmethod
    def write_update(self, update: FusedUpdate, names: Names) -> None:
        """Write how a record changes the row of its key."""


class KStreamAggregate(KStreamAggregator):
    """Aggregates values per key: initializer() -> aggregate; aggregator(key, value, aggregate) -> aggregate.

    The aggregator may change the aggregate in place and return it; None deletes it. Records without key or value are
    dropped. A result carries the highest timestamp of its key.
    """

    def __init__(self, store_name: str, initializer: Initializer, aggregator: Aggregator) -> None:
        super().__init__(store_name)
        self.initializer = initializer
        self.aggregator = aggregator

    @override
    def compile(self, node: NodeContext) -> Process:
        dropped, initializer, aggregator = node.dropped, self.initializer, self.aggregator
        store = TableStore(node, self.store_name)
        get, as_read = store.get, store.as_read
        update, wants_old = store.updater(node, self.send_old_values)

        def aggregate(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if key is None or value is None:
                dropped("null key or value")
                return
            row, sent_old = get(key), None
            if row is None:
                old, newest = initializer(), timestamp
                if wants_old:
                    sent_old = initializer()
            else:
                old, newest = row
                if timestamp > newest:
                    newest = timestamp
                if wants_old:
                    sent_old = as_read(old)  # the aggregator may change its own in place
            update(key, aggregator(key, value, old), sent_old, newest, timestamp, headers)

        return aggregate

    @override
    def write_update(self, update: FusedUpdate, names: Names) -> None:
        update.aggregate(self.initializer, self.aggregator, names)


class KStreamReduce(KStreamAggregator):
    """Reduces values per key: reducer(aggregate, value) -> aggregate; the first value is the first aggregate."""

    def __init__(self, store_name: str, reducer: Reducer) -> None:
        super().__init__(store_name)
        self.reducer = reducer

    @override
    def compile(self, node: NodeContext) -> Process:
        dropped, reducer = node.dropped, self.reducer
        store = TableStore(node, self.store_name)
        get, as_read = store.get, store.as_read
        update, wants_old = store.updater(node, self.send_old_values)

        def reduce(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if key is None or value is None:
                dropped("null key or value")
                return
            row = get(key)
            if row is None:
                update(key, value, None, timestamp, timestamp, headers)
                return
            old, newest = row
            if timestamp > newest:
                newest = timestamp
            sent_old = as_read(old) if wants_old else None  # the reducer may change its own in place
            update(key, reducer(old, value), sent_old, newest, timestamp, headers)

        return reduce

    @override
    def write_update(self, update: FusedUpdate, names: Names) -> None:
        update.reduce(self.reducer, names)
