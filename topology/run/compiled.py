"""compile_topology: compiles the nodes of a sub-topology into the closures of one task.

Children are compiled before their parents, each node once. A closure calls the closures of its children directly:
with one child that is the child itself, so that a chain of operators is a chain of plain calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ..context.error_handling import ErrorHandling, raise_noted
from ..context.exception_handlers import DEAD_LETTER_TOPIC
from ..context.processor_wrapper import configured_wrap
from ..context.task_context import Process, TaskContext
from ..errors import ConfigError, StreamsError
from ..graph.processor_topology import Node, ProcessorNode, ProcessorTopology, SinkNode, SourceNode
from ..operators.operator import NodeContext
from ..operators.waiting import Waiting
from ..records import Headers
from .compiled_sink import compile_sink
from .compiled_source import CompiledSource, StampedRecord
from .fusion import Fusion, is_available

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

    def flush(self, stores: Mapping[str, Any]) -> None:
        """Forward the records that wait for functions, and the changes in the stores' caches.

        Flushes twice, because flushing a later store may put changes into an earlier one.
        """
        flushes = 0
        while flushes < 2 or self.waiting:
            self.waiting.drain_all()
            flushes += 1
            for name, store in stores.items():
                try:
                    store.flush()
                except BaseException as error:  # noqa: BLE001 - raised with the operator's name
                    self.errors.raise_flush_failure(name, error)

    def memories(self) -> list[Any]:
        """Return the operators' state outside of stores, in topology order; see NodeContext.remembers."""
        return [get() for node in self._nodes for get, _ in node.memories]

    def recall(self, memories: Sequence[Any]) -> None:
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


def compile_topology(topology: ProcessorTopology, task: TaskContext, fused: bool = True) -> CompiledTopology:
    """Compile a sub-topology for a task whose stores are open and restored.

    fused: write operators into the loops of their sources if the compiled kernel is there (fusion.py); otherwise each
    has its own closure. Raises StreamsError with the node's name if a node has no serde or cannot run in this task.
    """
    return _Compiler(topology, task, fused).compile()


class _Compiler:
    def __init__(self, topology: ProcessorTopology, task: TaskContext, fused: bool) -> None:
        self.topology = topology
        self.task = task
        self.errors = ErrorHandling(task)
        self.wrap = configured_wrap(task)
        self.fused = fused and is_available() and self.wrap is None
        self.closures: dict[str, Process] = {}
        self.contexts: dict[str, NodeContext] = {}
        self.sources: dict[str, CompiledSource] = {}
        self.shared: dict[Any, Any] = {}
        nodes = topology.nodes.values()
        self.patterns = [(n.pattern, n) for n in nodes if isinstance(n, SourceNode) and n.pattern is not None]

    def compile(self) -> CompiledTopology:
        for node in reversed(tuple(self.topology.nodes.values())):
            self.named(node, self.compile_node)
        fusion = self.fusion() if self.fused else None
        for node in reversed(tuple(self.topology.nodes.values())):
            if isinstance(node, SourceNode):
                self.named(node, partial(self.compile_source, fusion=fusion))
        if fusion is not None:
            fusion.fuse_flushes()
        self.mark_replayable()
        sources = {topic: self.sources[topic] for topic in reversed(self.sources)}
        compile_matching = partial(self.compile_matching, fusion=fusion)
        return CompiledTopology(sources, tuple(self.contexts.values())[::-1], self.errors, compile_matching)

    def named(self, node: Any, compile_: Callable[[Any], None]) -> None:
        try:
            compile_(node)
        except ConfigError as error:
            raise StreamsError(f"failed to initialize {node.name}: {error}") from error

    def fusion(self) -> Fusion:
        nodes = self.topology.nodes.values()
        # The handler of a failure after a flush, and a dead letter, get the key and value of the record put last.
        asks = self.errors.guards_nodes or self.task.config.get(DEAD_LETTER_TOPIC) is not None
        keeps_messages = asks or any(
            node.operator.reads_record_metadata
            if isinstance(node, ProcessorNode)
            else isinstance(node, SinkNode) and not isinstance(node.topic, str)
            for node in nodes
        )
        return Fusion(self.topology, self.task, self.errors, self.contexts, self.closures, keeps_messages)

    def compile_node(self, node: Node) -> None:
        if isinstance(node, SinkNode):
            sink = compile_sink(node, self.full_topic, self.task, self.errors)
            self.errors.register(node.name, sink)
            self.closures[node.name] = sink
        elif isinstance(node, ProcessorNode):
            self.closures[node.name] = self.compile_processor(node)

    def compile_source(self, node: SourceNode, fusion: Fusion | None) -> None:
        for topic in reversed(node.topics):
            full = self.full_topic(topic)
            self.sources[full] = self.compile_topic(node, full, fusion)

    def compile_topic(self, node: SourceNode, topic: str, fusion: Fusion | None) -> CompiledSource:
        forward = call_all([self.closures[child] for child in node.children])
        return CompiledSource(node, topic, self.task, forward, self.errors, fusion)

    def compile_matching(self, topic: str, fusion: Fusion | None) -> CompiledSource | None:
        node = next((node for pattern, node in self.patterns if pattern.fullmatch(topic)), None)
        return None if node is None else self.compile_topic(node, topic, fusion)

    def compile_processor(self, node: ProcessorNode) -> Process:
        children = {child: self.closures[child] for child in node.children}
        context = NodeContext(
            node.name,
            self.task,
            children,
            call_all(tuple(children.values())),
            (*node.stores, *self.topology.global_stores),
            self.shared,
            self.errors.punctuated(node.name),
            partial(self.errors.guard_held, node.name),
        )
        process = node.operator.compile(context)
        self.contexts[node.name] = context
        if process is not context.forward:
            for closure in (process, *context.closures):
                self.errors.register(node.name, closure)
        if self.wrap is not None:
            process = self.wrap(node.name, process)
            self.errors.register(node.name, process)
        return self.errors.guard(node.name, process) if self.errors.guards_nodes else process

    def mark_replayable(self) -> None:
        """Mark waiting records as replayable if only the source and stateless operators have processed them."""
        nodes = self.topology.nodes
        parents: dict[str, list[Node]] = {}
        for parent in nodes.values():
            for child in () if isinstance(parent, SinkNode) else parent.children:
                parents.setdefault(child, []).append(parent)

        def leaves_no_trace(node: Node) -> bool:
            if isinstance(node, SinkNode) or len(node.children) != 1:
                return False
            return isinstance(node, SourceNode) or (
                node.operator.stateless and not node.stores and all(map(leaves_no_trace, parents[node.name]))
            )

        for name, context in self.contexts.items():
            for records in context.waiting:
                records.replayable = all(map(leaves_no_trace, parents[name]))

    def full_topic(self, topic: str) -> str:
        return self.task.internal_topic(topic) if topic in self.topology.repartition_topics else topic


def call_all(children: Sequence[Process]) -> Process:
    """Return one function that calls all children in order."""
    if not children:
        return _nothing
    if len(children) == 1:
        return children[0]

    def forward_to_all(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for child in children:
            child(key, value, timestamp, headers)

    def forward_to_two(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        first(key, value, timestamp, headers)
        second(key, value, timestamp, headers)

    first, second = children[:2]
    return forward_to_two if len(children) == 2 else forward_to_all


def _nothing(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
    return
