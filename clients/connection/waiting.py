"""Awaitables for an event loop: a socket that becomes ready, and a blocking function."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


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


async def in_thread(function: Callable[..., T], *args: Any) -> T:
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
