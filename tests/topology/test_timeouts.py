"""Timeouts of many concurrent calls, compared with asyncio.timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.testing.driver_task import VirtualTimeLoop
from penstock.topology.run.timeouts import Timeouts

SECONDS = 10


class JumpingLoop(VirtualTimeLoop):
    """Its time advances only when no other work is left, so a busy machine changes nothing."""

    def time(self) -> float:
        return self._jumping.skipped


@dataclass(frozen=True)
class Job:
    """A job with a limit of SECONDS. begins, takes: in seconds; cancelled: when other code cancels it; stubborn: how
    long it continues after it is cancelled, before it ends normally; after: how long it continues without the limit.
    """

    begins: int
    takes: int
    cancelled: int | None = None
    stubborn: int | None = None
    after: int = 0


#: Creates the limiter of the jobs of a loop.
Limits = Callable[[asyncio.AbstractEventLoop], Callable[[], AbstractAsyncContextManager[None]]]


def own(loop: asyncio.AbstractEventLoop) -> Callable[[], AbstractAsyncContextManager[None]]:
    timeouts = Timeouts(loop, SECONDS)

    @asynccontextmanager
    async def limit() -> Any:
        task: Any = asyncio.current_task()
        with timeouts.begin(task):
            yield

    return limit


def of_asyncio(_loop: asyncio.AbstractEventLoop) -> Callable[[], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def limit() -> Any:
        async with asyncio.timeout(SECONDS):
            yield

    return limit


def outcomes(jobs: list[Job], limits: Limits) -> list[tuple[str, int]]:
    """Run the jobs; return the outcome of each, and its time in seconds."""

    async def run(job: Job, limit: Callable[[], AbstractAsyncContextManager[None]]) -> str:
        async with limit():
            try:
                await asyncio.sleep(job.takes)
            except asyncio.CancelledError:
                if job.stubborn is None:
                    raise
                await asyncio.sleep(job.stubborn)
        await asyncio.sleep(job.after)
        return "done"

    async def all_of_them(loop: asyncio.AbstractEventLoop) -> list[tuple[str, int]]:
        limit, start = limits(loop), loop.time()
        found: dict[int, tuple[str, int]] = {}

        async def one(number: int, job: Job) -> None:
            await asyncio.sleep(job.begins)
            task = asyncio.create_task(run(job, limit))
            if job.cancelled is not None:
                loop.call_later(job.cancelled, task.cancel)
            (result,) = await asyncio.gather(task, return_exceptions=True)
            what = result if isinstance(result, str) else type(result).__name__
            found[number] = what, round(loop.time() - start)

        await asyncio.gather(*(one(number, job) for number, job in enumerate(jobs)))
        return [found[number] for number in range(len(jobs))]

    loop = JumpingLoop()
    try:
        return loop.run_until_complete(all_of_them(loop))
    finally:
        loop.close()


# No two events with an effect on the result happen at the same moment.
jobs = st.builds(
    Job,
    begins=st.integers(0, 9).map(lambda n: 3 * n),
    takes=st.sampled_from([1, 5, 9, 11, 14, 30]),
    cancelled=st.none() | st.sampled_from([2, 7, 12, 20]),
    stubborn=st.none() | st.sampled_from([1, 15]),
    after=st.sampled_from([0, 40]),
)


@given(st.lists(jobs, max_size=12))
@example([Job(0, 30), Job(3, 1), Job(6, 30)])
@example([Job(0, 30, stubborn=1), Job(0, 30, stubborn=15), Job(0, 30, cancelled=7, stubborn=15)])
@example([Job(0, 1), Job(27, 30)])
@example([Job(0, 30, stubborn=15), Job(3, 1, after=40)])
def test_calls_end_as_with_asyncio_timeout(jobs: list[Job]) -> None:
    assert outcomes(jobs, own) == outcomes(jobs, of_asyncio)


def test_no_timer_is_left_at_the_end() -> None:
    loop = JumpingLoop()
    timeouts = Timeouts(loop, SECONDS)

    async def run() -> None:
        task: Any = asyncio.current_task()
        with timeouts.begin(task), timeouts.begin(task):
            pass

    loop.run_until_complete(run())
    timers: Any = loop
    assert [timer for timer in timers._scheduled if not timer.cancelled()] == []
    loop.close()
