"""Iceberg tables in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog


def sql_catalog(folder: Path) -> dict[str, str]:
    """Return the properties of a catalog in a file of SQLite, whose tables are in this folder."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def rows_of(catalog: str, table: str, properties: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return all rows of a table."""
    with load_catalog(catalog, **properties) as opened:
        found: list[dict[str, Any]] = opened.load_table(table).scan().to_arrow().to_pylist()
    return found
