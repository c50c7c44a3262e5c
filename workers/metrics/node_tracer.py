"""Traces the records of one call through the operators of a task: which node ran when, with which records.

Operators are plain closures, or lines of one loop (docs/fusion.md), and count nothing. A few records are traced by the
interpreter (sys.settrace); all other records cost nothing.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from time import perf_counter_ns
from types import FrameType
from typing import Any, TypeVar

from penstock.topology.context.error_handling import ErrorHandling

T = TypeVar("T")
Nanoseconds = Callable[[], int]
#: Maximum number of traced lines and calls, about 50 ms, in case one record becomes thousands.
EVENTS_MAX = 20_000


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
    """Traces one call of run().

    outside: the node that runs when no other is known to, the source of a batch; None: the first one traced. silent:
    nodes that only forward records, whose only lines may be calls of the next node.
    """

    def __init__(
        self,
        errors: ErrorHandling,
        silent: Collection[str],
        outside: str | None,
        clock_ns: Nanoseconds,
    ) -> None:
        self.trace = Trace()
        self._errors = errors
        self._silent = silent
        self._clock_ns = clock_ns
        self._outside = self._node = outside
        self._before = outside  # the node that ran before this one's lines
        self._entered_by_line: str | None = None
        self._stack: list[str | None] = []
        self._last_ns = 0
        self._event_ns = event_cost_ns()
        self._events = 0

    @staticmethod
    def possible() -> bool:
        """Return False under a debugger, which uses the interpreter's tracing itself."""
        return sys.gettrace() is None

    def run(self, call: Callable[[], T]) -> T:
        """Return the result of call; exceptions propagate."""
        self._last_ns = self._clock_ns()
        sys.settrace(self._called)
        try:
            return call()
        finally:
            sys.settrace(None)
            self._charge()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the trace; the time counts for no node."""
        self._charge()
        following = sys.gettrace()
        sys.settrace(None)
        try:
            yield
        finally:
            sys.settrace(following)
            self._last_ns = self._clock_ns()

    # -- events of the interpreter

    def _called(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        self._charge()
        code = frame.f_code
        found: Any = None
        if self._errors.lines_of(code) is not None:
            self._stack.append(self._node)
            found = self._line
        else:
            name = self._errors.node_of(frame)
            if name is not None:
                self._stack.append(self._node)
                if name != self._node:
                    self._enter(self._node, name, frame)
                elif name != self._entered_by_line and self._is_called_by_line(frame):  # not the first that does
                    self._enter(self._before, name, frame)
                self._entered_by_line = None
                frame.f_trace_lines = False  # only its end is of interest
                found = self._closure
        self._last_ns = self._clock_ns()
        return found

    def _closure(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        self._charge()
        if event == "return":
            self._node = self._stack.pop()
        self._last_ns = self._clock_ns()
        return self._closure

    def _line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        self._charge()
        if event == "return":
            self._node = self._stack.pop()
        elif event == "line":
            lines = self._errors.lines_of(frame.f_code)
            assert lines is not None
            name = lines[frame.f_lineno - 1]
            if name != self._node:
                self._before = self._node
                if name is not None and (lines.index(name) + 1 == frame.f_lineno or name in self._silent):
                    self._enter(self._node, name, frame)
                    self._entered_by_line = name
                self._node = name or self._outside
        self._last_ns = self._clock_ns()
        return self._line

    def _is_called_by_line(self, frame: FrameType) -> bool:
        """Return whether a loop has called a closure; otherwise it is a further function of the running node."""
        return frame.f_back is not None and self._errors.lines_of(frame.f_back.f_code) is not None

    def _enter(self, before: str | None, name: str, frame: FrameType) -> None:
        self._node = name
        self._outside = self._outside or name  # of a flush: the first node is the one whose changes they are
        if name == self._outside:
            return
        self.trace.passed[before, name] += 1
        if name not in self.trace.timestamps:
            timestamp = frame.f_locals.get("timestamp")
            if isinstance(timestamp, int):
                self.trace.timestamps[name] = timestamp

    def _charge(self) -> None:
        if self._node is not None:
            self.trace.spent_ns[self._node] += max(self._clock_ns() - self._last_ns - self._event_ns, 0)
        self._events += 1
        if self._events == EVENTS_MAX:
            sys.settrace(None)


@cache
def event_cost_ns() -> int:
    """Return the interpreter's own time per event, which does not count for a node."""
    names = ", ".join(f"n{number}=0" for number in range(30))  # as many variables as a typical loop has
    body = "\n".join("    n0 = n1" for _ in range(200))
    bound: dict[str, Any] = {}
    exec(f"def probe({names}):\n{body}\n", bound)  # the text above
    last, seen = perf_counter_ns(), []

    def follow(_frame: FrameType, _event: str, _argument: Any) -> Any:
        nonlocal last
        seen.append(perf_counter_ns() - last)
        last = perf_counter_ns()
        return follow

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        bound["probe"]()
    finally:
        sys.settrace(before)
    return int(statistics.median(seen))
