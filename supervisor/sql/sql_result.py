"""The result of a query in SQL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any

from penstock.topology.errors import ConfigError
from penstock.topology.query.position import Position, merged

from ..queries.store_routing import position_json

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import polars as pl
    import pyarrow as pa


#: The metadata of a schema of Arrow with JSON: the positions of a result; of a store, what arrow.py says of its rows.
METADATA = b"penstock"


@dataclass(frozen=True, slots=True)
class SqlResult:
    """The rows of a query, and the position of each store in its input as of which they are.

    columns: the names. positions: by store; None if a task does not know. stream: the rows as a stream of Arrow.
    """

    columns: tuple[str, ...]
    positions: Mapping[str, Position | None]
    stream: bytes = field(repr=False)

    @property
    def position(self) -> Position | None:
        """The positions of all stores as one; None if one of them is not known."""
        return merged(self.positions.values())

    def to_arrow(self) -> pa.Table:
        """Return the rows as a table of pyarrow."""
        import pyarrow as pa

        return pa.ipc.open_stream(pa.py_buffer(self.stream)).read_all()

    def to_pandas(self, **options: object) -> pd.DataFrame:
        """Return the rows as a DataFrame of pandas. options: those of pyarrow.Table.to_pandas. Needs pandas."""
        try:
            return self.to_arrow().to_pandas(**options)
        except ImportError as error:
            raise ConfigError(f"to_pandas needs pandas: pip install pandas ({error})") from error

    def to_polars(self) -> pl.DataFrame:
        """Return the rows as a DataFrame of Polars. Needs polars."""
        try:
            import polars as pl
        except ImportError as error:
            raise ConfigError(f"to_polars needs Polars: pip install polars ({error})") from error
        found: Any = pl.from_arrow(self.to_arrow())
        return found  # type: ignore[no-any-return]

    def rows(self) -> list[list[Any]]:
        """Return the rows as lists, in the order of the columns."""
        table = self.to_arrow()
        return [list(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]

    def to_json(self) -> dict[str, Any]:
        """Return columns, rows and positions for JSON: dates and times as in ISO 8601, bytes as hexadecimal digits."""
        rows = [[_plain(value) for value in row] for row in self.rows()]
        return {"columns": list(self.columns), "rows": rows, "positions": positions_json(self.positions)}


def positions_json(positions: Mapping[str, Position | None]) -> dict[str, Any]:
    """Return positions by store for JSON."""
    return {store: position_json(position) for store, position in positions.items()}


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(name): _plain(field) for name, field in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    exact = value is None or isinstance(value, bool | str) or (isinstance(value, int) and -(2**63) <= value < 2**64)
    return value if exact else str(value)
