"""compile_topology: compiles a sub-topology into the nodes of one task, see docs/nodes.md.

Children are compiled before their parents, each node once.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any

from penstock.kernel.nodes import Guard, Lateness, Node, PythonNode, node_of

from ..context.error_handling import UNHANDLED, ErrorHandling, raise_noted
from ..context.exception_handlers import asks_for_sources
from ..context.processor_wrapper import configured_wrap
from ..context.tallies import TASK_GROUP, average_and_maximum
from ..context.task_context import TaskContext
from ..errors import ConfigError, StreamsError
from ..graph.processor_topology import Node as Described
from ..graph.processor_topology import ProcessorNode, ProcessorTopology, SinkNode, SourceNode
from ..operators.operator import NodeContext
from ..operators.waiting import Waiting
from .compiled_sink import compile_sink
from .compiled_source import CompiledSource, StampedRecord

__all__ = ["CompiledSource", "CompiledTopology", "StampedRecord", "compile_topology"]


class CompiledTopology:
    """A sub-topology in one task.

    sources: by full topic name. errors: for failures outside of a source's call, i.e. in a store's flush
    (``errors.raise_flush_failure(store name, error)``); punctuations use it themselves. waiting: the records that wait
    for async functions and batches.
    """

    def __init__(
        self,
        sources: dict[str, CompiledSource],
        nodes: Sequence[NodeContext],
        errors: ErrorHandling,
        compile_matching: Callable[[str], CompiledSource | None],
    ) -> None:
        self.sources = sources
        self.errors = errors
        self._nodes = nodes
        self._compile_matching = compile_matching
        self.waiting = Waiting([records for node in nodes for records in node.waiting])
        errors.task.timers.passed_on_ms = self.waiting.passed_on_ms

    def source_of(self, topic: str) -> CompiledSource | None:
        """Return the source that reads a topic, by its full name; None if none does."""
        return self.sources.get(topic)

    def source_matching(self, topic: str) -> CompiledSource | None:
        """Return the source that reads a topic; a source whose pattern matches the topic is added for it."""
        source = self.source_of(topic)
        if source is None:
            source = self._compile_matching(topic)
            if source is not None:
                self.sources[topic] = source
        return source

    def init(self) -> None:
        """Initialize the users' processors, in topology order. Stores must have been restored.

        Raises StreamsError if one fails.
        """
        for node in self._nodes:
            for callback in node.init_callbacks:
                try:
                    callback()
                except BaseException as error:
                    what = f"failed to initialize processor {node.name}"
                    if not isinstance(error, Exception):
                        raise_noted(error, what)
                    raise StreamsError(f"{what}: {error}") from error

    def flush(self, stores: Mapping[str, Any], *, batches: bool = True) -> None:
        """Forward the records that wait for functions, and the changes in the stores' caches.

        batches: False lets batches wait for more records. Flushes twice, because flushing a later store may put changes
        into an earlier one.
        """
        drain = self.waiting.drain_all if batches else self.waiting.drain_calls
        flushes = 0
        while drain() or flushes < 2:
            flushes += 1
            for name, store in stores.items():
                self.errors.task.at = None
                try:
                    store.flush()
                except BaseException as error:  # noqa: BLE001 - raised with the operator's name
                    self.errors.raise_flush_failure(name, error)

    def advance_time(self, time_ms: int, names: Container[str] | None = None) -> None:
        """Advance the stream time of the task and its operators, in topology order, without a record.

        names: of the nodes of one sub-topology, by default all nodes.
        """
        task = self.errors.task
        task.stream_time_ms = max(task.stream_time_ms, time_ms)
        for node in self._nodes:
            if names is None or node.name in names:
                for advance in node.time_listeners:
                    node.punctuated(advance, time_ms)

    def memories(self) -> list[object]:
        """Return the operators' state outside of stores, in topology order; see NodeContext.remembers."""
        return [get() for node in self._nodes for get, _ in node.memories]

    def recall(self, memories: Sequence[object]) -> None:
        """Restore the operators' state from memories() of the same sub-topology."""
        puts = [put for node in self._nodes for _, put in node.memories]
        for put, value in zip(puts, memories, strict=True):
            put(value)

    def close(self) -> None:
        """Close all the users' processors, in topology order; then raise StreamsError for the first that failed."""
        failed: StreamsError | None = None
        for node in self._nodes:
            for callback in node.close_callbacks:
                try:
                    callback()
                except Exception as error:  # noqa: BLE001 - the others must be closed too
                    if failed is None:
                        failed = StreamsError(f"failed to close processor {node.name}: {error}")
                        failed.__cause__ = error
        if failed is not None:
            raise failed


def compile_topology(topology: ProcessorTopology, task: TaskContext) -> CompiledTopology:
    """Compile a sub-topology for a task whose stores are open and restored.

    Raises StreamsError with the node's name if a node has no serde or cannot run in this task.
    """
    return _Compiler(topology, task).compile()


class _Compiler:
    def __init__(self, topology: ProcessorTopology, task: TaskContext) -> None:
        self.topology = topology
        self.task = task
        self.errors = ErrorHandling(task, topology.is_global)
        self.wrap = configured_wrap(task)
        self.nodes: dict[str, Node] = {}
        self.contexts: dict[str, NodeContext] = {}
        self.sources: dict[str, CompiledSource] = {}
        self.shared: dict[Any, Any] = {}
        nodes = topology.nodes.values()
        self.patterns = [(n.pattern, n) for n in nodes if isinstance(n, SourceNode) and n.pattern is not None]
        #: Wrappers, the handler of a failure after a flush, and dead letters get key and value of the record put last.
        self.keeps_messages = (
            self.wrap is not None
            or self.errors.guards_nodes
            or asks_for_sources(task.config)
            or any(map(_reads_record_metadata, nodes))
        )

    def compile(self) -> CompiledTopology:
        for node in reversed(tuple(self.topology.nodes.values())):
            try:
                self.compile_node(node)
            except ConfigError as error:
                raise StreamsError(f"failed to initialize {node.name}: {error}") from error
        self.mark_replayable()
        sources = {topic: self.sources[topic] for topic in reversed(self.sources)}
        return CompiledTopology(sources, tuple(self.contexts.values())[::-1], self.errors, self.compile_matching)

    def compile_node(self, node: Described) -> None:
        if isinstance(node, SinkNode):
            self.nodes[node.name] = compile_sink(node, self.internal_topic(node.topic), self.task, self.errors)
        elif isinstance(node, ProcessorNode):
            self.nodes[node.name] = self.compile_processor(node)
        else:
            for topic in reversed(node.topics):
                full = self.full_topic(topic)
                self.sources[full] = self.compile_topic(node, full)

    def compile_topic(self, node: SourceNode, topic: str) -> CompiledSource:
        child = self.first_of(node)
        if self.task.tallies is not None and not self.topology.is_global:
            tally = self.task.tallies.add(TASK_GROUP, {}, average_and_maximum("record-lateness"))
            child = Lateness(self.task, child, tally)
        return CompiledSource(node, topic, self.task, child, self.errors)

    def first_of(self, node: SourceNode | ProcessorNode) -> Node:
        """Return what follows a source, or a node that only forwards. Sinks get the guard that these nodes lack."""
        sinks = {name for name in node.children if isinstance(self.topology.nodes[name], SinkNode)}
        found = ((name, self.nodes[name]) for name in node.children)
        return node_of(self.task, [self.guarded(child) if name in sinks else child for name, child in found])

    def guarded(self, node: Node) -> Node:
        """Return a node whose exceptions the processing handler judges, if it may continue."""
        return Guard(node, self.errors.judge, UNHANDLED) if self.errors.guards_nodes else node

    def compile_matching(self, topic: str) -> CompiledSource | None:
        node = next((node for pattern, node in self.patterns if pattern.fullmatch(topic)), None)
        return None if node is None else self.compile_topic(node, topic)

    def compile_processor(self, node: ProcessorNode) -> Node:
        context = NodeContext(
            node.name,
            self.task,
            {child: self.nodes[child] for child in node.children},
            (*node.stores, *self.topology.global_stores),
            self.shared,
            self.errors.punctuated(node.name),
            partial(self.errors.guard_held, node.name),
            self.keeps_messages,
            self.wrap is not None or self.task.tallies is not None,
        )
        made = node.operator.compile(context)
        self.contexts[node.name] = context
        compiled = made if isinstance(made, Node) else PythonNode(self.task, node.name, made)
        if self.wrap is not None:
            compiled = PythonNode(self.task, node.name, self.wrap(node.name, compiled.receive))
        return self.first_of(node) if compiled is context.child else self.guarded(compiled)

    def mark_replayable(self) -> None:
        """Mark waiting records as replayable if only the source and stateless operators have processed them."""
        nodes = self.topology.nodes
        parents: dict[str, list[Described]] = {}
        for parent in nodes.values():
            for child in () if isinstance(parent, SinkNode) else parent.children:
                parents.setdefault(child, []).append(parent)

        def leaves_no_trace(node: Described) -> bool:
            if isinstance(node, SinkNode) or len(node.children) != 1:
                return False
            return isinstance(node, SourceNode) or (
                node.operator.stateless and not node.stores and all(map(leaves_no_trace, parents[node.name]))
            )

        for name, context in self.contexts.items():
            for records in context.waiting:
                records.replayable = all(map(leaves_no_trace, parents[name]))

    def full_topic(self, topic: str) -> str:
        return self.internal_topic(topic) or topic

    def internal_topic(self, topic: str | Callable[..., str]) -> str | None:
        """Return the full name of an internal topic; None for a user's, and for a function that returns one."""
        if isinstance(topic, str) and topic in self.topology.repartition_topics:
            return self.task.internal_topic(topic)
        return None


def _reads_record_metadata(node: Described) -> bool:
    if isinstance(node, ProcessorNode):
        return node.operator.reads_record_metadata
    return isinstance(node, SinkNode) and not isinstance(node.topic, str)
