"""The event loop of a stream thread, with asyncio and with uvloop."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import uvloop

from penstock import Retries
from penstock.topology.context.async_calls import Call, CallOptions, CancelledCallError
from penstock.topology.context.function_times import FunctionTimes
from penstock.topology.errors import StreamsError
from penstock.workers.thread.event_loop import EventLoopThread
from tests.waiting import PATIENCE_SECONDS


class Stage:
    """A loop; told is set when it has notified that calls have ended."""

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


def test_calls_run_beside_their_thread_and_notify_it_when_they_end(stage: Stage) -> None:
    calls = [stage.call(double, number) for number in range(500)]
    assert [stage.result(call) for call in calls] == [2 * number for number in range(500)]
    assert stage.told.wait(PATIENCE_SECONDS)


def test_each_failed_call_has_a_traceback_of_one_failure(stage: Stage) -> None:
    """The calls share the exception of the lifespan that could not be opened."""

    @asynccontextmanager
    async def closed_service() -> AsyncIterator[None]:
        await asyncio.sleep(0.01)
        raise ConnectionError("no session")
        yield

    calls = [stage.call(never, lifespan=closed_service) for _ in range(20)]
    stage.loop.wait(lambda: all(call.done for call in calls))
    depths, errors = [], set()
    for call in calls:
        with pytest.raises(ConnectionError) as caught:
            call.result()
        depths.append(len(traceback.extract_tb(caught.value.__traceback__)))
        errors.add(caught.value)
    assert len(errors) == len(set(depths)) == 1


def test_a_lifespan_is_opened_once_and_closed_at_the_end(stage: Stage) -> None:
    async def use(number: int, session: str) -> tuple[int, str]:
        return number, session

    calls = [stage.call(use, number, lifespan=stage.lifespan) for number in range(3)]
    assert [stage.result(call) for call in calls] == [(0, "session"), (1, "session"), (2, "session")]
    assert stage.opened == ["opened"]
    stage.loop.close()
    assert stage.opened == ["opened", "left"]


def failed(stage: Stage, call: Call) -> StreamsError:
    """Return the error that ends the stream thread while it waits for the call."""
    with pytest.raises(StreamsError) as raised:
        stage.loop.wait(lambda: call.done)
    with pytest.raises(StreamsError) as again:  # where more records would be processed
        stage.loop.in_flight("operator")
    assert again.value is raised.value
    assert stage.told.wait(PATIENCE_SECONDS), "the stream thread is woken"
    return raised.value


def test_a_lifespan_that_hangs_ends_the_stream_thread(stage: Stage) -> None:
    @asynccontextmanager
    async def hangs() -> AsyncIterator[None]:
        await never()
        yield

    call = stage.call(never, lifespan=hangs, lifespan_timeout=timedelta(milliseconds=50))
    error = failed(stage, call)
    assert "hangs has not been opened within 0.05 s (lifespan_timeout)" in str(error)
    assert stage.loop.opening().endswith("hangs")
    assert not call.done, "no handler decides about its record"


def test_a_lifespan_that_ends_while_it_is_in_use_ends_the_stream_thread(stage: Stage) -> None:
    """The error has the cause: the exception of the lifespan's background task."""

    async def poll() -> None:
        await asyncio.sleep(0.05)
        raise ConnectionError("the service is gone")

    @asynccontextmanager
    async def client() -> AsyncIterator[str]:
        async with asyncio.TaskGroup() as group:
            group.create_task(poll())
            yield "client"

    async def use(name: str) -> None:
        await never()

    error = failed(stage, stage.call(use, lifespan=client))
    assert "client has ended while its functions are in use" in str(error)
    assert isinstance(error.__cause__, ExceptionGroup)
    assert str(error.__cause__.exceptions[0]) == "the service is gone"
    with pytest.raises(ExceptionGroup):
        stage.loop.close()


def test_a_lifespan_that_is_cancelled_while_it_opens_fails_its_calls(stage: Stage) -> None:
    opened = []

    @asynccontextmanager
    async def cancelled() -> AsyncIterator[None]:
        opened.append(1)
        raise asyncio.CancelledError
        yield

    for _ in range(2):
        with pytest.raises(CancelledCallError, match="cancelled was cancelled while it was opened"):
            stage.result(stage.call(never, lifespan=cancelled))
    assert len(opened) == 2, "the next call tries again"


def test_a_function_that_is_cancelled_by_other_code_fails_and_is_retried(stage: Stage) -> None:
    attempts = []

    async def work() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            inner = asyncio.get_running_loop().create_future()
            inner.cancel()
            await inner
        return "done"

    retries = Retries(2, wait_initial=1, wait_jitter=0)
    assert stage.result(stage.call(work, retries=retries)) == "done"
    attempts.clear()
    with pytest.raises(CancelledCallError, match="although its call was not cancelled"):
        stage.result(stage.call(work))


def test_a_call_that_times_out_is_retried_and_then_fails(stage: Stage) -> None:
    attempts = []

    async def hang() -> None:
        attempts.append(1)
        await never()

    call = stage.call(hang, timeout=timedelta(milliseconds=20), retries=Retries(2, wait_initial=1, wait_jitter=0))
    with pytest.raises(TimeoutError):
        stage.result(call)
    assert len(attempts) == 3


def test_a_cancelled_call_ends_and_its_loop_continues(stage: Stage) -> None:
    ended = threading.Event()

    async def wait() -> None:
        try:
            await never()
        finally:
            ended.set()

    call = stage.call(wait)
    assert stage.result(stage.call(double, 1)) == 2  # the first call is running by now
    stage.loop.cancel(call)
    assert ended.wait(PATIENCE_SECONDS)
    assert stage.result(stage.call(double, 2)) == 4


def test_close_ends_running_calls(stage: Stage) -> None:
    call = stage.call(never)
    assert stage.result(stage.call(double, 1)) == 2
    stage.loop.close()
    assert call.done
    with pytest.raises(asyncio.CancelledError):
        call.result()


def test_an_exception_that_ends_the_loop_is_raised_from_result(stage: Stage) -> None:
    async def end() -> None:
        asyncio.get_running_loop().call_soon(_raise)

    def _raise() -> None:
        raise SystemExit(3)

    waiting = stage.call(never)
    stage.call(end)
    with pytest.raises(StreamsError, match="The event loop event-loop has ended"):
        stage.loop.wait(lambda: waiting.done)
