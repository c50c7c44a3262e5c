"""A count by key with transformWithState, by rows and by pandas, as written for Spark without Penstock."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from typing_extensions import override

OUTPUT = "key binary, value binary"
_long = struct.Struct(">q")


class CountProcessor(StatefulProcessor):
    """Keeps one count for each key."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count: Any = handle.getValueState("count", "count bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Count the rows of one key and micro-batch."""
        before = self._count.get()
        count = (before[0] if before else 0) + sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(key=key[0], value=_long.pack(count))

    @override
    def close(self) -> None:
        pass


class PandasCountProcessor(CountProcessor):
    """The same with transformWithStateInPandas."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """Count the rows of one key and micro-batch."""
        before = self._count.get()
        count = (before[0] if before else 0) + sum(map(len, rows))
        self._count.update((count,))
        yield pd.DataFrame({"key": [key[0]], "value": [_long.pack(count)]})
