"""Rows that expire: the common part of window and session stores (Kafka Streams: AbstractRocksDBSegmentedBytesStore).

Kafka Streams opens a RocksDB per time segment and drops it as a whole. Here the segment's number is the first 8 bytes
of a row's key. The rows of one record key are adjacent within a segment, a scan over segments has Kafka Streams' order,
one ``delete_range`` drops an old segment, and all segments commit in one batch with the offset.

    row     segment (8 bytes) + changelog key -> value
    index   0xff + changelog key with its times first -> nothing

Only stores that must be scanned by time first have the index: stores of results emitted on window close (KIP-825), and
in-memory stores, which Kafka Streams sorts by time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from typing_extensions import override

from penstock.kernel.rows import SegmentTimes, after
from penstock.topology.records import Message

from ..rows.bytes_store import BytesStore, Marks, RawRow, Row
from ..rows.own_rows import OwnTimedRows
from .state_store import LONG, Bounds

#: Shortest segment in ms (Kafka Streams: Stores.persistentWindowStore).
SEGMENT_INTERVAL_MIN_MS = 60_000
INDEX_PREFIX = b"\xff"
OBSERVED_TIME = "observed-stream-time"
#: No row has been put yet (Kafka: ConsumerRecord.NO_TIMESTAMP).
NOTHING_OBSERVED = -1
_pack = LONG.pack

#: The time of a row (for its expiry), the second number of its key, and its value.
TimedRow = tuple[int, int, bytes]


def segment_interval_ms(retention_ms: int) -> int:
    """Return the length of a segment of rows that are kept for this long."""
    return max(retention_ms // 2, SEGMENT_INTERVAL_MIN_MS)


@dataclass(frozen=True, slots=True)
class KeySchema:
    """The position of the numbers in a changelog key, after the record key.

    suffix: the time that determines the row's expiry, and a second number, at most second_max. index_key(key),
    from_index(index key): convert to and from a key with the times first.
    """

    suffix: struct.Struct
    second_max: int
    index_key: Callable[[bytes], bytes]
    from_index: Callable[[bytes], bytes]

    def time_of(self, key: bytes) -> int:
        """Return the time that determines the expiry of a changelog key's row."""
        at = len(key) - self.suffix.size
        return int.from_bytes(key[at : at + LONG.size], "big")


class Segments(SegmentTimes):
    """The rows of one store, by time.

    retention_ms: rows whose time is at or below the highest time put minus this are hidden. exact: such rows are
    dropped, as in memory; otherwise they are dropped only once their segment has expired. on_expired: called for each
    dropped put. indexed: maintain the index. visible_ms: how long rows are visible, by default the retention.

    observed_ms: the highest time seen. Rows before visible_from are hidden, those before taken_from are dropped when
    they are put, those before live_from have been deleted. From drops_at on, an advance may delete rows.
    """

    def __init__(
        self,
        rows: BytesStore,
        schema: KeySchema,
        retention_ms: int,
        on_expired: Callable[[], None],
        exact: bool,
        indexed: bool,
        visible_ms: int | None = None,
    ) -> None:
        interval_ms = segment_interval_ms(retention_ms)
        latest = rows.latest_rows(schema.suffix.size - LONG.size, interval_ms)
        visible_ms = retention_ms if visible_ms is None else visible_ms
        super().__init__(retention_ms, visible_ms, interval_ms, exact, indexed, latest)
        self.rows = rows
        self.schema = schema
        self.expired = on_expired
        self.reload()

    def reload(self) -> None:
        """Reload the time of the last commit: after opening and after a rollback."""
        committed = self.rows.committed_mark(OBSERVED_TIME)
        self.begin(NOTHING_OBSERVED if committed is None else committed)
        if self.latest is not None:
            self.latest.rest()

    def marks(self) -> Marks:
        """Return what must be committed with the rows."""
        return {OBSERVED_TIME: self.observed_ms}

    def alive_from(self, time_ms: int) -> int:
        """Return the time of the oldest rows that are not deleted when stream time has reached time_ms."""
        kept = time_ms - self.retention_ms
        return max(kept - kept % self.interval_ms, 0)

    def drop(self, first: int, end: int) -> None:
        """Delete the rows of the segments from a time up to another one; the kernel calls it."""
        interval = self.interval_ms
        self.rows.delete_range(_pack(first // interval), _pack(end // interval))
        if self.indexed:
            self.rows.delete_range(INDEX_PREFIX + _pack(first), INDEX_PREFIX + _pack(end))

    def put(self, key: bytes, time_ms: int, data: bytes | None) -> None:
        """Set or delete the row of a changelog key; a row whose time has expired is dropped."""
        if time_ms > self.observed_ms:
            self.advance(time_ms)
        if time_ms < self.taken_from:
            self.expired()
            return
        if self.latest is None:
            self.rows.put(_pack(time_ms // self.interval_ms) + key, data)
        else:
            self.latest.put(key, data)
        if self.indexed:
            self.index(key, data)

    def index(self, key: bytes, data: bytes | None) -> None:
        """Set or delete the index entry of a changelog key's row; the kernel calls it, too."""
        self.rows.put(INDEX_PREFIX + self.schema.index_key(key), None if data is None else b"")

    def get(self, key: bytes, time_ms: int) -> bytes | None:
        """Return the value of a row, None if there is none or it is hidden."""
        if time_ms < self.visible_from:
            return None
        return self._row(key, time_ms)

    def _row(self, key: bytes, time_ms: int) -> bytes | None:
        latest = self.latest
        if latest is not None:
            found: bytes | None = latest.get(key)
            if found is not latest.NOT_KNOWN:
                return found
            self.keep_latest()
        return self.rows.get(_pack(time_ms // self.interval_ms) + key)

    def fetch(self, key: bytes, time_from: int, time_to: int) -> list[TimedRow]:
        """Return (time, second number, value) of a record key's visible rows from time_from to time_to, in order."""
        time_from = max(time_from, self.visible_from)
        if time_from > time_to:
            return []
        known = self.fetch_latest(key, time_from, time_to)
        if known is not None:
            return known
        first, last = time_from // self.interval_ms, min(time_to, self.observed_ms) // self.interval_ms
        suffix = self.schema.suffix
        low, high = key + suffix.pack(time_from, 0), key + suffix.pack(time_to, self.schema.second_max) + b"\0"
        length, unpack, get_rows = LONG.size + len(low), suffix.unpack_from, self.rows.rows
        at = length - suffix.size
        return [
            (*unpack(row_key, at), data)
            for prefix in map(_pack, range(first, last + 1))
            for row_key, data in get_rows(prefix + low, prefix + high)
            if len(row_key) == length  # other keys may begin with the bytes of this one
        ]

    def fetch_latest(self, key: bytes, time_from: int, time_to: int) -> list[TimedRow] | None:
        """Return the result of fetch for visible times if it needs no disk access; otherwise None."""
        if self.latest is None:
            return None
        found: list[TimedRow] | None = self.latest.fetch(key, time_from, time_to)
        if found is None:
            self.keep_latest()
        return found

    def scan(self, time_from: int, time_to: int, reverse: bool) -> Iterator[Row]:
        """Iterate over the rows with times in this range, including hidden ones; by time first if there is an index."""
        first = max(time_from, self.live_from)
        last = min(time_to, self.observed_ms)
        if first > last:
            return iter(())
        if self.indexed:
            return self._indexed_rows(self._index_scan(first, last, reverse))
        time_of = self.schema.time_of
        rows = self.rows.scan(_pack(first // self.interval_ms), _pack(last // self.interval_ms + 1), reverse)
        return (row for row in rows if time_from <= time_of(row[0]) <= time_to)

    def stored(self, bounds: Bounds, time_from: int, time_to: int) -> Iterator[Row]:
        """Iterate over the rows within bounds, as of now, by segment of time and then key.

        time_from, time_to: of the times of the rows, including hidden ones.
        """
        first, last = max(time_from, self.live_from), min(time_to, self.observed_ms)
        if first > last:
            return iter(())
        numbers = first // self.interval_ms, last // self.interval_ms
        shared = bounds.common_prefix
        if bounds.first is None and not shared:
            rows = self.rows.scan(_pack(numbers[0]), _pack(numbers[1] + 1))
        else:
            # The number of segments is that of the retention: a few.
            segments = [_pack(number) for number in range(numbers[0], numbers[1] + 1)]
            scans = [self.rows.scan(segment + (bounds.start or b""), after(segment + shared)) for segment in segments]
            rows = chain.from_iterable(scans)
        time_of, key, has = self.schema.time_of, self.record_key, bounds.has
        return (row for row in rows if first <= time_of(row[0]) <= last and has(row[0][key]))

    @property
    def record_key(self) -> slice:
        """The part of a row key that is the record's key."""
        return slice(LONG.size, -self.schema.suffix.size)

    def _index_scan(self, first: int, last: int, reverse: bool) -> Iterator[Row]:
        return self.rows.scan(INDEX_PREFIX + _pack(first), INDEX_PREFIX + _pack(last + 1), reverse)

    def _indexed_rows(self, index: Iterator[Row]) -> Iterator[Row]:
        from_index, time_of, interval = self.schema.from_index, self.schema.time_of, self.interval_ms
        for index_key, _ in index:
            key = from_index(index_key[1:])
            time_ms = time_of(key)
            data = self._row(key, time_ms)
            if data is not None:  # deleted since the scan started
                yield _pack(time_ms // interval) + key, data

    def scan_order(self, row_key: bytes) -> bytes:
        """Return the sort key of row keys for scan's order."""
        return self.schema.index_key(row_key[8:]) if self.indexed else row_key

    def restored(self, messages: Sequence[Message], value_of: Callable[[Message], bytes | None]) -> list[RawRow]:
        """Return the rows of changelog records not expired as of the newest one, and drop expired segments."""
        time_of, interval = self.schema.time_of, self.interval_ms
        keyed = [(key, time_of(key), message) for message in messages if (key := message.key()) is not None]
        newest = max((time for _, time, _ in keyed), default=NOTHING_OBSERVED)
        if newest > self.observed_ms:
            self.advance(newest)
        if self.latest is not None:
            self.latest.rest()
        live = [(key, time, value_of(message)) for key, time, message in keyed if time >= self.taken_from]
        found: list[RawRow] = [(_pack(time // interval) + key, data) for key, time, data in live]
        if self.indexed:
            index_key = self.schema.index_key
            found += [(INDEX_PREFIX + index_key(key), None if data is None else b"") for key, _, data in live]
        return found


class OwnSegments(Segments):
    """The rows of a user's store. It has its own order by time, so that there is no index."""

    rows: OwnTimedRows

    @override
    def drop(self, first: int, end: int) -> None:
        self.rows.expire(first - first % self.interval_ms, end - end % self.interval_ms)

    @override
    def scan(self, time_from: int, time_to: int, reverse: bool) -> Iterator[Row]:
        first, last = max(time_from, self.live_from), min(time_to, self.observed_ms)
        found = self.rows.by_time(first, last) if first <= last else []
        return iter(found[::-1] if reverse else found)

    @override
    def stored(self, bounds: Bounds, time_from: int, time_to: int) -> Iterator[Row]:
        key = self.record_key
        return (row for row in self.scan(time_from, time_to, False) if bounds.has(row[0][key]))

    @override
    def scan_order(self, row_key: bytes) -> bytes:
        return self.schema.index_key(row_key[8:])
