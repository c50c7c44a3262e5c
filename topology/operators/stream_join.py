"""Joins of two streams within a time window (KIP-19, KIP-633, KAFKA-10847)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from penstock.kernel.nodes import Node
from penstock.kernel.sinks import Changelog
from penstock.kernel.window_nodes import (
    JoinRows,
    JoinWindow,
    NonJoinedRecords,
    StreamJoin,
    StreamSelfJoin,
    TimeTracker,
)

from ..records import Headers
from ..serdes.serdes import serializer_for
from ..stores.windows import JoinWindows
from .operator import NodeContext, Operator
from .stream_join_serdes import (
    LeftOrRightValueSerde,
    TimestampedKeyAndJoinSide,
    TimestampedKeyAndJoinSideSerde,
)

#: Minimum wall-clock time between two searches for closed windows, in ms (Kafka Streams' internal configuration).
EMIT_INTERVAL_KEY = "__emit.interval.ms.kstreams.outer.join.spurious.results.fix__"
EMIT_INTERVAL_MS = 1000

#: TimeTracker.min_time while every record has a partner: later than any timestamp (Java's Long.MAX_VALUE).
NO_RECORD = 2**63 - 1


def joiner_with_key(joiner: Callable[..., object], with_key: bool) -> Callable[[object, object, object], object]:
    """Return joiner(key, left, right); without with_key it is made from a joiner(left, right)."""
    if with_key:
        return joiner

    def join(key: object, left: object, right: object) -> object:
        return joiner(left, right)

    return join


class TimeTrackerSupplier:
    """Creates the TimeTracker that both sides of a join share in a task. Pass the same supplier to both."""

    def compile(self, node: NodeContext) -> TimeTracker:
        """Return the tracker of a task."""
        tracker = node.share(self, TimeTracker)
        node.remembers(tracker.times, tracker.recall)
        return tracker


class KStreamJoinWindow(Operator):
    """Forwards each record to be joined, and then stores it for the other side if it has a key."""

    def __init__(self, window_name: str) -> None:
        self.window_name = window_name

    @override
    def compile(self, node: NodeContext) -> Node:
        put = node.store(self.window_name).put
        return JoinWindow(node.task, node.name, node.child, put, _join_rows(node, self.window_name))


def _join_rows(node: NodeContext, name: str) -> JoinRows | None:
    """Return the rows of one side's window store; None if a put or fetch needs the store itself."""
    rows = None if node.notes_rows else node.store(name).window_rows()
    if rows is None:
        return None
    key_serde, encode_key, encode, decode, log_headers, segments = rows
    changelog = Changelog(node.task.output, name)
    return JoinRows(key_serde, encode_key, encode, decode, log_headers, segments, changelog)


@dataclass(eq=False)
class KStreamKStreamJoin(Operator):
    """One side of a join: use KStreamKStreamJoinLeftSide and KStreamKStreamJoinRightSide.

    joiner(left value, right value), or (key, left, right) with with_key. outer: records of this side
    without a partner are joined with None when their window closes; until then they wait in outer_join_window_name.
    Records without a key or value are dropped, except that an outer side joins a record without a key with None.
    """

    #: Whether this is the left side.
    left: ClassVar[bool]

    other_window_name: str
    windows: JoinWindows
    joiner: Callable[..., Any]
    outer: bool
    outer_join_window_name: str | None
    shared_time_tracker_supplier: TimeTrackerSupplier
    with_key: bool = False

    @property
    def before_and_after_ms(self) -> tuple[int, int]:
        """How much earlier and later than this side's record the other side's may be, in ms."""
        before, after = self.windows.before_ms, self.windows.after_ms
        return (before, after) if self.left else (after, before)

    @override
    def compile(self, node: NodeContext) -> Node:
        tracker = self.shared_time_tracker_supplier.compile(node)
        before, after = self.before_and_after_ms
        compiled = StreamJoin(
            node.task,
            node.name,
            node.child,
            self.joiner,
            self.with_key,
            not self.left,
            self.outer,
            before,
            after,
            tracker,
            node.store(self.other_window_name).fetch_range,
            _join_rows(node, self.other_window_name),
            _waiting(node, self, tracker) if self.outer_join_window_name else None,
            after + self.windows.grace_ms,
            node.dropped,
        )
        node.on_time(compiled.advance_time)
        return compiled


class KStreamKStreamJoinLeftSide(KStreamKStreamJoin):
    """The left side."""

    left = True


class KStreamKStreamJoinRightSide(KStreamKStreamJoin):
    """The right side."""

    left = False


def _waiting(node: NodeContext, join: KStreamKStreamJoin, tracker: TimeTracker) -> NonJoinedRecords:
    """Return the records of both sides that have no partner yet, as used by one side of the join in one task."""
    store = node.store(str(join.outer_join_window_name))
    key_serde: TimestampedKeyAndJoinSideSerde = store.serdes.key_serde
    value_serde: LeftOrRightValueSerde = store.serdes.value_serde
    key, value = key_serde.inner, value_serde.of_side(join.left)
    return NonJoinedRecords(
        node.task,
        tracker,
        join.left,
        key,
        serializer_for(key, store.changelog_topic),
        serializer_for(value, store.changelog_topic),
        store.put_row,
        store.put_row_if_absent,
        _ClosedRecords(node, join, tracker, store).emit,
    )


class _ClosedRecords:
    """The records without a partner whose window has closed, as used by one side of the join in one task."""

    def __init__(self, node: NodeContext, join: KStreamKStreamJoin, tracker: TimeTracker, store: Any) -> None:
        self.task = node.task
        self.forward = node.forward
        self.store = store
        self.joiner = joiner_with_key(join.joiner, join.with_key)
        self.tracker = tracker
        self.interval_ms: int = node.task.config.get(EMIT_INTERVAL_KEY, EMIT_INTERVAL_MS)
        self.grace = join.windows.grace_ms
        #: How much later than a record its partner may be, by whether the record is on the left side.
        self.look_back = {True: join.windows.after_ms, False: join.windows.before_ms}

    def emit(self, headers: Headers) -> None:
        """Join the records whose window has closed with None, oldest first.

        The search scans the store, and is throttled by the wall clock. The node skips it if no window can have closed.
        """
        tracker = self.tracker
        now = self.task.wall_clock_ms()
        if now < tracker.next_time_to_emit:
            return
        tracker.next_time_to_emit = now + self.interval_ms
        tracker.min_time = NO_RECORD
        self._emit_closed(headers)

    def _emit_closed(self, headers: Headers) -> None:
        tracker, stream_time = self.tracker, self.tracker.stream_time
        open_sides: set[bool] = set()
        previous: TimestampedKeyAndJoinSide | None = None
        for side_key, side_value in self.store.all():
            timestamp, left, key = side_key
            tracker.min_time = timestamp
            if len(open_sides) == 2:
                break
            if timestamp + self.look_back[left] + self.grace >= stream_time:
                open_sides.add(left)  # later records of this side are open too
                continue
            pair = (side_value.value, None) if left else (None, side_value.value)
            self.forward(key, self.joiner(key, *pair), timestamp, headers)
            if previous is not None and previous != side_key:
                self._delete(previous, headers)
            previous = side_key
        if previous is not None:
            self._delete(previous, headers)

    def _delete(self, side_key: TimestampedKeyAndJoinSide, headers: Headers) -> None:
        """Delete all records under a key. Called after the last one was forwarded, so a failure loses none of them."""
        self.task.timestamp, self.task.headers = self.tracker.stream_time, headers
        self.store.put(side_key, None)


@dataclass(eq=False)
class KStreamKStreamSelfJoin(Operator):
    """Both sides of an inner join of a stream with itself, with one store (KIP-862). Results are those of two sides.

    joiner_this(one value, other value), or (key, one, other) with with_key. retention_ms: retention of the window
    store.
    """

    window_name: str
    windows: JoinWindows
    joiner_this: Callable[..., object]
    retention_ms: int
    with_key: bool = False

    @override
    def compile(self, node: NodeContext) -> Node:
        compiled = StreamSelfJoin(
            node.task,
            node.name,
            node.child,
            self.joiner_this,
            self.with_key,
            self.windows.before_ms,
            self.windows.after_ms,
            node.store(self.window_name).fetch_range,
            _join_rows(node, self.window_name),
            self.retention_ms,
            node.dropped,
        )
        node.remembers_time(compiled, "stream_time")
        return compiled
