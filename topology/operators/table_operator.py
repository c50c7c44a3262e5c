"""Bases of operators whose result is a table: others can read it, and it forwards old values if they need them."""

from __future__ import annotations

from abc import abstractmethod

from typing_extensions import override

from .operator import Operator
from .table_store import KTableValueGetterSupplier, Table, materialized_view


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

    @abstractmethod
    def computed_view(self) -> KTableValueGetterSupplier:
        """Return how the table is read if it is not stored."""
