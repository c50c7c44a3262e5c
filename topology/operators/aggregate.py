"""Aggregations of streams and of grouped tables, and the operator that feeds a grouped table's repartition topic."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from ..config.upgrade_from import has_members_before
from ..context.store_interfaces import StoreKind
from ..context.task_context import Process
from ..errors import StreamsError
from ..records import Change, Headers
from .fused_cells import cached_store
from .fused_update import FusedUpdate
from .operator import NodeContext, Operator
from .stateless import check_pair
from .table_operator import StoredTable
from .table_store import TableStore, new_row

if TYPE_CHECKING:
    from ..run.fusion import LoopCode, Names

Initializer = Callable[[], Any]
Aggregator = Callable[[Any, Any, Any], Any]
Reducer = Callable[[Any, Any], Any]


#: First version that can read an update with both the old and the new value; older ones need two records (KIP-904).
_COMBINED_UPDATES_SINCE = (3, 5)


class KStreamAggregator(StoredTable):
    """Base of KStreamAggregate and KStreamReduce."""

    @override
    def flushed_store(self, node: NodeContext) -> Any:
        return cached_store(node, self.store_name, StoreKind.TIMESTAMPED_KEY_VALUE)

    @override
    def fuse(self, code: LoopCode, names: Names) -> bool:
        """Fuse if the store is cached or if the loop can write its rows itself."""
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
        """Generate the update of the row of a record's key."""


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
                    sent_old = as_read(old)  # the aggregator may change its argument in place
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
            sent_old = as_read(old) if wants_old else None  # the reducer may change its argument in place
            update(key, reducer(old, value), sent_old, newest, timestamp, headers)

        return reduce

    @override
    def write_update(self, update: FusedUpdate, names: Names) -> None:
        update.reduce(self.reducer, names)


class KTableRepartitionMap(Operator):
    """Maps the old and the new value of an update: mapper(key, value) -> (group key, value).

    Forwards one update if both have the same group key, otherwise a removal and then an addition. Pairs without a key
    or value are skipped.
    """

    def __init__(self, mapper: Callable[[Any, Any], tuple[Any, Any]]) -> None:
        self.mapper = mapper
        #: Skip out-of-order updates of a versioned table (KIP-914).
        self.use_versioned_semantics = False

    @override
    def compile(self, node: NodeContext) -> Process:
        forward, name, use_versioned_semantics = node.forward, node.name, self.use_versioned_semantics
        combined = not has_members_before(node.task.config, _COMBINED_UPDATES_SINCE)
        pair_of = _pair_function(name, self.mapper)

        def repartition_map(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
            if key is None:
                raise StreamsError(f"Record key for the grouping KTable should not be null (operator {name})")
            new, old, is_latest = change
            if use_versioned_semantics and not is_latest:
                return
            new_pair, old_pair = pair_of(key, new), pair_of(key, old)
            if combined and new_pair is not None and old_pair is not None and new_pair[0] == old_pair[0]:
                forward(old_pair[0], new_row(Change, (new_pair[1], old_pair[1], is_latest)), timestamp, headers)
                return
            if old_pair is not None:
                forward(old_pair[0], new_row(Change, (None, old_pair[1], is_latest)), timestamp, headers)
            if new_pair is not None:
                forward(new_pair[0], new_row(Change, (new_pair[1], None, is_latest)), timestamp, headers)

        return repartition_map


def _pair_function(
    name: str, mapper: Callable[[Any, Any], tuple[Any, Any]]
) -> Callable[[Any, Any], tuple[Any, Any] | None]:
    """Return a function that maps a value to its pair, or to None if the value or a part of the pair is None."""

    def pair_of(key: Any, value: Any) -> tuple[Any, Any] | None:
        if value is None:
            return None
        pair = mapper(key, value)
        if type(pair) is not tuple or len(pair) != 2:
            check_pair(name, pair)
        group_key, group_value = pair
        return None if group_key is None or group_value is None else (group_key, group_value)

    return pair_of


class KTableAggregator(StoredTable):
    """Base of KTableAggregate and KTableReduce. add and remove are functions (key, value, aggregate) -> aggregate."""

    #: Its name in error messages.
    operation: ClassVar[str]

    def __init__(self, store_name: str, initializer: Initializer, add: Aggregator, remove: Aggregator) -> None:
        super().__init__(store_name)
        self.initializer = initializer
        self.add = add
        self.remove = remove

    @override
    def flushed_store(self, node: NodeContext) -> Any:
        return cached_store(node, self.store_name, StoreKind.TIMESTAMPED_KEY_VALUE)

    @override
    def compile(self, node: NodeContext) -> Process:
        initializer, add, remove, operation = self.initializer, self.add, self.remove, self.operation
        store = TableStore(node, self.store_name)
        get, as_read = store.get, store.as_read
        update, wants_old = store.updater(node, self.send_old_values)

        def aggregate(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
            if key is None:
                raise StreamsError(
                    f"Record key for KTable {operation} operator with state {store.store.name} should not be null."
                )
            row = get(key)
            aggregate, row_timestamp = (None, timestamp) if row is None else row
            sent_old = as_read(aggregate) if wants_old and row is not None else None
            newest = timestamp
            if change[1] is not None and aggregate is not None:
                aggregate = remove(key, change[1], aggregate)
                newest = max(timestamp, row_timestamp)
            if change[0] is not None:
                aggregate = add(key, change[0], initializer() if aggregate is None else aggregate)
                newest = max(timestamp, row_timestamp)
            update(key, aggregate, sent_old, newest, timestamp, headers)

        return aggregate


class KTableAggregate(KTableAggregator):
    """Aggregates a grouped table: remove the old value, add the new one."""

    operation = "aggregate"


class KTableReduce(KTableAggregator):
    """Reduces a grouped table: remove_reducer subtracts the old value, add_reducer adds the new one."""

    operation = "reduce"

    def __init__(self, store_name: str, add_reducer: Reducer, remove_reducer: Reducer) -> None:
        def add(key: Any, value: Any, aggregate: Any) -> Any:
            return value if aggregate is None else add_reducer(aggregate, value)

        super().__init__(store_name, lambda: None, add, lambda key, value, aggregate: remove_reducer(aggregate, value))
        self.add_reducer = add_reducer  # checked by graph_nodes.check_functions
        self.remove_reducer = remove_reducer
