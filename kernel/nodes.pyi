from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, final

from penstock.kernel.cells import CellTable, CellUpdates, TimeWindows
from penstock.kernel.messages import _Headers
from penstock.kernel.rows import RowBuffer
from penstock.kernel.sinks import Changelog, RecordSink, WindowedSink

def set_types(change: type[tuple[Any, ...]], windowed: type[tuple[Any, ...]]) -> None: ...

class RecordContext:
    message: Any
    headers: _Headers
    at: str | None
    tracer: Any
    timestamp: int
    stream_time_ms: int

@final
class KeyReader:
    @property
    def serde(self) -> object: ...
    @property
    def decode(self) -> Callable[[bytes], Any]: ...
    def __init__(self, serde: object, decode: Callable[[bytes], Any]) -> None: ...

@final
class Key: ...

class Node:
    @property
    def task(self) -> RecordContext: ...
    @property
    def name(self) -> str | None: ...
    @property
    def child(self) -> Node: ...
    def __init__(self, task: RecordContext, name: str | None, child: Node | None = None) -> None: ...
    def use_of_key(self, serde: object) -> int: ...
    def known_keys(self, serde: object) -> dict[Any, Any] | None: ...
    def receive(self, key: Any, value: Any, timestamp: int, headers: _Headers) -> None: ...

class End(Node): ...

@final
class Fork(Node):
    def __init__(self, task: RecordContext, nodes: Sequence[Node]) -> None: ...

@final
class PythonNode(Node):
    def __init__(self, task: RecordContext, name: str, function: Callable[..., Any]) -> None: ...

@final
class Forward:
    def __init__(self, task: RecordContext, name: str, child: Node) -> None: ...
    def call(self, key: Any, value: Any, timestamp: int, headers: _Headers) -> None: ...

@final
class RecordForward:
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node,
        record: type[tuple[Any, ...]],
        forward_any: Callable[[Any, str | None], None],
    ) -> None: ...
    def call(self, given: Any, child: str | None = None) -> None: ...

@final
class Guard(Node):
    def __init__(self, node: Node, judge: Callable[..., None], unhandled: tuple[type[Exception], ...]) -> None: ...

class FunctionNode(Node):
    def __init__(
        self, task: RecordContext, name: str, child: Node | None, function: Callable[..., Any], with_key: bool = True
    ) -> None: ...

@final
class Filter(FunctionNode):
    def __init__(
        self, task: RecordContext, name: str, child: Node | None, predicate: Callable[..., Any], negated: bool
    ) -> None: ...

@final
class Map(FunctionNode):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        mapper: Callable[..., Any],
        check: Callable[[str, object], None],
    ) -> None: ...

@final
class SelectKey(FunctionNode): ...

@final
class MapValues(FunctionNode): ...

@final
class FlatMap(FunctionNode):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        mapper: Callable[..., Any],
        iterate: Callable[[str, Any], Iterable[Any]],
        check: Callable[[str, object], None],
    ) -> None: ...

@final
class FlatMapValues(FunctionNode):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        mapper: Callable[..., Any],
        with_key: bool,
        iterate: Callable[[str, Any], Iterable[Any]],
    ) -> None: ...

@final
class Peek(FunctionNode): ...

@final
class Branch(Node):
    def __init__(
        self, task: RecordContext, name: str, predicates: Sequence[Callable[[Any, Any], Any]], nodes: Sequence[Node]
    ) -> None: ...

@final
class ToStream(Node): ...

@final
class UserProcessor(Node):
    def __init__(
        self, task: RecordContext, name: str, process_record: Callable[[Any], None], record: type[tuple[Any, ...]]
    ) -> None: ...

@final
class Sink(Node):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        sink: RecordSink,
        key_serde: object,
        value_serde: object,
        unsent: Callable[[Any, Any, int, _Headers, Exception], None],
    ) -> None: ...

@final
class PartitionedSink(Node):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        sink: RecordSink,
        topic: str,
        key_serde: object,
        unsent: Callable[[Any, Any, int, _Headers, Exception], None],
        partitioner: Callable[..., object] | None,
        place: int | None,
        partition_count: Callable[[], int],
        send_to: Callable[..., Exception | None],
    ) -> None: ...

@final
class WindowedKeySink(Node):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        sink: WindowedSink,
        inner: object,
        from_held: Callable[[Any], bytes] | None,
        value_serde: object,
        partition_count: Callable[[], int],
        unsent: Callable[[Any, Any, int, _Headers, Exception], None],
    ) -> None: ...

class Rows:
    @property
    def key_serde(self) -> object: ...
    @property
    def counts(self) -> bool: ...

@final
class CachedRows(Rows):
    @property
    def updates(self) -> CellUpdates: ...
    def __init__(
        self,
        task: RecordContext,
        updates: CellUpdates,
        key_serde: object,
        encode_key: Callable[[Any], bytes] | None,
        grown: Callable[[], None],
        keeps_messages: bool,
    ) -> None: ...

@final
class StoredRows(Rows):
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
    ) -> None: ...
    def write(self, row_key: bytes, value: object, timestamp: int, headers: _Headers) -> None: ...

class RowNode(Node):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        rows: Rows | None,
        dropped: Callable[[str], None],
    ) -> None: ...

@final
class Count(RowNode): ...

@final
class Aggregate(RowNode):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        rows: Rows,
        dropped: Callable[[str], None],
        initializer: Callable[[], Any],
        aggregator: Callable[..., Any],
    ) -> None: ...

@final
class Reduce(RowNode):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        rows: Rows,
        dropped: Callable[[str], None],
        reducer: Callable[[Any, Any], Any],
    ) -> None: ...

@final
class TableAggregate(RowNode):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        rows: Rows,
        changed: Callable[[Any, Any, Any], object],
        no_key: Callable[[], NoReturn],
    ) -> None: ...

@final
class TableSource(RowNode): ...

@final
class WindowAggregate(RowNode):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        rows: CachedRows,
        dropped: Callable[[str], None],
        windows: TimeWindows,
        initializer: Callable[[], Any] | None,
        aggregator: Callable[..., Any],
        counts: bool,
    ) -> None: ...

@final
class StreamTableJoin(Node):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        joiner: Callable[..., Any],
        with_key: bool,
        left_join: bool,
        dropped: Callable[[str], None],
        get: Callable[..., Any],
        as_of: bool,
        table: CellTable | None = None,
        key_serde: object = None,
        encode_key: Callable[[Any], bytes] | None = None,
        read: Callable[[Any], Any] | None = None,
    ) -> None: ...

@final
class RepartitionMap(Node):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        pair_of: Callable[[Any, Any], Any],
        no_key: Callable[[], NoReturn],
        combined: bool,
        skips_older: bool,
    ) -> None: ...

@final
class SubscriptionSend(Node):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        extract: Callable[..., object],
        with_key: bool,
        to_bytes: Callable[[Any], bytes | None],
        asks: int,
        steps_for: Callable[[Any, Any, bool], Sequence[tuple[Any, int]]],
        hash_of: Callable[[Any], bytes],
        hash_bytes: Callable[[bytes], bytes],
        serde: object,
        subscribe: Callable[..., object],
        refuse: Callable[[], NoReturn],
        dropped: Callable[[str], None],
        skips_older: bool,
    ) -> None: ...

@final
class SubscriptionReceive(Node):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        to_bytes: Callable[[Any, Any], bytes],
        rows: StoredRows | None,
        put: Callable[[bytes, Any], None],
        combined_key: type[tuple[Any, ...]],
        row_type: type[tuple[Any, ...]],
        refuse: Callable[[int], NoReturn],
        dropped: Callable[[str], None],
    ) -> None: ...

@final
class SubscriptionJoin(Node):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        get: Callable[[Any], Any],
        buffer: RowBuffer | None,
        encode_key: Callable[[Any], bytes] | None,
        serialized: type[tuple[Any, ...]],
        response: type[tuple[Any, ...]],
    ) -> None: ...

@final
class Suppress(Node):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        put: Callable[..., None],
        until_close: bool,
        key_serde: object,
        inner: object,
        from_held: Callable[[Any], bytes] | None,
        encode_key: Callable[[Any], bytes],
    ) -> None: ...

@final
class FlushedChanges:
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node,
        key_serde: object,
        decode_key: Callable[[bytes], Any],
        form: int,
        size_ms: int,
        read: Callable[[Any], Any] | None,
        bytes_serde: object,
        timestamped: bool,
        keeps_headers: bool,
    ) -> None: ...
    def send(self, changes: Iterable[Any], olds: Iterable[Any]) -> None: ...

@final
class Source(Node):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node,
        to_key: Callable[[bytes], Any] | None,
        keys_may_be_none: bool,
        to_value: Callable[[bytes], Any] | None,
        values_may_be_none: bool,
        reader: KeyReader | None,
        value_serde: object,
        failed: Callable[..., None],
        invalid: Callable[[Any, Any, Any], object],
    ) -> None: ...
    def process_batch(self, messages: Iterable[Any]) -> None: ...
    def process_stamped(self, records: Iterable[Any]) -> None: ...

def only_bytes(node: Node, serde: object) -> bool: ...
def node_of(task: RecordContext, nodes: Sequence[Node]) -> Node: ...
def nothing() -> None: ...
