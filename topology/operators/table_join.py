"""Joins of two tables by their primary keys."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from ..context.task_context import Process
from ..records import Change, Headers, ValueAndTimestamp
from .operator import NodeContext
from .table_operator import TableOperator
from .table_store import KTableMaterializedValueGetterSupplier, TableStore
from .value_getters import Getter, KTableValueGetter, KTableValueGetterSupplier, Table

Joiner = Callable[[Any, Any], Any]
#: (value of this side or None, value of the other or None) -> joined value or None.
JoinValues = Callable[[Any, Any], Any]


class KTableKTableAbstractJoin(TableOperator):
    """One side of a join: an update of table1 is joined with the row of table2.

    joiner(value of table1, value of table2): for the second side, give the tables in reverse order and the joiner
    reversed.
    """

    #: Whether an update of this side is joined although the other side has no row.
    emits_without_other = True

    def __init__(self, table1: Table, table2: Table, joiner: Joiner) -> None:
        self.table1 = table1
        self.table2 = table2
        self.joiner = joiner
        self.getter_supplier1 = table1.value_getter_supplier()
        self.getter_supplier2 = table2.value_getter_supplier()
        #: Skip out-of-order updates of a versioned table (KIP-914).
        self.use_versioned_semantics = False

    @override
    def enable_sending_old_values(self, force_materialization: bool) -> bool:
        self.table1.enable_sending_old_values(True)
        self.table2.enable_sending_old_values(True)
        return super().enable_sending_old_values(True)

    @override
    def view(self) -> KTableValueGetterSupplier:
        return _JoinGetterSupplier(self)

    @abstractmethod
    def join_function(self) -> JoinValues:
        """Return what joins two values; the other side's is None only if emits_without_other."""

    @abstractmethod
    def join_rows(self, get1: Getter, get2: Getter) -> Getter:
        """Return the getter of joined rows."""

    @override
    def compile(self, node: NodeContext) -> Process:
        forward, dropped, join = node.forward, node.dropped, self.join_function()
        send_old, use_versioned_semantics = self.send_old_values, self.use_versioned_semantics
        emits_without_other = self.emits_without_other
        get_other = self.getter_supplier2.compile(node).get_forwarded

        def table_join(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
            if key is None:
                dropped("null key")
                return
            new, old, is_latest = change
            if use_versioned_semantics and not is_latest:
                dropped("out-of-order record of a versioned table")
                return
            row = get_other(key)
            if row is None:
                if not emits_without_other or (new is None and old is None):
                    return
                other = None
            else:
                other, other_timestamp = row
                timestamp = max(timestamp, other_timestamp)
            joined = join(new, other)
            forward(key, Change(joined, join(old, other) if send_old else None, is_latest), timestamp, headers)

        return table_join


def _with_this(joiner: Joiner) -> JoinValues:
    """Join only where this side has a value."""

    def join(this: Any, other: Any) -> Any:
        return None if this is None else joiner(this, other)

    return join


class KTableKTableInnerJoin(KTableKTableAbstractJoin):
    """Either side of an inner join."""

    emits_without_other = False

    @override
    def join_function(self) -> JoinValues:
        return _with_this(self.joiner)

    @override
    def join_rows(self, get1: Getter, get2: Getter) -> Getter:
        joiner = self.joiner

        def get(key: Any) -> ValueAndTimestamp | None:
            row1 = get1(key)
            row2 = None if row1 is None else get2(key)
            if row1 is None or row2 is None:
                return None
            return _row(joiner(row1[0], row2[0]), max(row1[1], row2[1]))

        return get


class KTableKTableLeftJoin(KTableKTableAbstractJoin):
    """The left side of a left join."""

    @override
    def join_function(self) -> JoinValues:
        return _with_this(self.joiner)

    @override
    def join_rows(self, get1: Getter, get2: Getter) -> Getter:
        joiner = self.joiner

        def get(key: Any) -> ValueAndTimestamp | None:
            row1 = get1(key)
            if row1 is None:
                return None
            row2 = get2(key)
            if row2 is None:
                return _row(joiner(row1[0], None), row1[1])
            return _row(joiner(row1[0], row2[0]), max(row1[1], row2[1]))

        return get


class KTableKTableRightJoin(KTableKTableAbstractJoin):
    """The right side of a left join: without a left row there is nothing to join, with one there is always a result."""

    emits_without_other = False

    @override
    def join_function(self) -> JoinValues:
        return self.joiner

    @override
    def join_rows(self, get1: Getter, get2: Getter) -> Getter:
        joiner = self.joiner

        def get(key: Any) -> ValueAndTimestamp | None:
            row2 = get2(key)
            if row2 is None:
                return None
            row1 = get1(key)
            if row1 is None:
                return _row(joiner(None, row2[0]), row2[1])
            return _row(joiner(row1[0], row2[0]), max(row1[1], row2[1]))

        return get


class KTableKTableOuterJoin(KTableKTableAbstractJoin):
    """Either side of an outer join."""

    @override
    def join_function(self) -> JoinValues:
        joiner = self.joiner

        def join(this: Any, other: Any) -> Any:
            return None if this is None and other is None else joiner(this, other)

        return join

    @override
    def join_rows(self, get1: Getter, get2: Getter) -> Getter:
        joiner = self.joiner

        def get(key: Any) -> ValueAndTimestamp | None:
            row1, row2 = get1(key), get2(key)
            if row1 is None and row2 is None:
                return None
            value1, timestamp1 = (None, -1) if row1 is None else row1
            value2, timestamp2 = (None, -1) if row2 is None else row2
            return _row(joiner(value1, value2), max(timestamp1, timestamp2))

        return get


def _row(value: Any, timestamp: int) -> ValueAndTimestamp | None:
    return None if value is None else ValueAndTimestamp(value, timestamp)


class _JoinGetterSupplier(KTableValueGetterSupplier):
    def __init__(self, join: KTableKTableAbstractJoin) -> None:
        self.join = join

    @property
    def store_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.join.getter_supplier1.store_names + self.join.getter_supplier2.store_names))

    def compile(self, node: NodeContext) -> KTableValueGetter:
        getter1 = self.join.getter_supplier1.compile(node)
        getter2 = self.join.getter_supplier2.compile(node)
        # Not versioned, even if both tables are: the join of two versioned tables is not versioned (KIP-914).
        join = self.join.join_rows
        forwarded = join(getter1.get_forwarded, getter2.get_forwarded)
        return KTableValueGetter(join(getter1.get, getter2.get), get_forwarded=forwarded)


class KTableKTableJoinMerger(TableOperator):
    """Merges both sides of a join into one table, kept in queryable_name if that is given."""

    def __init__(
        self,
        parent1: KTableKTableAbstractJoin,
        parent2: KTableKTableAbstractJoin,
        queryable_name: str | None = None,
    ) -> None:
        self.parent1 = parent1
        self.parent2 = parent2
        self.queryable_name = queryable_name

    @override
    def enable_sending_old_values(self, force_materialization: bool) -> bool:
        self.parent1.enable_sending_old_values(True)
        self.parent2.enable_sending_old_values(True)
        return super().enable_sending_old_values(True)

    @override
    def view(self) -> KTableValueGetterSupplier:
        if self.queryable_name is not None:
            return KTableMaterializedValueGetterSupplier(self.queryable_name)
        return _MergerGetterSupplier(self)

    @override
    def compile(self, node: NodeContext) -> Process:
        if self.queryable_name is not None:
            return self._compile_materialized(node, self.queryable_name)
        if self.send_old_values:
            return node.forward
        forward = node.forward

        def merge(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
            forward(key, Change(change[0], None, change[2]), timestamp, headers)

        return merge

    def _compile_materialized(self, node: NodeContext, store_name: str) -> Process:
        update, wants_old = TableStore(node, store_name).updater(node, self.send_old_values)

        def merge(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
            update(key, change[0], change[1] if wants_old else None, timestamp, timestamp, headers)

        return merge


class _MergerGetterSupplier(KTableValueGetterSupplier):
    def __init__(self, merger: KTableKTableJoinMerger) -> None:
        self.view1 = merger.parent1.view()
        self.view2 = merger.parent2.view()

    @property
    def store_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.view1.store_names + self.view2.store_names))

    def compile(self, node: NodeContext) -> KTableValueGetter:
        return self.view1.compile(node)
