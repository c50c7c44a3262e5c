"""Topologies whose stores are used by their own functions alone: what the kernel's ways into them are compared with."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.kernel.table_nodes import RowGetter
from penstock.statestore.stores.segmented_stores import TaskWindowStore
from penstock.topology.operators import foreign_key_join, stream_table_join, table_join, table_rows
from penstock.topology.operators.table_store import KTableValueGetter
from penstock.topology.run import compiled_source


def nothing(*_: Any, **__: Any) -> None:
    """Return no rows, and no node."""


def by_function(getter: KTableValueGetter, sent: bool = False) -> RowGetter:
    """Return the rows of a table, found by its getter."""
    return RowGetter(getter.get_forwarded if sent else getter.get)


def only_functions(patch: pytest.MonkeyPatch) -> None:
    """Let operators read and update stores by the stores' functions, and sources read all keys."""
    patch.setattr(table_rows, "compiled_rows", nothing)
    patch.setattr(table_rows, "compiled_window_rows", nothing)
    for module in (stream_table_join, table_join, foreign_key_join):
        patch.setattr(module, "row_getter", by_function)
    patch.setattr(table_rows, "compiled_session_rows", nothing)
    patch.setattr(TaskWindowStore, "window_rows", nothing)
    patch.setattr(compiled_source, "only_bytes", lambda node, serde: False)
