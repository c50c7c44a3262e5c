"""Administration, with processes that the test controls; with a real application: tests/test_status_command.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from stage import Application, Conductor, MakeApplication, until

from penstock.supervisor.application_state import ApplicationState as State
from penstock.supervisor.control.administration import Administration
from penstock.supervisor.exit_codes import ExitCode
from penstock.topology.errors import StreamsError
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.medium


def administration(app: Application) -> Administration:
    return Administration(app.supervisor, app.supervisor._config)


def meanwhile(call: Callable[[], Any]) -> Future[Any]:
    """Make a call in another thread."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except StreamsError as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


def test_a_requested_restart_is_no_failure(application: MakeApplication, conductor: Conductor) -> None:
    app = application(2, {"penstock.worker.restart.max": 0})
    one, two = conductor.running(2)
    app.wait_for(State.RUNNING)
    done = meanwhile(lambda: administration(app).restart_thread("1"))
    assert one.hear() == {"command": "shutdown", "leave_group": False}
    successor = conductor.next()
    assert done.result(PATIENCE_SECONDS) == {"thread": one.name, "old_pid": one.pid, "pid": successor.pid}
    successor.run_up()
    app.wait_for(State.RUNNING)
    status = administration(app).status()
    assert [thread["pid"] for thread in status["threads"]] == [successor.pid, two.pid]
    assert (status["failed_stream_threads"], status["errors"]) == (0, [])


def test_a_pending_restart_ends_with_the_application(application: MakeApplication, conductor: Conductor) -> None:
    app = application(1)
    (one,) = conductor.running(1)
    one.order("be deaf")
    assert one.hear() == {"deaf": True}
    done = meanwhile(lambda: administration(app).restart_thread("1"))
    assert one.hear()["command"] == "shutdown"
    app.supervisor.shut_down()
    one.order("return")
    assert app.ends() == ExitCode.OK
    with pytest.raises(StreamsError, match="it no longer exists, or the application is stopping"):
        done.result(PATIENCE_SECONDS)
    assert conductor.nobody_waits()


def test_a_dead_process_is_among_the_errors(application: MakeApplication, conductor: Conductor) -> None:
    app = application(1)
    (one,) = conductor.running(1)
    one.order("exit", code=5)
    conductor.next()
    until(lambda: administration(app).status()["errors_total"] == 1)
    (error,) = administration(app).status()["errors"]
    assert f"process {one.pid}, died: exit code 5" in error["message"]


def test_nothing_is_done_after_the_application_has_ended(application: MakeApplication, conductor: Conductor) -> None:
    app = application(1)
    conductor.running(1)
    app.supervisor.shut_down()
    app.ends()
    for refused in (
        administration(app).add_thread,
        administration(app).remove_thread,
        administration(app).pause,
        administration(app).resume,
        lambda: administration(app).restart_thread("1"),
    ):
        with pytest.raises(StreamsError, match="the application is NOT_RUNNING; it must be RUNNING or REBALANCING"):
            refused()
    assert administration(app).status()["threads"] == []
