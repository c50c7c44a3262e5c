"""The event loop of a stream thread, which runs users' async functions in a separate thread.

The first call starts it. uvloop is used if it is installed.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable
from math import inf

from typing_extensions import override

from penstock.topology.context.async_calls import AsyncCalls, Call
from penstock.topology.errors import EventLoopError, StreamsError
from penstock.topology.run.event_loop import LoopCalls

try:
    from uvloop import new_event_loop
except ImportError:
    from asyncio import new_event_loop  # type: ignore[assignment]

#: Calls that end within this time, in seconds, are reported together, because each report costs the stream thread an
#: iteration.
WAKE_SECONDS = 0.001
#: Time limit for lifespans to close, in seconds.
CLOSE_SECONDS = 10.0
#: How long after the end of a time limit the loop counts as blocked if it does nothing, in seconds. A busy machine
#: delays it for less.
BLOCKED_SECONDS = 5.0
#: How many of the innermost calls an error shows of the code that blocks the loop.
FRAMES = 8

#: Creates the object that runs a stream thread's async calls; takes its name and a callback for ended calls.
MakeAsyncCalls = Callable[[str, Callable[[], None]], AsyncCalls]


class EventLoopThread(AsyncCalls):
    """Runs the calls in a separate thread.

    on_ended: called in that thread when calls, or the loop itself, have ended. new_loop: creates the loop.
    blocked_seconds: see BLOCKED_SECONDS.

    Time limits are timers of the loop, which do not run while a function blocks it. So the stream thread watches them.
    """

    def __init__(
        self,
        name: str,
        on_ended: Callable[[], None],
        new_loop: Callable[[], asyncio.AbstractEventLoop] = new_event_loop,
        blocked_seconds: float = BLOCKED_SECONDS,
    ) -> None:
        self._name = name
        self._new_loop = new_loop
        self._on_ended = on_ended
        self._told_at = -inf
        self._tells = False  # soon
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: LoopCalls | None = None
        self._new: list[Call] = []
        self._scheduled = False
        self._start_due = inf  # of new calls, in seconds of time.monotonic()
        self._ended = threading.Event()  # a call, since wait() checked
        self._ended_calls = 0
        self._failure: BaseException | None = None
        self._blocked_seconds = blocked_seconds
        #: What the loop has failed to do in time, and when that was first seen.
        self._overdue: tuple[float, int] | None = None
        self._overdue_since = inf
        self._blocked: EventLoopError | None = None

    @override
    def begin(self, call: Call) -> None:
        loop = self._loop or self._start()
        self._new.append(call)
        if self._start_due == inf and call.function.seconds is not None:
            self._start_due = time.monotonic() + call.function.seconds
        if not self._scheduled:  # one wake-up for many calls
            self._scheduled = True
            loop.call_soon_threadsafe(self._start_new)

    def _start_new(self) -> None:
        assert self._calls is not None
        self._scheduled = False  # before the list is taken: later calls wake the loop again
        new, self._new = self._new, []
        self._start_due = inf  # after it: otherwise that of a call just taken could stay
        for call in new:
            if not call.done:
                self._calls.start(call)

    @override
    def cancel(self, call: Call) -> None:
        if self._loop is not None and not call.done:
            self._loop.call_soon_threadsafe(_cancel, call)

    @override
    def wait(self, until: Callable[[], bool]) -> None:
        while True:
            self._ended.clear()
            if until():
                return
            self._check()
            self._ended.wait(self._blocked_seconds / 5)

    def _check(self) -> None:
        if self._failure is not None:
            raise StreamsError(f"The event loop {self._name} has ended") from self._failure
        if self._calls is not None:
            self._calls.check()
            self._check_blocked(self._calls)

    def _check_blocked(self, calls: LoopCalls) -> None:
        """Raise EventLoopError if the loop misses a time limit and does nothing else.

        The time counts from the first look that finds it late: a whole process that was paused may continue.
        """
        now, due = time.monotonic(), min(calls.due(), self._start_due)
        overdue = (due, self._ended_calls)
        if due > now:
            self._overdue = None
        elif overdue != self._overdue:
            self._overdue, self._overdue_since = overdue, now
        elif self._blocked is None and now - self._overdue_since >= self._blocked_seconds:
            self._blocked = EventLoopError(
                f"The event loop {self._name} is blocked: a time limit (timeout or lifespan_timeout) has ended "
                f"{now - due:.1f} s ago, but no other code could run. An async function or a lifespan must not wait "
                "without await: use an async client, or asyncio.to_thread(). The stream thread is replaced. This code "
                f"blocks it:\n{self._stack()}"
            )
        if self._blocked is not None:
            raise self._blocked

    def _stack(self) -> str:
        """Return the innermost calls of the loop's thread, as in a traceback."""
        assert self._thread is not None
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "(its thread has ended)" if frame is None else "".join(traceback.format_stack(frame, FRAMES)).rstrip()

    @override
    def in_flight(self, of: Hashable) -> int:
        """Return the number of calls in flight; raises StreamsError if the loop or a lifespan has ended or blocks."""
        self._check()
        return 0 if self._calls is None else self._calls.in_flight(of)

    @override
    def opening(self) -> str:
        return "" if self._calls is None else self._calls.opening()

    @override
    def count(self, of: Hashable, by: int) -> None:
        if self._calls is None:
            self._start()
        assert self._calls is not None
        self._calls.count(of, by)

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = self._new_loop()
        self._loop = loop
        self._calls = LoopCalls(loop, self._call_ended)
        self._thread = threading.Thread(target=self._run, args=(loop,), name=self._name, daemon=True)
        self._thread.start()
        return loop

    def _call_ended(self) -> None:
        self._ended_calls += 1
        if not self._ended.is_set():  # setting it again would take a lock
            self._ended.set()
        if self._tells:
            return
        loop = asyncio.get_running_loop()
        wait = self._told_at + WAKE_SECONDS - loop.time()
        if wait <= 0:
            self._tell(loop)
        else:
            self._tells = True
            loop.call_later(wait, self._tell, loop)

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        self._told_at, self._tells = loop.time(), False
        self._on_ended()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        except BaseException as error:  # noqa: BLE001 - raised in wait()
            self._failure = error
        finally:
            self._ended.set()
            self._on_ended()

    def close(self) -> None:
        """Cancel all calls, exit the lifespans, end the loop. Raises the error of a lifespan's exit.

        A blocked loop is left to itself: its thread is a daemon, and the process ends soon.
        """
        loop, calls, thread = self._loop, self._calls, self._thread
        if loop is None or calls is None or thread is None:
            return
        try:
            if self._blocked is None:
                self._close(calls, loop, thread)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(CLOSE_SECONDS if self._blocked is None else 0)
            if not thread.is_alive():
                loop.close()
            self._loop = self._calls = self._thread = None

    def _close(self, calls: LoopCalls, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        closing = asyncio.wait_for(calls.close(), CLOSE_SECONDS)
        if self._failure is not None:  # its thread has ended
            thread.join()
            loop.run_until_complete(closing)
            return
        closed = asyncio.run_coroutine_threadsafe(closing, loop)
        try:
            closed.result(CLOSE_SECONDS + 1)  # it has ended by then, if it runs at all
        except TimeoutError:
            if closed.done():  # the loop itself has ended the attempt
                raise
            self._blocked = EventLoopError(
                f"The event loop {self._name} does not close, because this code blocks it:\n{self._stack()}"
            )
            raise self._blocked from None


def _cancel(call: Call) -> None:
    call.done = True  # a call not started yet never starts
    call.cancel()
