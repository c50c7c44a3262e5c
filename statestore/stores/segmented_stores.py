"""Window and session stores that write every update through: rows in segments of time, which expire.

Kafka Streams: RocksDBWindowStore, WindowKeySchema, RocksDBSessionStore, SessionKeySchema. Changelog key of a window:
key + 8-byte window start + 4-byte sequence number, which is 0 unless the store keeps duplicates, as the stores of
stream-stream joins do; of a session: key + 8-byte session end + 8-byte session start.
"""

from __future__ import annotations

import logging
import struct
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, cast

from typing_extensions import override

from penstock.kernel.rows import StoreIterator
from penstock.topology.context.store_interfaces import NodeRows, StoreBackend, StoreBuilder, WindowRows
from penstock.topology.context.store_types import Rows
from penstock.topology.context.task_context import TaskContext
from penstock.topology.errors import StateStoreTypeError, StreamsError
from penstock.topology.records import Message, Windowed
from penstock.topology.serdes.serdes import direct, takes_none

from ..rows.bytes_store import BytesStore, Marks, RawRow, Row
from .segments import INDEX_PREFIX, KeySchema, OwnSegments, Segments
from .state_store import LONG_MAX, Bounds, StateStore
from .values import TIMESTAMPED, Values, converted, headers_logged, rows_for_nodes

log = logging.getLogger(__name__)

SEQUENCE_MAX = 2**31 - 1
SEQUENCE = "sequence-number"
#: Window start and sequence number, after the key.
_suffix = struct.Struct(">qi")
_pack_start, _unpack_start = _suffix.pack, _suffix.unpack_from
#: Session end and start, after the key.
PAIR = struct.Struct(">qq")
_pack_end, _unpack_end = PAIR.pack, PAIR.unpack_from
_new = tuple.__new__

WINDOW_KEY_SCHEMA = KeySchema(
    _suffix,
    SEQUENCE_MAX,
    index_key=lambda key: key[-12:-4] + key[:-12] + key[-4:],
    from_index=lambda key: key[8:-4] + key[:8] + key[-4:],
)


def expires_exactly(builder: StoreBuilder) -> bool:
    """Return whether rows expire at their time, and are ordered by time, as in Kafka Streams' stores in memory.

    Those in RocksDB expire with their segment.
    """
    return builder.backend in (StoreBackend.IN_MEMORY, StoreBackend.CUSTOM)


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
        in_memory = expires_exactly(builder)
        is_own = builder.backend is StoreBackend.CUSTOM
        name = builder.name
        self.segments = (OwnSegments if is_own else Segments)(
            rows,
            schema,
            builder.retention_ms,
            lambda: task.record_dropped(name, "expired window segment"),
            exact=in_memory,
            indexed=(in_memory or builder.time_ordered) and not is_own,
            visible_ms=builder.retention_ms + (self._shown_longer_ms if builder.time_ordered and not in_memory else 0),
        )

    def _of_keys(self, rows: Iterator[Row], key_from: object, key_to: object) -> Iterator[Row]:
        """Choose the rows of a range of keys, None for an open side."""
        low = None if key_from is None else self._encode_key(key_from)
        high = None if key_to is None else self._encode_key(key_to)
        if low is not None and high is not None and low > high:
            log.warning("Store %s: the range from %r to %r has no rows", self.name, key_from, key_to)
            return iter(())
        key = self.segments.record_key
        return (row for row in rows if in_range(row[0][key], low, high))

    @abstractmethod
    def _decoded(self, rows: Iterable[Row]) -> Iterator[tuple[Windowed, object]]:
        """Yield key and value of the rows of segments."""

    @override
    def read_row(self, key: bytes, row: bytes) -> tuple[object, object]:
        if key.startswith(INDEX_PREFIX):
            raise StateStoreTypeError(f"this is no row of {self.name}, but an entry of its index")
        return next(self._decoded(((key, row),)))

    def _bounded(self, bounds: Bounds, time_from: int, time_to: int) -> Iterator[Row]:
        """Iterate over the visible rows within bounds and with times of this range, in any order."""
        return self.segments.stored(bounds, max(time_from, self.segments.visible_from), time_to)

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
    def alive_from(self, messages: Sequence[Message]) -> int:
        if not self.builder.logged_in_window:
            return 0
        time_of = self.segments.schema.time_of
        newest = max((time_of(key) for message in messages if (key := message.key()) is not None), default=0)
        return self.segments.alive_from(newest)

    @override
    def restored_rows(self, messages: Sequence[Message]) -> Sequence[RawRow]:
        return self.segments.restored(messages, self.values.row_of)


def in_range(key: bytes, low: bytes | None, high: bytes | None) -> bool:
    """Return whether a key is in a range; None is an open side."""
    return (low is None or low <= key) and (high is None or key <= high)


def end_of_window(builder: StoreBuilder, start: int) -> int:
    """Return the end of the window of a window store that starts then, in ms."""
    end_of = builder.window_end
    return min(start + (builder.window_size_ms or 0), LONG_MAX) if end_of is None else end_of(start)


class TaskWindowStore(SegmentedStore):
    """A window store, plain or timestamped. Times are in ms.

    Rows whose window start is at or below the highest start put minus the retention are hidden.
    """

    #: As AbstractDualSchemaRocksDBSegmentedBytesStore.getActualFrom does: else a window that closes exactly when it
    #: expires would not be emitted.
    _shown_longer_ms: ClassVar[int] = 1

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore) -> None:
        super().__init__(builder, task, rows, WINDOW_KEY_SCHEMA)
        self._size_ms = builder.window_size_ms or 0
        self._duplicates = builder.retain_duplicates
        self._in_memory = expires_exactly(builder)
        self.segments.sequence = rows.committed_mark(SEQUENCE) or 0

    @override
    def _over(self, rows: BytesStore) -> TaskWindowStore:
        return TaskWindowStore(self.builder, self.task, rows)

    def put(self, key: object, value: object, window_start: int) -> None:
        """Set the value of a key's window, None deletes it; a store with duplicates only adds values."""
        held = converted(self.builder, self.values.hold, value)
        self.put_row(self._encode_key(key), held, window_start)

    def put_held(self, key: object, held: object, window_start: int) -> None:
        """Put a held value, made by values.hold()."""
        self.put_row(self._encode_key(key), held, window_start)

    def put_row(self, key: bytes, held: object, window_start: int) -> None:
        """Put a held value under a serialized key."""
        if self._duplicates:
            self.segments.sequence = (self.segments.sequence + 1) & SEQUENCE_MAX
        log_key = key + _pack_start(window_start, self.segments.sequence)
        data = self.values.log_held(log_key, held)
        if data is not None or not self._duplicates:
            self.segments.put(log_key, window_start, data)
        elif self._in_memory and window_start > self.segments.observed_ms:
            self.segments.advance(window_start)  # as in Kafka Streams' in-memory store, but not in its RocksDB store

    @override
    def timestamped_rows(self) -> NodeRows | None:
        if type(self) is not TaskWindowStore or self.segments.latest is None or self._duplicates:
            return None
        return rows_for_nodes(self, self.values.logs_timestamped)

    @override
    def window_rows(self) -> WindowRows | None:
        serdes, segments, builder = self.serdes, self.segments, self.builder
        if type(self) is not TaskWindowStore or segments.latest is None or segments.indexed or builder.keeps_headers:
            return None
        if not self._duplicates or builder.kind in TIMESTAMPED or not builder.logging:
            return None
        if takes_none(serdes.encode_value) or takes_none(serdes.decode_value):  # their handling of None is unknown
            return None
        return WindowRows(
            serdes.key_serde,
            serdes.direct_key,
            direct(serdes.encode_value),
            direct(serdes.decode_value),
            headers_logged(builder)[0],
            segments,
        )

    def fetch(self, key: object, time: int) -> Any:
        """Return the value of the window that starts at time, None if there is none. The object is the caller's own."""
        return self.fetch_row(self._encode_key(key), time)

    def fetch_forwarded(self, key: object, time: int) -> object:
        """Return the value as of the last changes sent downstream; a cache may have newer ones."""
        return self.fetch(key, time)

    def fetch_row(self, key: bytes, time: int) -> object:
        """Return the value of a serialized key's window."""
        return self.values.decode(self.segments.get(key + _pack_start(time, self.segments.sequence), time))

    def fetch_range(self, key: object, time_from: int, time_to: int) -> Rows[tuple[int, Any]]:
        """Return (window start, value) of a key's windows that start from time_from to time_to, earliest first."""
        decode, segments, row_key = self.values.decode, self.segments, self._encode_key(key)
        if segments.latest is not None and segments.visible_from <= time_from <= time_to:
            known = segments.latest.values(row_key, time_from, time_to, decode)
            if known is not None:
                return Rows(known)
        return Rows([(start, decode(data)) for start, _, data in segments.fetch(row_key, time_from, time_to)])

    def backward_fetch_range(self, key: object, time_from: int, time_to: int) -> Rows[tuple[int, Any]]:
        """Return what fetch_range returns, latest first."""
        return Rows(reversed(self.fetch_range(key, time_from, time_to)))

    def fetch_keys(
        self, key_from: object, key_to: object, time_from: int, time_to: int
    ) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate over (windowed key, value) of a range of keys, None for an open side, and of window starts."""
        return StoreIterator(self._fetch_keys(key_from, key_to, time_from, time_to, False))

    def backward_fetch_keys(
        self, key_from: object, key_to: object, time_from: int, time_to: int
    ) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate like fetch_keys, in the opposite order."""
        return StoreIterator(self._fetch_keys(key_from, key_to, time_from, time_to, True))

    def fetch_all(self, time_from: int, time_to: int) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate over (windowed key, value) of all windows that start from time_from to time_to."""
        return StoreIterator(self._fetch_keys(None, None, time_from, time_to, False))

    def backward_fetch_all(self, time_from: int, time_to: int) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate like fetch_all, in the opposite order."""
        return StoreIterator(self._fetch_keys(None, None, time_from, time_to, True))

    def all(self) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate over all rows: by segment of time and then key, or by time if the store is ordered so."""
        return StoreIterator(self._decoded(self._scan(0, LONG_MAX, False)))

    def backward_all(self) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate over all rows in the opposite order."""
        return StoreIterator(self._decoded(self._scan(0, LONG_MAX, True)))

    def _fetch_keys(
        self, key_from: object, key_to: object, time_from: int, time_to: int, reverse: bool
    ) -> Iterator[tuple[Windowed, object]]:
        return self._decoded(self._of_keys(self._scan(time_from, time_to, reverse), key_from, key_to))

    def _scan(self, time_from: int, time_to: int, reverse: bool) -> Iterator[Row]:
        """Iterate over the visible rows with window starts of this range."""
        first = max(time_from, self.segments.visible_from)
        return self.segments.scan(first, time_to, reverse)

    @override
    def _decoded(self, rows: Iterable[Row]) -> Iterator[tuple[Windowed, object]]:
        decode_key, decode = self.serdes.decode_key, self.values.decode
        for row_key, data in rows:
            start, _ = _unpack_start(row_key, len(row_key) - 12)
            yield self._windowed(decode_key(row_key[8:-12]), start), decode(data)

    @override
    def stored_rows(self, bounds: Bounds) -> Iterator[Row]:
        return self._bounded(bounds, bounds.time_from, bounds.time_to)

    def _windowed(self, key: object, start: int) -> Windowed:
        return Windowed(key, start, self.window_end(start))

    def window_end(self, start: int) -> int:
        """Return the end of the window that starts then."""
        return end_of_window(self.builder, start)

    @override
    def marks(self) -> Marks:
        return {**super().marks(), SEQUENCE: self.segments.sequence} if self._duplicates else super().marks()

    @override
    def rollback(self) -> None:
        super().rollback()
        self.segments.sequence = self.rows.committed_mark(SEQUENCE) or 0

    @override
    def restored_rows(self, messages: Sequence[Message]) -> Sequence[RawRow]:
        if self._duplicates:
            # Continue after the previous sequence numbers: with the same number, a new duplicate would replace an old
            # one.
            last = max((int.from_bytes(key[-4:], "big") for m in messages if (key := m.key()) is not None), default=0)
            self.segments.sequence = max(self.segments.sequence, last)
        return super().restored_rows(messages)


def _escaped(key: bytes) -> bytes:
    """Return self-delimiting bytes in the order of the keys, regardless of the bytes after them."""
    return key.replace(b"\0", b"\0\xff") + b"\0\0"


def _unescaped(data: bytes) -> bytes:
    return data[:-2].replace(b"\0\xff", b"\0")


#: Time-ordered RocksDB stores sort by end, start and key, stores in memory by end, key and start, as in Kafka Streams.
TIME_FIRST = KeySchema(PAIR, LONG_MAX, lambda key: key[-16:] + key[:-16], lambda key: key[16:] + key[:16])
END_FIRST = KeySchema(
    PAIR,
    LONG_MAX,
    lambda key: key[-16:-8] + _escaped(key[:-16]) + key[-8:],
    lambda key: _unescaped(key[8:-8]) + key[:8] + key[-8:],
)


class TaskSessionStore(SegmentedStore):
    """A session store. Times are in ms; sessions are [start, end].

    Sessions whose end is at or below the highest end put minus the retention are hidden.
    """

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore) -> None:
        super().__init__(builder, task, rows, END_FIRST if expires_exactly(builder) else TIME_FIRST)

    @override
    def _over(self, rows: BytesStore) -> TaskSessionStore:
        return TaskSessionStore(self.builder, self.task, rows)

    def put(self, session: Windowed, value: object) -> None:
        """Set the aggregate of a session, None deletes it."""
        held = converted(self.builder, self.values.hold, value)
        self.put_held(session, held)

    def put_held(self, session: Windowed, held: object) -> None:
        """Put a held aggregate, made by values.hold()."""
        key, start, end = session
        self.put_row(self._encode_key(key), start, end, held)

    def put_row(self, key: bytes, start: int, end: int, held: object) -> None:
        """Put the held aggregate of a serialized key's session."""
        log_key = key + _pack_end(end, start)
        self.segments.put(log_key, end, self.values.log_held(log_key, held))

    def remove(self, session: Windowed) -> None:
        """Delete a session."""
        self.put(session, None)

    @override
    def session_rows(self) -> NodeRows | None:
        if type(self) is not TaskSessionStore or self.segments.latest is None:
            return None
        return rows_for_nodes(self, self.builder.logging and not self.builder.keeps_headers)

    def fetch_session(self, key: object, start: int, end: int) -> Any:
        """Return the aggregate of exactly this session, None if there is none."""
        return self.fetch_row(self._encode_key(key), start, end)

    def fetch_session_forwarded(self, key: object, start: int, end: int) -> object:
        """Return the aggregate as of the last changes sent downstream, see TaskWindowStore."""
        return self.fetch_session(key, start, end)

    def fetch_row(self, key: bytes, start: int, end: int) -> object:
        """Return the aggregate of a serialized key's session."""
        return self.values.decode(self.segments.get(key + _pack_end(end, start), end))

    def find_sessions(self, key: object, earliest_end: int, latest_start: int) -> Rows[tuple[Windowed, Any]]:
        """Return (session, aggregate) of a key's sessions with end >= earliest_end and start <= latest_start.

        They are sorted by end, then by start.
        """
        decode = self.values.decode
        found = self.segments.fetch(self._encode_key(key), earliest_end, LONG_MAX)
        return Rows(
            [(_new(Windowed, (key, start, end)), decode(data)) for end, start, data in found if start <= latest_start]
        )

    def backward_find_sessions(self, key: object, earliest_end: int, latest_start: int) -> Rows[tuple[Windowed, Any]]:
        """Return what find_sessions returns, latest first."""
        return Rows(reversed(self.find_sessions(key, earliest_end, latest_start)))

    def find_sessions_ending(self, earliest_end: int, latest_end: int) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate over (session, aggregate) of all keys with earliest_end <= end <= latest_end.

        Sorted by end first if the store is ordered by time (emit on window close) or in memory. A time-ordered store
        also shows expired sessions until their segment is dropped, so no session that closes late is lost.
        """
        hidden_too = self.builder.time_ordered and not expires_exactly(self.builder)
        return StoreIterator(self._decoded(self._scan(earliest_end, latest_end, False, hidden_too)))

    def fetch(self, key: object) -> Rows[tuple[Windowed, Any]]:
        """Return (session, aggregate) of all sessions of a key."""
        return self.find_sessions(key, 0, LONG_MAX)

    def backward_fetch(self, key: object) -> Rows[tuple[Windowed, Any]]:
        """Return what fetch returns, latest first."""
        return self.backward_find_sessions(key, 0, LONG_MAX)

    def fetch_keys(
        self, key_from: object = None, key_to: object = None, earliest_end: int = 0, latest_start: int = LONG_MAX
    ) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate over (session, aggregate) of a range of keys, None for an open side, in the order of the store."""
        return StoreIterator(self._fetch_keys(key_from, key_to, earliest_end, latest_start, False))

    def backward_fetch_keys(
        self, key_from: object = None, key_to: object = None, earliest_end: int = 0, latest_start: int = LONG_MAX
    ) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate like fetch_keys, in the opposite order."""
        return StoreIterator(self._fetch_keys(key_from, key_to, earliest_end, latest_start, True))

    def all(self) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate over all sessions."""
        return self.fetch_keys()

    def _fetch_keys(
        self, key_from: object, key_to: object, earliest_end: int, latest_start: int, reverse: bool
    ) -> Iterator[tuple[Windowed, object]]:
        rows = self._of_keys(self._scan(earliest_end, LONG_MAX, reverse), key_from, key_to)
        return self._decoded(row for row in rows if _unpack_end(row[0], len(row[0]) - 16)[1] <= latest_start)

    @override
    def stored_rows(self, bounds: Bounds) -> Iterator[Row]:
        rows, latest_start = self._bounded(bounds, bounds.time_from, LONG_MAX), bounds.time_to
        return (row for row in rows if _unpack_end(row[0], len(row[0]) - 16)[1] <= latest_start)

    def _scan(self, earliest_end: int, latest_end: int, reverse: bool, hidden_too: bool = False) -> Iterator[Row]:
        """Iterate over the rows with session ends of this range."""
        first = earliest_end if hidden_too else max(earliest_end, self.segments.visible_from)
        return self.segments.scan(first, latest_end, reverse)

    @override
    def _decoded(self, rows: Iterable[Row]) -> Iterator[tuple[Windowed, object]]:
        decode_key, decode = self.serdes.decode_key, self.values.decode
        for row_key, data in rows:
            end, start = _unpack_end(row_key, len(row_key) - 16)
            yield Windowed(decode_key(row_key[8:-16]), start, end), decode(data)
