"""Runs calls on an asyncio event loop, which the caller drives; see async_calls.py."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from typing_extensions import override

from ..context.async_calls import AsyncCalls, Call, Lifespan, pauses
from .timeouts import Timeouts


class LoopCalls:
    """Calls on an event loop, and their lifespans' resources. All methods run on the loop except in_flight and count.

    on_done: called after each call has ended.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_done: Callable[[], None]) -> None:
        self._loop = loop
        self._on_done = on_done
        self._lifespans: dict[Lifespan, _Opened] = {}
        self._timeouts: dict[float, Timeouts] = {}  # by their length
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight: Counter[Hashable] = Counter()

    def start(self, call: Call) -> None:
        """Run a call."""
        task = self._loop.create_task(self._run(call))
        call.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, call: Call) -> None:
        """Make attempts until one succeeds. It is a single coroutine, because each further one adds time per record."""
        function, arguments, clock = call.function, call.arguments, self._loop.time
        rest: Iterator[float] | None = None  # of the pauses
        try:
            if function.lifespan is not None:
                opened = self._opened(function.lifespan)
                if not opened.resource.done():
                    await asyncio.shield(opened.resource)
                arguments = (*arguments, opened.resource.result())
            while True:
                began = clock()
                try:
                    with self._timeout(function.seconds, call):
                        call.value = await function.function(*arguments)
                    break
                except function.retries.on:
                    rest = rest or pauses(function.retries)
                    if (pause := next(rest, None)) is None:
                        raise
                finally:
                    function.times.note(clock() - began)
                await asyncio.sleep(pause)
                function.times.retries += 1
        except asyncio.CancelledError as error:
            call.error = error
            raise
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken
            call.error = error
        finally:
            call.done = True
            self._on_done()

    def _opened(self, lifespan: Lifespan) -> _Opened:
        """Return a lifespan's resource, which may not be open yet."""
        opened = self._lifespans.get(lifespan)
        if opened is None or opened.failed:
            opened = self._lifespans[lifespan] = _Opened(lifespan)
        return opened

    def _timeout(self, seconds: float | None, call: Call) -> AbstractContextManager[None]:
        if seconds is None:
            return nullcontext()
        if (timeouts := self._timeouts.get(seconds)) is None:
            timeouts = self._timeouts[seconds] = Timeouts(self._loop, seconds)
        assert call.task is not None
        return timeouts.begin(call.task)

    async def close(self) -> None:
        """Cancel running calls, then exit the lifespans."""
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
        """Return the number of an operator's calls started and not collected yet."""
        return self._in_flight[of]

    def count(self, of: Hashable, by: int) -> None:
        """Change that number."""
        self._in_flight[of] += by


class TurnedCalls(AsyncCalls):
    """Calls without a separate thread: the loop runs only while the task waits.

    make_loop: creates the loop, at the first call.
    """

    def __init__(self, make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._make_loop = make_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: LoopCalls | None = None

    def _started(self) -> LoopCalls:
        if self._calls is None:
            self._loop = self._make_loop()
            self._calls = LoopCalls(self._loop, self._loop.stop)
        return self._calls

    @override
    def begin(self, call: Call) -> None:
        self._started().start(call)

    @override
    def cancel(self, call: Call) -> None:
        if call.task is not None:
            call.task.cancel()

    @override
    def wait(self, until: Callable[[], bool]) -> None:
        while not until():
            assert self._loop is not None
            self._loop.run_forever()  # until the next call has ended

    @override
    def in_flight(self, of: Hashable) -> int:
        return self._started().in_flight(of)

    @override
    def count(self, of: Hashable, by: int) -> None:
        self._started().count(of, by)

    @override
    def close(self) -> None:
        if self._loop is not None and self._calls is not None:
            self._loop.run_until_complete(self._calls.close())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


class _Opened:
    """A lifespan's resource. The same asyncio task enters and exits it, as cancel scopes require."""

    def __init__(self, lifespan: Lifespan) -> None:
        self.resource: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.closing = asyncio.Event()
        self.task = asyncio.create_task(self._live(lifespan))

    @property
    def failed(self) -> bool:
        """Whether opening failed; the next call retries."""
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
