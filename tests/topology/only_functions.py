"""Topologies without the kernel's nodes for rows: what these are compared with."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.topology.operators import aggregate, table
from penstock.topology.operators.windowed import KStreamWindowAggregate
from penstock.topology.run import compiled_source


def nothing(*_: Any, **__: Any) -> None:
    """Return no rows, and no node."""


def only_functions(patch: pytest.MonkeyPatch) -> None:
    """Let operators update stores by their Python functions, and sources read all keys."""
    for module in (aggregate, table):
        patch.setattr(module, "rows_of", nothing)
    patch.setattr(KStreamWindowAggregate, "_compiled", nothing)
    patch.setattr(compiled_source, "only_bytes", lambda node, serde: False)
