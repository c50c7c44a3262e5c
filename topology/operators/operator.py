"""The contract between the graph and what its nodes do.

An Operator is declared once, when the topology is built, and keeps no runtime state. For each task it is compiled into
a node that processes a record and calls the next node, in C (kernel/nodes.pyx). A record therefore travels depth first,
without child lookups or try blocks. Any operator may be a Python function, which a node calls; see docs/nodes.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from penstock.kernel.nodes import Forward, Node, node_of

from ..context.idle_time import IdleTimeout
from ..context.task_context import Process, TaskContext

if TYPE_CHECKING:
    from .waiting import WaitingRecords

T = TypeVar("T")
P = ParamSpec("P")

#: Getter and setter of the state that an operator keeps outside its stores.
Memory = tuple[Callable[[], Any], Callable[[Any], None]]


@dataclass(eq=False)
class NodeContext:
    """The node of one task for which an operator is compiled.

    nodes: the children by name, for operators that choose a child (split, Processor API); child: all of them, in order;
    forward, children: the same as functions;
    store_names: the stores connected to the node;
    shared: objects that several operators of the task share, by the object that declares them;
    punctuated(callback, timestamp in ms): runs a user's punctuation with the task's error handling;
    keeps_messages: whether a cache keeps the message of the last put of a key;
    notes_rows: whether stores must see each call, because a processor wrapper asks whose rows were read, or calls are
    measured;
    guarded(process): process for buffered records, whose errors are handled while their own record context is in place.
    """

    name: str
    task: TaskContext
    nodes: Mapping[str, Node]
    store_names: tuple[str, ...]
    shared: dict[Any, Any]
    punctuated: Callable[[Callable[[int], None], int], None]
    guarded: Callable[[Process], Process]
    keeps_messages: bool
    notes_rows: bool
    init_callbacks: list[Callable[[], None]] = field(default_factory=list, init=False)
    close_callbacks: list[Callable[[], None]] = field(default_factory=list, init=False)
    memories: list[Memory] = field(default_factory=list, init=False)
    waiting: list[WaitingRecords] = field(default_factory=list, init=False)
    time_listeners: list[Callable[[int], None]] = field(default_factory=list, init=False)

    @cached_property
    def child(self) -> Node:
        """The node after this one."""
        return node_of(self.task, tuple(self.nodes.values()))

    @cached_property
    def forward(self) -> Process:
        """Passes a record to all children."""
        return self.passing(self.child)

    @cached_property
    def children(self) -> Mapping[str, Process]:
        """Pass a record to a child, by its name."""
        return {name: self.passing(node) for name, node in self.nodes.items()}

    def passing(self, node: Node) -> Process:
        """Return a function of this node's that passes a record to another one."""
        return Forward(self.task, self.name, node).call

    def store(self, name: str) -> Any:
        """Return the task's store of this name."""
        return self.task.store(name)

    def share(self, declaration: object, make: Callable[[], T]) -> T:
        """Return the object of this task that belongs to a declaration; make() creates it on the first call."""
        if declaration not in self.shared:
            self.shared[declaration] = make()
        found: T = self.shared[declaration]
        return found

    def dropped(self, reason: str) -> None:
        """Count a dropped record under this node's name."""
        self.task.record_dropped(self.name, reason)

    def own(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return a function that runs as part of this node, so that its exceptions name the node.

        For functions that are not called through the node, such as callbacks."""
        task, name = self.task, self.name

        def run(*arguments: P.args, **named: P.kwargs) -> T:
            before, task.at = task.at, name
            result = function(*arguments, **named)
            task.at = before
            return result

        return run

    def remembers(self, get: Callable[[], object], put: Callable[[Any], None]) -> None:
        """Register state that the operator keeps outside its stores: ints, or tuples of ints, such as its stream time.

        A stream thread keeps its tasks in memory and never calls get. On Spark, each micro-batch of a task may run in
        another process: put() then receives what get() returned at the end of the previous micro-batch.
        """
        self.memories.append((get, put))

    def remembers_time(self, owner: object, attribute: str) -> None:
        """Register an attribute that is a time in ms, as remembers() does."""
        self.remembers(lambda: getattr(owner, attribute), lambda time: setattr(owner, attribute, time))

    def waits(self, records: WaitingRecords) -> None:
        """Register records that wait here. The task forwards those that are ready as it runs and before it commits."""
        self.waiting.append(records)

    def on_time(self, advance: Callable[[int], None]) -> None:
        """Register a function that does what a record of a time (ms) does, for when stream time advances without one.

        It must do nothing for a time that has passed.
        """
        self.time_listeners.append(advance)

    def on_init(self, callback: Callable[[], None]) -> None:
        """Register a callback for when all nodes are compiled, in topology order (Processor.init, punctuators)."""
        self.init_callbacks.append(callback)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Register a callback for when the task closes, in topology order."""
        self.close_callbacks.append(callback)


class Operator(ABC):
    """The work of one processor node. Subclasses are named after Kafka Streams' processors, e.g. KStreamFilter.

    reads_record_metadata: whether it needs a record's topic, partition and offset. stateless: whether its output
    depends on the record alone, which makes reprocessing harmless. idle_timeout: when its windows close without input.
    """

    reads_record_metadata: bool = False
    stateless: bool = False
    idle_timeout: IdleTimeout | None = None

    @abstractmethod
    def compile(self, node: NodeContext) -> Process | Node:
        """Return the node of one task, or the function that it calls with each record.

        Stores are already restored and open, so it may keep their bound methods.
        """
