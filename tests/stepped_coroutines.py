"""Runs the coroutines of a client without an event loop: each continues within the call that resumes it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Wait:
    """Suspends a coroutine until resume() is called."""

    def __init__(self) -> None:
        self._outcome: Callable[[], Any] | None = None
        #: Continues the suspended coroutine.
        self.step: Callable[[], None] | None = None

    def resume(self, outcome: Callable[[], Any] = lambda: None) -> None:
        """Resume the coroutine with the result or exception of outcome; only the first call counts."""
        if self._outcome is None:
            self._outcome = outcome
            if self.step is not None:
                self.step()

    def __await__(self) -> Generator[Wait, None, Any]:
        if self._outcome is None:
            yield self
        assert self._outcome is not None
        return self._outcome()


class SteppedCluster:
    """The base of a Cluster whose coroutines wait only for Waits. closed: they are not resumed any more."""

    failure: BaseException | None = None

    def __init__(self) -> None:
        self.closed = False

    def step(self, coroutine: Coroutine[Any, Any, T], future: Future[T]) -> None:
        """Run a coroutine up to its next Wait; its result goes into the future."""
        try:
            wait = coroutine.send(None)
        except StopIteration as end:
            future.set_result(end.value)
        except Exception as error:  # noqa: BLE001  it is the future's
            future.set_exception(error)
        else:
            wait.step = lambda: coroutine.close() if self.closed else self.step(coroutine, future)

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Run it immediately: its requests to brokers take no time."""
        return function(*args)
