"""Aggregations of a grouped table, and what feeds their repartition topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from typing_extensions import override

from ..config.upgrade_from import has_members_before
from ..context.store_interfaces import StoreKind
from ..context.task_context import Process
from ..errors import StreamsError
from ..records import Change, Headers
from .aggregate import Aggregator, Initializer, Reducer
from .fused_cells import cached_store
from .operator import NodeContext, Operator
from .stateless import check_pair
from .table_operator import StoredTable
from .table_store import TableStore, new_row

#: Kafka Streams before it cannot read an update with both values: it needs two records (KIP-904).
_COMBINED_UPDATES_SINCE = (3, 5)


class KTableRepartitionMap(Operator):
    """Maps old and new value of an update: mapper(key, value) -> (group key, value).

    Forwards one update if both have the same group key, else a removal and then an addition; pairs without key or value
    are left out.
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
    """Return a function that maps a value, to None where there is none or where the pair lacks key or value."""

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
    """What KTableAggregate and KTableReduce share: both add and remove are (key, value, aggregate) -> aggregate."""

    #: What error messages call it.
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
    """Reduces a grouped table: remove_reducer takes the old value out, add_reducer the new one in."""

    operation = "reduce"

    def __init__(self, store_name: str, add_reducer: Reducer, remove_reducer: Reducer) -> None:
        def add(key: Any, value: Any, aggregate: Any) -> Any:
            return value if aggregate is None else add_reducer(aggregate, value)

        super().__init__(store_name, lambda: None, add, lambda key, value, aggregate: remove_reducer(aggregate, value))
        self.add_reducer = add_reducer  # what is checked when it is declared
        self.remove_reducer = remove_reducer
