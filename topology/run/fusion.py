"""Fused sources: one loop over a batch of messages that contains the code of the operators after the source.

Closures (compiled.py) cost a call per operator and record, and pass everything through the task. This module generates
a source's loop as Python text: operators that support it write their few lines into it (Operator.fuse), the others are
called as closures. The lines call the compiled kernel; without it there are only closures. The closures are the
specification; tests/topology/test_fusion.py checks that both give the same results. docs/fusion.md shows such a loop.

The text of a loop can be read: ``CompiledSource.source_text``, and in every traceback that goes through it.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import count
from types import CodeType, FunctionType
from typing import Any, ClassVar, NamedTuple, TypeVar

from typing_extensions import override

from penstock.kernel import messages as kernel_messages

from ..context.error_handling import ErrorHandling, NodeInput
from ..context.store_interfaces import Cells
from ..context.task_context import Process, TaskContext
from ..context.timestamp_extractors import fail_on_invalid_timestamp
from ..graph.processor_topology import Node, ProcessorNode, ProcessorTopology, SinkNode, SourceNode
from ..operators.operator import NodeContext
from ..records import Change, Message, Windowed
from ..serdes.serdes import ITSELF, FromBytes, Inline, Serde, inline, same
from ..serdes.windowed_serdes import WindowedSerde, inline_windowed
from .compiled_sink import fuse_sink

#: Processes messages, or what a source has stamped.
ProcessBatch = Callable[[Iterable[Any]], None]
#: Operators nested deeper are called instead of inlined: Python's parser allows 100 levels of indentation.
DEPTH_MAX = 60
_loops = count(1)
CodeT = TypeVar("CodeT", bound="LoopCode")


def is_available() -> bool:
    """Return whether loops can be fused: they call the kernel."""
    return kernel_messages is not None


@lru_cache(maxsize=256)
def _compiled(text: str) -> CodeType:
    """Return the code of a text, cached: all tasks of a sub-topology share it, and need it again after a rebalance."""
    return compile(text, "<penstock>", "exec")


class KeyNotReadError(Exception):
    """Code in a loop needs the key itself, and the loop has only its bytes; the loop is generated again."""


class Names(NamedTuple):
    """The variables of the loop that hold a record's key and value; timestamp and headers have fixed names.

    held_key: the key; with key_serde its bytes, as that serde writes them, or if it is windowed a Windowed with the
    bytes of the key inside. shown_key: an expression for the key itself, for rarely executed code. value_serde: the
    serde that has read the value, which no other code has seen; None otherwise. data: the variable with the bytes that
    this serde has written for it, if there is one.
    """

    held_key: str
    value: str
    key_serde: Serde[Any] | None = None
    shown_key: str = ""
    windowed: bool = False
    value_serde: Serde[Any] | None = None
    data: str = ""

    @property
    def key(self) -> str:
        """The variable that holds the key itself; raises KeyNotReadError if there is none."""
        if self.key_serde is not None:
            raise KeyNotReadError
        return self.held_key

    @property
    def shown(self) -> str:
        """An expression for the key itself."""
        return self.shown_key or self.held_key

    def seen(self) -> Names:
        """Return the names of a record whose value other code may have changed."""
        return self._replace(value_serde=None, data="")

    def with_key(self, variable: str) -> Names:
        """Return the names of a record with another key."""
        return Names(variable, self.value)


class FusedLoop(NamedTuple):
    """A loop and its text."""

    process_batch: ProcessBatch
    text: str


class Fusion:
    """Writes the loops of one task's sources.

    topology: its nodes; contexts, closures: the compiled nodes, by name; keeps_messages: whether cache cells must keep
    the message of their last put.
    """

    def __init__(
        self,
        topology: ProcessorTopology,
        task: TaskContext,
        errors: ErrorHandling,
        contexts: Mapping[str, NodeContext],
        closures: Mapping[str, Process],
        keeps_messages: bool,
    ) -> None:
        self.topology = topology
        self.task = task
        self.errors = errors
        self.contexts = contexts
        self.closures = closures
        self.keeps_messages = keeps_messages
        parents: dict[str, int] = {}
        for node in topology.nodes.values():
            for child in getattr(node, "children", ()):
                parents[child] = parents.get(child, 0) + 1
        #: Operators with several parents are called; inlined twice they would also be compiled twice.
        self.shared = {name for name, number in parents.items() if number > 1}

    def full(self, topic: str) -> str:
        """Return the full name of a topic that a sink writes."""
        return self.task.internal_topic(topic) if topic in self.topology.repartition_topics else topic

    def loop(
        self,
        node: SourceNode,
        topic: str,
        serdes: tuple[Serde[Any], Serde[Any]],
        to_key: FromBytes,
        to_value: FromBytes,
    ) -> FusedLoop:
        """Return the loop of a source node for one of its topics (full name); serdes: of keys and values."""
        value_serde = serdes[1] if len(node.children) == 1 else None

        def write(serde: Serde[Any] | None) -> SourceCode:
            code = SourceCode(self, node.name, to_key, serde)
            code.write_source(node.children, inline(to_value), value_serde)
            return code

        code = _without_keys(serdes[0], write)
        return code.compile(f"<penstock {self.task.task_id} {topic} {next(_loops)}>")

    def stamped_loop(self, node: SourceNode, topic: str) -> FusedLoop:
        """Return the loop of a source node over the StampedRecords of one of its topics (full name)."""
        code = StampedCode(self, node.name)
        code.write_stamped(node.children)
        return code.compile(f"<penstock {self.task.task_id} {topic} {next(_loops)}>")

    def fuse_flushes(self) -> None:
        """Give each cached store whose changes are forwarded a loop that forwards them."""
        for name, node in self.topology.nodes.items():
            if isinstance(node, ProcessorNode):
                store = node.operator.flushed_store(self.contexts[name])
                if store is not None:
                    loop = self._flush(node, store.cells(), store.builder.headers_format)
                    store.set_downstream(loop.process_batch)

    def _flush(self, node: ProcessorNode, cells: Cells, headers_format: bool) -> FusedLoop:
        def write(serde: Serde[Any] | None) -> FlushCode:
            code = FlushCode(self, cells, serde)
            code.write_flush(node, headers_format)
            return code

        code = _without_keys(cells.key_serde, write)
        return code.compile(f"<penstock {self.task.task_id} flush of {node.name} {next(_loops)}>")


def _without_keys(serde: Serde[Any], write: Callable[[Serde[Any] | None], CodeT]) -> CodeT:
    """Return the code of a loop with only the keys' serialized bytes, if nothing in it needs the keys themselves."""
    if serde.rewrite is not None:
        with suppress(KeyNotReadError):
            return write(serde)
    return write(None)


class LoopCode:
    """The text of a loop during generation, into which an operator's fuse() writes. Subclasses write the loop itself.

    context: the node being written. emit(line), block(head): append lines; bind(object, hint): the variable by which
    the loop refers to an object; fresh(hint): a new variable; forward(names): write the node's children; say_record():
    required before calls of code that may use the task's record or its stream time.
    """

    #: The loop's parameters.
    arguments: ClassVar[str]

    def __init__(self, fusion: Fusion) -> None:
        self.keeps_messages = fusion.keeps_messages
        self._fusion = fusion
        self._lines: list[str] = []
        self._nodes: list[str | None] = []  # the node that each line belongs to
        self._indent = 0
        self._bound: dict[str, Any] = {"task": fusion.task}
        self._variables = count(1)
        self._node: str | None = None
        self._flags: list[str] = []
        self._record_time = "timestamp"
        self._time = "timestamp"
        self._inputs: dict[str, NodeInput] = {}
        self._repeats = 0  # how many loops are open that a node has written

    @property
    def context(self) -> NodeContext:
        """The NodeContext of the node that is being written."""
        assert self._node is not None
        return self._fusion.contexts[self._node]

    def emit(self, line: str) -> None:
        """Append a line."""
        self._lines.append("    " * self._indent + line)
        self._nodes.append(self._node)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Append a line that opens a block; lines appended within the context form the block."""
        repeats = self._node is not None and head.startswith("for ")
        self.emit(head)
        self._indent += 1
        self._repeats += repeats
        length = len(self._lines)
        yield
        if len(self._lines) == length:
            self.emit("pass")
        self._repeats -= repeats
        self._indent -= 1

    def bind(self, value: Any, hint: str) -> str:
        """Return the loop's name for an object: a local variable, the fastest kind."""
        for name, bound in self._bound.items():
            if bound is value:
                return name
        name = f"{hint}_{next(self._variables)}"
        self._bound[name] = value
        return name

    def fresh(self, hint: str) -> str:
        """Return the name of a new variable."""
        return f"{hint}_{next(self._variables)}"

    def flag(self, hint: str) -> str:
        """Return the name of a new variable that is False when the loop begins."""
        name = self.fresh(hint)
        self._flags.append(name)
        return name

    def use(self, code: Inline, argument: str) -> str:
        """Return the expression of inline code applied to a variable."""
        names = {part: self.bind(value, part) for part, value in code.names.items()}
        return code.template.format(argument, **names)

    def assign(self, variable: str, code: Inline) -> None:
        """Replace a variable's value, which is not None, by the result of inline code."""
        if code != ITSELF:
            self.emit(f"{variable} = {self.use(code, variable)}")

    def knows_keys(self, table: Any) -> None:
        """Record that the cache keys of a CellTable are the record keys' serialized bytes."""
        return

    def say_record(self) -> None:
        """Write code that sets the task's current record."""
        self.emit("task.stream_time_ms = stream_time")
        self.emit("task.message = message")
        self.emit(f"task.timestamp = {self._record_time}")
        self.emit("task.headers = headers")

    def drop(self, reason: str) -> None:
        """Write code that counts the record as dropped by the current node."""
        self.say_record()
        self.emit(f"{self.bind(self.context.dropped, 'dropped')}({reason!r})")

    def key_bytes(self, names: Names, serde: Serde[Any], encode: Inline, table: Any = None) -> str:
        """Return the variable with the bytes of a record's key, which is not None, as a serde writes them by encode.

        table: the CellTable to look them up in.
        """
        if names.key_serde is serde and not names.windowed:
            self.knows_keys(table)
            return names.held_key
        data = self.fresh("key_bytes")
        if names.windowed and isinstance(serde, WindowedSerde) and names.key_serde is serde.inner:
            self.emit(f"{data} = {self.use(inline_windowed(same, serde.times), names.held_key)}")
            return data
        self.emit(f"{data} = {self.use(encode, names.key)}")
        return data

    def forward(self, names: Names, unseen: bool = False) -> None:
        """Write the children of the current node, or calls of them. unseen: the node has not looked at the value."""
        assert self._node is not None
        children = self._children(self._fusion.topology.nodes[self._node])
        self._write_children(children, names if unseen and len(children) == 1 else names.seen())

    @contextmanager
    def at(self, timestamp: str) -> Iterator[None]:
        """Use another timestamp in the code written within the context; errors report the record's."""
        if timestamp == "timestamp":  # the one in use, as where a row is replaced
            yield
            return
        outer, self._record_time = self._record_time, self.fresh("record_time")
        outer_time, self._time = self._time, timestamp
        self.emit(f"{self._record_time} = timestamp")
        with self.block("try:"):
            self.emit(f"timestamp = {timestamp}")
            yield
        with self.block("finally:"):
            self.emit(f"timestamp = {self._record_time}")
        self._record_time, self._time = outer, outer_time

    @property
    def has_children(self) -> bool:
        """Whether the node being written has children."""
        assert self._node is not None
        return bool(self._children(self._fusion.topology.nodes[self._node]))

    def forward_change(self, names: Names, old: str) -> None:
        """Write the children's code for a change of a row of the current node, a table; old: a variable."""
        assert self._node is not None
        children = self._children(self._fusion.topology.nodes[self._node])
        for child in children:
            self._write_change(child, names if len(children) == 1 else names.seen(), old, self._may_inline(children))

    def _may_inline(self, children: tuple[str, ...]) -> bool:
        """Return whether a failure in a child ends the processing of the record; see error_handling.py."""
        return not self._fusion.errors.guards_nodes or (len(children) == 1 and not self._repeats)

    def _write_change(self, name: str, names: Names, old: str, may_inline: bool) -> None:
        outer, self._node = self._node, name
        node = self._fusion.topology.nodes[name]
        may_inline = may_inline and name not in self._fusion.shared
        operator = node.operator if may_inline and isinstance(node, ProcessorNode) else None
        self._inputs[name] = NodeInput(name, names.shown, f"Change({names.value}, {old}, True)", self._time)
        if operator is None or not operator.fuse_change(self, names, old):
            self.say_record()
            made = (
                f"{self.bind(tuple.__new__, 'new_tuple')}({self.bind(Change, 'change')}, ({names.value}, {old}, True))"
            )
            self.emit(f"{self.bind(self._fusion.closures[name], 'process')}({names.key}, {made}, timestamp, headers)")
        self._node = outer

    @staticmethod
    def _children(node: Node) -> tuple[str, ...]:
        return tuple(getattr(node, "children", ()))

    def _write_children(self, children: tuple[str, ...], names: Names) -> None:
        for child in children:
            self._write_node(child, names, self._may_inline(children))

    def _write_node(self, name: str, names: Names, may_inline: bool) -> None:
        outer, self._node = self._node, name
        node = self._fusion.topology.nodes[name]
        if not isinstance(node, SinkNode):
            self._inputs[name] = NodeInput(name, names.shown, names.value, self._time)
        elif outer in self._inputs:  # a sink has no guard
            self._inputs[name] = self._inputs[outer]
        if not (may_inline and self._written(node, names)):
            self._call(name, names)
        self._node = outer

    def _written(self, node: Node, names: Names) -> bool:
        """Inline a node if possible, and return whether it was."""
        fusion = self._fusion
        if self._indent >= DEPTH_MAX:
            return False
        if isinstance(node, SinkNode):
            topic = node.topic
            return isinstance(topic, str) and fuse_sink(
                self, node, fusion.full(topic), fusion.task, fusion.errors, names
            )
        return isinstance(node, ProcessorNode) and node.name not in fusion.shared and node.operator.fuse(self, names)

    def _call(self, name: str, names: Names) -> None:
        """Call a node's closure."""
        self.say_record()
        process = self.bind(self._fusion.closures[name], "process")
        self.emit(f"{process}({names.key}, {names.value}, timestamp, headers)")

    def compile(self, file_name: str) -> FusedLoop:
        """Return the loop, and register its lines for tracebacks and error handling."""
        head = f"def process_batch({self.arguments}, {', '.join(f'{name}={name}' for name in self._bound)}):"
        lines = [head, *(f"    {name} = False" for name in self._flags), *self._lines]
        text = "\n".join(lines) + "\n"
        names = dict(self._bound)
        exec(_compiled(text), names)  # only the text above
        process_batch: FunctionType = names["process_batch"]
        process_batch.__code__ = process_batch.__code__.replace(co_filename=file_name)
        linecache.cache[file_name] = (len(text), None, [line + "\n" for line in lines], file_name)
        nodes = [None, *(None for _ in self._flags), *self._nodes]
        self._fusion.errors.register_lines(process_batch, nodes, self._inputs)
        return FusedLoop(process_batch, text)


class SourceCode(LoopCode):
    """The text of the loop over a batch of messages of one topic.

    to_key: deserializes keys; key_serde: keys stay this serde's bytes.
    """

    arguments = "messages"

    def __init__(self, fusion: Fusion, source: str, to_key: FromBytes, key_serde: Serde[Any] | None) -> None:
        super().__init__(fusion)
        self._to_key = inline(to_key)
        self._key_serde = key_serde
        rewrite: Any = None if key_serde is None else key_serde.rewrite
        self._rewrite = None if rewrite is None else rewrite.copy()
        self._bound["failed"] = _failed(source, fusion.task, fusion.errors, to_key, key_serde)
        self._bound["invalid_timestamp"] = fail_on_invalid_timestamp

    @override
    def knows_keys(self, table: Any) -> None:
        """Reading JSON, say, takes longer than to find a key that was written before."""
        if table is not None and self._rewrite is not None:
            self._rewrite.known = table.entries

    def write_source(self, children: tuple[str, ...], to_value: Inline, value_serde: Serde[Any] | None) -> None:
        """Write the loop around the operators; failed() raises, or the record is dropped and the loop continues."""
        if self._key_serde is None:
            to_key, names = self._to_key, Names("key", "value")
        else:
            to_key = Inline("{call}({})", {"call": self._rewrite})
            names = Names("key", "value", self._key_serde, self._shown_key())
        self._indent = 1
        self.emit("stream_time = task.stream_time_ms")
        self.emit("key = None")
        read_key, read_value = to_key.compiled, to_value.compiled
        to_key = to_key if read_key is None else ITSELF
        to_value = to_value if read_value is None else ITSELF
        self.emit("message = timestamp = headers = None")
        read = f"{self.bind(read_key, 'read_key')}, stream_time, {self.bind(read_value, 'read_value')}"
        self.emit(f"remaining = {self.bind(kernel_messages.Unpacked, 'unpacked')}(messages, {read})")
        record = f"message, key, value, {self._timestamp(to_key, to_value)}, stream_time, headers"
        names = names._replace(value_serde=value_serde)
        with self.block("while True:"):
            with self.block("try:"):
                with self.block(f"for {record} in remaining:"):
                    self._write_unpacked(to_key, to_value, names.shown)
                    self._write_children(children, names)
                self.emit("task.stream_time_ms = stream_time")
                self.emit("return")
            with self.block("except BaseException as error:"):
                with self.block("if message is not remaining.message:"):  # its key or value cannot be deserialized
                    self.emit("message = remaining.message")
                    self.emit("timestamp = None")
                with self.block("if timestamp is None:"):
                    self.emit("stream_time = remaining.without_last()")
                self.emit("task.stream_time_ms = stream_time")
                self.emit("failed(message, key, timestamp, headers, error)")

    def _shown_key(self) -> str:
        return f"(None if key is None else {self.use(self._to_key, 'key')})"

    @staticmethod
    def _timestamp(to_key: Inline, to_value: Inline) -> str:
        """Return the variable for a record's timestamp: a different one if deserialization can still fail."""
        return "timestamp" if to_key == to_value == ITSELF else "at"

    def _write_unpacked(self, to_key: Inline, to_value: Inline, key: str) -> None:
        """Write the deserialization that the kernel has left to do; key: an expression for the record's key."""
        if self._timestamp(to_key, to_value) == "at":
            self.emit("timestamp = None")  # until the record is deserialized
            self._write_deserialized("key", to_key)
            self._write_deserialized("value", to_value)
            self.emit("timestamp = at")
        with self.block("if timestamp is None:"):
            self.emit("timestamp = message.timestamp()[1]")
            self.emit(f"invalid_timestamp(message, {key}, value, -1)")

    def _write_deserialized(self, name: str, code: Inline) -> None:
        if code == ITSELF:
            return
        if code.takes_none:
            self.emit(f"{name} = {self.use(code, name)}")
        else:
            with self.block(f"if {name} is not None:"):
                self.emit(f"{name} = {self.use(code, name)}")


class StampedCode(LoopCode):
    """The text of the loop over StampedRecords of one topic, which an iterator may deserialize and stamp meanwhile."""

    arguments = "records"

    def __init__(self, fusion: Fusion, source: str) -> None:
        super().__init__(fusion)
        self._bound["failed"] = _failed(source, fusion.task, fusion.errors, same, None)

    def write_stamped(self, children: tuple[str, ...]) -> None:
        """Write the loop around the operators; failed() raises, or the record is dropped and the loop continues."""
        self._indent = 1
        self.emit("stream_time = task.stream_time_ms")
        self.emit("message = None")
        self.emit("remaining = iter(records)")
        with self.block("while True:"):
            with self.block("try:"):
                with self.block("for message, timestamp, key, value in remaining:"):
                    with self.block("if timestamp > stream_time:"):
                        self.emit("stream_time = timestamp")
                    self.emit("headers = message.headers()")
                    self._write_children(children, Names("key", "value"))
                    self.emit("message = None")
                self.emit("task.stream_time_ms = stream_time")
                self.emit("return")
            with self.block("except BaseException as error:"):
                self.emit("task.stream_time_ms = stream_time")
                with self.block("if message is None:"):  # no record could be stamped
                    self.emit("raise")
                self.emit("failed(message, key, timestamp, headers, error)")
                self.emit("message = None")


class FlushCode(LoopCode):
    """The text of the loop that forwards the changes of a cached table; see StateStore.set_downstream."""

    arguments = "changes, olds"

    def __init__(self, fusion: Fusion, cells: Cells, key_serde: Serde[Any] | None) -> None:
        super().__init__(fusion)
        self._cells = cells
        self._key_serde = key_serde

    @override
    def say_record(self) -> None:
        """Do nothing, since the task's record is set from the beginning."""

    def write_flush(self, node: ProcessorNode, headers_format: bool) -> None:
        """Write the loop over the changes of a node; headers_format: of its store."""
        self._indent, self._node = 1, node.name
        with self.block("for (key, row, timestamp, headers, message), old in zip(changes, olds):"):
            names = self._write_key()
            if self._cells.bytes_serde is not None:
                names = names._replace(value_serde=self._cells.bytes_serde, data="held")
            self.emit("task.timestamp = timestamp")
            self.emit("task.headers = headers")
            self.emit("task.message = message")
            if self._cells.timestamped:
                self._write_row()
            else:
                self._write_session(headers_format)
            self.forward_change(names, "old")

    def _write_key(self) -> Names:
        """Write the conversion of a change's key to a record's key, or as much of it as the loop needs."""
        cells = self._cells
        if self._key_serde is None:
            self.assign("key", cells.record_key(cells.decode_key))
            return Names("key", "new")
        as_bytes = cells.record_key(ITSELF)
        self.assign("key", as_bytes)
        if as_bytes == ITSELF:
            return Names("key", "new", self._key_serde, self.use(cells.decode_key, "key"))
        inside = self.use(cells.decode_key, "key[0]")
        shown = f"{self.bind(Windowed, 'windowed')}({inside}, key[1], key[2])"
        return Names("key", "new", self._key_serde, shown, windowed=True)

    def _write_row(self) -> None:
        with self.block("if row is None:"):
            self.emit("new = None")
            self._write_held()
        with self.block("else:"):
            self.emit("new, timestamp = row")
            self._write_held()
            self.assign("new", inline(self._cells.read))
        with self.block("if old is not None:"):
            self.emit("old = old[0]")
            self.assign("old", inline(self._cells.read))

    def _write_held(self) -> None:
        if self._cells.bytes_serde is not None:
            self.emit("held = new")

    def _write_session(self, headers_format: bool) -> None:
        """Write the result of a session; see KStreamSessionWindowAggregate._forwards_itself."""
        self.emit("new, timestamp = row, key[2]")
        self._write_held()
        if headers_format:
            self.emit("headers = None")
        for variable in ("new", "old"):
            with self.block(f"if {variable} is not None:"):
                self.assign(variable, inline(self._cells.read))


def _failed(
    source: str, task: TaskContext, errors: ErrorHandling, to_key: FromBytes, key_serde: Serde[Any] | None
) -> Callable[..., None]:
    def failed(message: Message, key: Any, timestamp: int | None, headers: Any, error: BaseException) -> None:
        if timestamp is None:
            errors.failed_deserialization(source, message, error)
            return
        task.message, task.timestamp, task.headers = message, timestamp, headers
        errors.failed_in_loop(error, key if key_serde is None else to_key(key))

    return failed
