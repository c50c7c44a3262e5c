"""Awaitables for an event loop: a socket that becomes ready, a blocking function, the first of several attempts."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
_FIRST = asyncio.FIRST_COMPLETED


async def wait_for_socket(watched: socket.socket, writable: bool) -> None:
    """Wait until a socket is readable or writable."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if writable else (loop.add_reader, loop.remove_reader)
    add(watched, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        remove(watched)


async def in_thread(function: Callable[..., T], *args: object) -> T:
    """Run a blocking function on a temporary thread; return its result or raise its exception.

    An event loop's default executor would keep its threads, and the process would wait for them at exit.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(found: T | None, error: BaseException | None) -> None:
        if not result.done():
            result.set_exception(error) if error is not None else result.set_result(found)  # type: ignore[arg-type]

    def run() -> None:
        found: T | None = None
        failure: BaseException | None = None
        try:
            found = function(*args)
        except Exception as error:  # noqa: BLE001  it is the caller's
            failure = error
        with suppress(RuntimeError):  # the loop is closed: no coroutine waits any more
            loop.call_soon_threadsafe(settle, found, failure)

    threading.Thread(target=run, name=f"penstock-{function.__name__}", daemon=True).start()
    return await result


async def first_result(
    attempts: Iterable[Callable[[], Coroutine[Any, Any, T | None]]], head_start: float, discard: Callable[[T], None]
) -> T | None:
    """Return the first result of several attempts that is not None, None if there is none (RFC 8305, 5).

    An attempt starts when another one ends without a result, or head_start seconds after the previous one started.
    Attempts still running at the end are cancelled; discard gets the result of one that was too late.
    """
    waiting, running = deque(attempts), set[asyncio.Task[T | None]]()
    try:
        while waiting or running:
            if waiting:
                running.add(asyncio.create_task(waiting.popleft()()))
            done, _ = await asyncio.wait(running, timeout=head_start if waiting else None, return_when=_FIRST)
            for task in done:
                running.remove(task)
                if (found := task.result()) is not None:
                    return found
        return None
    finally:
        for task in running:
            task.cancel()
        for late in await asyncio.gather(*running, return_exceptions=True):
            if late is not None and not isinstance(late, BaseException):
                discard(late)
