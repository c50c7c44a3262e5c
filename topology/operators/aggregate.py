"""Aggregations of streams and of grouped tables, and the operator that feeds a grouped table's repartition topic."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

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


class KeyAggregator(StoredTable):
    """Base of aggregations by key, of streams and of grouped tables."""

    @override
    def flushed_store(self, node: NodeContext) -> Any:
        return cached_store(node, self.store_name, StoreKind.TIMESTAMPED_KEY_VALUE)

    @override
    def fuse(self, code: LoopCode, names: Names) -> bool:
        """Fuse if the store is cached or if the loop can write its rows itself."""
        update = self.fused_update(code, names, self.store_name)
        if update is not None:
            self.write_record(code, names, update)
        return update is not None

    @abstractmethod
    def write_record(self, code: LoopCode, names: Names, update: FusedUpdate) -> None:
        """Generate what is done with a record: the update of the row of its key."""


class KStreamAggregator(KeyAggregator):
    """Base of KStreamAggregate and KStreamReduce."""

    @override
    def write_record(self, code: LoopCode, names: Names, update: FusedUpdate) -> None:
        with code.block(f"if {names.held_key} is None or {names.value} is None:"):
            code.drop("null key or value")
        with code.block("else:"):
            self.write_update(update, names)

    @abstractmethod
    def write_update(self, update: FusedUpdate, names: Names) -> None:
        """Generate the update with a record that has a key and a value."""


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
        forward, use_versioned_semantics, changes_of = node.forward, self.use_versioned_semantics, self._changes(node)

        def repartition_map(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
            new, old, is_latest = change
            if is_latest or not use_versioned_semantics:
                for group_key, grouped in changes_of(key, new, old, is_latest):
                    forward(group_key, grouped, timestamp, headers)

        return repartition_map

    @override
    def fuse_change(self, code: LoopCode, names: Names, old: str) -> bool:
        group_key, grouped = code.fresh("group_key"), code.fresh("grouped")
        changes_of = code.bind(self._changes(code.context), "changes_of")
        with code.block(f"for {group_key}, {grouped} in {changes_of}({names.key}, {names.value}, {old}, True):"):
            code.forward(names.with_key(group_key)._replace(value=grouped))
        return True

    def _changes(self, node: NodeContext) -> Callable[[Any, Any, Any, bool], Iterable[tuple[Any, Change]]]:
        """Return a function (key, new value, old value, is_latest) -> the changes of groups and their keys."""
        name = node.name
        combined = not has_members_before(node.task.config, _COMBINED_UPDATES_SINCE)
        pair_of = _pair_function(name, self.mapper)

        def changes_of(key: Any, new: Any, old: Any, is_latest: bool) -> Iterable[tuple[Any, Change]]:
            if key is None:
                raise StreamsError(f"Record key for the grouping KTable should not be null (operator {name})")
            added = None if new is None else pair_of(key, new)
            removed = None if old is None else pair_of(key, old)
            if removed is None:
                return () if added is None else ((added[0], new_row(Change, (added[1], None, is_latest))),)
            if added is None:
                return ((removed[0], new_row(Change, (None, removed[1], is_latest))),)
            if combined and added[0] == removed[0]:
                return ((removed[0], new_row(Change, (added[1], removed[1], is_latest))),)
            return (
                (removed[0], new_row(Change, (None, removed[1], is_latest))),
                (added[0], new_row(Change, (added[1], None, is_latest))),
            )

        return changes_of


def _pair_function(
    name: str, mapper: Callable[[Any, Any], tuple[Any, Any]]
) -> Callable[[Any, Any], tuple[Any, Any] | None]:
    """Return a function that maps a value to its pair, or to None if a part of the pair is None."""

    def pair_of(key: Any, value: Any) -> tuple[Any, Any] | None:
        pair = mapper(key, value)
        if type(pair) is not tuple or len(pair) != 2:
            check_pair(name, pair)
        return None if pair[0] is None or pair[1] is None else pair

    return pair_of


def _nothing() -> None:
    """Return the aggregate of a group that has no values."""


class KTableAggregator(KeyAggregator):
    """Base of KTableAggregate and KTableReduce. add and remove are functions (key, value, aggregate) -> aggregate."""

    #: Its name in error messages.
    operation: ClassVar[str]

    def __init__(self, store_name: str, initializer: Initializer, add: Aggregator, remove: Aggregator) -> None:
        super().__init__(store_name)
        self.initializer = initializer
        self.add = add
        self.remove = remove

    @override
    def compile(self, node: NodeContext) -> Process:
        store, changed = TableStore(node, self.store_name), self._changed()
        get, as_read, raise_no_key = store.get, store.as_read, self._raise_no_key
        update, wants_old = store.updater(node, self.send_old_values)

        def aggregate(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
            if key is None:
                raise_no_key()
            row = get(key)
            old, newest = (None, timestamp) if row is None else row
            if timestamp > newest:
                newest = timestamp
            sent_old = as_read(old) if wants_old and row is not None else None
            update(key, changed(key, change, old), sent_old, newest, timestamp, headers)

        return aggregate

    @override
    def write_record(self, code: LoopCode, names: Names, update: FusedUpdate) -> None:
        with code.block(f"if {names.held_key} is None:"):
            code.emit(f"{code.bind(self._raise_no_key, 'raise_no_key')}()")
        update.aggregate(_nothing, self._changed(), names)

    def _changed(self) -> Callable[[Any, Change, Any], Any]:
        """Return a function (key, change, aggregate or None) -> aggregate or None."""
        initializer, add, remove = self.initializer, self.add, self.remove

        def changed(key: Any, change: Change, aggregate: Any) -> Any:
            new, old, _is_latest = change
            if old is not None and aggregate is not None:
                aggregate = remove(key, old, aggregate)
            return aggregate if new is None else add(key, new, initializer() if aggregate is None else aggregate)

        return changed

    def _raise_no_key(self) -> NoReturn:
        raise StreamsError(
            f"Record key for KTable {self.operation} operator with state {self.store_name} should not be null."
        )


class KTableAggregate(KTableAggregator):
    """Aggregates a grouped table: remove the old value, add the new one."""

    operation = "aggregate"


class KTableReduce(KTableAggregator):
    """Reduces a grouped table: remove_reducer subtracts the old value, add_reducer adds the new one."""

    operation = "reduce"

    def __init__(self, store_name: str, add_reducer: Reducer, remove_reducer: Reducer) -> None:
        def add(key: Any, value: Any, aggregate: Any) -> Any:
            return value if aggregate is None else add_reducer(aggregate, value)

        super().__init__(store_name, _nothing, add, lambda key, value, aggregate: remove_reducer(aggregate, value))
        self.add_reducer = add_reducer  # checked by graph_nodes.check_functions
        self.remove_reducer = remove_reducer
