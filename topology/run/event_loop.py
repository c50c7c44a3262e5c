"""Runs calls on an asyncio event loop, which the caller drives; see async_calls.py."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import nullcontext
from functools import partial
from math import inf
from typing import Any

from typing_extensions import override

from ..common.kept_error import KeptError
from ..context.async_calls import AsyncCalls, Call, CancelledCallError, Lifespan, pauses
from ..errors import EventLoopError
from .timeouts import Timeout, Timeouts

_NO_LIMIT = nullcontext()


class LoopCalls:
    """Calls on an event loop, and their lifespans' resources. Methods run on the loop, except those that say otherwise.

    on_done: called after each call has ended, and when failure is set.
    """

    #: Why no call can end: a lifespan could not be opened in time, or has ended. The process must be replaced.
    failure: EventLoopError | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop, on_done: Callable[[], None]) -> None:
        self._loop = loop
        self._on_done = on_done
        self._lifespans: dict[Lifespan, _Opened] = {}
        self._timeouts: dict[float, Timeouts] = {}  # by their length
        self._running: dict[asyncio.Task[None], Call] = {}
        self._in_flight: Counter[Hashable] = Counter()

    def start(self, call: Call) -> None:
        """Run a call."""
        task = self._loop.create_task(self._run(call))
        call.task = task
        self._running[task] = call
        task.add_done_callback(self._running.pop)

    async def _run(self, call: Call) -> None:
        """Make attempts until one succeeds. It is a single coroutine, because each further one adds time per record."""
        function, arguments, clock = call.function, call.arguments, self._loop.time
        rest: Iterator[float] | None = None  # of the pauses
        limit: Timeout | nullcontext[None] = _NO_LIMIT
        try:
            if function.lifespan is not None:
                opened = self._opened(function.lifespan, function.lifespan_seconds)
                if not opened.done.done():
                    await asyncio.shield(opened.done)
                arguments = (*arguments, opened.resource())
            while True:
                began, limit = clock(), self._timeout(function.seconds, call)
                try:
                    try:
                        with limit:
                            call.value = await function.function(*arguments)
                    except asyncio.CancelledError as error:
                        raise _cancellation(call, limit, error)  # noqa: B904 - it has its cause
                    break
                except function.retries.on:
                    rest = rest or pauses(function.retries)
                    if (pause := next(rest, None)) is None:
                        raise
                finally:
                    function.times.note(clock() - began)
                await _pause(call, pause)
                function.times.retries += 1
        except asyncio.CancelledError as error:
            call.failure = KeptError(_cancellation(call, limit, error))
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
                opened.due = time.monotonic() + seconds
                self._loop.call_later(seconds, self._opening_is_late, opened, seconds)
        return opened

    def opening(self) -> str:
        """Return the names of the lifespans that are being opened; any thread may call it."""
        return ", ".join(opened.name for opened in list(self._lifespans.values()) if not opened.done.done())

    def due(self) -> float:
        """Return when the loop must act at the latest, because a time limit ends; any thread may call it.

        In seconds of time.monotonic(); inf without a limit.
        """
        calls = [timeouts.due for timeouts in list(self._timeouts.values())]
        opening = [opened.due for opened in list(self._lifespans.values())]
        return min((*calls, *opening), default=inf)

    def _opening_is_late(self, opened: _Opened, seconds: float) -> None:
        opened.due = inf
        if not opened.done.done():
            self._fail(
                f"The {opened.name} has not been opened within {seconds:g} s (lifespan_timeout). The stream thread is "
                "replaced, and the records that wait for it are read again",
                None,
            )

    def _lifespan_ended(self, opened: _Opened, task: asyncio.Task[None]) -> None:
        if opened.failed or opened.closing.is_set():
            return
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        how = f"{type(error).__name__}: {error}" if error is not None else "it has handled the error of its end itself"
        self._fail(
            f"The {opened.name} has ended while its functions are in use: {how}. The stream thread is replaced", error
        )

    def _fail(self, reason: str, cause: BaseException | None) -> None:
        self.failure = EventLoopError(reason)
        self.failure.__cause__ = cause
        self._on_done()

    def check(self) -> None:
        """Raise the failure, if there is one; any thread may call it."""
        if self.failure is not None:
            raise self.failure

    def _timeout(self, seconds: float | None, call: Call) -> Timeout | nullcontext[None]:
        if seconds is None:
            return _NO_LIMIT
        if (timeouts := self._timeouts.get(seconds)) is None:
            timeouts = self._timeouts[seconds] = Timeouts(self._loop, seconds)
        assert call.task is not None
        return timeouts.begin(call.task)

    async def close(self) -> None:
        """Cancel running calls, then exit the lifespans."""
        for call in tuple(self._running.values()):
            call.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for opened in self._lifespans.values():
            opened.closing.set()
            if not opened.done.done():
                opened.task.cancel()
        left = await asyncio.gather(*(opened.task for opened in self._lifespans.values()), return_exceptions=True)
        self._lifespans.clear()
        for error in left:
            if isinstance(error, BaseException):
                raise error

    def in_flight(self, of: Hashable) -> int:
        """Return the number of an operator's calls started and not collected yet; raises the failure.

        Any thread may call it, and count.
        """
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
        self._closing = False

    def _started(self) -> LoopCalls:
        if self._calls is None:
            self._loop = self._make_loop()
            self._calls = LoopCalls(self._loop, self._call_ended)
        return self._calls

    def _call_ended(self) -> None:
        if self._loop is not None and not self._closing:  # while it closes, the loop runs until all is done
            self._loop.stop()

    @override
    def begin(self, call: Call) -> None:
        self._started().start(call)

    @override
    def cancel(self, call: Call) -> None:
        call.cancel()

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
            self._closing = True
            self._loop.run_until_complete(self._calls.close())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


class _Opened:
    """A lifespan's resource. The same asyncio task enters and exits it, as cancel scopes require.

    done: set when it is open, or could not be opened. due: when the loop checks that, in seconds of time.monotonic().
    """

    def __init__(self, lifespan: Lifespan) -> None:
        self.name = f"lifespan {getattr(lifespan, '__qualname__', repr(lifespan))}"
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.due = inf
        self.closing = asyncio.Event()
        self._resource: object = None
        self._failure: KeptError | None = None
        self.task = asyncio.create_task(self._live(lifespan))

    @property
    def failed(self) -> bool:
        """Whether opening failed; the next call retries."""
        return self._failure is not None

    def resource(self) -> Any:
        """Return the value that the lifespan yields, or raise the exception of its opening; only once it is done."""
        if self._failure is not None:
            self._failure.raise_again()
        return self._resource

    async def _live(self, lifespan: Lifespan) -> None:
        try:
            async with lifespan() as self._resource:
                self.done.set_result(None)
                await self.closing.wait()
        except (Exception, asyncio.CancelledError) as error:
            if self.done.done():
                raise
            if isinstance(error, asyncio.CancelledError):  # e.g. by a task group inside
                error = CancelledCallError(f"The {self.name} was cancelled while it was opened")
            self._failure = KeptError(error)
            self.done.set_result(None)


async def _pause(call: Call, seconds: float) -> None:
    """Wait before a retry. A cancel() that the failed attempt has left to the next await does not end the call."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        if call.cancelled:
            raise


def _cancellation(call: Call, limit: Timeout | nullcontext[None], error: asyncio.CancelledError) -> BaseException:
    """Return the exception of a call that has ended with CancelledError.

    That bypasses handlers and retries, so it stays only if Penstock has cancelled the call. The task's own count of
    cancel() is no help: some libraries use it for their timeouts, and do not undo it.
    """
    if call.cancelled:
        return error
    late = isinstance(limit, Timeout) and limit.expired
    text = "The function has raised CancelledError, although its call was not cancelled"
    failure: Exception = TimeoutError() if late else CancelledCallError(text)
    failure.__cause__ = error
    return failure
