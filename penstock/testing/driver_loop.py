"""The event loop of TopologyTestDriver: turned by the driver itself, with a clock that need not be waited for.

A call that only sleeps costs no time: when nothing else is left to do, the clock goes to the next deadline. While a
call waits for a socket or for another thread, time passes as it does.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import Any

from typing_extensions import override


class _JumpingSelector(selectors.DefaultSelector):
    """Does not wait while only a deadline is waited for. own: how many of the loop's own sockets it has."""

    skipped = 0.0
    busy = 0
    own = 0

    @override
    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is not None and timeout > 0 and not self.busy and len(self.get_map()) <= self.own:
            self.skipped += timeout
            timeout = 0
        return super().select(timeout)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time() runs ahead of the clock where nothing but time is waited for."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._jumping.own = len(self._jumping.get_map())

    @override
    def time(self) -> float:
        return time.monotonic() + self._jumping.skipped

    @override
    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        future = super().run_in_executor(executor, func, *args)
        self._jumping.busy += 1

        def done(_: Any) -> None:
            self._jumping.busy -= 1

        future.add_done_callback(done)
        return future
