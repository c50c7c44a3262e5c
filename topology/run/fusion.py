"""Fused sources: one loop over a batch of messages, with the operators behind the source written into it.

A closure for each operator (compiled.py) costs a call for each operator and record, and hands everything through the
task. Here the loop of a source is put together as Python text: each operator that can writes its few lines into it
(Operator.fuse), the others are called as closures. What a closure does is the specification; tests/topology/
test_fusion.py holds the two to the same results. docs/fusion.md shows such a loop.

The text of a loop can be read: ``CompiledSource.source_text``, and in every traceback that goes through it.
"""

from __future__ import annotations

import linecache
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from types import CodeType, FunctionType
from typing import Any, ClassVar, NamedTuple

from typing_extensions import override

from penstock.kernel import messages as compiled

from ..context.error_handling import ErrorHandling
from ..context.store_interfaces import Cells
from ..context.task_context import Process, TaskContext
from ..context.timestamp_extractors import fail_on_invalid_timestamp
from ..graph.processor_topology import Node, ProcessorNode, ProcessorTopology, SinkNode
from ..operators.operator import NodeContext
from ..records import Change, Message
from ..serdes.serdes import ITSELF, Inline, inline
from .compiled_sink import fuse_sink

ProcessBatch = Callable[[Iterable[Message]], None]
#: Operators this deep are called, not written: Python's parser allows 100 levels of indentation.
DEPTH_MAX = 60
_loops = count(1)


@lru_cache(maxsize=256)
def _compiled(text: str) -> CodeType:
    """Return the code of a text: all tasks of a sub-topology share it, and need it again after each rebalance."""
    return compile(text, "<penstock>", "exec")


class Names(NamedTuple):
    """The variables of the loop that hold a record's key and value; timestamp and headers have fixed names."""

    key: str
    value: str


class FusedLoop(NamedTuple):
    """A loop and its text."""

    process_batch: ProcessBatch
    text: str


class Fusion:
    """Writes the loops of one task's sources.

    topology: its nodes; contexts, closures: what was compiled of them, by node name; keeps_messages: whether the cells
    of caches must keep the message of their last put.
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
        #: Nodes that more than one way leads to are called: written twice they would be compiled twice, too.
        self.shared = {name for name, number in parents.items() if number > 1}

    def full(self, topic: str) -> str:
        """Return the full name of a topic that a sink writes."""
        return self.task.internal_topic(topic) if topic in self.topology.repartition_topics else topic

    def loop(
        self, name: str, topic: str, children: Iterable[str], to_key: Callable[..., Any], to_value: Callable[..., Any]
    ) -> FusedLoop:
        """Return the loop of a source node for one of its topics (full name)."""
        code = SourceCode(self, name)
        code.write_source(tuple(children), inline(to_key), inline(to_value))
        return code.compile(f"<penstock {self.task.task_id} {topic} {next(_loops)}>")

    def fuse_flushes(self) -> None:
        """Give each cached store whose changes go downstream a loop that sends them."""
        for name, node in self.topology.nodes.items():
            if isinstance(node, ProcessorNode):
                store = node.operator.flushed_store(self.contexts[name])
                if store is not None:
                    code = FlushCode(self)
                    code.write_flush(node, store.cells(), store.builder.headers_format)
                    loop = code.compile(f"<penstock {self.task.task_id} flush of {name} {next(_loops)}>")
                    store.set_downstream(loop.process_batch)


class LoopCode(ABC):
    """The text of a loop in the making; what an operator's fuse() writes into. A subclass writes the loop itself.

    context: the node being written. emit(line), block(head): append lines; bind(object, hint): the name under which the
    loop has an object; fresh(hint): a new variable; forward(names): the node's children; say_record(): before anything
    is called that may look at the task's record or its stream time.
    """

    #: What the loop is called with.
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
        """Append a line that opens a block, and what is appended meanwhile as the block."""
        self.emit(head)
        self._indent += 1
        length = len(self._lines)
        yield
        if len(self._lines) == length:
            self.emit("pass")
        self._indent -= 1

    def bind(self, value: Any, hint: str) -> str:
        """Return the name under which the loop has an object: a local variable, the fastest there is."""
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
        """Return the expression that inline code makes of a variable."""
        names = {part: self.bind(value, part) for part, value in code.names.items()}
        return code.template.format(argument, **names)

    def assign(self, variable: str, code: Inline) -> None:
        """Replace a variable's value, which is not None, by what inline code makes of it."""
        if code != ITSELF:
            self.emit(f"{variable} = {self.use(code, variable)}")

    @abstractmethod
    def say_record(self) -> None:
        """Let the task know which record is being processed."""

    def drop(self, reason: str) -> None:
        """Count the record as dropped by the current node."""
        self.say_record()
        self.emit(f"{self.bind(self.context.dropped, 'dropped')}({reason!r})")

    def names(self, key: str, value: str) -> Names:
        """Return the variables of a record."""
        return Names(key, value)

    def forward(self, names: Names) -> None:
        """Write the children of the current node, or calls of them."""
        assert self._node is not None
        self._write_children(self._children(self._fusion.topology.nodes[self._node]), names)

    @contextmanager
    def at(self, timestamp: str) -> Iterator[None]:
        """Let what is written meanwhile use a timestamp that is not the record's; errors report the record's."""
        outer, self._record_time = self._record_time, self.fresh("record_time")
        self.emit(f"{self._record_time} = timestamp")
        with self.block("try:"):
            self.emit(f"timestamp = {timestamp}")
            yield
        with self.block("finally:"):
            self.emit(f"timestamp = {self._record_time}")
        self._record_time = outer

    @property
    def has_children(self) -> bool:
        """Whether anything is behind the node that is being written."""
        assert self._node is not None
        return bool(self._children(self._fusion.topology.nodes[self._node]))

    def forward_change(self, key: str, new: str, old: str) -> None:
        """Write what the children of the current node, a table, do with a change of a row: variables."""
        assert self._node is not None
        for child in self._children(self._fusion.topology.nodes[self._node]):
            self._write_change(child, key, new, old)

    def _write_change(self, name: str, key: str, new: str, old: str) -> None:
        outer, self._node = self._node, name
        node = self._fusion.topology.nodes[name]
        operator = node.operator if isinstance(node, ProcessorNode) and name not in self._fusion.shared else None
        if operator is None or not operator.fuse_change(self, key, new, old):
            self.say_record()
            made = f"{self.bind(tuple.__new__, 'new_tuple')}({self.bind(Change, 'change')}, ({new}, {old}, True))"
            self.emit(f"{self.bind(self._fusion.closures[name], 'process')}({key}, {made}, timestamp, headers)")
        self._node = outer

    @staticmethod
    def _children(node: Node) -> tuple[str, ...]:
        return tuple(getattr(node, "children", ()))

    def _write_children(self, children: tuple[str, ...], names: Names) -> None:
        for child in children:
            self._write_node(child, names)

    def _write_node(self, name: str, names: Names) -> None:
        outer, self._node = self._node, name
        if not self._written(self._fusion.topology.nodes[name], names):
            self._call(name, names)
        self._node = outer

    def _written(self, node: Node, names: Names) -> bool:
        """Write a node if it can be, and return whether it could."""
        fusion = self._fusion
        if node.name in fusion.shared or self._indent >= DEPTH_MAX:
            return False
        if isinstance(node, SinkNode):
            topic = node.topic
            return isinstance(topic, str) and fuse_sink(
                self, node, fusion.full(topic), fusion.task, fusion.errors, names
            )
        return isinstance(node, ProcessorNode) and node.operator.fuse(self, names)

    def _call(self, name: str, names: Names) -> None:
        """Call a node's closure."""
        self.say_record()
        process = self.bind(self._fusion.closures[name], "process")
        self.emit(f"{process}({names.key}, {names.value}, timestamp, headers)")

    def compile(self, file_name: str) -> FusedLoop:
        """Return the loop; its lines are known to tracebacks and to the error handling."""
        head = f"def process_batch({self.arguments}, {', '.join(f'{name}={name}' for name in self._bound)}):"
        lines = [head, *(f"    {name} = False" for name in self._flags), *self._lines]
        text = "\n".join(lines) + "\n"
        names = dict(self._bound)
        exec(_compiled(text), names)  # only the text above
        process_batch: FunctionType = names["process_batch"]
        process_batch.__code__ = process_batch.__code__.replace(co_filename=file_name)
        linecache.cache[file_name] = (len(text), None, [line + "\n" for line in lines], file_name)
        self._fusion.errors.register_lines(process_batch, [None, *(None for _ in self._flags), *self._nodes])
        return FusedLoop(process_batch, text)


class SourceCode(LoopCode):
    """The text of the loop over a batch of messages of one topic."""

    arguments = "messages"

    def __init__(self, fusion: Fusion, source: str) -> None:
        super().__init__(fusion)
        self._bound["failed"] = _failed(source, fusion.task, fusion.errors)
        self._bound["invalid_timestamp"] = fail_on_invalid_timestamp

    @override
    def say_record(self) -> None:
        self.emit("task.stream_time_ms = stream_time")
        self.emit("task.message = message")
        self.emit(f"task.timestamp = {self._record_time}")
        self.emit("task.headers = headers")

    def write_source(self, children: tuple[str, ...], to_key: Inline, to_value: Inline) -> None:
        """Write the loop around the operators; failed() raises, or the record is dropped and the loop continues."""
        self._indent = 1
        self.emit("stream_time = task.stream_time_ms")
        self.emit("key = None")
        if compiled is None:
            self.emit("remaining = iter(messages)")
            record = "message"
        else:
            reads_keys = to_key.names.get("decode") is compiled.decode_text
            to_key = ITSELF if reads_keys else to_key
            read_value = to_value.compiled
            to_value = to_value if read_value is None else ITSELF
            self.emit("message = timestamp = headers = None")
            given = f"messages, {reads_keys}, stream_time, {self.bind(read_value, 'read_value')}"
            self.emit(f"remaining = {self.bind(compiled.Unpacked, 'unpacked')}({given})")
            record = f"message, key, value, {self._timestamp(to_key, to_value)}, stream_time, headers"
        with self.block("while True:"):
            with self.block("try:"):
                with self.block(f"for {record} in remaining:"):
                    if compiled is None:
                        self._write_message(to_key, to_value)
                    else:
                        self._write_unpacked(to_key, to_value)
                    self._write_children(children, Names("key", "value"))
                self.emit("task.stream_time_ms = stream_time")
                self.emit("return")
            with self.block("except BaseException as error:"):
                if compiled is not None:
                    with self.block("if message is not remaining.message:"):  # its key or value cannot be read
                        self.emit("message = remaining.message")
                        self.emit("timestamp = None")
                    with self.block("if timestamp is None:"):
                        self.emit("stream_time = remaining.without_last()")
                self.emit("task.stream_time_ms = stream_time")
                self.emit("failed(message, key, timestamp, headers, error)")

    @staticmethod
    def _timestamp(to_key: Inline, to_value: Inline) -> str:
        """Return the variable that a record's timestamp is unpacked to: another one if it can still be unreadable."""
        return "timestamp" if to_key == to_value == ITSELF else "at"

    def _write_unpacked(self, to_key: Inline, to_value: Inline) -> None:
        """Write what the kernel has left to do before the operators."""
        if self._timestamp(to_key, to_value) == "at":
            self.emit("timestamp = None")  # until the record is deserialized
            self._write_deserialized("key", to_key)
            self._write_deserialized("value", to_value)
            self.emit("timestamp = at")
        with self.block("if timestamp is None:"):
            self.emit("timestamp = message.timestamp()[1]")
            self.emit("invalid_timestamp(message, key, value, -1)")

    def _write_message(self, to_key: Inline, to_value: Inline) -> None:
        """Write what takes a message apart."""
        self.emit("timestamp = headers = None")  # until the record is deserialized
        for name, code in (("key", to_key), ("value", to_value)):
            self.emit(f"{name} = message.{name}()")
            self._write_deserialized(name, code)
        self.emit("timestamp = message.timestamp()[1]")
        with self.block("if timestamp > stream_time:"):
            self.emit("stream_time = timestamp")
        with self.block("elif timestamp < 0:"):
            self.emit("invalid_timestamp(message, key, value, -1)")
        self.emit("headers = message.headers()")

    def _write_deserialized(self, name: str, code: Inline) -> None:
        if code == ITSELF:
            return
        if code.takes_none:
            self.emit(f"{name} = {self.use(code, name)}")
        else:
            with self.block(f"if {name} is not None:"):
                self.emit(f"{name} = {self.use(code, name)}")


class FlushCode(LoopCode):
    """The text of the loop that sends the changes of a cached table downstream; see StateStore.set_downstream."""

    arguments = "changes, olds"

    def say_record(self) -> None:
        """Do nothing: the task knows the record from the beginning."""

    def write_flush(self, node: ProcessorNode, cells: Cells, headers_format: bool) -> None:
        """Write the loop over the changes of a node; headers_format: of its store."""
        self._indent, self._node = 1, node.name
        with self.block("for (key, row, timestamp, headers, message), old in zip(changes, olds):"):
            self.assign("key", cells.object_key)
            self.emit("task.timestamp = timestamp")
            self.emit("task.headers = headers")
            self.emit("task.message = message")
            if cells.timestamped:
                self._write_row(cells)
            else:
                self._write_session(cells, headers_format)
            self.forward_change("key", "new", "old")

    def _write_row(self, cells: Cells) -> None:
        with self.block("if row is None:"):
            self.emit("new = None")
        with self.block("else:"):
            self.emit("new, timestamp = row")
            self.assign("new", inline(cells.read))
        with self.block("if old is not None:"):
            self.emit("old = old[0]")

    def _write_session(self, cells: Cells, headers_format: bool) -> None:
        """Write what a session's result is: see KStreamSessionWindowAggregate._forwards_itself."""
        self.emit("new, timestamp = row, key[2]")
        if headers_format:
            self.emit("headers = None")
        with self.block("if new is not None:"):
            self.assign("new", inline(cells.read))


def _failed(source: str, task: TaskContext, errors: ErrorHandling) -> Callable[..., None]:
    def failed(message: Message, key: Any, timestamp: int | None, headers: Any, error: BaseException) -> None:
        if timestamp is None:
            errors.failed_deserialization(source, message, error)
            return
        task.message, task.timestamp, task.headers = message, timestamp, headers
        errors.raise_failure(error, key)

    return failed
