"""Calls of async functions in simulated time: they end at simulated moments, whatever their stream thread does then."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from typing_extensions import override

from penstock.topology.context.async_calls import AsyncCalls, Call
from penstock.topology.run.event_loop import LoopCalls
from tests.simulation.world import World

#: How long the stream thread waits for a call before it looks again, in ms.
WAIT_MS = 60_000


class Io(Protocol):
    """The part of process.Process that this module uses."""

    def later(self, ms: int, happen: Callable[[], None]) -> None: ...
    def wait(self, condition: Callable[[], object], timeout_ms: int) -> bool: ...


class _NeverWaiting(selectors.DefaultSelector):
    """Calls on_idle in place of a wait.

    idle_seconds: how long the loop would have waited; None: until there is a call from outside.
    """

    on_idle: Callable[[], None]
    idle_seconds: float | None = None

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            self.idle_seconds = timeout
            self.on_idle()
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop with the world's clock. turn() runs it until it has nothing to do."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._idling = _NeverWaiting()
        super().__init__(self._idling)
        self._idling.on_idle = self.stop

    def time(self) -> float:
        return self._world.now_ms / 1000

    def turn(self) -> int | None:
        """Run everything that is due. Returns the ms until the next callback, None if there is none."""
        self.run_forever()
        seconds = self._idling.idle_seconds
        return None if seconds is None else math.ceil(seconds * 1000)


class SimulatedCalls(AsyncCalls):
    """on_ended: is called when a call has ended."""

    def __init__(self, world: World, io: Io, on_ended: Callable[[], None]) -> None:
        self._world, self._io = world, io
        self._loop = SimulatedLoop(world)
        self._calls = LoopCalls(self._loop, on_ended)
        self._turns_at: int | None = None

    @override
    def begin(self, call: Call) -> None:
        self._calls.start(call)
        self._turn_in(0)

    @override
    def cancel(self, call: Call) -> None:
        if call.task is not None:
            call.task.cancel()
        self._turn_in(0)

    @override
    def wait(self, until: Callable[[], bool]) -> None:
        while not until():
            self._io.wait(until, WAIT_MS)

    @override
    def in_flight(self, of: Hashable) -> int:
        return self._calls.in_flight(of)

    @override
    def count(self, of: Hashable, by: int) -> None:
        self._calls.count(of, by)

    @override
    def opening(self) -> str:
        return self._calls.opening()

    def _turn_in(self, ms: int) -> None:
        at_ms = self._world.now_ms + ms
        if self._turns_at is None or at_ms < self._turns_at:
            self._turns_at = at_ms
            self._io.later(ms, lambda: self._turn(at_ms))

    def _turn(self, due_ms: int) -> None:
        if due_ms != self._turns_at or self._loop.is_closed():
            return  # an earlier turn has said when the next one is
        self._turns_at = None
        idle_ms = self._loop.turn()
        if idle_ms is not None:
            self._turn_in(idle_ms)

    @override
    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._calls.close())
            self._loop.close()
