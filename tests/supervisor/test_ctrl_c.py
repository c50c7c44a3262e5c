"""Ctrl-C at any moment: everything ends cleanly and quickly, and no record is lost or counted twice."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from broker_stage import ROOT, App, Counting, wait_for_line

from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.service.signals import SAME_REQUEST_MS
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.broker, pytest.mark.slow]

ROUNDS = 500  # 20,000 records: enough to be still processing at each moment below
COUNTING = """
topology = StreamsBuilder()
stream = topology.stream({source!r}, key_serde=TEXT, value_serde=TEXT)
stream.group_by_key().count(store="counts").to_stream().to({sink!r}, key_serde=TEXT, value_serde=Serdes.int64())
"""


@pytest.fixture
def running(app: App, counting: Counting) -> App:
    """The command with a counting application, to be stopped with Ctrl-C."""
    app.config = {key: str(value) for key, value in counting.config.items()}
    return app.module(COUNTING.format(source=counting.source, sink=counting.sink))


def interrupt(process: subprocess.Popen[str]) -> str:
    """Press Ctrl-C and return the log until the end, which must be clean."""
    process.send_signal(signal.SIGINT)
    _, log = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.OK, log
    assert "State transition from PENDING_SHUTDOWN to NOT_RUNNING" in log
    assert "Traceback" not in log
    return log


#: A sitecustomize: the command's process gets a signal when its interpreter is almost finalized.
LATE = """
import os, signal, sys
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT):
        kill(pid, number)
late = Late() if "penstock.cli" in sys.orig_argv else None
"""


def test_ctrl_c_during_interpreter_shutdown_does_not_change_the_exit_code(running: App) -> None:
    (running.folder / "sitecustomize.py").write_text(LATE)
    running.prefix = ("env", f"PYTHONPATH={running.folder}:{ROOT}")
    process = running.start()
    wait_for_line(process, "State transition from REBALANCING to RUNNING")
    interrupt(process)


def press_until(process: subprocess.Popen[str], ended: threading.Event) -> None:
    """Press Ctrl-C again once it counts as another request than the first."""
    while not ended.wait(SAME_REQUEST_MS / 1000):
        process.send_signal(signal.SIGINT)


def finishes_with_exact_counts(app: App, counting: Counting, threads: int = 2) -> None:
    """Let the application continue, and compare: after clean stops no record may be counted twice.

    threads: as many as may have joined before, since each is a static member and keeps its tasks.
    """
    process = app.start(threads=threads)
    wait_for_line(process, "State transition from REBALANCING to RUNNING")
    counting.wait_for_all_counts()
    interrupt(process)
    assert counting.counted() == counting.expected


@pytest.mark.parametrize(
    "moment",
    [
        "Started ",  # the interpreter of the first process has not started yet
        "Creating restore consumer client",
        pytest.param("(Re-)joining the group: joining", marks=pytest.mark.long),
        pytest.param("State transition from STARTING to PARTITIONS_ASSIGNED", marks=pytest.mark.long),
        pytest.param("Restored and ready to run", marks=pytest.mark.long),  # the first of eight tasks
        "State transition from REBALANCING to RUNNING",  # in the middle of the records
    ],
)
def test_ctrl_c_during_start_and_processing(running: App, counting: Counting, moment: str) -> None:
    counting.produce(ROUNDS)
    process = running.start()
    wait_for_line(process, moment)
    interrupt(process)
    finishes_with_exact_counts(running, counting)


def test_ctrl_c_during_a_rebalance(running: App, counting: Counting) -> None:
    counting.produce(ROUNDS)
    process = running.start()
    wait_for_line(process, "State transition from REBALANCING to RUNNING")
    process.send_signal(signal.SIGTTIN)
    wait_for_line(process, "(Re-)joining the group: the group rebalances")
    interrupt(process)
    finishes_with_exact_counts(running, counting, threads=3)


def test_ctrl_c_during_a_restore(running: App, counting: Counting) -> None:
    counting.produce(ROUNDS)
    finishes_with_exact_counts(running, counting)
    for task in (Path(running.config["state.dir"]) / running.config["application.id"]).glob("0_*"):
        shutil.rmtree(task)
    process = running.start()
    wait_for_line(process, "Initialized")  # a task's stores are open and empty
    interrupt(process)
    counting.produce(1)
    finishes_with_exact_counts(running, counting)


def test_ctrl_c_twice_kills_and_loses_nothing(running: App, counting: Counting) -> None:
    counting.produce(ROUNDS)
    process = running.start()
    wait_for_line(process, "State transition from REBALANCING to RUNNING")
    process.send_signal(signal.SIGINT)
    wait_for_line(process, "Received SIGINT")
    ended = threading.Event()
    repeated = threading.Thread(target=press_until, args=(process, ended))
    repeated.start()
    process.communicate(timeout=PATIENCE_SECONDS)
    ended.set()
    repeated.join()
    assert process.returncode in (ExitCode.FORCED, ExitCode.OK)  # the first may have been enough
    again = running.start()
    wait_for_line(again, "State transition from REBALANCING to RUNNING")
    counting.wait_for_at_least_all_counts()
    interrupt(again)
