"""A module that temporarily cannot be imported, e.g. while a deployment replaces it under a running application."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from stage import Application, Conductor, LogLines, MakeApplication, WorkerOnStage, until
from worker_targets import loads_its_topology

from penstock.supervisor.application_state import ApplicationState as State
from penstock.supervisor.control.administration import Administration
from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.source.topology_source import TopologySource
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import StreamsError

pytestmark = pytest.mark.medium

WHOLE = "from penstock import StreamsBuilder\ntopology = StreamsBuilder()\ntopology.stream('in').to('out')\n"
#: Ways in which loading a module may end its process, and the resulting messages.
BROKEN = {
    "import": ("import not_there_yet\n", "No module named 'not_there_yet'"),
    "half a file": ("from penstock import StreamsBui\n", "cannot import name 'StreamsBui'"),
    "refused": ("raise SystemExit('a variable is missing')\n", "a variable is missing"),
    "exit": ("import os\nos._exit(7)\n", "exit code 7"),
    "crash": ("import os\nos.abort()\n", "SIGABRT"),
}
BACKOFF = {"penstock.worker.restart.backoff.ms": 20, "penstock.worker.restart.backoff.max.ms": 40}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Write the text of the user's module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # versions written within a second

    def write(text: str) -> None:
        (tmp_path / "new.py").write_text(text)
        (tmp_path / "new.py").replace(tmp_path / "deployed_app.py")

    write(WHOLE)
    return write


@pytest.fixture
def running(
    application: MakeApplication, conductor: Conductor, module: Callable[[str], None]
) -> tuple[Application, list[WorkerOnStage]]:
    """A running application of two stream threads, from a valid module."""
    app = application(2, BACKOFF, target=loads_its_topology, topology=TopologySource(reference="deployed_app:topology"))
    workers = conductor.running(2)
    app.wait_for(State.RUNNING)
    return app, workers


def pids(app: Application) -> dict[int, int]:
    return {thread.slot: thread.pid for thread in app.supervisor.thread_status()}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_thread_that_has_run_is_restarted_and_the_others_continue(
    running: tuple[Application, list[WorkerOnStage]],
    module: Callable[[str], None],
    conductor: Conductor,
    log: LogLines,
    broken: str,
) -> None:
    app, (one, two) = running
    text, reason = BROKEN[broken]
    module(text)
    os.kill(one.pid, signal.SIGKILL)
    assert reason in log.wait_for(reason)
    until(lambda: log.text.count("StreamThread-1 is replaced in") >= 2)  # with back-off
    module(WHOLE)
    conductor.next().run_up()
    app.wait_for(State.RUNNING)
    assert pids(app)[2] == two.pid
    assert app.supervisor.exit_code is ExitCode.OK


@pytest.mark.parametrize("killed", [1, 2])
def test_a_module_that_stays_broken_ends_nothing(
    running: tuple[Application, list[WorkerOnStage]],
    module: Callable[[str], None],
    conductor: Conductor,
    log: LogLines,
    killed: int,
) -> None:
    """Failed starts have no limit, also if no stream thread is left; a deployment may take hours."""
    app, workers = running
    module(BROKEN["import"][0])
    for worker in workers[:killed]:
        os.kill(worker.pid, signal.SIGKILL)
    until(lambda: log.text.count("StreamThread-1 is replaced in") > StreamsConfig({})["penstock.worker.restart.max"])
    assert app.supervisor.exit_code is ExitCode.OK
    module(WHOLE)
    for _ in range(killed):
        conductor.next().run_up()
    app.wait_for(State.RUNNING)


@pytest.mark.parametrize("broken", BROKEN)
def test_a_thread_that_cannot_start_is_not_added_and_ends_nothing(
    running: tuple[Application, list[WorkerOnStage]], module: Callable[[str], None], conductor: Conductor, broken: str
) -> None:
    app, _ = running
    before = pids(app)
    text, reason = BROKEN[broken]
    module(text)
    administration = Administration(app.supervisor, StreamsConfig({"application.id": "app"}))
    with pytest.raises(StreamsError, match="app-id-StreamThread-3 cannot start, and was removed again") as raised:
        administration.add_thread()
    assert reason in str(raised.value)
    assert pids(app) == before
    assert app.supervisor.states.state is State.RUNNING
    module(WHOLE)
    assert administration.add_thread() == {"thread": "app-id-StreamThread-3"}
    assert conductor.next().slot == 3


def test_an_unstartable_thread_added_by_a_signal_ends_nothing(
    running: tuple[Application, list[WorkerOnStage]], module: Callable[[str], None], log: LogLines
) -> None:
    app, _ = running
    before = pids(app)
    module(BROKEN["import"][0])
    app.supervisor.signal(signal.SIGTTIN)
    assert "not_there_yet" in log.wait_for("app-id-StreamThread-3 cannot start and is removed; the others continue")
    until(lambda: pids(app) == before)
    assert app.supervisor.states.state is State.RUNNING


def test_a_restart_with_a_broken_module_succeeds_later(
    running: tuple[Application, list[WorkerOnStage]],
    module: Callable[[str], None],
    conductor: Conductor,
    log: LogLines,
) -> None:
    app, (_, two) = running
    module(BROKEN["import"][0])
    assert app.supervisor.restart_thread("1") == "app-id-StreamThread-1"
    log.wait_for("app-id-StreamThread-1 cannot start now; the others continue")
    module(WHOLE)
    conductor.next().run_up()
    app.wait_for(State.RUNNING)
    assert pids(app)[2] == two.pid


def test_adding_a_thread_that_is_removed_before_its_start_gets_a_response(
    running: tuple[Application, list[WorkerOnStage]], module: Callable[[str], None]
) -> None:
    """Its module takes long to import."""
    app, _ = running
    module("import time\ntime.sleep(600)\n")
    with pytest.raises(TimeoutError):
        app.supervisor.add_thread(timeout=0.1)
    assert app.supervisor.remove_thread() == "app-id-StreamThread-3"
    assert sorted(pids(app)) == [1, 2]
