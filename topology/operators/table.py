"""Sources and transformations of tables. Updates are forwarded as Change(new, old, is_latest)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import override

from penstock.kernel.nodes import Node
from penstock.kernel.table_nodes import Rows, TableFilter, TableMapValues, TableSource

from ..common.user_functions import KeyValueMapper, Predicate
from ..context.task_context import Process
from ..errors import StreamsError
from ..records import Change, Headers, ValueAndTimestamp
from .operator import NodeContext
from .processor_operator import forwarding_disabled_context
from .table_operator import DerivedTable, StoredTable, TableOperator
from .table_rows import rows_of
from .table_store import (
    NO_TIMESTAMP,
    KTableValueGetter,
    KTableValueGetterSupplier,
    Table,
    TableStore,
    materialized_view,
)


class KTableSource(TableOperator):
    """Turns records into updates of a table. The table is stored, in store_name, only if queryable_name is set.

    Records without a key are dropped.
    """

    def __init__(self, store_name: str, queryable_name: str | None) -> None:
        self.store_name = store_name
        self.queryable_name = queryable_name

    @override
    def enable_sending_old_values(self, force_materialization: bool) -> bool:
        if not force_materialization and not self.materialized:
            return False
        self.materialize()
        return super().enable_sending_old_values(force_materialization)

    @override
    def view(self) -> KTableValueGetterSupplier:
        """Return how the table is read, which requires that it is stored."""
        self.materialize()
        return materialized_view(self.store_name)

    def materialize(self) -> None:
        """Store the table."""
        self.queryable_name = self.store_name

    @property
    def materialized(self) -> bool:
        """Whether the table is stored."""
        return self.queryable_name is not None

    @override
    def compile(self, node: NodeContext) -> Node:
        name = self.queryable_name
        rows = None if name is None else rows_of(node, name, self.send_old_values, replaces=True)
        return TableSource(node.task, node.name, node.child, rows, node.dropped)


class KTableStep(DerivedTable):
    """Base of KTableFilter and KTableMapValues, which compute each update's values from those of the parent table.

    With queryable_name the result is stored, and old values are read from that store.
    """

    @override
    def computed_view(self) -> KTableValueGetterSupplier:
        parent = self.parent.value_getter_supplier()
        return KTableValueGetterSupplier(parent.store_names, lambda node: parent.compile(node).map(self._row_of()))

    def value_function(self) -> KeyValueMapper[object]:
        """Return (key, value of the parent table) -> value of this one; the value is never None."""
        raise NotImplementedError

    def _row_of(self) -> Callable[[Any, ValueAndTimestamp | None], ValueAndTimestamp | None]:
        """Return (key, row of the parent table) -> row of this one."""
        value_of = self.value_function()

        def row_of(key: object, row: ValueAndTimestamp | None) -> ValueAndTimestamp | None:
            if row is None:
                return None
            value = value_of(key, row[0])
            return None if value is None else ValueAndTimestamp(value, row[1])

        return row_of

    @property
    def skips_nothing_to_nothing(self) -> bool:
        """Whether updates from None to None are not forwarded."""
        return False

    def _rows(self, node: NodeContext) -> tuple[Rows | None, bool, bool, Callable[[Any], object] | None]:
        """Return what the node needs to know of the rows; see TableStep."""
        name, skips = self.queryable_name, self.skips_nothing_to_nothing
        if name is None:
            return None, self.send_old_values, skips, None
        get = TableStore(node, name).get

        def old_value(key: object) -> object:
            row = get(key)
            return None if row is None else row[0]

        rows = rows_of(node, name, self.send_old_values, replaces=True)
        return rows, self.send_old_values, skips, old_value


class KTableFilter(KTableStep):
    """Keeps the rows for which predicate(key, value) is true, or false with filter_not, and deletes the others.

    If old values are known, rows that did not exist are not deleted again.
    """

    def __init__(
        self,
        parent: Table,
        predicate: Predicate,
        filter_not: bool,
        queryable_name: str | None,
    ) -> None:
        super().__init__(parent, queryable_name)
        self.predicate = predicate
        self.filter_not = filter_not
        #: Also forward updates from None to None, which a versioned table needs (KIP-914).
        self.use_versioned_semantics = False
        self.send_old_values = parent.enable_sending_old_values(False)

    @override
    def value_function(self) -> KeyValueMapper[object]:
        predicate = self.predicate

        def keep(key: object, value: object) -> object:
            return value if predicate(key, value) else None

        def keep_not(key: object, value: object) -> object:
            return None if predicate(key, value) else value

        return keep_not if self.filter_not else keep

    @override
    def compile(self, node: NodeContext) -> Node:
        return TableFilter(node.task, node.name, node.child, self.predicate, self.filter_not, *self._rows(node))

    @property
    @override
    def skips_nothing_to_nothing(self) -> bool:
        return self.send_old_values and not self.use_versioned_semantics


class KTableMapValues(KTableStep):
    """Maps values: mapper(value), or mapper(key, value) with with_key; None deletes the row."""

    def __init__(
        self, parent: Table, mapper: Callable[..., object], queryable_name: str | None, with_key: bool = False
    ) -> None:
        super().__init__(parent, queryable_name)
        self.mapper = mapper
        self.with_key = with_key

    @override
    def value_function(self) -> KeyValueMapper[object]:
        mapper = self.mapper
        if self.with_key:
            return mapper

        def map_value(key: object, value: object) -> object:
            return mapper(value)

        return map_value

    @override
    def compile(self, node: NodeContext) -> Node:
        return TableMapValues(node.task, node.name, node.child, self.mapper, self.with_key, *self._rows(node))


class KTablePassThrough(StoredTable):
    """Merges the aggregations of a cogrouped stream, which all write to store_name."""

    def __init__(self, parents: Sequence[TableOperator], store_name: str) -> None:
        super().__init__(store_name)
        self.parents = parents

    @override
    def enable_sending_old_values(self, force_materialization: bool) -> bool:
        return all(parent.enable_sending_old_values(force_materialization) for parent in self.parents)

    @override
    def compile(self, node: NodeContext) -> Node:
        return node.child


class KTableTransformValues(DerivedTable):
    """Transforms values with a ValueTransformerWithKey; supplier() creates one per task.

    Unlike a mapper, it is also called for deletions. With queryable_name the result is stored. Otherwise old values,
    and rows that other operators read, are computed each time; the latter by a separate transformer.
    """

    reads_record_metadata = True

    def __init__(self, parent: Table, supplier: Callable[[], Any], queryable_name: str | None) -> None:
        super().__init__(parent, queryable_name)
        self.supplier = supplier

    @override
    def computed_view(self) -> KTableValueGetterSupplier:
        parent = self.parent.value_getter_supplier()

        def compile_getter(node: NodeContext) -> KTableValueGetter:
            return parent.compile(node).map(_row_function(node, self.transformer(node)))

        return KTableValueGetterSupplier(parent.store_names, compile_getter)

    def transformer(self, node: NodeContext) -> KeyValueMapper:
        """Return the function of a new transformer, which is initialized and closed with the task."""
        transformer = self.supplier()
        if transformer is None or isinstance(transformer, type):
            raise StreamsError(
                f"The supplier of {node.name} must return a new transformer on each call, not {transformer!r}"
            )
        context = forwarding_disabled_context(node)
        node.on_init(lambda: transformer.init(context))
        node.on_close(transformer.close)
        transform: KeyValueMapper = node.own(transformer.transform)
        return transform

    @override
    def compile(self, node: NodeContext) -> Process:
        transform = self.transformer(node)
        if self.queryable_name is not None:
            return self._compile_materialized(node, transform, self.queryable_name)
        task, forward, send_old = node.task, node.forward, self.send_old_values

        def transform_values(key: object, change: Change, timestamp: int, headers: Headers) -> None:
            task.timestamp = timestamp
            task.headers = headers
            new = transform(key, change[0])
            forward(key, Change(new, transform(key, change[1]) if send_old else None, change[2]), timestamp, headers)

        return transform_values

    def _compile_materialized(self, node: NodeContext, transform: KeyValueMapper, store_name: str) -> Process:
        task, store = node.task, TableStore(node, store_name)
        get = store.get
        update, wants_old = store.updater(node, self.send_old_values)

        def transform_values(key: object, change: Change, timestamp: int, headers: Headers) -> None:
            task.timestamp = timestamp
            task.headers = headers
            new = transform(key, change[0])
            row = get(key) if wants_old else None
            update(key, new, None if row is None else row[0], timestamp, timestamp, headers)

        return transform_values


def _row_function(
    node: NodeContext, transform: KeyValueMapper
) -> Callable[[Any, ValueAndTimestamp | None], ValueAndTimestamp | None]:
    """Return the function that computes a row for a reader of the table; the transformer then sees no input record."""
    task = node.task

    def row_of(key: object, row: ValueAndTimestamp | None) -> ValueAndTimestamp | None:
        value, timestamp = (None, NO_TIMESTAMP) if row is None else row
        previous = task.message, task.timestamp, task.headers
        task.message, task.timestamp, task.headers = None, timestamp, None
        try:
            found = transform(key, value)
        finally:
            task.message, task.timestamp, task.headers = previous
        return None if found is None else ValueAndTimestamp(found, timestamp)

    return row_of
