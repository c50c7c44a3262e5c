"""The event loop of a stream thread, as asyncio and as uvloop make it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import uvloop

from penstock import Retries
from penstock.topology.context.async_calls import Call, CallOptions
from penstock.topology.context.function_times import FunctionTimes
from penstock.topology.errors import StreamsError
from penstock.workers.thread.event_loop import EventLoopThread

PATIENCE_SECONDS = 30


class Stage:
    """A loop, and when it told that calls have ended."""

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.told = threading.Event()
        self.loop = EventLoopThread("event-loop", self.told.set, new_loop)
        self.opened: list[str] = []

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Call:
        call = Call(CallOptions(**options).of(function, FunctionTimes()), arguments)
        self.loop.begin(call)
        return call

    def result(self, call: Call) -> Any:
        self.loop.wait(lambda: call.done)
        return call.result()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[str]:
        self.opened.append("opened")
        yield "session"
        self.opened.append("left")


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = Stage(request.param)
    yield made
    made.loop.close()


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def never() -> None:
    await asyncio.get_running_loop().create_future()


def test_calls_run_beside_their_thread_which_is_told_of_their_ends(stage: Stage) -> None:
    calls = [stage.call(double, number) for number in range(500)]
    assert [stage.result(call) for call in calls] == [2 * number for number in range(500)]
    assert stage.told.wait(PATIENCE_SECONDS)


def test_a_lifespan_is_opened_once_and_left_at_the_end(stage: Stage) -> None:
    async def use(number: int, session: str) -> tuple[int, str]:
        return number, session

    calls = [stage.call(use, number, lifespan=stage.lifespan) for number in range(3)]
    assert [stage.result(call) for call in calls] == [(0, "session"), (1, "session"), (2, "session")]
    assert stage.opened == ["opened"]
    stage.loop.close()
    assert stage.opened == ["opened", "left"]


def test_a_call_that_takes_too_long_is_repeated_and_then_fails(stage: Stage) -> None:
    attempts = []

    async def hang() -> None:
        attempts.append(1)
        await never()

    call = stage.call(hang, timeout=timedelta(milliseconds=20), retries=Retries(2, wait_initial=1, wait_jitter=0))
    with pytest.raises(TimeoutError):
        stage.result(call)
    assert len(attempts) == 3


def test_a_call_that_is_cancelled_ends_and_its_loop_goes_on(stage: Stage) -> None:
    ended = threading.Event()

    async def wait() -> None:
        try:
            await never()
        finally:
            ended.set()

    call = stage.call(wait)
    assert stage.result(stage.call(double, 1)) == 2  # the first one runs by now
    stage.loop.cancel(call)
    assert ended.wait(PATIENCE_SECONDS)
    assert stage.result(stage.call(double, 2)) == 4


def test_close_ends_calls_that_run(stage: Stage) -> None:
    call = stage.call(never)
    assert stage.result(stage.call(double, 1)) == 2
    stage.loop.close()
    assert call.done
    with pytest.raises(asyncio.CancelledError):
        call.result()


def test_what_ends_the_loop_is_raised_where_results_are_awaited(stage: Stage) -> None:
    async def end() -> None:
        asyncio.get_running_loop().call_soon(_raise)

    def _raise() -> None:
        raise SystemExit(3)

    waiting = stage.call(never)
    stage.call(end)
    with pytest.raises(StreamsError, match="The event loop event-loop has ended"):
        stage.loop.wait(lambda: waiting.done)
