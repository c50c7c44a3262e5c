"""Retries of a request within a timeout, and the timeout of each attempt (Kafka: AdminClientRunnable's calls)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from ..errors import BrokerError, RetriableError, UnreachableError
from ..retry_log import RetryLog

T = TypeVar("T")
#: Response timeout of one broker, in ms; after it the connection is considered broken.
TRY_MS = 10_000
#: With less time than this, in ms, even a healthy broker may not answer in time.
ENOUGH_MS = 1_000
#: With less time left than this, in ms, a request is not retried.
LEAST_MS = 100


def try_ms(deadline: float) -> float:
    """Return the timeout of one attempt, in ms: at most half of the time left, to leave time for another broker."""
    return min(TRY_MS, max(deadline - asyncio.get_running_loop().time(), 0) * 1000 / 2)


def to_tell(before: Exception | None, error: Exception, limit_ms: float) -> Exception:
    """Return the error to report after another attempt failed.

    A broker's error stays if this attempt had too little time: that it got no response means nothing then.
    """
    if isinstance(before, BrokerError) and isinstance(error, UnreachableError) and limit_ms < ENOUGH_MS:
        return before
    return error


def time_left(deadline: float, pause_ms: float) -> bool:
    """Return whether there is time for a backoff and another attempt."""
    return asyncio.get_running_loop().time() + (pause_ms + LEAST_MS) / 1000 < deadline


async def retried(
    attempt: Callable[[float], Awaitable[T]], timeout_ms: float, pause_ms: float, retries: RetryLog, what: str
) -> T:
    """Call attempt with the deadline (loop time) until it raises no retriable error; return its result.

    what: the name of its retries. Raises the last RetriableError after the timeout; raises other errors immediately.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    failure: Exception = UnreachableError(f"no response within {timeout_ms:.0f} ms")
    with suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            while True:
                limit_ms = try_ms(deadline)
                try:
                    found = await attempt(deadline)
                    retries.succeeded(what, loop.time() * 1000)
                    return found
                except RetriableError as error:
                    failure = to_tell(failure, error, limit_ms)
                    retries.failed(what, str(failure), loop.time() * 1000)
                # Without time for another attempt, wait until the deadline: callers rely on the full timeout as pause.
                await asyncio.sleep(pause_ms / 1000 if time_left(deadline, pause_ms) else timeout_ms / 1000)
    raise failure
