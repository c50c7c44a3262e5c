"""Bases of operators whose result is a table: others can read it, and it forwards old values if they need them."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ..context.store_interfaces import StoreKind
from .fused_cells import FusedCell, cached_store
from .fused_rows import FusedRow
from .fused_update import FusedUpdate
from .operator import NodeContext, Operator
from .table_store import KTableValueGetterSupplier, Table, materialized_view

if TYPE_CHECKING:
    from ..run.fusion import LoopCode, Names


class TableOperator(Operator):
    """The operator behind a KTable. send_old_values: whether its updates carry the old value too."""

    send_old_values = False

    def enable_sending_old_values(self, force_materialization: bool) -> bool:
        """Forward old values too. Returns False if that needs a table to be stored and storing it is not forced."""
        self.send_old_values = True
        return True

    @abstractmethod
    def view(self) -> KTableValueGetterSupplier:
        """Return how the table is read."""

    def fused_update(self, code: LoopCode, names: Names, store_name: str, replaces: bool = False) -> FusedUpdate | None:
        """Return a generator of the update of a key-value store; None if the loop must call the closure.

        replaces: each update replaces the row, regardless of the old one.
        """
        cached = cached_store(code.context, store_name, StoreKind.TIMESTAMPED_KEY_VALUE)
        if cached is not None:
            return FusedCell(code, cached.cells(), names)
        if self.send_old_values and not replaces:
            return None
        rows = code.context.store(store_name).timestamped_rows()
        return None if rows is None else FusedRow(code, rows, store_name, names, self.send_old_values)


class StoredTable(TableOperator):
    """A table that is always stored."""

    def __init__(self, store_name: str) -> None:
        self.store_name = store_name

    @override
    def view(self) -> KTableValueGetterSupplier:
        return materialized_view(self.store_name)


class DerivedTable(TableOperator):
    """A table that is computed from its parent, and stored only if queryable_name names the store."""

    def __init__(self, parent: Table, queryable_name: str | None) -> None:
        self.parent = parent
        self.queryable_name = queryable_name

    @override
    def enable_sending_old_values(self, force_materialization: bool) -> bool:
        if self.queryable_name is not None or self.parent.enable_sending_old_values(force_materialization):
            self.send_old_values = True
        return self.send_old_values

    @override
    def view(self) -> KTableValueGetterSupplier:
        if self.queryable_name is not None:
            return materialized_view(self.queryable_name)
        return self.computed_view()

    @override
    def flushed_store(self, node: NodeContext) -> Any:
        name = self.queryable_name
        return None if name is None else cached_store(node, name, StoreKind.TIMESTAMPED_KEY_VALUE)

    @abstractmethod
    def computed_view(self) -> KTableValueGetterSupplier:
        """Return how the table is read if it is not stored."""
