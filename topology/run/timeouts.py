"""Time limits of many calls at once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from math import inf
from types import TracebackType


class Timeouts:
    """Ends work that takes longer than this many seconds with a TimeoutError, as asyncio.timeout does.

    asyncio.timeout sets a timer for each call, which takes 3 µs.
    One timer is enough here, because all calls have the same limit and so are due in the order in which they began.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        #: In the order in which they began. Ended ones stay while an older one runs.
        self._begun: deque[Timeout] = deque()
        self._timer: asyncio.TimerHandle | None = None
        #: When the timer is due, in seconds of time.monotonic(); inf without one. Other threads may read it.
        self.due = inf

    def begin(self, task: asyncio.Task[None]) -> Timeout:
        """Return the limit of a task's work from now on, as a context manager."""
        timeout = Timeout(self, task, self._loop.time() + self._seconds)
        self._begun.append(timeout)
        if self._timer is None:
            self._set_timer(timeout.at)
        return timeout

    def ended(self) -> None:
        """Remove limits that have ended."""
        begun = self._begun
        while begun and begun[0].ended:
            begun.popleft()
        if not begun and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.due = inf

    def _look(self) -> None:
        """Expire limits that are due, and schedule the next check."""
        self._timer = None
        self.due = inf
        now = self._loop.time()
        for timeout in self._begun:
            if timeout.at > now:
                self._set_timer(timeout.at)
                return
            timeout.expire()

    def _set_timer(self, at: float) -> None:
        self._timer = self._loop.call_at(at, self._look)
        self.due = time.monotonic() + at - self._loop.time()  # the loop may have another clock


class Timeout:
    """One limit. at: when it is reached, in loop time; expired: it was reached before the work ended."""

    __slots__ = ("_cancelling", "_task", "_timeouts", "at", "ended", "expired")

    def __init__(self, timeouts: Timeouts, task: asyncio.Task[None], at: float) -> None:
        self._timeouts = timeouts
        self._task = task
        self._cancelling = task.cancelling()
        self.expired = False
        self.at = at
        self.ended = False

    def expire(self) -> None:
        """Cancel the work, unless it has ended or was cancelled here before."""
        if not self.ended and not self.expired:
            self.expired = True
            self._task.cancel()

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.ended = True
        self._timeouts.ended()
        # If the task was also cancelled elsewhere, it stays cancelled.
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
