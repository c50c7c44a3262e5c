"""The thread of a process for what must continue while user code runs: an event loop (Kafka: the heartbeat threads).

Heartbeats and joins, questions, and the opening of connections run there as coroutines. The first client starts it, the
last one ends it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


class IoThread:
    """An event loop on its own thread. Get it by acquire(), and give it back by release()."""

    _lock: ClassVar = threading.Lock()
    _running: ClassVar[IoThread | None] = None

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._users = 0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-io", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> IoThread:
        """Return the process's thread; it is started if there is none, or if it has died."""
        with cls._lock:
            if cls._running is None or cls._running.failure is not None:
                cls._running = cls()
            cls._running._users += 1
            return cls._running

    def release(self) -> None:
        """End the thread if no other client uses it. Coroutines of the caller must have ended."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            if IoThread._running is self:
                IoThread._running = None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.run_until_complete(_cancel_all())  # left by a thread that died
        self._loop.close()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        except BaseException as error:  # noqa: BLE001  reported by failure: callers that wait must learn of it
            self._failure = error

    @property
    def failure(self) -> BaseException | None:
        """What the thread died of; None while it runs."""
        if self._thread.is_alive():
            return None
        return self._failure or RuntimeError("the IO thread has ended")

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the thread; its result or exception is in the future."""
        failure = self.failure
        if failure is None:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        future: Future[T] = Future()
        future.set_exception(failure)
        return future


async def _cancel_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
