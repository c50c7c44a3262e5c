"""Runs calls on an asyncio event loop, which the caller drives; see async_calls.py."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NoReturn

from typing_extensions import override

from ..common.kept_error import KeptError
from ..context.async_calls import AsyncCalls, Call, CancelledCallError, Lifespan, pauses
from ..errors import StreamsError
from .timeouts import Timeouts


class LoopCalls:
    """Calls on an event loop, and their lifespans' resources. All methods run on the loop except in_flight and count.

    on_done: called after each call has ended, and when failure is set.
    """

    #: Why no call can end: a lifespan could not be opened in time, or has ended. The process must be replaced.
    failure: StreamsError | None = None

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
                opened = self._opened(function.lifespan, function.lifespan_seconds)
                if not opened.resource.done():
                    await asyncio.shield(opened.resource)
                arguments = (*arguments, opened.resource.result())
            while True:
                began = clock()
                try:
                    try:
                        with self._timeout(function.seconds, call):
                            call.value = await function.function(*arguments)
                    except asyncio.CancelledError as error:
                        _raise_unless_cancelled(call, error)
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
            call.failure = KeptError(error)
            raise
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken
            call.failure = KeptError(error)
        finally:
            call.done = True
            self._on_done()

    def _opened(self, lifespan: Lifespan, seconds: float | None) -> _Opened:
        """Return a lifespan's resource, which may not be open yet. seconds: the time limit for opening it."""
        opened = self._lifespans.get(lifespan)
        if opened is None or opened.failed:
            opened = self._lifespans[lifespan] = _Opened(lifespan)
            opened.task.add_done_callback(partial(self._lifespan_ended, opened))
            if seconds is not None:
                self._loop.call_later(seconds, self._opening_is_late, opened, seconds)
        return opened

    def opening(self) -> str:
        """Return the names of the lifespans that are being opened; any thread may call it."""
        return ", ".join(opened.name for opened in list(self._lifespans.values()) if not opened.resource.done())

    def _opening_is_late(self, opened: _Opened, seconds: float) -> None:
        if not opened.resource.done():
            self._fail(
                f"The {opened.name} has not been opened within {seconds:g} s (lifespan_timeout). The stream thread is "
                "replaced, and the records that wait for it are read again",
                None,
            )

    def _lifespan_ended(self, opened: _Opened, task: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and not opened.closing.is_set():
            self._fail(
                f"The {opened.name} has ended while its functions are in use: {type(error).__name__}: {error}. The "
                "stream thread is replaced",
                error,
            )

    def _fail(self, reason: str, cause: BaseException | None) -> None:
        self.failure = StreamsError(reason)
        self.failure.__cause__ = cause
        self._on_done()

    def check(self) -> None:
        """Raise the failure, if there is one; any thread may call it."""
        if self.failure is not None:
            raise self.failure

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
            if not opened.resource.done():
                opened.task.cancel()
        left = await asyncio.gather(*(opened.task for opened in self._lifespans.values()), return_exceptions=True)
        self._lifespans.clear()
        for error in left:
            if isinstance(error, BaseException):
                raise error

    def in_flight(self, of: Hashable) -> int:
        """Return the number of an operator's calls started and not collected yet; raises the failure."""
        self.check()
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
            self._started().check()
            self._loop.run_forever()  # until the next call has ended

    @override
    def in_flight(self, of: Hashable) -> int:
        return self._started().in_flight(of)

    @override
    def count(self, of: Hashable, by: int) -> None:
        self._started().count(of, by)

    @override
    def opening(self) -> str:
        return "" if self._calls is None else self._calls.opening()

    @override
    def close(self) -> None:
        if self._loop is not None and self._calls is not None:
            self._loop.run_until_complete(self._calls.close())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


class _Opened:
    """A lifespan's resource. The same asyncio task enters and exits it, as cancel scopes require."""

    def __init__(self, lifespan: Lifespan) -> None:
        self.name = f"lifespan {getattr(lifespan, '__qualname__', repr(lifespan))}"
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
        except (Exception, asyncio.CancelledError) as error:
            if self.resource.done():
                raise
            if isinstance(error, asyncio.CancelledError):  # e.g. by a task group inside
                error = CancelledCallError(f"The {self.name} was cancelled while it was opened")
            self.resource.set_exception(error)
            self.resource.exception()  # its calls may have been cancelled meanwhile


def _raise_unless_cancelled(call: Call, error: asyncio.CancelledError) -> NoReturn:
    """Raise CancelledCallError if it is not this call that was cancelled, but something that its function awaits."""
    assert call.task is not None
    if call.task.cancelling():
        raise error
    raise CancelledCallError("The function has raised CancelledError, although its call was not cancelled") from error
