"""Signals that the parent process has blocked, as threads of some programs and service managers do; children inherit
that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from broker_stage import ROOT, STATELESS, App, wait_for_line

from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.service.signals import HANDLED_SIGNALS, handled
from tests.waiting import PATIENCE_SECONDS, eventually

#: Runs the command in its arguments with all signals blocked.
BLOCKING = """\
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.execv(sys.argv[1], sys.argv[1:])
"""
PREFIX = (sys.executable, "-c", BLOCKING)
RUNNING = "State transition from REBALANCING to RUNNING"


@pytest.fixture
def all_blocked() -> Iterator[set[int]]:
    """Block all signals in this thread; return its mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        while signal.sigtimedwait(signal.sigpending(), 0):  # they would end this process
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_handled_signals_arrive_and_the_mask_is_restored(all_blocked: set[int]) -> None:
    received: list[int] = []
    with handled(received.append):
        for number in HANDLED_SIGNALS:
            os.kill(os.getpid(), number)
        assert signal.SIGABRT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())  # systemd's watchdog sends it
    assert sorted(received) == sorted(HANDLED_SIGNALS)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == all_blocked


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_waiting_command_can_be_ended(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "broker.log").write_text("begins\n")
    command = [*PREFIX, sys.executable, "-m", "penstock.cli", "broker", "logs", "-f", "--directory", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begins\n"
            process.send_signal(number)
            assert process.wait(PATIENCE_SECONDS) != 0
        finally:
            process.kill()


@pytest.fixture
def running(app: App, make_topic: Callable[..., str]) -> Iterator[subprocess.Popen[str]]:
    """A running application that was started with all signals blocked."""
    source, sink = make_topic("in", 2), make_topic("out", 2)
    app.module(STATELESS.replace("'in'", repr(source)).replace("'out'", repr(sink))).prefix = PREFIX
    process = app.start()
    wait_for_line(process, RUNNING)
    yield process
    process.kill()


@pytest.mark.broker
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_application_stops_cleanly(number: signal.Signals, running: subprocess.Popen[str]) -> None:
    running.send_signal(signal.SIGUSR1)
    wait_for_line(running, ": 2 stream threads")
    running.send_signal(number)
    _, log = running.communicate(timeout=PATIENCE_SECONDS)
    assert running.returncode == ExitCode.OK, log
    assert "died" not in log


@pytest.mark.slow
@pytest.mark.broker
def test_a_stream_thread_dumps_its_stacks_at_sigabrt(running: subprocess.Popen[str]) -> None:
    """The supervisor sends it to a process that hangs."""
    worker = next(each for each in psutil.Process(running.pid).children(recursive=True) if is_stream_thread(each))
    worker.send_signal(signal.SIGABRT)
    assert "Fatal Python error: Aborted" in wait_for_line(running, "died: SIGABRT")
    eventually(lambda: not worker.is_running(), "it has ended")
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=PATIENCE_SECONDS)


def is_stream_thread(process: psutil.Process) -> bool:
    return "StreamThread-" in " ".join(process.cmdline())
