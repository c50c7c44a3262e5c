"""The contract between the graph and what its nodes do.

An Operator is declared once, when the topology is built, and keeps no runtime state. For each task it is compiled into
a closure that processes a record and calls the next closure. A record therefore travels depth-first through plain
Python calls, without child lookups, context objects or try blocks. docs/architecture.md follows a record along this
path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ..context.task_context import Process, TaskContext

if TYPE_CHECKING:
    from ..run.fusion import LoopCode, Names
    from .waiting import WaitingRecords

T = TypeVar("T")

#: Getter and setter of the state that an operator keeps outside its stores.
Memory = tuple[Callable[[], Any], Callable[[Any], None]]


@dataclass(slots=True, eq=False)
class NodeContext:
    """The node of one task for which an operator is compiled.

    forward: calls all children in order;
    children: the child closures by node name, for operators that choose a child (split, Processor API);
    store_names: the stores connected to the node;
    shared: objects that several operators of the task share, by the object that declares them;
    punctuated(callback, timestamp in ms): runs a user's punctuation with the task's error handling;
    guarded(process): process for buffered records, whose errors are handled while their own record context is in place.
    """

    name: str
    task: TaskContext
    children: Mapping[str, Process]
    forward: Process
    store_names: tuple[str, ...]
    shared: dict[Any, Any]
    punctuated: Callable[[Callable[[int], None], int], None]
    guarded: Callable[[Process], Process]
    closures: list[Callable[..., Any]] = field(default_factory=list, init=False)
    init_callbacks: list[Callable[[], None]] = field(default_factory=list, init=False)
    close_callbacks: list[Callable[[], None]] = field(default_factory=list, init=False)
    memories: list[Memory] = field(default_factory=list, init=False)
    waiting: list[WaitingRecords] = field(default_factory=list, init=False)

    def store(self, name: str) -> Any:
        """Return the task's store of this name."""
        return self.task.store(name)

    def share(self, declaration: Any, make: Callable[[], T]) -> T:
        """Return the object of this task that belongs to a declaration; make() creates it on the first call."""
        if declaration not in self.shared:
            self.shared[declaration] = make()
        found: T = self.shared[declaration]
        return found

    def dropped(self, reason: str) -> None:
        """Count a dropped record under this node's name."""
        self.task.record_dropped(self.name, reason)

    def owns(self, closure: Callable[..., Any]) -> None:
        """Attribute exceptions of closure to this node; for closures that are not called through compile()'s result."""
        self.closures.append(closure)

    def remembers(self, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        """Register state that the operator keeps outside its stores: ints, or tuples of ints, such as its stream time.

        A stream thread keeps its tasks in memory and never calls get. On Spark, each micro-batch of a task may run in
        another process: put() then receives what get() returned at the end of the previous micro-batch.
        """
        self.memories.append((get, put))

    def waits(self, records: WaitingRecords) -> None:
        """Register records that wait here. The task forwards those that are ready as it runs and before it commits."""
        self.waiting.append(records)

    def on_init(self, callback: Callable[[], None]) -> None:
        """Register a callback for when all nodes are compiled, in topology order (Processor.init, punctuators)."""
        self.init_callbacks.append(callback)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Register a callback for when the task closes, in topology order."""
        self.close_callbacks.append(callback)


class Operator(ABC):
    """The work of one processor node. Subclasses are named after Kafka Streams' processors, e.g. KStreamFilter.

    reads_record_metadata: whether it needs a record's topic, partition and offset. stateless: whether its output
    depends on the record alone, which makes reprocessing harmless.
    """

    reads_record_metadata: bool = False
    stateless: bool = False

    @abstractmethod
    def compile(self, node: NodeContext) -> Process:
        """Return the closure that processes the records of this node in one task.

        Stores are already restored and open, so the closure may keep their bound methods.
        """

    def fuse(self, code: LoopCode, names: Names) -> bool:
        """Generate the work of compile()'s closure in the loop of a source; False if the loop must call the closure.

        names: the variables that hold the record's key and value; other variables must not be changed. See fusion.py.
        """
        return False

    def fuse_change(self, code: LoopCode, names: Names, old: str) -> bool:
        """As fuse, for a Change in the loop that forwards a cache's changes.

        names: as in fuse, with the new value; old: the variable that holds the old value.
        """
        return False

    def flushed_store(self, node: NodeContext) -> Any:
        """Return the store whose cache forwards this node's changes when it is flushed; None if there is none."""
        return None
