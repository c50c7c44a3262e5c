"""The spare process: it replaces a stream thread's process that dies, and never disturbs other processes."""

from __future__ import annotations

import multiprocessing
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from spare_targets import DOOR, prepare_quietly, prepare_with_leave, refuse_to_prepare
from stage import Application, Conductor, LogLines, MakeApplication, ManualClock, WorkerOnStage, until
from worker_targets import puppet

from penstock.clients.log_context import PrefixedLogger
from penstock.supervisor.application_state import ApplicationState as State
from penstock.supervisor.channels.readiness import Readiness
from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.processes.spare_process import BEHIND_MS, KILLED_MS, NO_SLOT, QUIET_MS, SpareProcess
from penstock.supervisor.processes.worker import Worker
from penstock.supervisor.processes.worker_process import WorkerSpec, WorkerTarget
from penstock.supervisor.source.topology_source import TopologyLoadError, TopologySource
from penstock.topology.config.streams_config import StreamsConfig
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.medium

READY = "is ready to replace a stream thread"


def spare_pids(log: LogLines) -> list[int]:
    """Return the pids of the spare processes that were ready, in order."""
    return [int(pid) for pid in re.findall(rf"Process (\d+) {READY}", log.text)]


def turn(app: Application, clock: ManualClock, ms: int) -> None:
    """Let the loop run, advance the clock, and let it run again."""
    for _ in range(
        2
    ):  # a call is answered in the middle of an iteration, so the first may belong to an iteration whose check is over
        app.supervisor.call(lambda: None)
    clock.now_ms += ms
    for _ in range(2):
        app.supervisor.call(lambda: None)


def title(process: psutil.Process) -> str:
    """Return the process title that ps shows."""
    return "".join(process.cmdline())


def test_the_spare_process_becomes_the_stream_thread_that_died(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    clock = ManualClock()
    app = application(2, clock=clock, prepare=prepare_quietly)
    first, second = conductor.running(2)
    app.wait_for(State.RUNNING)
    turn_for_nothing(app, clock, QUIET_MS - 1)
    assert conductor.nobody_waits()
    turn(app, clock, 1)
    log.wait_for(READY)
    (spare,) = spare_pids(log)
    assert title(psutil.Process(spare)) == "penstock: app spare"
    assert title(first.process) == "penstock: app StreamThread-1"
    second.process.send_signal(signal.SIGKILL)
    third = conductor.next()
    assert (third.pid, third.slot, third.name, third.threads) == (spare, 2, second.name, 2)
    assert title(third.process) == "penstock: app StreamThread-2"
    third.run_up()
    app.wait_for(State.RUNNING)
    assert [(status.pid, status.restarts) for status in app.supervisor.thread_status()] == [(first.pid, 0), (spare, 1)]
    third.order("print", stdout="", stderr="told under its name\n")
    log.wait_for(f"stream-thread [{second.name}] stderr: told under its name")

    turn(app, clock, QUIET_MS)  # the next spare process
    until(lambda: len(spare_pids(log)) == 2)
    assert spare_pids(log)[1] not in (first.pid, second.pid, spare)


def test_a_spare_process_that_was_ended_gets_no_more_requests() -> None:
    """SIGTERM and the spare process's report may arrive in one iteration of the supervisor:
    its pipes are closed first.
    """
    clock = ManualClock()
    spec = WorkerSpec(NO_SLOT, "app-id", "process-id", 1, StreamsConfig({}), TopologySource(reference="no:topology"))

    def spawn(spec: WorkerSpec, target: WorkerTarget, now: int) -> Worker:
        return Worker.spawn(multiprocessing.get_context("spawn"), spec, target, now)

    log = PrefixedLogger("penstock.test", "")
    spare = SpareProcess(prepare_quietly, puppet, spawn, clock.monotonic_ms, log)
    for _ in range(2):
        spare.look(running=True, behind=False, spec=lambda: spec)
        clock.now_ms += QUIET_MS
    sources = dict(spare.sources())
    assert len(sources) > 2, "its output, its control and its end"
    assert Readiness().wait(sources, int(PATIENCE_SECONDS * 1000))
    spare.end()
    for act in sources.values():
        act()
    assert not dict(spare.sources())


def test_a_stream_thread_that_dies_during_the_preparation_still_gets_the_spare_process(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    clock = ManualClock()
    with door(conductor.path) as next_spare:
        app = application(1, clock=clock, prepare=prepare_with_leave)
        (first,) = conductor.running(1)
        app.wait_for(State.RUNNING)
        turn(app, clock, QUIET_MS)
        name, pid, go = next_spare()
        assert name == "app-id-spare"
        first.process.send_signal(signal.SIGKILL)
        log.wait_for(f"as process {pid}, which was ready")
        go.close()
        assert conductor.next().pid == pid


def test_the_spare_process_starts_after_piled_up_input_is_processed(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    clock = ManualClock()
    app = application(1, clock=clock, prepare=prepare_quietly)
    (first,) = conductor.running(1)
    lag(app, first, 1_001)
    app.wait_for(State.RUNNING)
    turn_for_nothing(app, clock, 2 * QUIET_MS)
    lag(app, first, 1_000)
    turn_for_nothing(app, clock, QUIET_MS - 1)
    turn(app, clock, 1)
    log.wait_for(READY)


def test_the_spare_process_does_not_wait_forever(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    clock = ManualClock()
    app = application(1, clock=clock, prepare=prepare_quietly)
    lag(app, conductor.running(1)[0], 1_001)
    app.wait_for(State.RUNNING)
    turn_for_nothing(app, clock, BEHIND_MS - 1)
    turn(app, clock, 1)
    log.wait_for(READY)


def turn_for_nothing(app: Application, clock: ManualClock, ms: int) -> None:
    """Advance the clock while no process may start."""
    before = psutil.Process().children()
    turn(app, clock, ms)
    assert psutil.Process().children() == before


def lag(app: Application, worker: WorkerOnStage, records: int) -> None:
    """Have a stream thread report this many unprocessed records."""
    worker.order("lag", records=records)
    until(lambda: app.supervisor.thread_status()[0].lag == records)


def test_without_a_working_spare_process_everything_continues(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    clock = ManualClock()
    app = application(1, clock=clock, prepare=refuse_to_prepare)
    (first,) = conductor.running(1)
    app.wait_for(State.RUNNING)
    turn(app, clock, QUIET_MS)
    told = log.wait_for("There will be no spare process")
    assert "OSError: Address already in use" in told
    assert "penstock.worker.spare=false" in told
    turn(app, clock, 10 * QUIET_MS)
    first.process.send_signal(signal.SIGKILL)
    second = conductor.next()
    assert "which was ready" not in log.wait_for(f"as process {second.pid}")
    assert log.text.count("There will be no spare process") == 1
    assert app.supervisor.failed_stream_threads == 1  # it was not the spare process


def test_a_killed_spare_process_is_replaced_after_a_while(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    clock = ManualClock()
    app = application(1, clock=clock, prepare=prepare_quietly)
    conductor.running(1)
    app.wait_for(State.RUNNING)
    turn(app, clock, QUIET_MS)
    log.wait_for(READY)
    psutil.Process(spare_pids(log)[0]).kill()
    log.wait_for("ended: SIGKILL, possibly out of memory")
    turn(app, clock, KILLED_MS - 1)
    assert len(spare_pids(log)) == 1
    turn(app, clock, 1)
    until(lambda: len(spare_pids(log)) == 2)
    assert app.supervisor.states.state is State.RUNNING
    assert app.supervisor.failed_stream_threads == 0


def test_preparing_a_spare_process_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "imported = True\ndef topology():\n    raise AssertionError('called')\n"
    (tmp_path / "module_of_the_spare.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    TopologySource(reference="module_of_the_spare:topology").prepare()
    assert sys.modules.pop("module_of_the_spare").imported
    with pytest.raises(TopologyLoadError, match="AttributeError"):
        TopologySource(reference="module_of_the_spare:nothing").prepare()


def test_the_spare_process_ends_with_the_application(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    clock = ManualClock()
    app = application(1, clock=clock, prepare=prepare_quietly)
    conductor.running(1)
    app.wait_for(State.RUNNING)
    turn(app, clock, QUIET_MS)
    log.wait_for(READY)
    app.supervisor.shut_down()
    assert app.ends() == ExitCode.OK
    assert not psutil.pid_exists(spare_pids(log)[0])


@contextmanager
def door(path: Path) -> Iterator[Callable[[], tuple[str, int, socket.socket]]]:
    """Yield a function that waits for the next spare process, and returns its name, its pid, and the connection whose
    close resumes it.
    """
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path) + DOOR)
        listening.listen()
        listening.settimeout(PATIENCE_SECONDS)

        def wait() -> tuple[str, int, socket.socket]:
            line = listening.accept()[0]
            name, pid = line.recv(1000).decode().split()
            return name, int(pid), line

        yield wait


def test_the_spare_process_has_imported_everything_that_a_stream_thread_needs(tmp_path: Path) -> None:
    """Only then can it replace another one at once. Checked in a separate process: this one has imported everything."""
    (tmp_path / "empty_app.py").write_text("from penstock import StreamsBuilder\ntopology = StreamsBuilder()\n")
    code = (
        "import sys; from types import SimpleNamespace\n"
        "from penstock.supervisor.processes.stream_thread_process import prepare_stream_thread\n"
        "from penstock.supervisor.source.topology_source import TopologySource\n"
        "prepare_stream_thread(SimpleNamespace(topology=TopologySource.of('empty_app:topology')))\n"
        "print('penstock.workers.thread.stream_thread' in sys.modules, 'rocksdict' in sys.modules)"
    )
    done = subprocess.run((sys.executable, "-c", code), cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
