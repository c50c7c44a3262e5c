"""Operators with async functions: map_values_async, filter_async, flat_map_values_async, foreach_async.

A call starts when its record arrives and runs outside the stream thread, concurrently with the calls of later records.
Results are forwarded in the order of the records, or in order per key; see waiting.py for their context.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from ..context.async_calls import AsyncCalls, Call, CallOptions, OrderedBy
from ..context.task_context import Process, TaskContext
from ..records import Headers
from .operator import NodeContext, Operator
from .stateless import iterate
from .waiting import Held, WaitingRecords

#: Forwards the result for a record: (result, key, value, timestamp in ms, headers).
Finish = Callable[[Any, Any, Any, int, Headers], None]


@dataclass(eq=False)
class AsyncOperator(Operator):
    """Calls an async function for each record: function(value), or function(key, value) with with_key."""

    reads_record_metadata = True
    stateless = True

    function: Callable[..., Awaitable[object]]
    options: CallOptions
    ordered_by: OrderedBy = "partition"
    with_key: bool = False

    @abstractmethod
    def finish(self, node: NodeContext) -> Finish:
        """Return the function that forwards a result."""

    @override
    def compile(self, node: NodeContext) -> Process:
        task, with_key = node.task, self.with_key
        kind = CallsInOrder if self.ordered_by == "partition" else CallsByKey
        calls = kind(self, node, self.finish(node))
        node.waits(calls)
        function = self.options.of(self.function, calls.times)

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            held = calls.hold(task, key, value, timestamp, headers)
            held.call = Call(function, (key, value) if with_key else (value,))
            calls.add(held)

        return process


class _Calls(WaitingRecords):
    """The calls of one operator in one task."""

    _held: Sized

    def __init__(self, operator: AsyncOperator, node: NodeContext, finish: Finish) -> None:
        super().__init__(node.name)
        self._operator = operator
        self._limit = operator.options.max_in_flight
        self._task: TaskContext = node.task
        self._calls: AsyncCalls = node.task.async_calls
        self._taken: Any = None

        def take(key: object, value: object, timestamp: int, headers: Headers) -> None:
            finish(self._taken.result(), key, value, timestamp, headers)

        self._process = node.guarded(node.own(take))

    @override
    def room(self) -> int:
        """Return how many more calls of this operator may run in the process, over all its tasks."""
        return self._limit - self._calls.in_flight(self._operator)

    def add(self, held: Held) -> None:
        """Add a record. Blocks while the maximum number of records waits."""
        while len(self._held) >= self._limit:
            self._wait()
            self.advance()
        self._calls.count(self._operator, 1)
        self._put(held)

    def _begin(self, held: Held) -> None:
        self.times.calls += 1
        self._calls.begin(held.call)

    @override
    def drain(self) -> int:
        drained = 0
        while self.held():
            self._wait()
            drained += self.advance()
        return drained

    def _pass_on(self, held: Held) -> None:
        """Forward the result of a call that has ended."""
        self._calls.count(self._operator, -1)
        self._taken = held.call
        held.pass_on(self._task, self._process)

    @override
    def cancel(self) -> None:
        for held in self.held():
            self._calls.cancel(held.call)
            self._calls.count(self._operator, -1)
        self._clear()

    @abstractmethod
    def _put(self, held: Held) -> None:
        """Keep a record, and start its call unless it has to wait for another one."""

    @abstractmethod
    def _wait(self) -> None:
        """Block until advance() has something to forward."""

    @abstractmethod
    def _clear(self) -> None:
        """Discard all records."""


class CallsInOrder(_Calls):
    """Forwards results in the order of their records."""

    def __init__(self, operator: AsyncOperator, node: NodeContext, finish: Finish) -> None:
        super().__init__(operator, node, finish)
        self._held: deque[Held] = deque()

    @override
    def held(self) -> Sequence[Held]:
        return self._held

    def _put(self, held: Held) -> None:
        self._held.append(held)
        self._begin(held)

    def _wait(self) -> None:
        first = self._held[0].call
        self._calls.wait(lambda: first.done)

    @override
    def advance(self) -> int:
        held, passed = self._held, 0
        while held and held[0].call.done:
            self._pass_on(held.popleft())
            passed += 1
        return passed

    def _clear(self) -> None:
        self._held.clear()


class CallsByKey(_Calls):
    """Forwards results in order per key. A record without a key waits for no other record."""

    in_order = False

    def __init__(self, operator: AsyncOperator, node: NodeContext, finish: Finish) -> None:
        super().__init__(operator, node, finish)
        self._held: dict[int, Held] = {}  # by id(), oldest first
        self._lanes: dict[object, deque[Held]] = {}

    @override
    def held(self) -> Sequence[Held]:
        return list(self._held.values())

    def _put(self, held: Held) -> None:
        self._held[id(held)] = held
        lane = self._lanes.setdefault(_lane(held), deque())
        lane.append(held)
        if len(lane) == 1:
            self._begin(held)

    def _wait(self) -> None:
        first = [lane[0].call for lane in self._lanes.values()]
        self._calls.wait(lambda: any(call.done for call in first))

    @override
    def advance(self) -> int:
        ended = [(name, lane[0]) for name, lane in self._lanes.items() if lane[0].call.done]
        for name, held in ended:
            lane = self._lanes[name]
            lane.popleft()
            del self._held[id(held)]
            if lane:
                self._begin(lane[0])
            else:
                del self._lanes[name]
            self._pass_on(held)
        return len(ended)

    def _clear(self) -> None:
        self._held.clear()
        self._lanes.clear()


def _lane(held: Held) -> object:
    """Return the lane in which a record's call waits for its turn: its key. All unhashable keys share one lane."""
    if held.key is None:
        return held
    try:
        hash(held.key)
    except TypeError:
        return CallsByKey
    return held.key


class KStreamMapValuesAsync(AsyncOperator):
    """Replaces the value by the function's result."""

    @override
    def finish(self, node: NodeContext) -> Finish:
        forward = node.forward

        def finish(result: object, key: object, value: object, timestamp: int, headers: Headers) -> None:
            forward(key, result, timestamp, headers)

        return finish


class KStreamFilterAsync(AsyncOperator):
    """Forwards records for which the function returns a true value."""

    @override
    def finish(self, node: NodeContext) -> Finish:
        forward = node.forward

        def finish(result: object, key: object, value: object, timestamp: int, headers: Headers) -> None:
            if result:
                forward(key, value, timestamp, headers)

        return finish


class KStreamFlatMapValuesAsync(AsyncOperator):
    """Replaces the value by each of the values that the function returns."""

    @override
    def finish(self, node: NodeContext) -> Finish:
        forward, name = node.forward, node.name

        def finish(result: object, key: object, value: object, timestamp: int, headers: Headers) -> None:
            for new_value in iterate(name, result):
                forward(key, new_value, timestamp, headers)

        return finish


class KStreamForeachAsync(AsyncOperator):
    """Calls the function for its side effect and ends the stream."""

    @override
    def finish(self, node: NodeContext) -> Finish:
        def finish(result: object, key: Any, value: object, timestamp: int, headers: Headers) -> None:
            return

        return finish
