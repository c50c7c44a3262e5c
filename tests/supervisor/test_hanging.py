"""Processes that send no heartbeat, or do not close: aborted, killed, replaced."""

from __future__ import annotations

from functools import partial

import pytest
from stage import Application, Conductor, LogLines, MakeApplication, ManualClock, until

from penstock.supervisor.application_state import ApplicationState
from penstock.supervisor.exit_codes import ExitCode

pytestmark = pytest.mark.medium


def pass_time(app: Application, clock: ManualClock, step_ms: int, log: LogLines, text: str) -> None:
    """Advance the clock until this line is logged: a report in flight counts from the time it is read."""

    def step() -> bool:
        clock.now_ms += step_ms
        app.supervisor.call(lambda: None)  # one iteration of the loop
        return log.has(text)

    until(step)


def test_a_hanging_process_is_aborted_with_its_stack_in_the_log_and_replaced(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    clock = ManualClock()
    app = application(1, {"penstock.worker.abort.grace.ms": 10**12}, clock=clock)
    (one,) = conductor.running(1)
    app.wait_for(
        ApplicationState.RUNNING
    )  # otherwise it may hang before it has reported that it runs, which is another case
    one.order("hang")
    assert one.hear() == {"hangs": True}
    pass_time(app, clock, 360_000, log, f"process {one.pid}, has given no sign of life for 360 s: aborting it")
    assert conductor.next().slot == 1
    log.wait_for("died: SIGABRT")
    assert log.has("Fatal Python error: Aborted")
    assert log.has("in obey")  # where it hung


def test_a_process_that_survives_the_abort_is_killed_and_replaced(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    clock = ManualClock()
    app = application(1, clock=clock)
    (one,) = conductor.running(1)
    app.wait_for(ApplicationState.RUNNING)
    one.process.suspend()  # it receives handled signals only when it continues
    pass_time(app, clock, 360_000, log, "aborting it")
    pass_time(app, clock, 5_000, log, f"process {one.pid}, survives SIGABRT: killing it")
    assert conductor.next().slot == 1
    log.wait_for("died: SIGKILL")
    assert not log.has("out of memory")  # the supervisor killed it


def test_a_reporting_process_is_left_alone(application: MakeApplication, conductor: Conductor, log: LogLines) -> None:
    clock = ManualClock()
    app = application(1, clock=clock)
    (one,) = conductor.running(1)

    def processed() -> int:
        return app.supervisor.thread_status()[0].records_processed

    for count in range(1, 6):
        clock.now_ms += 300_000  # shorter than the stall timeout, each time
        one.order("process", records=1)
        until(partial(lambda wanted: processed() == wanted, count))
    assert not log.has("no sign of life")


def test_a_process_that_does_not_close_in_time_is_killed(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    app = application(2, {"penstock.shutdown.timeout.ms": 100})
    one, _two = conductor.running(2)
    one.order("be deaf")
    assert one.hear() == {"deaf": True}
    app.supervisor.shut_down()
    assert app.ends() == ExitCode.SHUTDOWN_TIMEOUT
    assert f"{one.name}, process {one.pid}, did not close in time: aborting it" in log.text
