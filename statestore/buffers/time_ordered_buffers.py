"""The buffers of stream-table joins with a grace period, and of suppress: records in the order of their times.

Of a join (KIP-923; Kafka Streams: RocksDBTimeOrderedKeyValueBuffer): row and changelog key are 0 (time first) + 8-byte
timestamp + key + 4-byte sequence number. Value: BufferValue with the new value only. The changelog has 8 bytes more, a
buffer time that is always 0; a row has the input record's key and value instead.

Of suppress (KIP-328; Kafka Streams: InMemoryTimeOrderedKeyValueChangeBuffer): in memory, and restored from the
beginning of its changelog. A flush writes the changelog: for each key that changed since the last one, its buffered
value, or a tombstone if it was evicted. With dsl.store.format=HEADERS, values are kept with their timestamps and
headers, as in stores/headers_format.py; the changelog's headers have those of the old and of the prior value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import override

from penstock.kernel.buffered_changes import BufferedChange, BufferedChanges
from penstock.topology.context.store_interfaces import StoreBuilder
from penstock.topology.context.task_context import TaskContext
from penstock.topology.errors import ProcessorStateError, StreamsError
from penstock.topology.records import Change, Headers, Message, ProcessorRecordContext

from ..memory_store import InMemoryStore
from ..rows.bytes_store import BytesStore, Marks, RawRow
from ..stores.headers_format import HeadersFormat
from ..stores.removals import Removals
from ..stores.segmented_stores import SEQUENCE, SEQUENCE_MAX
from ..stores.segments import NOTHING_OBSERVED, OBSERVED_TIME
from ..stores.state_store import LONG, LONG_MAX, StateStore, plain_rows
from .buffer_value import BufferValue, serialize_headers, serialize_source, serialize_value, with_source

_sequence = struct.Struct(">i")
#: Greater than the bytes of all sequence numbers, which are not negative.
_PAST_SEQUENCES = b"\x80"
#: Key prefix of PrefixedWindowKeySchemas.TimeFirstWindowKeySchema.
TIME_FIRST = b"\0"
_pack, _unpack = LONG.pack, LONG.unpack_from
BUFFER_TIME = LONG.pack(0)
#: Header with the version of the changelog's format.
VERSION_HEADER = "v"
VERSION = b"\3"
HEADERS = ((VERSION_HEADER, VERSION),)
#: Headers with what precedes a value in its row with headers: of the prior value if it differs from the old one.
PRIOR_HEADER, OLD_HEADER = "vh.prior", "vh.old"
#: Takes key, change and context of what leaves the buffer.
Emit = Callable[[Any, Change, ProcessorRecordContext], None]


class RocksDBTimeOrderedKeyValueBuffer(StateStore):
    """Holds records until stream time (the highest timestamp put) has passed theirs by the grace period."""

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore) -> None:
        super().__init__(builder, task, rows)
        if builder.grace_ms is None:
            raise StreamsError(f"The join buffer {builder.name} was declared without a grace period; set it")
        self._grace_ms = builder.grace_ms
        self._removals = Removals(self)
        self._reload()

    def _reload(self) -> None:
        """Reload the committed state: after opening, a rollback and a restore."""
        observed = self.rows.committed_mark(OBSERVED_TIME)
        self._observed_ms = NOTHING_OBSERVED if observed is None else observed
        self._number = self.rows.committed_mark(SEQUENCE) or 0
        self._min_timestamp = 0  # nothing is older
        self._totals: tuple[int, int] | None = None  # records and bytes, computed on request

    def put(self, buffer_time: int, key: object, value: object, context: ProcessorRecordContext) -> bool:
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
            self.task.output.log_change(self.name, row_key, data + BUFFER_TIME, None)
        self._observed_ms = max(self._observed_ms, timestamp)
        self._min_timestamp = min(self._min_timestamp, timestamp)
        self._totals = None
        return True

    @property
    def observed_ms(self) -> int:
        """The buffer's stream time in ms."""
        return self._observed_ms

    def observe(self, time_ms: int) -> None:
        """Advance the buffer's stream time without a record."""
        self._observed_ms = max(self._observed_ms, time_ms)

    def contexts(self, timestamp: int, key: object) -> Iterator[ProcessorRecordContext]:
        """Yield the contexts of the buffered records that have a timestamp (ms) and a key."""
        start = TIME_FIRST + _pack(timestamp) + self.serdes.encode_key(key)
        for row_key, data in self.rows.rows(start, start + _PAST_SEQUENCES):
            if len(row_key) == len(start) + _sequence.size:
                yield BufferValue.deserialize(data)[0].context

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
                self._removals.add(row_key, None)
            self._totals = None
        self._min_timestamp = last + 1

    @override
    def log_removals(self) -> bool:
        return self._removals.write()

    def prior_value_for_buffered(self, key: object) -> None:
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
        self._removals.clear()
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


class InMemoryTimeOrderedKeyValueChangeBuffer(StateStore):
    """Holds the newest Change of each key, in the order in which the keys were first buffered."""

    def __init__(self, builder: StoreBuilder, task: TaskContext) -> None:
        super().__init__(builder, task, InMemoryStore())
        self._encode_value = self.serdes.encode_value
        self._decode_value = self.serdes.decode_value
        self._format: HeadersFormat | None = None
        if task.config.get("dsl.store.format") == "HEADERS":
            self._format = HeadersFormat(timestamped=True)
            self._decode_value = self._format.plain_decoder(self.serdes.decode_value)
        self._changes = BufferedChanges()
        self._removals = Removals(self)

    def put(self, buffer_time: int, key: object, change: Change, context: ProcessorRecordContext) -> bool:
        """Buffer a change; a key that is already buffered keeps its time and prior value. Returns True."""
        self.put_row(buffer_time, self.serdes.encode_key(key), change.new, change.old, context)
        return True

    def put_row(
        self, buffer_time: int, row_key: bytes, new: object, old: object, context: ProcessorRecordContext
    ) -> None:
        """Buffer a change under a serialized key."""
        encode = self._encode_value
        old_data = None if old is None else encode(old)
        new_data = None if new is None else encode(new)
        if self._format is not None:
            before = self._changes.get(row_key)
            last = None if before is None else before.new
            of_old = (-1, None) if last is None else self._format.split(last)[1:]
            old_data = self._format.row_or_none(old_data, *of_old)
            new_data = self._format.row_or_none(new_data, context.timestamp, context.headers)
        self._changes.put(row_key, buffer_time, old_data, new_data, context)

    def evict_until(self, time: int, callback: Emit) -> None:
        """Evict the entries that were buffered at this time (ms) or before; see evict_while."""
        while (first := self._changes.first_until(time)) is not None:
            self._evict(*first, callback)

    def evict_while(self, predicate: Callable[[], bool], callback: Emit) -> None:
        """Evict the first entry while predicate() holds: call callback(key, change, context), then remove it."""
        while predicate() and (first := self._changes.first()) is not None:
            self._evict(*first, callback)

    def _evict(self, key: bytes, buffered: BufferedChange, callback: Emit) -> None:
        decode = self._decode_value
        new = None if buffered.new is None else decode(buffered.new)
        old = None if buffered.old is None else decode(buffered.old)
        callback(self.serdes.decode_key(key), Change(new, old), buffered.context)
        self._changes.evict(key)

    def prior_value_for_buffered(self, key: object) -> tuple[Any] | None:
        """Return a 1-tuple with the value before the buffered updates; None if the key is not buffered."""
        buffered = self._changes.get(self.serdes.encode_key(key))
        if buffered is None:
            return None
        prior = buffered.prior
        return (None if prior is None else self._decode_value(prior),)

    def num_records(self) -> int:
        """Return the number of buffered keys."""
        return len(self._changes)

    def buffer_size(self) -> int:
        """Return the size of the buffered values in bytes, as Kafka Streams counts it."""
        return self._changes.size

    def min_timestamp(self) -> int:
        """Return the lowest buffer time in ms, Java's highest long if nothing is buffered."""
        first = self._changes.first()
        return LONG_MAX if first is None else first[1].time

    def flush(self) -> None:
        """Write the changelog; timestamps are left to the producer, as in Kafka Streams."""
        if self.builder.logging:
            log_change, name = self.task.output.log_change, self.name
            for key, buffered in self._changes.dirty.items():
                if buffered is None:
                    self._removals.add(key, None)
                else:
                    self._removals.cancel(key)
                    headers: Headers = HEADERS
                    if self._format is None:
                        data = buffered.logged(serialize_headers(buffered.context.headers or ()))
                    else:
                        given = buffered.prior, buffered.old, buffered.new
                        headers, (prior, old, new) = self._logged(self._format, given)
                        data = serialize_value(prior, old, new, buffered.context) + LONG.pack(buffered.time)
                    log_change(name, key, data, None, headers)
        self._changes.dirty.clear()

    @staticmethod
    def _logged(format_: HeadersFormat, parts: Sequence[bytes | None]) -> tuple[Headers, list[bytes | None]]:
        """Return the changelog's headers, and the plain values, of rows with headers: of prior, old and new value."""
        plain = [None if part is None else format_.split(part)[0] for part in parts]
        headers: list[tuple[str, bytes | None]] = [*HEADERS]
        for name, part, data in zip((PRIOR_HEADER, OLD_HEADER), parts, plain, strict=False):
            if part is not None and data is not None and (name == OLD_HEADER or part != parts[1]):
                headers.append((name, part[: len(part) - len(data)]))
        return headers, plain

    @override
    def log_removals(self) -> bool:
        return self._removals.write()

    @override
    def commit(self, changelog_offset: int | None) -> None:
        """Keep what has changed: the buffer is not on disk."""
        self._changes.commit()

    @override
    def rollback(self) -> None:
        self._changes.rollback()
        self._removals.clear()

    @override
    def restore(self, messages: Sequence[Message], next_offset: int | None) -> None:
        for message in messages:
            key, data = message.key(), message.value()
            if key is None:
                continue
            if data is None:
                self._changes.remove(key)
            else:
                value, time = self._restored(message, data)
                self._changes.restore(key, time, *value)
        self._changes.commit()

    def _restored(self, message: Message, data: bytes) -> tuple[BufferValue, int]:
        headers = dict(message.headers() or ())
        if headers.get(VERSION_HEADER) != VERSION:
            raise ProcessorStateError(
                f"The changelog {self.changelog_topic} has a record at offset {message.offset()} in a format older "
                "than Kafka Streams 2.6. Run the application with a newer Kafka Streams until it has emitted what it "
                "holds"
            )
        value, end = BufferValue.deserialize(data)
        if self._format is not None:
            value = self._with_headers(self._format, value, headers)
        return value, int(LONG.unpack_from(data, end)[0])

    @staticmethod
    def _with_headers(format_: HeadersFormat, value: BufferValue, given: Mapping[str, bytes | None]) -> BufferValue:
        """Return rows with headers in place of plain values. Without a header, they have the context's timestamp."""
        time, headers = value.context.timestamp, value.context.headers
        old, prior = (
            format_.row_or_none(data, time, None) if data is None or start is None else start + data
            for start, data in ((given.get(OLD_HEADER), value.old), (given.get(PRIOR_HEADER), value.prior))
        )
        if value.prior == value.old and PRIOR_HEADER not in given:
            prior = old
        return BufferValue(prior, old, format_.row_or_none(value.new, time, headers), value.context)

    def passed_to(self, task: TaskContext) -> InMemoryTimeOrderedKeyValueChangeBuffer:
        """Drop uncommitted changes, and move the buffer to another task."""
        self.rollback()
        self.task = task
        return self

    @override
    def close(self) -> None:
        super().close()
        self._changes.clear()
        self._removals.clear()
