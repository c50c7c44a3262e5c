"""How long a request is repeated, and how the time is divided (Kafka: AdminClientRunnable's calls)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from ..errors import BrokerError, RetriableError, UnreachableError

T = TypeVar("T")
#: How long one broker may take to answer, in ms; then its connection is taken for broken.
TRY_MS = 10_000
#: With less time than this, in ms, a broker that is well may fail to answer.
ENOUGH_MS = 1_000
#: With less time than this, in ms, no request is repeated.
LEAST_MS = 100


def try_ms(deadline: float) -> float:
    """Return how long one broker may take, in ms: half of what is left, so that there is time to ask another one."""
    return min(TRY_MS, max(deadline - asyncio.get_running_loop().time(), 0) * 1000 / 2)


def to_tell(before: Exception | None, error: Exception, limit_ms: float) -> Exception:
    """Return which of two errors is raised in the end: a try that had too little time hides no broker's answer."""
    if isinstance(before, BrokerError) and isinstance(error, UnreachableError) and limit_ms < ENOUGH_MS:
        return before
    return error


def time_left(deadline: float, pause_ms: float) -> bool:
    """Return whether there is time for a pause and another try."""
    return asyncio.get_running_loop().time() + (pause_ms + LEAST_MS) / 1000 < deadline


async def retried(attempt: Callable[[float], Awaitable[T]], timeout_ms: float, pause_ms: float) -> T:
    """Call attempt with the deadline (loop time) until it raises nothing retriable; return what it returns.

    Raises RetriableError, the last one, when the time is up, and at once what is not retriable.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    failure: Exception = UnreachableError(f"no answer within {timeout_ms:.0f} ms")
    with suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            while True:
                limit_ms = try_ms(deadline)
                try:
                    return await attempt(deadline)
                except RetriableError as error:
                    failure = to_tell(failure, error, limit_ms)
                # Without time for another try the rest is waited out: callers count on the whole time between two.
                await asyncio.sleep(pause_ms / 1000 if time_left(deadline, pause_ms) else timeout_ms / 1000)
    raise failure
