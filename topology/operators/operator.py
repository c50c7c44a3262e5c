"""The contract between the graph and what its nodes do.

An Operator is declared once, when the topology is built, and holds no state of a run. For each task it is compiled into
one closure that does its work and calls the next closure: a record runs depth-first through plain Python calls, with no
look-up of children, no context object and no try block on its way. docs/architecture.md follows a record on that way.
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

#: What an operator knows beside its stores: a function that reads it and one that sets it.
Memory = tuple[Callable[[], Any], Callable[[Any], None]]


@dataclass(slots=True, eq=False)
class NodeContext:
    """Where an operator is compiled: its node in one task.

    name: the node's name; task: the task; forward: calls all children in their order;
    children: the child closures by child node name, for operators that choose (split, Processor API);
    store_names: the stores that the node is connected to;
    shared: what several operators of the task hold in common, by the object that declares it;
    punctuated(callback, timestamp in ms): runs a user's punctuation, with the task's error handling.
    guarded(process): process for records that were set aside, whose errors are judged before the record context is that
    of the current record again.
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
        """Return the one object of this task that belongs to a declaration; make() makes it at the first call."""
        if declaration not in self.shared:
            self.shared[declaration] = make()
        found: T = self.shared[declaration]
        return found

    def dropped(self, reason: str) -> None:
        """Count a dropped record under this node's name."""
        self.task.record_dropped(self.name, reason)

    def owns(self, closure: Callable[..., Any]) -> None:
        """Name this node when an exception comes out of closure, which is not called through compile()'s result."""
        self.closures.append(closure)

    def remembers(self, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        """Say what the operator knows beside its stores: ints, or tuples of them, such as its own stream time.

        A stream thread keeps its tasks in memory and never asks. On Spark a task may wake up in another process for
        each micro-batch: what get() returned at the end of one, put(value) gives back before the next.
        """
        self.memories.append((get, put))

    def waits(self, records: WaitingRecords) -> None:
        """Say that records wait here, to be passed on later: a task looks for what is ready, and before it commits."""
        self.waiting.append(records)

    def on_init(self, callback: Callable[[], None]) -> None:
        """Call this once all nodes are compiled, in topology order (Processor.init, punctuators)."""
        self.init_callbacks.append(callback)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call this when the task closes, in topology order."""
        self.close_callbacks.append(callback)


class Operator(ABC):
    """What one processor node does. Subclasses are named after Kafka Streams' processors, e.g. KStreamFilter.

    reads_record_metadata: whether it asks from which topic, partition and offset a record comes. stateless: whether
    what comes out depends on the record alone, so that nothing is different if it comes again.
    """

    reads_record_metadata: bool = False
    stateless: bool = False

    @abstractmethod
    def compile(self, node: NodeContext) -> Process:
        """Return the closure that processes one record of this node in one task.

        Stores are restored and open by now, so their bound methods may be kept.
        """

    def fuse(self, code: LoopCode, names: Names) -> bool:
        """Write what compile()'s closure does into the loop of a source; False if it is to be called instead.

        names: the variables with the record's key and value; others must not be changed. See fusion.py.
        """
        return False

    def fuse_change(self, code: LoopCode, names: Names, old: str) -> bool:
        """Write what the closure does with a Change into the loop that sends a cache's changes on; False to be called.

        names: as for fuse, with the new value; old: the variable with the old one.
        """
        return False

    def flushed_store(self, node: NodeContext) -> Any:
        """Return the store whose cache sends this node's changes on when it is flushed; None if there is none."""
        return None
