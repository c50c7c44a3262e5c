"""What runs calls on an asyncio event loop, whoever turns that loop; see async_calls.py."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

from .async_calls import Call, Lifespan


class LoopCalls:
    """Calls that run on a loop, and what their lifespans have opened. All methods run on the loop but in_flight, count.

    on_done: is called after each call that has ended.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_done: Callable[[], None]) -> None:
        self._loop = loop
        self._on_done = on_done
        self._lifespans: dict[Lifespan, _Opened] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight: Counter[Hashable] = Counter()

    def start(self, call: Call) -> None:
        """Run a call."""
        task = self._loop.create_task(self._run(call))
        call.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, call: Call) -> None:
        try:
            opened = () if call.lifespan is None else (await self._open(call.lifespan),)
            call.value = await call.attempt(*opened)
        except asyncio.CancelledError as error:
            call.error = error
            raise
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken
            call.error = error
        finally:
            call.done = True
            self._on_done()

    async def _open(self, lifespan: Lifespan) -> Any:
        opened = self._lifespans.get(lifespan)
        if opened is None or opened.failed:
            opened = self._lifespans[lifespan] = _Opened(lifespan)
        return await asyncio.shield(opened.resource)

    async def close(self) -> None:
        """Cancel what runs, then leave the lifespans."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for opened in self._lifespans.values():
            opened.closing.set()
        left = await asyncio.gather(*(opened.task for opened in self._lifespans.values()), return_exceptions=True)
        self._lifespans.clear()
        for error in left:
            if isinstance(error, BaseException):
                raise error

    def in_flight(self, of: Hashable) -> int:
        """See AsyncCalls."""
        return self._in_flight[of]

    def count(self, of: Hashable, by: int) -> None:
        """See AsyncCalls."""
        self._in_flight[of] += by


class _Opened:
    """What a lifespan has opened. One task enters and leaves it, as cancel scopes have to be."""

    def __init__(self, lifespan: Lifespan) -> None:
        self.resource: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.closing = asyncio.Event()
        self.task = asyncio.create_task(self._live(lifespan))

    @property
    def failed(self) -> bool:
        """Whether it could not be opened; the next call tries again."""
        return self.resource.done() and self.resource.exception() is not None

    async def _live(self, lifespan: Lifespan) -> None:
        try:
            async with lifespan() as resource:
                self.resource.set_result(resource)
                await self.closing.wait()
        except Exception as error:
            if self.resource.done():
                raise
            self.resource.set_exception(error)
