"""Calls of users' async functions: what an operator needs of their runner, and the options of a call.

A stream thread has one event loop, in a separate thread (workers/thread/event_loop.py).
The test driver has one that it runs by itself (testing/driver_task.py).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

from ..common.durations import Duration, to_millis
from ..errors import TopologyError
from .function_times import FunctionTimes

#: Opens what a function uses, for example a client's session, once for each process: ``async with lifespan() as it``.
Lifespan = Callable[[], AbstractAsyncContextManager[Any]]

#: In which order results come out; see KStream.map_values_async.
OrderedBy = Literal["partition", "key"]


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a call that failed is made again, and after which pauses.

    times: at most so often. wait_initial, wait_max (timedelta or ms): the first pause, which doubles each time up to
    the second one, with up to wait_jitter more at random. on: the exceptions after which it is made again; a timeout
    is a TimeoutError.
    """

    times: int
    wait_initial: Duration = timedelta(milliseconds=100)
    wait_max: Duration = timedelta(seconds=5)
    wait_jitter: Duration = timedelta(milliseconds=100)
    on: type[Exception] | tuple[type[Exception], ...] = Exception

    def __post_init__(self) -> None:
        if type(self.times) is not int or self.times < 0:
            raise TopologyError(f"Retries(times) must be a number of retries, got {self.times!r}")


def pauses(retries: Retries) -> Iterator[float]:
    """Yield how long to wait before each repetition, in seconds.

    A loop, no library: tenacity takes 100 µs for a call that needs no retry, three times what all else takes.
    """
    pause = to_millis(retries.wait_initial, "wait_initial") / 1000
    longest = to_millis(retries.wait_max, "wait_max") / 1000
    jitter = to_millis(retries.wait_jitter, "wait_jitter") / 1000
    for _ in range(retries.times):
        yield min(pause + random.uniform(0, jitter), longest)
        pause = min(2 * pause, longest)


@dataclass(frozen=True, slots=True)
class AsyncFunction:
    """An async function and how it is called. seconds: the timeout of one attempt, None for no limit.

    times: takes in its attempts. What the lifespan has opened becomes its last argument.
    """

    function: Callable[..., Awaitable[Any]]
    seconds: float | None
    retries: Retries
    lifespan: Lifespan | None
    times: FunctionTimes


class Call:
    """One call of an async function. done: it has ended; then error is what it raised, else value the result."""

    __slots__ = ("arguments", "done", "error", "function", "task", "value")

    def __init__(self, function: AsyncFunction, arguments: tuple[Any, ...]) -> None:
        self.function = function
        self.arguments = arguments
        self.task: asyncio.Task[None] | None = None
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None

    @property
    def in_flight(self) -> bool:
        """Whether it runs: it has been started and has not ended."""
        return self.task is not None and not self.done

    def result(self) -> Any:
        """Return the result of a call that has ended, or raise what it raised."""
        if self.error is not None:
            raise self.error
        return self.value


class AsyncCalls(Protocol):
    """Runs the calls of all tasks of a stream thread, on one event loop."""

    def begin(self, call: Call) -> None:
        """Run a call. Its thread continues; the call is done some time later."""

    def cancel(self, call: Call) -> None:
        """Run a call no further; its result is not wanted any more."""

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until a condition holds that depends on calls that run. Raises what the event loop died of."""

    def in_flight(self, of: Hashable) -> int:
        """Return how many calls of an operator were begun and not taken yet, by all tasks of the process."""

    def count(self, of: Hashable, by: int) -> None:
        """Change that number."""

    def close(self) -> None:
        """Cancel all calls, and leave the lifespans. Raises what one of them raises."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How a function is called. timeout: of one attempt (timedelta or ms), None for no limit."""

    max_in_flight: int = 256
    timeout: Duration | None = timedelta(seconds=30)
    retries: Retries | None = None
    lifespan: Lifespan | None = None

    def __post_init__(self) -> None:
        if type(self.max_in_flight) is not int or self.max_in_flight < 1:
            raise TopologyError(f"max_in_flight must be 1 or more, got {self.max_in_flight!r}")
        if self.timeout is not None and to_millis(self.timeout, "timeout") <= 0:
            raise TopologyError(f"timeout must be positive, or None for no limit, got {self.timeout!r}")
        if self.retries is not None and not isinstance(self.retries, Retries):
            raise TopologyError(f"retries must be Retries(times), got {self.retries!r}")
        if self.lifespan is not None and not callable(self.lifespan):
            raise TopologyError(f"lifespan must be a function that returns an async context manager: {self.lifespan!r}")

    def of(self, function: Callable[..., Awaitable[Any]], times: FunctionTimes) -> AsyncFunction:
        """Return a function that is called so. times: takes in its attempts."""
        seconds = None if self.timeout is None else to_millis(self.timeout, "timeout") / 1000
        return AsyncFunction(function, seconds, self.retries or Retries(0), self.lifespan, times)
