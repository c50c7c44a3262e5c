from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, final

from penstock.kernel.messages import _Headers
from penstock.kernel.nodes import ChangeNode, Node, RecordContext
from penstock.kernel.rows import RowBuffer, SegmentTimes
from penstock.kernel.sinks import Changelog
from penstock.kernel.table_nodes import RowNode, Rows, StoredRows

@final
class CloseEmitter:
    next_time_to_emit: int
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node,
        store: str,
        closing: Callable[[int, int], tuple[int, int] | None],
        fetch: Callable[[int, int], Iterable[tuple[Any, Any]]],
        timestamped: bool,
        metadata: dict[str, int],
        wall_clock_ms: Callable[[], int],
        interval_ms: int,
    ) -> None: ...

@final
class StoredWindowRows(StoredRows):
    def __init__(
        self,
        task: RecordContext,
        buffer: RowBuffer,
        changelog: Changelog,
        key_serde: object,
        encode_key: Callable[[Any], bytes] | None,
        value_serde: object,
        encode: Callable[[Any], bytes] | None,
        decode: Callable[[bytes], Any] | None,
        exact: Callable[[Any], object] | None,
        exact_type: type | None,
        log_headers: tuple[bool, bool],
        segments: SegmentTimes,
        decode_key: Callable[[bytes], Any],
        decode_row: Callable[[bytes], Any],
    ) -> None: ...

class WindowedAggregate(RowNode):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        rows: Rows,
        dropped: Callable[[str], None],
        initializer: Callable[[], Any] | None,
        aggregator: Callable[..., Any],
        counts: bool,
        emitter: CloseEmitter | None,
    ) -> None: ...

class TimeWindows:
    stream_time: int
    @property
    def grace_ms(self) -> int: ...
    def __init__(self, size_ms: int, advance_ms: int, grace_ms: int) -> None: ...
    def starts(self, timestamp: int) -> Sequence[int | None]: ...
    def end(self, start: int) -> int: ...

@final
class CalendarWindows(TimeWindows):
    def __init__(self, window_of: Callable[[int], tuple[int, int]], grace_ms: int) -> None: ...

@final
class WindowAggregate(WindowedAggregate):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        rows: Rows,
        dropped: Callable[[str], None],
        initializer: Callable[[], Any] | None,
        aggregator: Callable[..., Any],
        counts: bool,
        emitter: CloseEmitter | None,
        windows: TimeWindows,
    ) -> None: ...
    def advance_time(self, time_ms: int) -> None: ...

@final
class SlidingRecord: ...

@final
class SlidingWindowAggregate(WindowedAggregate):
    stream_time: int
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        rows: Rows,
        dropped: Callable[[str], None],
        initializer: Callable[[], Any] | None,
        aggregator: Callable[..., Any],
        counts: bool,
        emitter: CloseEmitter | None,
        fetch_range: Callable[[Any, int, int], Any],
        copy: Callable[[Any], Any] | None,
        refuse: Callable[[], NoReturn],
        difference_ms: int,
        grace_ms: int,
    ) -> None: ...
    def advance_time(self, time_ms: int) -> None: ...

@final
class Suppress(ChangeNode):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        put: Callable[..., None],
        until_close: bool,
        key_serde: object,
        inner: object,
        times_size: int,
        encode_key: Callable[[Any], bytes],
    ) -> None: ...

@final
class StoredSessions(StoredRows):
    def __init__(
        self,
        task: RecordContext,
        buffer: RowBuffer,
        changelog: Changelog,
        key_serde: object,
        encode_key: Callable[[Any], bytes] | None,
        value_serde: object,
        encode: Callable[[Any], bytes] | None,
        decode: Callable[[bytes], Any] | None,
        exact: Callable[[Any], object] | None,
        exact_type: type | None,
        log_headers: tuple[bool, bool],
        sends_old: bool,
        segments: SegmentTimes,
        decode_key: Callable[[bytes], Any],
    ) -> None: ...

@final
class PythonSessions(Rows):
    def __init__(
        self,
        task: RecordContext,
        put: Callable[[Any, Any, int, _Headers], None],
        remove: Callable[[Any, Any, int, _Headers], None],
        copy: Callable[[Any], Any] | None,
    ) -> None: ...

@final
class SessionAggregate(Node):
    stream_time: int
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        initializer: Callable[[], Any],
        aggregator: Callable[[Any, Any, Any], Any],
        merger: Callable[[Any, Any, Any], Any],
        counts: bool,
        rows: Rows,
        find_sessions: Callable[[Any, int, int], Any],
        emitter: CloseEmitter | None,
        gap_ms: int,
        grace_ms: int,
        dropped: Callable[[str], None],
    ) -> None: ...
    def advance_time(self, time_ms: int) -> None: ...

@final
class TimeTracker:
    stream_time: int
    min_time: int
    next_time_to_emit: int
    def times(self) -> tuple[int, int, int]: ...
    def recall(self, times: tuple[int, int, int]) -> None: ...

@final
class JoinRows:
    @property
    def key_serde(self) -> object: ...
    def __init__(
        self,
        key_serde: object,
        encode_key: Callable[[Any], bytes] | None,
        encode: Callable[[Any], bytes] | None,
        decode: Callable[[bytes], Any],
        log_headers: bool,
        segments: SegmentTimes,
        changelog: Changelog,
    ) -> None: ...

@final
class JoinWindow(Node):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        put: Callable[[Any, Any, int], None],
        rows: JoinRows | None,
    ) -> None: ...

def join_side_key(timestamp: int, left: bool, key: bytes) -> bytes: ...
def join_side_value(left: bool, value: bytes | None) -> bytes | None: ...

@final
class NonJoinedRecords:
    def __init__(
        self,
        task: RecordContext,
        tracker: TimeTracker,
        left: bool,
        key_serde: object,
        encode_key: Callable[[Any], bytes | None] | None,
        encode_value: Callable[[Any], bytes | None] | None,
        put: Callable[[bytes, bytes | None], None],
        put_if_present: Callable[[bytes, bytes | None], None],
        emit: Callable[[_Headers], None],
    ) -> None: ...

class WindowJoin(Node):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        joiner: Callable[..., Any],
        with_key: bool,
        before_ms: int,
        after_ms: int,
        fetch: Callable[[Any, int, int], Any],
        rows: JoinRows | None,
        dropped: Callable[[str], None],
    ) -> None: ...

@final
class StreamJoin(WindowJoin):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        joiner: Callable[..., Any],
        with_key: bool,
        is_right: bool,
        outer: bool,
        before_ms: int,
        after_ms: int,
        tracker: TimeTracker,
        fetch: Callable[[Any, int, int], Any],
        rows: JoinRows | None,
        waiting: NonJoinedRecords | None,
        search_ms: int,
        dropped: Callable[[str], None],
    ) -> None: ...
    def advance_time(self, time_ms: int) -> None: ...

@final
class StreamSelfJoin(WindowJoin):
    stream_time: int
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        joiner: Callable[..., Any],
        with_key: bool,
        before_ms: int,
        after_ms: int,
        fetch: Callable[[Any, int, int], Any],
        rows: JoinRows | None,
        retention_ms: int,
        dropped: Callable[[str], None],
    ) -> None: ...
