"""Joins of two tables by their primary keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from penstock.kernel.nodes import Node
from penstock.kernel.table_nodes import TableJoin, TableMerge, WithoutOld

from ..common.user_functions import ValueJoiner
from ..records import ValueAndTimestamp
from .operator import NodeContext
from .table_operator import TableOperator
from .table_rows import row_getter, rows_of
from .table_store import Getter, KTableValueGetter, KTableValueGetterSupplier, Table, materialized_view

_NO_ROW = ValueAndTimestamp(None, -1)


class KTableKTableAbstractJoin(TableOperator):
    """One side of a join: an update of table1 is joined with the row of table2.

    joiner(value of the left table, value of the right one). is_right: whether table1 is the right one.
    """

    #: Whether a result needs a row on this side, and on the other side.
    needs_this: ClassVar[bool] = False
    needs_other: ClassVar[bool] = False

    def __init__(self, table1: Table, table2: Table, joiner: ValueJoiner, is_right: bool = False) -> None:
        self.table1 = table1
        self.table2 = table2
        self.joiner = joiner
        self.is_right = is_right
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
        return KTableValueGetterSupplier(_together(self.getter_supplier1, self.getter_supplier2), self._getter)

    def _getter(self, node: NodeContext) -> KTableValueGetter:
        # The join of two versioned tables is not versioned (KIP-914).
        getter1, getter2 = self.getter_supplier1.compile(node), self.getter_supplier2.compile(node)
        forwarded = self._join_rows(getter1.get_forwarded, getter2.get_forwarded)
        return KTableValueGetter(self._join_rows(getter1.get, getter2.get), get_forwarded=forwarded)

    def _join_rows(self, get1: Getter, get2: Getter) -> Getter:
        joiner, is_right, needs_this, needs_other = self.joiner, self.is_right, self.needs_this, self.needs_other
        needs_one, needs_both = needs_this or needs_other, needs_this and needs_other
        other_first = needs_other and not needs_this
        get_first, get_second = (get2, get1) if other_first else (get1, get2)

        def get(key: object) -> ValueAndTimestamp | None:
            first = get_first(key)
            if first is None and needs_one:
                return None
            second = get_second(key)
            if second is None and (needs_both or first is None):
                return None
            row1, row2 = (second, first) if other_first else (first, second)
            value1, timestamp1 = row1 or _NO_ROW
            value2, timestamp2 = row2 or _NO_ROW
            joined = joiner(value2, value1) if is_right else joiner(value1, value2)
            return None if joined is None else ValueAndTimestamp(joined, max(timestamp1, timestamp2))

        return get

    @override
    def compile(self, node: NodeContext) -> Node:
        return TableJoin(
            node.task,
            node.name,
            node.child,
            self.joiner,
            self.is_right,
            row_getter(self.getter_supplier2.compile(node), sent=True),
            self.needs_this,
            self.needs_other,
            self.send_old_values,
            self.use_versioned_semantics,
            node.dropped,
        )


class KTableKTableInnerJoin(KTableKTableAbstractJoin):
    """Either side of an inner join."""

    needs_this = True
    needs_other = True


class KTableKTableLeftJoin(KTableKTableAbstractJoin):
    """The left side of a left join."""

    needs_this = True


class KTableKTableRightJoin(KTableKTableAbstractJoin):
    """The right side of a left join: there is a result exactly if the left side has a row."""

    needs_other = True


class KTableKTableOuterJoin(KTableKTableAbstractJoin):
    """Either side of an outer join."""


def _together(one: KTableValueGetterSupplier, other: KTableValueGetterSupplier) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.store_names + other.store_names))


@dataclass(eq=False)
class KTableKTableJoinMerger(TableOperator):
    """Merges both sides of a join into one table, which is stored in queryable_name if given."""

    parent1: KTableKTableAbstractJoin
    parent2: KTableKTableAbstractJoin
    queryable_name: str | None = None

    @override
    def enable_sending_old_values(self, force_materialization: bool) -> bool:
        self.parent1.enable_sending_old_values(True)
        self.parent2.enable_sending_old_values(True)
        return super().enable_sending_old_values(True)

    @override
    def view(self) -> KTableValueGetterSupplier:
        if self.queryable_name is not None:
            return materialized_view(self.queryable_name)
        view1, view2 = self.parent1.view(), self.parent2.view()
        return KTableValueGetterSupplier(_together(view1, view2), view1.compile)

    @override
    def compile(self, node: NodeContext) -> Node:
        if self.queryable_name is None:
            return node.child if self.send_old_values else WithoutOld(node.task, node.name, node.child)
        rows = rows_of(node, self.queryable_name, self.send_old_values, replaces=True)
        return TableMerge(node.task, node.name, node.child, rows, node.dropped)
