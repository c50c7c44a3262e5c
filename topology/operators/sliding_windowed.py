"""Aggregations of a stream per key and sliding window (KIP-450).

A record at t belongs to all windows [start, start + difference] that contain t. Windows exist only where their set of
records differs. Each record has a left window, which ends at it. A record that others follow within the difference also
has a right window, which begins 1 ms after it. A record updates and creates windows in the order of Kafka Streams,
because each step is an update downstream.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from typing_extensions import override

from ..context.task_context import Process
from ..errors import StreamsError
from ..records import Headers, ValueAndTimestamp, Windowed
from ..stores.windows import SlidingWindows
from .operator import NodeContext
from .table_store import as_read, new_row
from .window_close import NEVER, CloseEmitter
from .windowed import WindowedAggregator, window_updater


class _Input(NamedTuple):
    """The record that is being aggregated, and the time before which windows have closed."""

    key: Any
    value: Any
    timestamp: int
    headers: Headers
    close_time: int


class KStreamSlidingWindowAggregate(WindowedAggregator[SlidingWindows]):
    """Aggregates values per key and sliding window. Records without key or value are dropped."""

    @override
    def compile(self, node: NodeContext) -> Process:
        emitter = CloseEmitter(node, self.store_name, self._closing) if self.on_close else None
        return _SlidingWindowProcessor(node, self, emitter).process

    def _closing(self, last_close_time: int, close_time: int) -> tuple[int, int]:
        difference = self.windows.time_difference_ms
        lower = 0 if last_close_time == NEVER else max(0, last_close_time - difference)
        return lower, close_time - difference - 1


@dataclass(slots=True)
class _Found:
    """The windows that a record needs, as far as the existing windows around it determine them."""

    starts: set[int] = field(default_factory=set)
    left_exists: bool = False
    right_exists: bool = False
    #: Aggregate of the records before this one, for its left window.
    left_aggregate: object = None
    #: Row of the records after this one, for its right window.
    right_row: ValueAndTimestamp | None = None
    #: Timestamp of the previous record. This record may be the first in that record's right window.
    previous_timestamp: int | None = None


class _SlidingWindowProcessor:
    """The aggregation in one task (Kafka Streams: KStreamSlidingWindowAggregateProcessor)."""

    def __init__(
        self, node: NodeContext, operator: KStreamSlidingWindowAggregate, emitter: CloseEmitter | None
    ) -> None:
        self.node = node
        self.task = node.task
        self.difference = operator.windows.time_difference_ms
        self.grace_ms = operator.windows.grace_ms
        self.initializer = operator.initializer
        self.aggregator = operator.aggregator
        self.emitter = emitter
        self.store = node.store(operator.store_name)
        self.as_read = as_read(self.store)
        self.put, self.wants_old = window_updater(node, self.store, operator.send_old_values, emitter is not None)
        self.stream_time = -1
        node.remembers(lambda: self.stream_time, lambda value: setattr(self, "stream_time", value))

    def process(self, key: object, value: object, timestamp: int, headers: Headers) -> None:
        """Aggregate one record into all windows that contain it."""
        if key is None or value is None:
            self.node.dropped("null key or value")
            return
        if timestamp > self.stream_time:
            self.stream_time = timestamp
        close_time = self.stream_time - self.grace_ms
        record = new_row(_Input, (key, value, timestamp, headers, close_time))
        if timestamp + self.difference < close_time:
            self.node.dropped("expired window")
        elif self.difference == 0:
            raise StreamsError(
                f"Window end must be greater than window start ({self.node.name}): sliding windows need a time "
                "difference of at least 1 ms"
            )
        elif timestamp < self.difference:
            self.process_early(record)
        else:
            self.process_reverse(record)
            if self.emitter is not None:
                self.emitter.emit(close_time, headers)

    def process_reverse(self, record: _Input) -> None:
        """Update the windows that contain the record, latest first, and create those that are missing."""
        found = _Found()
        timestamp = record.timestamp
        for start, row in reversed(self.rows(record, max(0, timestamp - 2 * self.difference))):
            found.starts.add(start)
            end = start + self.difference
            if start == timestamp + 1:
                found.right_exists = True
            elif end > timestamp:
                if found.right_row is None:
                    found.right_row = self.copy(row)
                self.update(record, start, row)
            elif end == timestamp:
                found.left_exists = True
                newest = row[1]
                self.update(record, start, row)
                if newest >= timestamp:
                    return  # A record with this timestamp came before: its other windows exist.
                found.previous_timestamp = newest
            else:
                found.left_aggregate, found.previous_timestamp = row
                break
        self.create_windows(record, found)

    def create_windows(self, record: _Input, found: _Found) -> None:
        """Create the right window of the previous record, then the left and the right window of this one."""
        timestamp, previous = record.timestamp, found.previous_timestamp
        if previous is not None and previous + 1 not in found.starts and previous + 1 + self.difference >= timestamp:
            self.update(record, previous + 1, None)
        if not found.left_exists:
            start = timestamp - self.difference
            others = previous is not None and start <= previous
            row = new_row(ValueAndTimestamp, (found.left_aggregate, timestamp)) if others else None
            self.update(record, start, row)
        self.create_right_window(record, found)

    def process_early(self, record: _Input) -> None:
        """Aggregate a record whose left window would begin before 0; the window [0, difference] is used instead."""
        found = _Found()
        timestamp = record.timestamp
        combined: ValueAndTimestamp | None = None
        for start, row in self.rows(record, 0):
            found.starts.add(start)
            if start == 0:
                combined = row
                if row[1] < timestamp:
                    found.previous_timestamp = row[1]
            elif start <= timestamp:
                found.right_row = self.copy(row)
                self.update(record, start, row)
            else:
                found.right_exists = True
        if found.right_row is None and combined is not None and combined[1] > timestamp:
            # No window begins between 0 and the record, so the combined window holds only later records.
            found.right_row = self.copy(combined)
        self.create_right_window(record, found)
        previous = found.previous_timestamp
        if previous is not None and previous + 1 not in found.starts:
            self.update(record, previous + 1, None)
        self.update(record, 0, combined)

    def create_right_window(self, record: _Input, found: _Found) -> None:
        """Create the record's right window if it is missing and has records; the record itself is not one of them."""
        row = found.right_row
        if found.right_exists or row is None or row[1] <= record.timestamp:
            return
        start = record.timestamp + 1
        window = Windowed(record.key, start, start + self.difference)
        self.put(window, row[0], None, row[1], record.timestamp, record.headers)

    def rows(self, record: _Input, earliest_start: int) -> list[tuple[int, ValueAndTimestamp]]:
        """Return start and row of the key's windows up to the record's right window, earliest first."""
        found: list[tuple[int, ValueAndTimestamp]] = self.store.fetch_range(
            record.key, earliest_start, record.timestamp + 1
        )
        return found

    def update(self, record: _Input, start: int, row: ValueAndTimestamp | None) -> None:
        """Aggregate the record into one window, unless that has closed. row: the window's row, None if it is new."""
        key, value, timestamp, headers, close_time = record
        end = start + self.difference
        if end < close_time:
            self.node.dropped("expired window")
            return
        sent_old = None
        if row is None:
            old, newest = self.initializer(), timestamp
            if self.wants_old:
                sent_old = self.initializer()
        else:
            old, newest = row
            if old is None or timestamp > newest:
                newest = timestamp
            if self.wants_old and old is not None:
                sent_old = self.as_read(old)  # the aggregator may change its argument in place
        new = self.aggregator(key, value, old)
        self.put(new_row(Windowed, (key, start, end)), new, sent_old, newest, timestamp, headers)

    def copy(self, row: ValueAndTimestamp) -> ValueAndTimestamp:
        """Return a copy of a row, for an aggregator that changes the value in place."""
        return ValueAndTimestamp(self.as_read(row[0]), row[1])
