"""Stores whose rows are due at a time: those with a ttl, and the timers of processors. See rows/dated_rows.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from typing_extensions import override

from penstock.topology.clocks import Punctuation
from penstock.topology.context.store_interfaces import StoreBuilder, Ttl
from penstock.topology.context.task_context import TaskContext
from penstock.topology.context.timers import NEVER, OnDue
from penstock.topology.errors import StreamsError, TaskCorruptedError
from penstock.topology.records import Headers, Message
from penstock.topology.stores.timer import DUE_BYTES, due_bytes, due_of

from ..rows.bytes_store import BytesStore, Marks, RawRow
from ..rows.dated_rows import DatedRows
from .key_value_store import TaskKeyValueStore
from .state_store import LONG, newest_by_key
from .values import converted, headers_logged

#: The mark of a store with dated rows.
DATED = "dated"
#: The header of changelog records with the time at which a row is due, if that does not follow from its timestamp.
DUE_HEADER = "penstock-due"
#: A read refreshes a row that has lived for more than this part of its ttl since it was written or refreshed.
REFRESHED_PART = 10


def check_layout(builder: StoreBuilder, task: TaskContext, rows: BytesStore) -> None:
    """Raise TaskCorruptedError if rows were written with a ttl and are read without one, or the other way round."""
    was_dated = rows.committed_mark(DATED) is not None
    if was_dated == builder.is_dated or (not was_dated and next(rows.scan(None, None), None) is None):
        return
    change = "a ttl that it no longer has" if was_dated else "no ttl"
    raise TaskCorruptedError(
        f"Task {task.task_id}: the rows of the store {builder.name} on disk were written with {change}: they are "
        "restored from the changelog",
        [task.task_id],
    )


def dated_record(builder: StoreBuilder, dated: bytes) -> tuple[bytes, Headers]:
    """Return the row of a store without dates, and the headers of its changelog record."""
    if builder.ttl is None:
        return dated, None
    return dated[DUE_BYTES:], _due_header(builder.ttl, due_of(dated)[1])


def _due_header(ttl: Ttl, due_ms: int) -> Headers:
    """Return headers with the time at which a row is due; None if that time follows from the row's timestamp."""
    if ttl.clock is Punctuation.STREAM_TIME and not ttl.refreshed_on_read:
        return None
    return [(DUE_HEADER, LONG.pack(due_ms))]


class DatedStore(TaskKeyValueStore, ABC):
    """A key-value store that writes every update through to rows that are due at a time. rows: of build_rows."""

    rows: DatedRows

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore) -> None:
        super().__init__(builder, task, DatedRows(rows))
        self._on_due: OnDue | None = None
        task.timers.add(self.name, self)

    @override
    def _row_decoder(self) -> Callable[[bytes | None], object]:
        decode = self.values.decode
        return lambda dated: None if dated is None else decode(dated[DUE_BYTES:])

    @override
    def _over(self, rows: BytesStore) -> TaskKeyValueStore:
        return DatedReads(self, rows)

    def _put_dated(self, key: bytes, clock: Punctuation, due_ms: int, row: bytes) -> None:
        self.rows.put(key, due_bytes(clock, due_ms) + row)
        self.task.timers.is_due_at(clock, due_ms)

    @abstractmethod
    def fire(self, clock: Punctuation) -> None:
        """Handle the row that is due next."""

    def next_due(self, clock: Punctuation) -> int | None:
        """Return the time (ms) of the row that is due next, None without one."""
        first = self.rows.indexes[clock].next()
        return None if first is None else first[0]

    @override
    def marks(self) -> Marks:
        return {DATED: 1}

    @override
    def rollback(self) -> None:
        super().rollback()
        self.task.due_ms = 0  # look again

    @override
    def restore(self, messages: Sequence[Message], next_offset: int | None) -> None:
        super().restore(messages, next_offset)
        self.task.due_ms = 0

    @override
    def detach(self) -> BytesStore:
        super().detach()
        return self.rows.below


class DatedReads(TaskKeyValueStore):
    """A store with dated rows that is only read: nothing becomes due. rows: as those of DatedRows."""

    def __init__(self, store: DatedStore, rows: BytesStore) -> None:
        self._decoder = store._row_decoder()
        super().__init__(store.builder, store.task, rows)

    @override
    def _row_decoder(self) -> Callable[[bytes | None], object]:
        return self._decoder


class ExpiringStore(DatedStore):
    """A store with a ttl: a row that is due is deleted, from the changelog too."""

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore) -> None:
        super().__init__(builder, task, rows)
        assert builder.ttl is not None
        self._ttl: Ttl = builder.ttl
        self._by_stream_time = self._ttl.clock is Punctuation.STREAM_TIME
        self._headers_logged = headers_logged(builder)

    @property
    @override
    def exposed(self) -> Any:
        return RefreshingReads(self) if self._ttl.refreshed_on_read else self

    def expires_to(self, on_due: OnDue) -> None:
        """Name the function that deletes what has expired; by default the store does."""
        self._on_due = on_due

    @override
    def fire(self, clock: Punctuation) -> None:
        """Delete the row that is due next."""
        first = self.rows.indexes[clock].next()
        if first is None:
            return
        due_ms, key = first
        if self._on_due is not None:
            self._on_due(self.serdes.decode_key(key), due_ms)
        if self.rows.indexes[clock].next() == first:  # it is still there
            self.task.timestamp, self.task.headers = due_ms, None
            self._log(key, None, due_ms, None)
            self.rows.put(key, None)

    @override
    def put(self, key: object, value: object) -> None:
        row = converted(self.builder, self.values.encode, value)
        self._write(self._encode_key(key), row, value)

    @override
    def put_held(self, key: object, held: object) -> None:
        self._write(self._encode_key(key), self.values.to_row(held), held)

    def _write(self, key: bytes, row: bytes | None, value: Any) -> None:
        """value: what row was made of: (value, timestamp) for values with timestamps."""
        task = self.task
        timestamp: int = task.timestamp if row is None or not self.values.with_timestamp else value[1]
        if row is None:
            self._log(key, None, timestamp, None)
            self.rows.put(key, None)
            return
        self._renew(key, row, timestamp, timestamp if self._by_stream_time else task.wall_clock_ms())

    def _renew(self, key: bytes, row: bytes, timestamp: int, from_ms: int) -> None:
        due_ms = min(from_ms + self._ttl.duration_ms, NEVER)
        self._log(key, row, timestamp, due_ms)
        self._put_dated(key, self._ttl.clock, due_ms, row)

    def _log(self, key: bytes, row: bytes | None, timestamp: int, due_ms: int | None) -> None:
        if not self.builder.logging:
            return
        headers: Headers = self.task.headers if self._headers_logged[row is None] else None
        due = None if due_ms is None else _due_header(self._ttl, due_ms)
        if due is not None:
            headers = [*(headers or ()), *due]
        value = row[LONG.size :] if row is not None and self.values.with_timestamp else row
        self.task.output.log_change(self.name, key, value, timestamp, headers)

    def refresh(self, key: object) -> None:
        """Let a row that has been read live on."""
        row_key = self._encode_key(key)
        dated = self.rows.get(row_key)
        if dated is None:
            return
        now_ms = max(self.task.timestamp, 0) if self._by_stream_time else self.task.wall_clock_ms()
        lived_ms = now_ms + self._ttl.duration_ms - due_of(dated)[1]
        if lived_ms * REFRESHED_PART > self._ttl.duration_ms:
            row = dated[DUE_BYTES:]
            at = LONG.unpack_from(row)[0] if self.values.with_timestamp else self.task.timestamp
            self._renew(row_key, row, at, now_ms)

    @override
    def restored_rows(self, messages: Sequence[Message]) -> Iterable[RawRow]:
        for message in newest_by_key(messages):
            key, row = message.key(), self.values.row_of(message)
            if key is not None:
                yield key, None if row is None else due_bytes(self._ttl.clock, self._due(message)) + row

    def _due(self, message: Message) -> int:
        """Return when a restored row is due; without the header its record's timestamp counts as the time of the write.

        That is so by stream time, and for rows from before there was a ttl.
        """
        found = next((data for name, data in message.headers() or () if name == DUE_HEADER), None)
        if found is not None:
            return int(LONG.unpack(found)[0])
        return min(max(message.timestamp()[1], 0) + self._ttl.duration_ms, NEVER)


class RefreshingReads:
    """A store with a ttl as processors and operators see it: what they get lives on."""

    def __init__(self, store: ExpiringStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: object) -> Any:
        """Return the value of a key, None if there is none, and refresh its row."""
        self._store.refresh(key)
        return self._store.get(key)


class TimerStore(DatedStore):
    """The timers of a processor by key. Its values are Timer; a put sets a timer, a delete cancels it."""

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore) -> None:
        super().__init__(builder, task, rows)
        self._firing_ms: int | None = None

    def set_timer(self, key: object, at_ms: int, clock: Punctuation) -> None:
        """Set the timer of a key, in place of the one that it has.

        Raises StreamsError in on_timer() for a time that is not later than its own.
        """
        if self._firing_ms is not None and at_ms <= self._firing_ms:
            raise StreamsError(
                f"The timer of {key!r} in {self.name} is set to {at_ms}, but on_timer() runs for a timer of "
                f"{self._firing_ms}: set a later time, or timers would fire without an end"
            )
        row_key, row = self._encode_key(key), due_bytes(clock, at_ms)
        self._log(row_key, row)
        self._put_dated(row_key, clock, at_ms, b"")

    def cancel_timer(self, key: object) -> None:
        """Cancel the timer of a key, if it has one."""
        row_key = self._encode_key(key)
        if self.rows.get(row_key) is not None:
            self._log(row_key, None)
            self.rows.put(row_key, None)

    def _log(self, key: bytes, row: bytes | None) -> None:
        if self.builder.logging:
            self.task.output.log_change(self.name, key, row, self.task.timestamp)

    def fires_to(self, on_due: OnDue) -> None:
        """Set the function that gets due timers. Raises StreamsError if one is set already."""
        if self._on_due is not None:
            raise StreamsError(f"The timers {self.name} are connected to two processors: each needs its own")
        self._on_due = on_due

    @override
    def fire(self, clock: Punctuation) -> None:
        """Remove the timer that is due next, and pass it on."""
        first = self.rows.indexes[clock].next()
        if first is None:
            return
        due_ms, key = first
        self.task.timestamp, self.task.headers = due_ms, None
        self._log(key, None)
        self.rows.put(key, None)
        if self._on_due is None:
            return
        self._firing_ms = due_ms
        try:
            self._on_due(self.serdes.decode_key(key), due_ms)
        finally:
            self._firing_ms = None

    @override
    def put(self, key: object, value: Any) -> None:
        if value is None:
            self.cancel_timer(key)
        else:
            self.set_timer(key, *value)

    @override
    def _row_decoder(self) -> Callable[[bytes | None], object]:
        return self.values.decode  # a timer has no bytes but those before a row's own
