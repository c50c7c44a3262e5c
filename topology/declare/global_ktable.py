"""GlobalKTable: a table whose rows are all available in every task."""

from __future__ import annotations

from typing import Generic

from ..operators.table_store import KTableValueGetterSupplier, materialized_view
from ..type_variables import K, V


class GlobalKTable(Generic[K, V]):
    """A table whose rows are all available in every task, for joins by any key (Kafka Streams: GlobalKTable).

    queryable_store_name is None unless the user named the store.
    """

    def __init__(self, store_name: str, queryable_store_name: str | None) -> None:
        self.store_name = store_name
        self.queryable_store_name = queryable_store_name

    def value_getter_supplier(self) -> KTableValueGetterSupplier:
        """Return the supplier by which operators read the table."""
        return materialized_view(self.store_name)

    def __repr__(self) -> str:
        return f"GlobalKTable({self.store_name})"
