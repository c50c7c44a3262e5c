"""Session stores that write every update through (Kafka Streams: RocksDBSessionStore, SessionKeySchema).

Changelog key: key + 8-byte session end + 8-byte session start.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.topology.context.store_interfaces import StoreBackend, StoreBuilder
from penstock.topology.context.task_context import TaskContext
from penstock.topology.records import Windowed

from ..rows.bytes_store import BytesStore, Row
from .segmented_store import SegmentedStore
from .segments import KeySchema
from .store_iterator import Rows, StoreIterator
from .window_store import LONG_MAX

#: Session end and start, after the key.
PAIR = struct.Struct(">qq")
_pack, _unpack = PAIR.pack, PAIR.unpack_from
_new = tuple.__new__


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


class SessionStore(SegmentedStore):
    """A session store. Times are in ms; sessions are [start, end].

    Sessions whose end is at or below the highest end put minus the retention are hidden.
    """

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore) -> None:
        super().__init__(builder, task, rows, END_FIRST if builder.backend is StoreBackend.IN_MEMORY else TIME_FIRST)

    def put(self, session: Windowed, value: Any) -> None:
        """Set the aggregate of a session, None deletes it."""
        self.put_held(session, self.values.hold(value))

    def put_held(self, session: Windowed, held: Any) -> None:
        """Put a held aggregate, made by values.hold()."""
        key, start, end = session
        self.put_row(self._encode_key(key), start, end, held)

    def put_row(self, key: bytes, start: int, end: int, held: Any) -> None:
        """Put the held aggregate of a serialized key's session."""
        log_key = key + _pack(end, start)
        self.segments.put(log_key, end, self.values.log_held(log_key, held))

    def remove(self, session: Windowed) -> None:
        """Delete a session."""
        self.put(session, None)

    def fetch_session(self, key: Any, start: int, end: int) -> Any:
        """Return the aggregate of exactly this session, None if there is none."""
        return self.fetch_row(self._encode_key(key), start, end)

    def fetch_session_forwarded(self, key: Any, start: int, end: int) -> Any:
        """Return the aggregate as of the last changes sent downstream, see WindowStore."""
        return self.fetch_session(key, start, end)

    def fetch_row(self, key: bytes, start: int, end: int) -> Any:
        """Return the aggregate of a serialized key's session."""
        return self.values.decode(self.segments.get(key + _pack(end, start), end))

    def find_sessions(self, key: Any, earliest_end: int, latest_start: int) -> Rows[tuple[Windowed, Any]]:
        """Return (session, aggregate) of a key's sessions with end >= earliest_end and start <= latest_start.

        They are sorted by end, then by start.
        """
        decode = self.values.decode
        found = self.segments.fetch(self._encode_key(key), earliest_end, LONG_MAX)
        return Rows(
            [(_new(Windowed, (key, start, end)), decode(data)) for end, start, data in found if start <= latest_start]
        )

    def backward_find_sessions(self, key: Any, earliest_end: int, latest_start: int) -> Rows[tuple[Windowed, Any]]:
        """Return what find_sessions returns, latest first."""
        return Rows(reversed(self.find_sessions(key, earliest_end, latest_start)))

    def find_sessions_ending(self, earliest_end: int, latest_end: int) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate over (session, aggregate) of all keys with earliest_end <= end <= latest_end.

        Sorted by end first if the store is ordered by time (emit on window close) or in memory. A time-ordered store
        also shows expired sessions until their segment is dropped, so no session that closes late is lost.
        """
        hidden_too = self.builder.time_ordered and self.builder.backend is not StoreBackend.IN_MEMORY
        return StoreIterator(self._decoded(self._scan(earliest_end, latest_end, False, hidden_too)))

    def fetch(self, key: Any) -> Rows[tuple[Windowed, Any]]:
        """Return (session, aggregate) of all sessions of a key."""
        return self.find_sessions(key, 0, LONG_MAX)

    def backward_fetch(self, key: Any) -> Rows[tuple[Windowed, Any]]:
        """Return what fetch returns, latest first."""
        return self.backward_find_sessions(key, 0, LONG_MAX)

    def fetch_keys(
        self, key_from: Any = None, key_to: Any = None, earliest_end: int = 0, latest_start: int = LONG_MAX
    ) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate over (session, aggregate) of a range of keys, None for an open side, in the order of the store."""
        return StoreIterator(self._fetch_keys(key_from, key_to, earliest_end, latest_start, False))

    def backward_fetch_keys(
        self, key_from: Any = None, key_to: Any = None, earliest_end: int = 0, latest_start: int = LONG_MAX
    ) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate like fetch_keys, in the opposite order."""
        return StoreIterator(self._fetch_keys(key_from, key_to, earliest_end, latest_start, True))

    def all(self) -> StoreIterator[tuple[Windowed, Any]]:
        """Iterate over all sessions."""
        return self.fetch_keys()

    def _fetch_keys(
        self, key_from: Any, key_to: Any, earliest_end: int, latest_start: int, reverse: bool
    ) -> Iterator[tuple[Windowed, Any]]:
        rows = self._of_keys(self._scan(earliest_end, LONG_MAX, reverse), key_from, key_to)
        return self._decoded(row for row in rows if _unpack(row[0], len(row[0]) - 16)[1] <= latest_start)

    def _scan(self, earliest_end: int, latest_end: int, reverse: bool, hidden_too: bool = False) -> Iterator[Row]:
        """Iterate over the rows with session ends of this range."""
        first = earliest_end if hidden_too else max(earliest_end, self.segments.visible_from)
        return self.segments.scan(first, latest_end, reverse)

    def _decoded(self, rows: Iterable[Row]) -> Iterator[tuple[Windowed, Any]]:
        decode_key, decode = self.serdes.decode_key, self.values.decode
        for row_key, data in rows:
            end, start = _unpack(row_key, len(row_key) - 16)
            yield Windowed(decode_key(row_key[8:-16]), start, end), decode(data)
