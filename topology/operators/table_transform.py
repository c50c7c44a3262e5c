"""Users' own steps of tables: transform_values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from ..context.task_context import Process
from ..errors import StreamsError
from ..records import Change, Headers, ValueAndTimestamp
from .operator import NodeContext
from .processor_operator import forwarding_disabled_context
from .table_operator import DerivedTable
from .table_store import NO_TIMESTAMP, KTableValueGetter, KTableValueGetterSupplier, Table, TableStore

#: (key, value or None) -> new value or None.
Transform = Callable[[Any, Any], Any]


class KTableTransformValues(DerivedTable):
    """Replaces values by what a ValueTransformerWithKey makes of them; supplier() makes one for each task.

    Unlike a mapper it is called for deletions too. With queryable_name the result is kept in that store. Without, old
    values, and rows that other operators read, are recreated each time: by a separate transformer.
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

    def transformer(self, node: NodeContext) -> Transform:
        """Return the function of a new transformer, which begins and ends with the task."""
        transformer = self.supplier()
        if transformer is None or isinstance(transformer, type):
            raise StreamsError(
                f"The supplier of {node.name} must return a new transformer at each call, not {transformer!r}"
            )
        context = forwarding_disabled_context(node)
        node.on_init(lambda: transformer.init(context))
        node.on_close(transformer.close)
        transform: Transform = transformer.transform
        node.owns(transform)
        return transform

    @override
    def compile(self, node: NodeContext) -> Process:
        transform = self.transformer(node)
        if self.queryable_name is not None:
            return self._compile_materialized(node, transform, self.queryable_name)
        task, forward, send_old = node.task, node.forward, self.send_old_values

        def transform_values(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
            task.timestamp = timestamp
            task.headers = headers
            new = transform(key, change[0])
            forward(key, Change(new, transform(key, change[1]) if send_old else None, change[2]), timestamp, headers)

        return transform_values

    def _compile_materialized(self, node: NodeContext, transform: Transform, store_name: str) -> Process:
        task, store = node.task, TableStore(node, store_name)
        get = store.get
        update, wants_old = store.updater(node, self.send_old_values)

        def transform_values(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
            task.timestamp = timestamp
            task.headers = headers
            new = transform(key, change[0])
            row = get(key) if wants_old else None
            update(key, new, None if row is None else row[0], timestamp, timestamp, headers)

        return transform_values


def _row_function(
    node: NodeContext, transform: Transform
) -> Callable[[Any, ValueAndTimestamp | None], ValueAndTimestamp | None]:
    """Return what makes a row for a reader of the table: the transformer sees no input record then."""
    task = node.task

    def row_of(key: Any, row: ValueAndTimestamp | None) -> ValueAndTimestamp | None:
        value, timestamp = (None, NO_TIMESTAMP) if row is None else row
        previous = task.message, task.timestamp, task.headers
        task.message, task.timestamp, task.headers = None, timestamp, None
        try:
            found = transform(key, value)
        finally:
            task.message, task.timestamp, task.headers = previous
        return None if found is None else ValueAndTimestamp(found, timestamp)

    return row_of
