"""What window and session stores share: rows in segments of time, which expire as stream time advances."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, cast

from typing_extensions import override

from penstock.topology.context.store_interfaces import StoreBackend, StoreBuilder
from penstock.topology.context.task_context import TaskContext
from penstock.topology.errors import StreamsError
from penstock.topology.records import Message

from ..rows.bytes_store import BytesStore, Marks, RawRow, Row
from .segments import KeySchema, Segments
from .state_store import StateStore, plain_value, timestamped_value
from .values import Values

log = logging.getLogger(__name__)


class SegmentedStore(StateStore):
    """A store whose rows expire. Raises StreamsError if it was declared without a retention."""

    #: How much longer than the retention a time-ordered store on RocksDB shows its rows, in ms.
    _shown_longer_ms: ClassVar[int] = 0

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore, schema: KeySchema) -> None:
        super().__init__(builder, task, rows)
        self.values = Values(builder, task, self.serdes)
        self._encode_key = self.serdes.encode_key
        if builder.retention_ms is None:
            raise StreamsError(f"The store {builder.name} was declared without a retention; set it")
        in_memory = builder.backend is StoreBackend.IN_MEMORY
        name = builder.name
        self.segments = Segments(
            rows,
            schema,
            builder.retention_ms,
            lambda: task.record_dropped(name, "expired window segment"),
            exact=in_memory,
            indexed=in_memory or builder.time_ordered,
            visible_ms=builder.retention_ms + (self._shown_longer_ms if builder.time_ordered and not in_memory else 0),
        )

    def _of_keys(self, rows: Iterator[Row], key_from: Any, key_to: Any) -> Iterator[Row]:
        """Choose the rows of a range of keys, None for an open side."""
        low = None if key_from is None else self._encode_key(key_from)
        high = None if key_to is None else self._encode_key(key_to)
        if low is not None and high is not None and low > high:
            log.warning("Store %s: the range from %r to %r has no rows", self.name, key_from, key_to)
            return iter(())
        key = slice(8, -self.segments.schema.suffix.size)
        return (row for row in rows if in_range(row[0][key], low, high))

    @override
    def marks(self) -> Marks:
        return self.segments.marks()

    @override
    def rollback(self) -> None:
        super().rollback()
        self.segments.reload()

    @override
    def close(self) -> None:
        super().close()
        self.segments = cast("Segments", self.rows)

    @override
    def restored_rows(self, messages: Sequence[Message]) -> Sequence[RawRow]:
        return self.segments.restored(messages, timestamped_value if self.values.with_timestamp else plain_value)


def in_range(key: bytes, low: bytes | None, high: bytes | None) -> bool:
    """Return whether a key is in a range; None is an open side."""
    return (low is None or low <= key) and (high is None or key <= high)
