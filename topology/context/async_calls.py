"""Calls of users' async functions: the runner's interface for operators, and the options of a call.

A stream thread has one event loop, on a separate thread (workers/thread/event_loop.py).
The test driver runs its own event loop (testing/driver_task.py).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

from ..common.arguments import is_asynchronous
from ..common.durations import Duration, to_millis
from ..common.kept_error import KeptError
from ..errors import StreamsError, TopologyError
from .function_times import FunctionTimes

#: Opens a function's resource, such as a client session, once per process: ``async with lifespan() as it``.
Lifespan = Callable[[], AbstractAsyncContextManager[Any]]

#: The order of results; see KStream.map_values_async.
OrderedBy = Literal["partition", "key"]


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a failed call is retried, and after which pauses.

    times: the maximum number of retries. wait_initial, wait_max (timedelta or ms): the first pause, which doubles up to
    wait_max, plus a random time of up to wait_jitter. on: the exceptions to retry; a timeout is a TimeoutError.
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
    """Yield the pause before each retry, in seconds.

    Written by hand: tenacity takes 100 µs for a call without retries, three times as long as the rest of the call.
    """
    pause = to_millis(retries.wait_initial, "wait_initial") / 1000
    longest = to_millis(retries.wait_max, "wait_max") / 1000
    jitter = to_millis(retries.wait_jitter, "wait_jitter") / 1000
    for _ in range(retries.times):
        yield min(pause + random.uniform(0, jitter), longest)
        pause = min(2 * pause, longest)


@dataclass(frozen=True, slots=True)
class AsyncFunction:
    """An async function and its call options. seconds: the timeout of one attempt, None for no limit.

    times: records its attempts. The lifespan's resource is passed as the last argument; lifespan_seconds: the time
    limit for opening it, None for no limit.
    """

    function: Callable[..., Awaitable[object]]
    seconds: float | None
    retries: Retries
    lifespan: Lifespan | None
    lifespan_seconds: float | None
    times: FunctionTimes


class CancelledCallError(StreamsError):
    """A call or the opening of a lifespan has raised CancelledError, although Penstock has not cancelled it.

    Otherwise neither handlers nor retries would see it: CancelledError is no Exception.
    """


class Call:
    """One call of an async function. done: it has ended; then failure has its exception, or else value its result.

    cancelled: Penstock has cancelled it. Its asyncio task does not say, because the function may cancel that too.
    """

    __slots__ = ("arguments", "cancelled", "done", "failure", "function", "task", "value")

    def __init__(self, function: AsyncFunction, arguments: tuple[object, ...]) -> None:
        self.function = function
        self.arguments = arguments
        self.task: asyncio.Task[None] | None = None
        self.cancelled = False
        self.done = False
        self.value: Any = None
        self.failure: KeptError | None = None

    @property
    def in_flight(self) -> bool:
        """Whether it has been started and has not ended."""
        return self.task is not None and not self.done

    def cancel(self) -> None:
        """End it, because its result is no longer needed. Call this on the event loop's thread."""
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()

    def result(self) -> Any:
        """Return the result of a call that has ended, or raise its exception."""
        if self.failure is not None:
            self.failure.raise_again()
        return self.value


class AsyncCalls(Protocol):
    """Runs the calls of all tasks of a stream thread, on one event loop."""

    def begin(self, call: Call) -> None:
        """Start a call without blocking; it is done some time later."""

    def cancel(self, call: Call) -> None:
        """Cancel a call, whose result is no longer needed."""

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until a condition on running calls holds. Raises the error that ended the event loop."""

    def in_flight(self, of: Hashable) -> int:
        """Return the number of an operator's calls started and not collected yet, over all tasks of the process."""

    def count(self, of: Hashable, by: int) -> None:
        """Change that number."""

    def opening(self) -> str:
        """Return the names of the lifespans that are being opened, "" if there are none."""

    def close(self) -> None:
        """Cancel all calls, and exit the lifespans. Raises an exception of a lifespan."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options of a call. timeout: of one attempt (timedelta or ms), None for no limit.

    lifespan_timeout: of opening the lifespan.
    """

    max_in_flight: int = 256
    timeout: Duration | None = timedelta(seconds=30)
    retries: Retries | None = None
    lifespan: Lifespan | None = None
    lifespan_timeout: Duration | None = timedelta(minutes=1)

    def __post_init__(self) -> None:
        if type(self.max_in_flight) is not int or self.max_in_flight < 1:
            raise TopologyError(f"max_in_flight must be 1 or more, got {self.max_in_flight!r}")
        for name, limit in (("timeout", self.timeout), ("lifespan_timeout", self.lifespan_timeout)):
            if limit is not None and to_millis(limit, name) <= 0:
                raise TopologyError(f"{name} must be positive, or None for no limit, got {limit!r}")
        if self.retries is not None and not isinstance(self.retries, Retries):
            raise TopologyError(f"retries must be Retries(times), got {self.retries!r}")
        if self.lifespan is not None and not callable(self.lifespan):
            raise TopologyError(f"lifespan must be a function that returns an async context manager: {self.lifespan!r}")
        if is_asynchronous(self.lifespan):
            raise TopologyError(
                f"lifespan must be a function that returns an async context manager, got {self.lifespan!r}: decorate a "
                "function that yields with @contextlib.asynccontextmanager"
            )

    def of(self, function: Callable[..., Awaitable[object]], times: FunctionTimes) -> AsyncFunction:
        """Return the function with these options. times: records its attempts."""
        seconds, lifespan_seconds = (
            None if limit is None else to_millis(limit, "timeout") / 1000
            for limit in (self.timeout, self.lifespan_timeout)
        )
        retries = self.retries or Retries(0)
        return AsyncFunction(function, seconds, retries, self.lifespan, lifespan_seconds, times)
