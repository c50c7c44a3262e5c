"""The event loop of a stream thread, with asyncio and with uvloop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
import uvloop

from penstock import Retries
from penstock.topology.context.async_calls import Call, CallOptions, CancelledCallError
from penstock.topology.context.function_times import FunctionTimes
from penstock.topology.errors import EventLoopError, StreamsError
from penstock.workers.thread.event_loop import BLOCKED_SECONDS, EventLoopThread
from tests.waiting import PATIENCE_SECONDS


class Stage:
    """A loop; told is set when it has notified that calls have ended."""

    def __init__(
        self, new_loop: Callable[[], asyncio.AbstractEventLoop], blocked_seconds: float = BLOCKED_SECONDS
    ) -> None:
        self.told = threading.Event()
        self.loop = EventLoopThread("event-loop", self.told.set, new_loop, blocked_seconds)
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
def new_loop(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def stage(new_loop: Any) -> Iterator[Stage]:
    made = Stage(new_loop)
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

    begun = asyncio.Event()

    @asynccontextmanager
    async def closed_service() -> AsyncIterator[None]:
        await begun.wait()
        raise ConnectionError("no session")
        yield

    async def all_have_begun() -> None:
        begun.set()

    calls = [stage.call(never, lifespan=closed_service) for _ in range(20)]
    stage.call(all_have_begun)
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
    assert isinstance(error, EventLoopError)
    assert "hangs has not been opened within 0.05 s (lifespan_timeout)" in str(error)
    assert stage.loop.opening().endswith("hangs")
    assert not call.done, "no handler decides about its record"


async def lose_the_service() -> None:
    await asyncio.sleep(0.05)
    raise ConnectionError("the service is gone")


@asynccontextmanager
async def fails_in_use() -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        group.create_task(lose_the_service())
        yield


@asynccontextmanager
async def handles_its_failure() -> AsyncIterator[None]:
    try:
        async with fails_in_use():
            yield
    except* ConnectionError:
        pass


@asynccontextmanager
async def is_cancelled_in_use() -> AsyncIterator[None]:
    task: Any = asyncio.current_task()
    asyncio.get_running_loop().call_later(0.05, task.cancel)
    yield


@asynccontextmanager
async def handles_its_cancellation() -> AsyncIterator[None]:
    try:
        async with is_cancelled_in_use():
            yield
    except asyncio.CancelledError:
        pass


async def never_with(session: None) -> None:
    await never()


ENDS: list[tuple[Any, str, str | None]] = [
    (fails_in_use, "ExceptionGroup: unhandled errors in a TaskGroup", "ExceptionGroup"),
    (handles_its_failure, "it has handled the error of its end itself", None),
    (is_cancelled_in_use, "CancelledError", "CancelledError"),
    (handles_its_cancellation, "it has handled the error of its end itself", None),
]


@pytest.mark.parametrize(("lifespan", "how", "cause"), ENDS, ids=[lifespan.__name__ for lifespan, *_ in ENDS])
def test_a_lifespan_that_ends_while_it_is_in_use_ends_the_stream_thread(
    stage: Stage, lifespan: Any, how: str, cause: str | None
) -> None:
    """All later records would get the closed session."""
    error = failed(stage, stage.call(never_with, lifespan=lifespan))
    assert isinstance(error, EventLoopError)
    assert f"{lifespan.__name__} has ended while its functions are in use: {how}" in str(error)
    assert (None if error.__cause__ is None else type(error.__cause__).__name__) == cause
    if cause is not None:
        with pytest.raises((ExceptionGroup, concurrent.futures.CancelledError)):
            stage.loop.close()


class Blocked(Stage):
    """Its code blocks the loop until the test ends."""

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        super().__init__(new_loop, blocked_seconds=0.5)
        self.gate = threading.Event()

    @contextmanager
    def ended(self) -> Iterator[None]:
        """Do what the end of the process would do after the close: end the thread that blocks."""
        parts: Any = self.loop
        thread, loop, calls = parts._thread, parts._loop, parts._calls
        yield
        assert thread.is_alive()
        self.gate.set()
        thread.join(PATIENCE_SECONDS)
        loop.run_until_complete(calls.close())
        loop.close()

    async def blocks(self, *_: Any) -> None:
        self.gate.wait()

    @asynccontextmanager
    async def blocks_while_it_opens(self) -> AsyncIterator[None]:
        self.gate.wait()
        yield

    @asynccontextmanager
    async def blocks_in_use(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.blocks())
        yield
        await task


@pytest.fixture
def blocked(new_loop: Any) -> Blocked:
    return Blocked(new_loop)


SOON = timedelta(milliseconds=50)


def of_a_function(stage: Blocked) -> Call:
    return stage.call(stage.blocks, timeout=SOON)


def of_a_retried_function(stage: Blocked) -> Call:
    return stage.call(stage.blocks, timeout=SOON, retries=Retries(3, wait_initial=1))


def of_a_lifespan(stage: Blocked) -> Call:
    return stage.call(never_with, lifespan=stage.blocks_while_it_opens, lifespan_timeout=SOON, timeout=None)


def of_an_earlier_call(stage: Blocked) -> Call:
    """The call itself never starts."""
    begun = threading.Event()

    async def blocks() -> None:
        begun.set()
        await stage.blocks()

    stage.call(blocks, timeout=None)
    assert begun.wait(PATIENCE_SECONDS)
    return stage.call(double, 1, timeout=SOON)


def of_a_background_task(stage: Blocked) -> Call:
    """It blocks before the call sees that the lifespan is open."""
    return stage.call(never_with, lifespan=stage.blocks_in_use, lifespan_timeout=SOON)


@pytest.mark.parametrize(
    "call", [of_a_function, of_a_retried_function, of_a_lifespan, of_an_earlier_call, of_a_background_task]
)
def test_code_that_blocks_the_loop_beyond_a_time_limit_ends_the_stream_thread(
    blocked: Blocked, call: Callable[[Blocked], Call]
) -> None:
    """The limits are timers of the same loop."""
    waiting = call(blocked)
    with pytest.raises(EventLoopError, match="The event loop event-loop is blocked") as raised:
        blocked.loop.wait(lambda: waiting.done)
    assert "self.gate.wait()" in str(raised.value), "the code that blocks it"
    with pytest.raises(EventLoopError) as again:
        blocked.loop.in_flight("operator")
    assert again.value is raised.value
    assert not waiting.done, "no handler decides about its record"
    with blocked.ended():
        blocked.loop.close()  # does not wait for it


def test_a_loop_that_gets_on_with_its_calls_is_not_blocked(blocked: Blocked) -> None:
    """Functions that compute delay the timers, because the loop starts all of its calls in one go."""

    async def compute() -> None:
        blocked.gate.wait(0.05)

    late = blocked.call(never, timeout=SOON)
    calls = [blocked.call(compute, timeout=SOON) for _ in range(20)]
    for call in calls:
        blocked.result(call)
    with pytest.raises(TimeoutError):
        blocked.result(late)
    blocked.loop.close()


def test_a_blocked_loop_delays_the_close_only_for_a_time(blocked: Blocked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a time limit it is found there."""
    monkeypatch.setattr("penstock.workers.thread.event_loop.CLOSE_SECONDS", 0.1)
    blocked.call(blocked.blocks, timeout=None)
    with (
        blocked.ended(),
        pytest.raises(EventLoopError, match=r"(?s)does not close, because this code blocks it:.*self\.gate\.wait"),
    ):
        blocked.loop.close()


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


async def awaits_a_cancelled_future() -> None:
    inner = asyncio.get_running_loop().create_future()
    inner.cancel()
    await inner


async def cancels_itself() -> None:
    task: Any = asyncio.current_task()
    task.cancel()
    await never()


async def leaves_a_cancel_behind() -> None:
    """Some libraries do that for their timeouts, without uncancel()."""
    try:
        await cancels_itself()
    except asyncio.CancelledError:
        raise TimeoutError("of a library") from None


async def leaves_a_cancel_behind_and_is_cancelled() -> None:
    with suppress(TimeoutError):
        await leaves_a_cancel_behind()
    await awaits_a_cancelled_future()


async def leaves_a_cancel_behind_and_hangs() -> None:
    with suppress(TimeoutError):
        await leaves_a_cancel_behind()
    await never()


async def leaves_a_cancel_to_the_next_await() -> None:
    task: Any = asyncio.current_task()
    task.cancel()
    raise ConnectionError("before any await")


CANCELLED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (awaits_a_cancelled_future, CancelledCallError, "although its call was not cancelled"),
    (cancels_itself, CancelledCallError, "although its call was not cancelled"),
    (leaves_a_cancel_behind, TimeoutError, "of a library"),
    (leaves_a_cancel_behind_and_is_cancelled, CancelledCallError, "although its call was not cancelled"),
    (leaves_a_cancel_behind_and_hangs, TimeoutError, "^$"),
    (leaves_a_cancel_to_the_next_await, ConnectionError, "before any await"),
]


@pytest.mark.parametrize(
    ("function", "kind", "message"), CANCELLED, ids=[function.__name__ for function, *_ in CANCELLED]
)
def test_a_function_that_is_cancelled_by_other_code_fails_and_is_retried(
    stage: Stage, function: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    attempts = []

    async def work() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            await function()
        return "done"

    retries = Retries(2, wait_initial=1, wait_jitter=0)
    hangs = function is leaves_a_cancel_behind_and_hangs
    options: dict[str, Any] = {"timeout": timedelta(milliseconds=100) if hangs else None}
    assert stage.result(stage.call(work, retries=retries, **options)) == "done"
    attempts.clear()
    with pytest.raises(kind, match=message):
        stage.result(stage.call(work, **options))


def test_a_call_that_is_cancelled_while_its_lifespan_opens_fails(stage: Stage) -> None:
    """The user's code cancels all tasks that it finds."""

    @asynccontextmanager
    async def cancels_others() -> AsyncIterator[None]:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
        yield

    with pytest.raises(CancelledCallError, match="although its call was not cancelled"):
        stage.result(stage.call(never_with, lifespan=cancels_others))


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
