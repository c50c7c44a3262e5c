"""A process above its share of memory is reported and, if it stays there, replaced cleanly."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest
from stage import Application, Conductor, LogLines, MakeApplication, ManualClock, WorkerOnStage, until

from penstock.supervisor.application_state import ApplicationState as State
from penstock.supervisor.processes.memory_guard import AGAIN_MS, CHECK_MS

pytestmark = pytest.mark.medium

MIB = 1 << 20
#: More than a puppet uses, less than one with a hoard.
SHARE = 160 * MIB
HOARD = 2 * SHARE
AFTER_MS = 10_000
#: The log line of a replacement; the decision is made and logged in the iteration that ``look`` caused.
REPLACED = "closes and is replaced"

Start = Callable[..., tuple[Application, list[WorkerOnStage]]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def start(application: MakeApplication, conductor: Conductor, clock: ManualClock) -> Start:
    """Start two stream threads that share a budget: ``start(key=value)``."""

    def do_start(**config: object) -> tuple[Application, list[WorkerOnStage]]:
        given: dict[str, object] = {"memory.bytes": 2 * SHARE, "memory.replace.after.ms": AFTER_MS}
        given |= {key.replace("_", "."): value for key, value in config.items()}
        # The clock only jumps, so no process counts as hanging.
        given |= {"worker.stall.timeout.ms": 100 * AGAIN_MS, "shutdown.timeout.ms": 100 * AGAIN_MS}
        app = application(2, {f"penstock.{key}": value for key, value in given.items()}, clock=clock)
        workers = conductor.running(2)
        app.wait_for(State.RUNNING)
        return app, workers

    return do_start


def hoard(worker: WorkerOnStage, size: int = HOARD) -> None:
    worker.order("hoard", bytes=size)
    assert worker.hear() == {"hoards": size}


def over(app: Application) -> list[int]:
    return [thread.slot for thread in app.supervisor.thread_status() if thread.is_over_memory_share]


def look(app: Application, clock: ManualClock, after_ms: int = CHECK_MS) -> None:
    """Advance the clock, and let the loop check the processes at least once."""
    clock.now_ms += after_ms
    for _ in range(2):  # the second iteration begins after the end of the first
        app.supervisor.call(lambda: None)


def test_a_process_above_its_share_is_reported_and_replaced_cleanly(
    start: Start, conductor: Conductor, clock: ManualClock, log: LogLines
) -> None:
    app, (one, two) = start()
    look(app, clock)
    assert [thread.memory_share_bytes for thread in app.supervisor.thread_status()] == [SHARE, SHARE]
    assert over(app) == []
    hoard(one)
    look(app, clock)
    until(lambda: over(app) == [1])
    told = log.wait_for("its share of the memory is 160 MiB (penstock.memory.bytes)")
    assert one.name in told
    assert "Over 150 % of it for 10 s, it is replaced" in told
    look(app, clock, AFTER_MS - 2 * CHECK_MS)
    assert not log.has(REPLACED)
    look(app, clock, 3 * CHECK_MS)
    assert one.hear() == {"command": "shutdown", "leave_group": False}  # it closes by itself and is not killed
    successor = conductor.next()
    assert (successor.slot, successor.pid != one.pid) == (1, True)
    successor.run_up()
    until(lambda: all(thread.state == "RUNNING" for thread in app.supervisor.thread_status()))
    assert {thread.slot: thread.restarts for thread in app.supervisor.thread_status()} == {1: 0, 2: 0}
    assert psutil.pid_exists(two.pid)

    hoard(successor)
    look(app, clock)
    until(lambda: over(app) == [1])
    look(app, clock, AGAIN_MS // 2)
    look(app, clock)
    assert log.text.count(REPLACED) == 1  # replaced so soon again, it would only ever restore
    look(app, clock, AGAIN_MS)
    assert successor.hear()["command"] == "shutdown"
    assert "It was replaced for its memory before" in log.wait_for("replaced for its memory before")


@pytest.mark.parametrize("never", [{"memory_replace_percent": 0}, {"memory_bytes": None}])
def test_a_process_above_its_share_is_only_reported_if_configured(
    start: Start,
    conductor: Conductor,
    clock: ManualClock,
    log: LogLines,
    never: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.supervisor.supervisor.host_bytes", lambda: 4 * SHARE)
    app, (one, _) = start(**never)
    hoard(one)
    look(app, clock)
    until(lambda: over(app) == [1])
    look(app, clock, AFTER_MS)
    look(app, clock, 2 * AFTER_MS)
    assert not log.has(REPLACED)
    hoard(one, 0)
    look(app, clock)
    log.wait_for("is within its share of the memory again")


def test_the_next_replacement_waits_until_the_first_process_runs(
    start: Start, conductor: Conductor, clock: ManualClock, log: LogLines
) -> None:
    app, (one, two) = start()
    for worker in (one, two):
        hoard(worker)
    look(app, clock)
    until(lambda: over(app) == [1, 2])
    look(app, clock, 2 * AFTER_MS)
    first = conductor.next()
    look(app, clock, 2 * AFTER_MS)
    assert log.text.count(REPLACED) == 1
    first.run_up()
    until(lambda: all(thread.state == "RUNNING" for thread in app.supervisor.thread_status()))
    look(app, clock, 2 * CHECK_MS)
    assert {first.slot, conductor.next().slot} == {1, 2}
