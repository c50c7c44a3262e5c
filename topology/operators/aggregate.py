"""Aggregations of streams and of grouped tables, and the operator that feeds a grouped table's repartition topic."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NoReturn

from typing_extensions import override

from penstock.kernel.aggregates import ChangeAggregator
from penstock.kernel.nodes import Node
from penstock.kernel.table_nodes import Aggregate, Count, Reduce, RepartitionMap, TableAggregate

from ..common.user_functions import Aggregator, Initializer, KeyValueMapper, Reducer
from ..config.upgrade_from import has_members_before
from ..errors import StreamsError
from .counting import counts
from .operator import NodeContext, Operator
from .stateless import check_pair
from .table_operator import StoredTable
from .table_rows import rows_of

#: First version that can read an update with both the old and the new value; older ones need two records (KIP-904).
_COMBINED_UPDATES_SINCE = (3, 5)


class KeyAggregator(StoredTable):
    """Base of aggregations by key, of streams and of grouped tables."""


class KStreamAggregate(KeyAggregator):
    """Aggregates values per key: initializer() -> aggregate; aggregator(key, value, aggregate) -> aggregate.

    The aggregator may change the aggregate in place and return it; None deletes it. Records without key or value are
    dropped. A result carries the highest timestamp of its key.
    """

    def __init__(self, store_name: str, initializer: Initializer, aggregator: Aggregator) -> None:
        super().__init__(store_name)
        self.initializer = initializer
        self.aggregator = aggregator

    @override
    def compile(self, node: NodeContext) -> Node:
        rows = rows_of(node, self.store_name, self.send_old_values)
        if counts(self.initializer, self.aggregator) and rows.counts:
            return Count(node.task, node.name, node.child, rows, node.dropped)
        return Aggregate(node.task, node.name, node.child, rows, node.dropped, self.initializer, self.aggregator)


class KStreamReduce(KeyAggregator):
    """Reduces values per key: reducer(aggregate, value) -> aggregate; the first value is the first aggregate."""

    def __init__(self, store_name: str, reducer: Reducer) -> None:
        super().__init__(store_name)
        self.reducer = reducer

    @override
    def compile(self, node: NodeContext) -> Node:
        rows = rows_of(node, self.store_name, self.send_old_values)
        return Reduce(node.task, node.name, node.child, rows, node.dropped, self.reducer)


class KTableRepartitionMap(Operator):
    """Maps the old and the new value of an update: mapper(key, value) -> (group key, value).

    Forwards one update if both have the same group key, otherwise a removal and then an addition. Pairs without a key
    or value are skipped.
    """

    def __init__(self, mapper: KeyValueMapper[tuple[object, object]]) -> None:
        self.mapper = mapper
        #: Skip out-of-order updates of a versioned table (KIP-914).
        self.use_versioned_semantics = False

    @override
    def compile(self, node: NodeContext) -> Node:
        def no_key() -> NoReturn:
            raise StreamsError(f"Record key for the grouping KTable should not be null (operator {node.name})")

        combined = not has_members_before(node.task.config, _COMBINED_UPDATES_SINCE)
        skips_older = self.use_versioned_semantics
        return RepartitionMap(node.task, node.name, node.child, self.mapper, check_pair, no_key, combined, skips_older)


class KTableAggregator(KeyAggregator):
    """Base of KTableAggregate and KTableReduce."""

    #: Its name in error messages.
    operation: ClassVar[str]

    @override
    def compile(self, node: NodeContext) -> Node:
        rows = rows_of(node, self.store_name, self.send_old_values)
        return TableAggregate(node.task, node.name, node.child, rows, self._aggregator(), self._raise_no_key)

    @abstractmethod
    def _aggregator(self) -> ChangeAggregator:
        """Return what applies the changes of the grouped table."""

    def _raise_no_key(self) -> NoReturn:
        raise StreamsError(
            f"Record key for KTable {self.operation} operator with state {self.store_name} should not be null."
        )


class KTableAggregate(KTableAggregator):
    """Aggregates a grouped table: remove the old value, add the new one.

    add and remove are functions (key, value, aggregate) -> aggregate.
    """

    operation = "aggregate"

    def __init__(self, store_name: str, initializer: Initializer, add: Aggregator, remove: Aggregator) -> None:
        super().__init__(store_name)
        self.initializer = initializer
        self.add = add
        self.remove = remove

    @override
    def _aggregator(self) -> ChangeAggregator:
        return ChangeAggregator(self.initializer, self.add, self.remove)


class KTableReduce(KTableAggregator):
    """Reduces a grouped table: remove_reducer subtracts the old value, add_reducer adds the new one."""

    operation = "reduce"

    def __init__(self, store_name: str, add_reducer: Reducer, remove_reducer: Reducer) -> None:
        super().__init__(store_name)
        self.add_reducer = add_reducer
        self.remove_reducer = remove_reducer

    @override
    def _aggregator(self) -> ChangeAggregator:
        return ChangeAggregator(None, self.add_reducer, self.remove_reducer)
