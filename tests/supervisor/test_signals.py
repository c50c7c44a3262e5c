"""Signals from shells, `timeout`, `nohup` and service managers: to the command, and to all its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from broker_stage import STATELESS, App, wait_for_line

from penstock.supervisor.exit_codes import ExitCode
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker

RUNNING = "State transition from REBALANCING to RUNNING"
SPARE_READY = "is ready to replace"


@pytest.fixture
def running(app: App, make_topic: Callable[..., str]) -> App:
    """An application of two stream threads without input, to be started."""
    source, sink = make_topic("in", 2), make_topic("out", 2)
    return app.module(STATELESS.replace("'in'", repr(source)).replace("'out'", repr(sink)))


@pytest.fixture
def processes(app: App) -> Iterator[Callable[[subprocess.Popen[str]], list[psutil.Process]]]:
    """Return the command's process with all its descendants; none may be left."""
    seen: list[psutil.Process] = []

    def of(command: subprocess.Popen[str]) -> list[psutil.Process]:
        parent = psutil.Process(command.pid)
        found = [parent, *parent.children(recursive=True)]
        seen.extend(found)
        return found

    yield of
    eventually(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in seen), "all have ended")


def ends_cleanly(process: subprocess.Popen[str]) -> str:
    _, log = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.OK, log
    assert "State transition from PENDING_SHUTDOWN to NOT_RUNNING" in log
    assert "ERROR" not in log, log
    assert "Traceback" not in log, log
    return log


@pytest.mark.parametrize("moment", ["Started ", "joining", RUNNING, SPARE_READY])
def test_sigterm_to_all_processes_stops_cleanly(
    running: App, processes: Callable[[subprocess.Popen[str]], list[psutil.Process]], moment: str
) -> None:
    """systemd with KillMode=control-group does this, or a container's init that signals its group."""
    process = running.start()
    wait_for_line(process, moment)
    for one in reversed(processes(process)):  # stream threads first: the supervisor must not mistake it for a crash
        one.send_signal(signal.SIGTERM)
    log = ends_cleanly(process)
    assert "replaced" not in log


def test_timeout_ends_it_cleanly(running: App) -> None:
    """It sends SIGTERM to the command, and immediately again to the process group; SIGALRM tells it that time is up."""
    running.prefix = ("timeout", "--preserve-status", "600")
    process = running.start()
    wait_for_line(process, RUNNING)
    process.send_signal(signal.SIGALRM)
    ends_cleanly(process)


def test_a_second_immediate_sigterm_is_part_of_the_same_stop(running: App) -> None:
    process = running.start()
    wait_for_line(process, RUNNING)
    process.send_signal(signal.SIGTERM)
    wait_for_line(process, "Received SIGTERM")
    process.send_signal(signal.SIGTERM)
    ends_cleanly(process)


def test_nohup_keeps_sighup_ignored(running: App) -> None:
    running.prefix = ("nohup",)
    process = running.start()
    wait_for_line(process, RUNNING)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGUSR1)
    wait_for_line(process, ": 2 stream threads")  # it still responds
    process.send_signal(signal.SIGTERM)
    assert "SIGHUP" not in ends_cleanly(process)


def test_sigquit_from_a_terminal_leaves_no_process(
    running: App, processes: Callable[[subprocess.Popen[str]], list[psutil.Process]]
) -> None:
    process = running.start()
    wait_for_line(process, RUNNING)
    for one in processes(process):
        one.send_signal(signal.SIGQUIT)
    _, log = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.FORCED, log


@pytest.mark.parametrize(
    "imported", ["penstock.topology.errors", "click", "penstock.supervisor.logs.formats", "penstock.cli"]
)
def test_ctrl_c_during_the_import_of_the_command_shows_no_traceback(tmp_path: Path, imported: str) -> None:
    command = Path(sys.executable).with_name("penstock")
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", command, "run", "none:none"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.rstrip().endswith(f" {imported}"):
            break
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode in (-signal.SIGINT, 1)
    assert "Traceback" not in rest, rest
