"""Versioned key-value stores (KIP-889; Kafka Streams: RocksDBVersionedStore).

    latest    0xfe + key -> 8-byte timestamp + value
    history   segment of the end (8 bytes) + key + 8-byte start -> 8-byte end + 1 + value, or 8-byte end + 0 if deleted

An old version is in the time segment in which it ended, so a segment can be dropped as a whole once all its versions
ended before the history retention. A deletion without a later version is a history row that ends where it starts, and
only marks the time. Kafka Streams keeps all versions of a key and segment in one row; Penstock's layout differs, but
reads return the same.

The changelog has plain values with the version's timestamp, including versions that are too late to be kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from typing_extensions import override

from penstock.kernel.rows import after
from penstock.topology.context.store_interfaces import StoreBuilder
from penstock.topology.context.store_types import Rows
from penstock.topology.context.task_context import TaskContext
from penstock.topology.errors import StreamsError
from penstock.topology.records import Message, ValueAndTimestamp, VersionedRecord

from ..rows.bytes_store import BytesStore, Marks, Row
from .segments import NOTHING_OBSERVED, OBSERVED_TIME
from .state_store import LONG, Bounds, StateStore
from .values import Values, converted, timestamped_decoder

#: Results of ``put``: valid without an end, and not kept because it was too late.
VALID_TO_UNDEFINED = -1
NOT_PUT = -(2**63)
LATEST = b"\xfe"
#: The latest time of a deletion, of any key.
DELETED_TIME = "deleted-time"
_pack, _unpack = LONG.pack, LONG.unpack_from
_UNDEFINED = _pack(VALID_TO_UNDEFINED)


class Version(NamedTuple):
    """An old version of one key: valid from start until before end (ms); data is None for a deletion."""

    start: int
    end: int
    data: bytes | None


class VersionedStore(StateStore):
    """A versioned key-value store. Times are in ms.

    A put that is older than the highest timestamp put minus the history retention is dropped. Caching is not possible.
    """

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore) -> None:
        super().__init__(builder, task, rows)
        if builder.history_retention_ms is None:
            raise StreamsError(f"The versioned store {builder.name} was declared without a history retention; set it")
        self.values = Values(builder, task, self.serdes)
        self._decode_row = timestamped_decoder(self.serdes.decode_value)
        self._retention_ms = builder.history_retention_ms
        self._interval_ms = builder.segment_interval_ms or default_segment_interval_ms(self._retention_ms)
        self._reload()

    @override
    def _over(self, rows: BytesStore) -> VersionedStore:
        return VersionedStore(self.builder, self.task, rows)

    def _reload(self) -> None:
        observed, deleted = self.rows.committed_mark(OBSERVED_TIME), self.rows.committed_mark(DELETED_TIME)
        self._observed_ms = NOTHING_OBSERVED if observed is None else observed
        #: When a key was last deleted; later than that, a key without a newest version has no history.
        self._deleted_ms = self._observed_ms if deleted is None else deleted
        self._live_from = self._oldest_segment(self._observed_ms)

    def put(self, key: object, value: object, timestamp: int) -> int:
        """Add a version; None means that the key was deleted at that time.

        Returns the end of its validity: a timestamp, VALID_TO_UNDEFINED for the newest version; NOT_PUT if it was
        dropped.
        """
        held = converted(self.builder, self.values.hold, value)
        return self.put_held(key, held, timestamp)

    def put_held(self, key: object, held: object, timestamp: int) -> int:
        """Put a held value, made by values.hold()."""
        row_key = self.serdes.encode_key(key)
        data = self.values.to_row(held)
        if timestamp < self._observed_ms - self._retention_ms:
            self.task.record_dropped(self.name, "expired put into a versioned store")
            valid_to = NOT_PUT
        else:
            valid_to = self._put(row_key, data, timestamp)
        if self.builder.logging:
            self.task.output.log_change(self.name, row_key, data, timestamp)
        return valid_to

    def delete(self, key: object, timestamp: int) -> VersionedRecord | None:
        """Add a deletion; return the version that was valid at that time before."""
        expired = timestamp < self._observed_ms - self._retention_ms
        old = None if expired else self.get(key, timestamp)
        self.put(key, None, timestamp)
        return old

    def get(self, key: object, as_of: int | None = None) -> VersionedRecord | None:
        """Return the newest version of a key, or the one that was valid at as_of; None if there was none.

        A time before the history retention finds only a version that is still the newest. valid_to is not set, as in
        Kafka Streams; ``get_versions`` does.
        """
        found = self.get_row(key, as_of)
        return None if found is None else VersionedRecord(*found)

    def get_row(self, key: object, as_of: int | None = None) -> ValueAndTimestamp | None:
        """Return the same as the row of a table."""
        row_key = self.serdes.encode_key(key)
        latest = self.rows.get(LATEST + row_key)
        if latest is not None:
            row: ValueAndTimestamp = self._decode_row(latest)
            if as_of is None or row.timestamp <= as_of:
                return row
        if as_of is None or as_of < self._observed_ms - self._retention_ms:
            return None
        for start, end, data in self._history(row_key, as_of, latest is not None):
            if start <= as_of < end and data is not None:
                return ValueAndTimestamp(self.serdes.decode_value(data), start)
        return None

    def get_versions(self, key: object, time_from: int, time_to: int) -> Rows[VersionedRecord]:
        """Return the versions that were valid at any time from time_from to time_to, newest first (KIP-968)."""
        row_key = self.serdes.encode_key(key)
        decode = self.serdes.decode_value
        latest = self.rows.get(LATEST + row_key)
        found: Rows[VersionedRecord] = Rows()
        if latest is not None and _unpack(latest)[0] <= time_to:
            found.append(VersionedRecord(decode(latest[8:]), _unpack(latest)[0]))
        if time_to >= self._observed_ms - self._retention_ms:
            first = max(time_from, self._observed_ms - self._retention_ms, 0)
            old = [version for version in self._history(row_key, first, latest is not None) if version.data is not None]
            wanted = [version for version in old if version.start <= time_to and version.end > time_from]
            wanted.sort(reverse=True)
            found += [VersionedRecord(decode(data), start, end) for start, end, data in wanted]
        return found

    @override
    def read_row(self, key: bytes, row: bytes) -> tuple[object, VersionedRecord | None]:
        """Return a key with one of its versions; None for a deletion."""
        if key.startswith(LATEST):
            return self.serdes.decode_key(key[1:]), VersionedRecord(self.serdes.decode_value(row[8:]), _unpack(row)[0])
        found, start, end = self.serdes.decode_key(key[8:-8]), _unpack(key, len(key) - 8)[0], _unpack(row)[0]
        return found, VersionedRecord(self.serdes.decode_value(row[9:]), start, end) if row[8] else None

    @override
    def stored_rows(self, bounds: Bounds) -> Iterator[Row]:
        """Iterate over all versions: the key, and start, end (VALID_TO_UNDEFINED for the newest one) and value."""
        start, end = bounds.start or b"", bounds.end
        latest = self.rows.scan(LATEST + start, after(LATEST) if end is None else LATEST + end)
        history = self.rows.scan(None, LATEST)
        newest = ((key[1:], row[:8] + _UNDEFINED + row[8:]) for key, row in latest)
        return chain(newest, self._old_versions(history, bounds, self._observed_ms - self._retention_ms))

    @staticmethod
    def _old_versions(rows: Iterator[Row], bounds: Bounds, kept_from: int) -> Iterator[Row]:
        """Yield the rows of the history that ended after a time, in the form of stored_rows."""
        for row_key, data in rows:
            key = row_key[8:-8]
            if data[8] and bounds.has(key) and _unpack(data)[0] > kept_from:
                yield key, row_key[-8:] + data[:8] + data[9:]

    def _put(self, key: bytes, data: bytes | None, timestamp: int) -> int:
        """Add a version of a serialized key."""
        if timestamp > self._observed_ms:
            self._advance(timestamp)
        latest_key = LATEST + key
        latest = self.rows.get(latest_key)
        if data is None:
            self._deleted_ms = max(self._deleted_ms, timestamp)
        next_start = None
        if latest is not None:
            latest_start = _unpack(latest)[0]
            if timestamp >= latest_start:
                if timestamp > latest_start:
                    self._archive(key, latest_start, timestamp, latest[8:])
                self.rows.put(latest_key, None if data is None else _pack(timestamp) + data)
                return VALID_TO_UNDEFINED
            next_start = latest_start
        return self._put_into_history(key, data, timestamp, next_start)

    def _put_into_history(self, key: bytes, data: bytes | None, timestamp: int, next_start: int | None) -> int:
        """Add a version that is older than the newest one, if any, which starts at next_start."""
        for version in self._history(key, timestamp, next_start is not None):
            if version.start <= timestamp < version.end:
                return self._split(key, version, data, timestamp)
            if version.start > timestamp and (next_start is None or version.start < next_start):
                next_start = version.start
        if next_start is not None:
            return next_start if self._archive(key, timestamp, next_start, data) else NOT_PUT
        if data is not None:
            self.rows.put(LATEST + key, _pack(timestamp) + data)
            return VALID_TO_UNDEFINED
        return VALID_TO_UNDEFINED if self._archive(key, timestamp, timestamp, None) else NOT_PUT

    def _split(self, key: bytes, version: Version, data: bytes | None, timestamp: int) -> int:
        """End a version that is valid at timestamp there, and continue with the new one."""
        if version.start < timestamp:
            self.rows.put(self._history_key(key, version.start, version.end), None)
            self._archive(key, version.start, timestamp, version.data)
        self._archive(key, timestamp, version.end, data)
        return version.end

    def _archive(self, key: bytes, start: int, end: int, data: bytes | None) -> bool:
        """Write the history row of a version; return False if its segment has expired."""
        if end < self._live_from:
            return False
        row = _pack(end) + (b"\0" if data is None else b"\1" + data)
        self.rows.put(self._history_key(key, start, end), row)
        return True

    def _history_key(self, key: bytes, start: int, end: int) -> bytes:
        return _pack(end // self._interval_ms) + key + _pack(start)

    def _history(self, key: bytes, time: int, has_newest: bool) -> Iterator[Version]:
        """Yield the old versions of a key that ended at or after time, and some earlier ones.

        has_newest: whether the key has a version without an end. If not, its last one ended with a deletion.
        """
        if not has_newest and time > self._deleted_ms:
            return
        length = 8 + len(key) + 8  # other keys may begin with the bytes of this one
        for number in range(max(0, time) // self._interval_ms, self._observed_ms // self._interval_ms + 1):
            prefix = _pack(number) + key
            for row_key, data in self.rows.rows(prefix, prefix + b"\x80"):  # starts are not negative
                if len(row_key) == length:
                    start, end = _unpack(row_key, length - 8)[0], _unpack(data)[0]
                    yield Version(start, end, data[9:] if data[8] else None)

    def _oldest_segment(self, observed_ms: int) -> int:
        """Return the start of the oldest segment that has not expired."""
        return max(0, observed_ms - self._retention_ms) // self._interval_ms * self._interval_ms

    def _advance(self, timestamp: int) -> None:
        before, self._live_from = self._live_from, self._oldest_segment(timestamp)
        self._observed_ms = timestamp
        if self._live_from > before:
            self.rows.delete_range(_pack(before // self._interval_ms), _pack(self._live_from // self._interval_ms))

    @override
    def marks(self) -> Marks:
        return {OBSERVED_TIME: self._observed_ms, DELETED_TIME: self._deleted_ms}

    @override
    def rollback(self) -> None:
        super().rollback()
        self._reload()

    @override
    def restore(self, messages: Sequence[Message], next_offset: int | None) -> None:
        for message in messages:
            key, timestamp = message.key(), message.timestamp()[1]
            if key is not None and timestamp >= self._observed_ms - self._retention_ms:
                self._put(key, message.value(), timestamp)
        self.rows.commit(next_offset, self.marks())


def default_segment_interval_ms(history_retention_ms: int) -> int:
    """Return Kafka Streams' choice (RocksDbVersionedKeyValueBytesStoreSupplier)."""
    if history_retention_ms <= 60_000:
        return max(history_retention_ms // 3, 2_000)
    if history_retention_ms <= 300_000:
        return max(history_retention_ms // 5, 20_000)
    if history_retention_ms <= 3_600_000:
        return max(history_retention_ms // 12, 60_000)
    return max(history_retention_ms // 24, 3_600_000)
