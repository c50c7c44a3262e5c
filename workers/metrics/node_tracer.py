"""Traces the records of one call through the nodes of a task: which node ran when, with which records.

Nodes count nothing. While a tracer is in the task's RecordContext, each node calls it; all other records cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from penstock.topology.context.task_context import TaskContext

T = TypeVar("T")
Nanoseconds = Callable[[], int]


class Trace:
    """The trace of one call, by node.

    passed: number of records by (from node, to node); the former is None if unknown. spent_ns: time in a node, without
    its children. timestamps: of the first record that reached a node (ms since 1970).
    """

    def __init__(self) -> None:
        self.passed: Counter[tuple[str | None, str]] = Counter()
        self.spent_ns: Counter[str] = Counter()
        self.timestamps: dict[str, int] = {}


class NodeTracer:
    """Traces one call of run(). outside: the node that runs when no other does, the source of a batch."""

    def __init__(self, task: TaskContext, outside: str | None, clock_ns: Nanoseconds) -> None:
        self.trace = Trace()
        self._task = task
        self._clock_ns = clock_ns
        self._node = outside
        self._stack: list[str | None] = []
        self._last_ns = 0

    def run(self, call: Callable[[], T]) -> T:
        """Return the result of call; exceptions propagate."""
        self._last_ns = self._clock_ns()
        self._task.tracer = self
        try:
            return call()
        finally:
            self._task.tracer = None
            self._charge()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the trace; the time counts for no node."""
        self._charge()
        self._task.tracer = None
        try:
            yield
        finally:
            self._task.tracer = self
            self._last_ns = self._clock_ns()

    def begin(self, name: str) -> None:
        """Note whose changes a flush sends."""
        if self._node is None:
            self._node = name

    def enter(self, name: str, timestamp: int) -> None:
        """Note that a record reaches a node; called by kernel/nodes.pyx."""
        self._charge()
        self.trace.passed[self._node, name] += 1
        self.trace.timestamps.setdefault(name, timestamp)
        self._stack.append(self._node)
        self._node = name

    def leave(self) -> None:
        """Note that the last node entered has ended."""
        self._charge()
        self._node = self._stack.pop()

    def _charge(self) -> None:
        now_ns = self._clock_ns()
        if self._node is not None:
            self.trace.spent_ns[self._node] += now_ns - self._last_ns
        self._last_ns = now_ns
