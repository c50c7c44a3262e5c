"""The buffer of a stream-table join with a grace period (KIP-923; Kafka Streams: RocksDBTimeOrderedKeyValueBuffer).

Row and changelog key: 0 (time first) + 8-byte timestamp + key + 4-byte sequence number. Value: BufferValue with the new
value only. The changelog has 8 bytes more, a buffer time that is always 0; a row has the input record's key and value
instead.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from typing_extensions import override

from penstock.topology.context.store_interfaces import StoreBuilder
from penstock.topology.context.task_context import TaskContext
from penstock.topology.errors import StreamsError
from penstock.topology.records import Message, ProcessorRecordContext

from ..rows.bytes_store import BytesStore, Marks, RawRow
from ..stores.segmented_stores import SEQUENCE, SEQUENCE_MAX
from ..stores.segments import NOTHING_OBSERVED, OBSERVED_TIME
from ..stores.state_store import LONG, StateStore, plain_rows
from .buffer_value import BufferValue, serialize_source, with_source

_sequence = struct.Struct(">i")
#: Key prefix of PrefixedWindowKeySchemas.TimeFirstWindowKeySchema.
TIME_FIRST = b"\0"
_pack, _unpack = LONG.pack, LONG.unpack_from
BUFFER_TIME = LONG.pack(0)
LONG_MAX = 2**63 - 1


class RocksDBTimeOrderedKeyValueBuffer(StateStore):
    """Holds records until stream time (the highest timestamp put) has passed theirs by the grace period."""

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore) -> None:
        super().__init__(builder, task, rows)
        if builder.grace_ms is None:
            raise StreamsError(f"The join buffer {builder.name} was declared without a grace period; set it")
        self._grace_ms = builder.grace_ms
        self._reload()

    def _reload(self) -> None:
        """Reload the committed state: after opening, a rollback and a restore."""
        observed = self.rows.committed_mark(OBSERVED_TIME)
        self._observed_ms = NOTHING_OBSERVED if observed is None else observed
        self._number = self.rows.committed_mark(SEQUENCE) or 0
        self._min_timestamp = 0  # nothing is older
        self._totals: tuple[int, int] | None = None  # records and bytes, computed on request

    def put(self, buffer_time: int, key: Any, value: Any, context: ProcessorRecordContext) -> bool:
        """Buffer a record at its context's timestamp; False if it is beyond the grace period and was not buffered.

        Raises StreamsError for a record without a key, as Kafka Streams' buffer does.
        """
        if key is None:
            raise StreamsError(
                f"{self.name} cannot buffer a record without a key. Filter such records out before the left join, "
                "or join without a grace period"
            )
        timestamp = context.timestamp
        if self._observed_ms - self._grace_ms > timestamp:
            return False
        self._number = (self._number + 1) & SEQUENCE_MAX
        row_key = TIME_FIRST + _pack(timestamp) + self.serdes.encode_key(key) + _sequence.pack(self._number)
        data = BufferValue(None, None, self.serdes.encode_value(value), context).serialize()
        self.rows.put(row_key, data + serialize_source(context))
        if self.builder.logging:
            self.task.log_change(self.name, row_key, data + BUFFER_TIME, None)
        self._observed_ms = max(self._observed_ms, timestamp)
        self._min_timestamp = min(self._min_timestamp, timestamp)
        self._totals = None
        return True

    def evict_while(
        self, predicate: Callable[[], bool], callback: Callable[[Any, Any, ProcessorRecordContext], None]
    ) -> None:
        """Remove the records whose grace period is over, oldest first, while predicate() holds.

        callback(key, value, context) is called before the record is removed.
        """
        last = self._observed_ms - self._grace_ms
        if last < self._min_timestamp or not predicate():
            return
        decode_key, decode_value = self.serdes.decode_key, self.serdes.decode_value
        for row_key, data in self.rows.rows(TIME_FIRST + _pack(self._min_timestamp), TIME_FIRST + _pack(last + 1)):
            if not predicate():
                return
            value, end = BufferValue.deserialize(data)
            context = with_source(value.context, data, end)
            self._min_timestamp = _unpack(row_key, 1)[0]
            callback(decode_key(row_key[9:-4]), decode_value(value.new), context)
            self.rows.put(row_key, None)
            if self.builder.logging:
                self.task.log_change(self.name, row_key, None, None)
            self._totals = None
        self._min_timestamp = last + 1

    def prior_value_for_buffered(self, key: Any) -> None:
        """Return None: a stream has no prior value."""
        return

    def num_records(self) -> int:
        """Return the number of buffered records, by counting them; for metrics and queries."""
        return self._count()[0]

    def buffer_size(self) -> int:
        """Return the size of the buffered records in bytes, as Kafka Streams counts it."""
        return self._count()[1]

    def _count(self) -> tuple[int, int]:
        if self._totals is None:
            sizes = [len(key) + BufferValue.deserialize(data)[0].size() for key, data in self.rows.scan(None, None)]
            self._totals = len(sizes), sum(sizes)
        return self._totals

    def min_timestamp(self) -> int:
        """Return a lower bound in ms of the buffered timestamps, Java's highest long if nothing is buffered."""
        return self._min_timestamp if self.num_records() else LONG_MAX

    @override
    def marks(self) -> Marks:
        return {OBSERVED_TIME: self._observed_ms, SEQUENCE: self._number}

    @override
    def rollback(self) -> None:
        super().rollback()
        self._reload()

    @override
    def restored_rows(self, messages: Sequence[Message]) -> Iterable[RawRow]:
        rows = [(key, None if data is None else data[: -len(BUFFER_TIME)]) for key, data in plain_rows(messages)]
        for key, _ in rows:
            self._observed_ms = max(self._observed_ms, _unpack(key, 1)[0])
            self._number = max(self._number, _sequence.unpack(key[-4:])[0])
        self._min_timestamp = 0
        self._totals = None
        return rows


def changelog_value(row: bytes) -> bytes:
    """Return the value of a row's changelog record."""
    return row[: BufferValue.deserialize(row)[1]] + BUFFER_TIME
