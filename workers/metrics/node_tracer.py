"""Follows the records of one call through the operators of a task: which node ran when, and what came to it.

Operators are plain closures, or lines of one loop (docs/fusion.md), and count nothing. For a few records now and then
the interpreter's own tracing (sys.settrace) tells where they go: nothing is paid for all other records.
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
#: Follows no further after so many lines and calls, if a record becomes thousands: about 50 ms.
EVENTS_MAX = 20_000


class Trace:
    """What was seen of one call, by node.

    passed: records by the nodes that they went (from, to); the first is None if it is not known. spent_ns: time in a
    node without those behind it. timestamps: of the first record that came to a node (ms since 1970).
    """

    def __init__(self) -> None:
        self.passed: Counter[tuple[str | None, str]] = Counter()
        self.spent_ns: Counter[str] = Counter()
        self.timestamps: dict[str, int] = {}


class NodeTracer:
    """For one call of run().

    outside: the node that runs as long as no other is known to, the source of a batch; None: the first that is seen.
    silent: nodes that only pass records on; they may have no lines but those that call the next one.
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
        self._before = outside  # the node that ran before the lines of this one
        self._entered_by_line: str | None = None
        self._stack: list[str | None] = []
        self._last_ns = 0
        self._event_ns = event_cost_ns()
        self._events = 0

    @staticmethod
    def possible() -> bool:
        """Return False under a debugger, which needs the interpreter's tracing itself."""
        return sys.gettrace() is None

    def run(self, call: Callable[[], T]) -> T:
        """Return what call returns; whatever it raises passes."""
        self._last_ns = self._clock_ns()
        sys.settrace(self._called)
        try:
            return call()
        finally:
            sys.settrace(None)
            self._charge()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Look away for a while; the time is no node's."""
        self._charge()
        following = sys.gettrace()
        sys.settrace(None)
        try:
            yield
        finally:
            sys.settrace(following)
            self._last_ns = self._clock_ns()

    # -- what the interpreter tells

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
        """Return whether a loop has called a closure; else it is one more of the node that runs."""
        return frame.f_back is not None and self._errors.lines_of(frame.f_back.f_code) is not None

    def _enter(self, before: str | None, name: str, frame: FrameType) -> None:
        self._node = name
        self._outside = self._outside or name  # of a flush: the first is the one whose changes they are
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
    """Return what the interpreter itself takes for each event, which is no time of the node's."""
    names = ", ".join(f"n{number}=0" for number in range(30))  # as many variables as a loop may have
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
