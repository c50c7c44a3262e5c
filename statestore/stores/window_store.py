"""Window stores that write each update through (Kafka Streams: RocksDBWindowStore, WindowKeySchema).

Changelog key: key + 8-byte window start + 4-byte sequence number. The number is 0 unless the store keeps duplicates, as
the stores of stream-stream joins do.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from typing_extensions import override

from penstock.topology.context.store_interfaces import StoreBackend, StoreBuilder
from penstock.topology.context.task_context import TaskContext
from penstock.topology.errors import StreamsError
from penstock.topology.records import Message, Windowed

from ..rows.bytes_store import BytesStore, Marks, RawRow, Row
from .segments import KeySchema, Segments
from .state_store import StateStore, StoreSerdes, plain_value, timestamped_value
from .store_iterator import Rows, StoreIterator
from .values import Values

log = logging.getLogger(__name__)

LONG_MAX = 2**63 - 1
SEQUENCE_MAX = 2**31 - 1
SEQUENCE = "sequence-number"
#: Window start and sequence number behind the key.
_suffix = struct.Struct(">qi")
_pack, _unpack = _suffix.pack, _suffix.unpack_from

WINDOW_KEY_SCHEMA = KeySchema(
    _suffix,
    SEQUENCE_MAX,
    index_key=lambda key: key[-12:-4] + key[:-12] + key[-4:],
    from_index=lambda key: key[8:-4] + key[:8] + key[-4:],
)


def build_segments(builder: StoreBuilder, task: TaskContext, rows: BytesStore, schema: KeySchema) -> Segments:
    """Return the segments of a window or session store as it is declared."""
    if builder.retention_ms is None:
        raise StreamsError(f"The store {builder.name} was declared without a retention; set it")
    in_memory = builder.backend is StoreBackend.IN_MEMORY
    name = builder.name

    def on_expired() -> None:
        task.record_dropped(name, "expired window segment")

    # Time-ordered window stores show rows one ms longer (AbstractDualSchemaRocksDBSegmentedBytesStore.getActualFrom):
    # else a window that closes exactly when it expires would not be emitted.
    longer = 1 if builder.time_ordered and not in_memory and schema is WINDOW_KEY_SCHEMA else 0
    return Segments(
        rows,
        schema,
        builder.retention_ms,
        on_expired,
        exact=in_memory,
        indexed=in_memory or builder.time_ordered,
        visible_ms=builder.retention_ms + longer,
    )


class WindowStore(StateStore):
    """A window store, plain or timestamped. Times are in ms.

    Rows whose window start is at or below the highest start put minus the retention are hidden.
    """

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore) -> None:
        super().__init__(builder, task, rows)
        self.serdes = StoreSerdes(builder, self.changelog_topic)
        self.values = Values(builder, task, self.serdes)
        self.segments = build_segments(builder, task, rows, WINDOW_KEY_SCHEMA)
        self._size_ms = builder.window_size_ms or 0
        self._duplicates = builder.retain_duplicates
        self._in_memory = builder.backend is StoreBackend.IN_MEMORY
        self._sequence = rows.committed_mark(SEQUENCE) or 0
        self._encode_key = self.serdes.encode_key

    def put(self, key: Any, value: Any, window_start: int) -> None:
        """Set the value of a key's window, None deletes it; a store with duplicates adds it and deletes nothing."""
        self.put_row(self._encode_key(key), self.values.hold(value), window_start)

    def put_held(self, key: Any, held: Any, window_start: int) -> None:
        """Put what values.hold() has made of a value."""
        self.put_row(self._encode_key(key), held, window_start)

    def put_row(self, key: bytes, held: Any, window_start: int) -> None:
        """Put a held value under a serialized key."""
        if self._duplicates:
            self._sequence = (self._sequence + 1) & SEQUENCE_MAX
        log_key = key + _pack(window_start, self._sequence)
        data = self.values.log_held(log_key, held)
        if data is not None or not self._duplicates:
            self.segments.put(log_key, window_start, data)
        elif self._in_memory and window_start > self.segments.observed_ms:
            self.segments.advance(window_start)  # as Kafka Streams' store in memory does, unlike the one on RocksDB

    def fetch(self, key: Any, time: int) -> Any:
        """Return the value of the window that starts at time, None if there is none. The object is the caller's own."""
        return self.fetch_row(self._encode_key(key), time)

    def fetch_forwarded(self, key: Any, time: int) -> Any:
        """Return what fetch returned when changes were last sent downstream: a cache has changes that were not."""
        return self.fetch(key, time)

    def fetch_row(self, key: bytes, time: int) -> Any:
        """Return the value of a serialized key's window."""
        return self.values.decode(self.segments.get(key + _pack(time, self._sequence), time))

    def fetch_range(self, key: Any, time_from: int, time_to: int) -> Rows[tuple[int, Any]]:
        """Return (window start, value) of a key's windows that start from time_from to time_to, earliest first."""
        decode, segments, row_key = self.values.decode, self.segments, self._encode_key(key)
        if segments.latest is not None and segments.visible_from <= time_from <= time_to:
            known = segments.latest.values(row_key, time_from, time_to, decode)
            if known is not None:
                return Rows(known)
        return Rows([(start, decode(data)) for start, _, data in segments.fetch(row_key, time_from, time_to)])

    def backward_fetch_range(self, key: Any, time_from: int, time_to: int) -> Rows[tuple[int, Any]]:
        """Return what fetch_range returns, latest first."""
        return Rows(reversed(self.fetch_range(key, time_from, time_to)))

    def fetch_keys(
        self, key_from: Any, key_to: Any, time_from: int, time_to: int
    ) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate over (windowed key, value) of a range of keys, None for an open side, and of window starts."""
        return StoreIterator(self._fetch_keys(key_from, key_to, time_from, time_to, False))

    def backward_fetch_keys(
        self, key_from: Any, key_to: Any, time_from: int, time_to: int
    ) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate over what fetch_keys gives, in the opposite order."""
        return StoreIterator(self._fetch_keys(key_from, key_to, time_from, time_to, True))

    def fetch_all(self, time_from: int, time_to: int) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate over (windowed key, value) of all windows that start from time_from to time_to."""
        return StoreIterator(self._fetch_keys(None, None, time_from, time_to, False))

    def backward_fetch_all(self, time_from: int, time_to: int) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate over what fetch_all gives, in the opposite order."""
        return StoreIterator(self._fetch_keys(None, None, time_from, time_to, True))

    def all(self) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate over all rows: by segment of time and then key, or by time if the store is ordered so."""
        return StoreIterator(self._decoded(self._scan(0, LONG_MAX, False)))

    def backward_all(self) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate over all rows in the opposite order."""
        return StoreIterator(self._decoded(self._scan(0, LONG_MAX, True)))

    def _fetch_keys(
        self, key_from: Any, key_to: Any, time_from: int, time_to: int, reverse: bool
    ) -> Iterator[tuple[Windowed, Any]]:
        low = None if key_from is None else self._encode_key(key_from)
        high = None if key_to is None else self._encode_key(key_to)
        if low is not None and high is not None and low > high:
            log.warning("Store %s: the range from %r to %r has no rows", self.name, key_from, key_to)
            return iter(())
        rows = self._scan(time_from, time_to, reverse)
        return self._decoded(row for row in rows if in_range(row[0][8:-12], low, high))

    def _scan(self, time_from: int, time_to: int, reverse: bool) -> Iterator[Row]:
        """Iterate over the visible rows with window starts of this range."""
        first = max(time_from, self.segments.visible_from)
        return self.segments.scan(first, time_to, reverse)

    def _decoded(self, rows: Iterable[Row]) -> Iterator[tuple[Windowed, Any]]:
        decode_key, decode = self.serdes.decode_key, self.values.decode
        for row_key, data in rows:
            start, _ = _unpack(row_key, len(row_key) - 12)
            yield self._windowed(decode_key(row_key[8:-12]), start), decode(data)

    def _windowed(self, key: Any, start: int) -> Windowed:
        return Windowed(key, start, min(start + self._size_ms, LONG_MAX))

    @override
    def marks(self) -> Marks:
        return {**self.segments.marks(), SEQUENCE: self._sequence} if self._duplicates else self.segments.marks()

    @override
    def rollback(self) -> None:
        super().rollback()
        self.segments.reload()
        self._sequence = self.rows.committed_mark(SEQUENCE) or 0

    @override
    def close(self) -> None:
        super().close()
        self.segments = cast("Segments", self.rows)

    @override
    def restored_rows(self, messages: Sequence[Message]) -> Sequence[RawRow]:
        if self._duplicates:
            # Continue behind the numbers of before: with the same number, a new duplicate would replace an old one.
            last = max((int.from_bytes(key[-4:], "big") for m in messages if (key := m.key()) is not None), default=0)
            self._sequence = max(self._sequence, last)
        return self.segments.restored(messages, timestamped_value if self.values.with_timestamp else plain_value)


def in_range(key: bytes, low: bytes | None, high: bytes | None) -> bool:
    """Return whether low <= key <= high; None leaves a side open."""
    return (low is None or low <= key) and (high is None or key <= high)
