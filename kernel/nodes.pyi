from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

from penstock.kernel.conversions import Conversion
from penstock.kernel.messages import _Headers
from penstock.kernel.sinks import RecordSink, WindowedSink

def set_types(change: type[tuple[Any, ...]], windowed: type[tuple[Any, ...]]) -> None: ...

class RecordContext:
    message: Any
    headers: _Headers
    at: str | None
    tracer: Any
    on_due: Callable[[], object]
    timestamp: int
    stream_time_ms: int
    due_ms: int

@final
class Tally:
    def add(self, value: float) -> None: ...
    def take(self) -> tuple[int, float, float, float] | None: ...

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

@final
class End(Node): ...

class ChangeNode(Node): ...

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
        with_headers: bool,
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
        value_serde: object,
        unsent: Callable[[Any, Any, int, _Headers, Exception], None],
    ) -> None: ...

@final
class Lateness(Node):
    def __init__(self, task: RecordContext, child: Node, tally: Tally) -> None: ...

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
        unread: Conversion | None,
        reader: KeyReader | None,
        value_serde: object,
        failed: Callable[..., None],
        invalid: Callable[[Any, Any, Any], object],
    ) -> None: ...
    def process_batch(self, messages: Iterable[Any]) -> None: ...
    def process_stamped(self, records: Iterable[Any]) -> None: ...

def only_bytes(node: Node, serde: object) -> bool: ...
def node_of(task: RecordContext, nodes: Sequence[Node]) -> Node: ...
