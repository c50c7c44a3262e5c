"""What operators do to an application on Spark, with real processes: start it twice, stop it, start it wrongly."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from penstock.supervisor.exit_codes import ExitCode

from .application import DEADLINE_SECONDS, Application, kill_all
from .kills import count_more, finish

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def application(bootstrap_servers: str, tmp_path: Path) -> Iterator[Application]:
    """One whose checkpoint has a name that URIs would write otherwise."""
    found = Application(bootstrap_servers, tmp_path)
    found.checkpoint = tmp_path / "check point%20#1 é"
    with found.topics():
        yield found


def test_a_checkpoint_has_one_driver_on_all_hosts(application: Application) -> None:
    with application.running() as process:
        count_more(application)
        status, printed = application.run("run", "--engine", "spark", host="other")
        assert (status, "is in use by the driver with process id" in printed) == (ExitCode.LOCKED, True), printed
        assert str(process.pid) in printed
        count_more(application)
        kill_all(process)
    with application.running(host="other") as process:
        finish(application, process)
    assert "was not renewed for" in application.log.read_text()
    with application.running() as process:
        finish(application, process)
    assert application.log.read_text().count("was not renewed for") == 1, "a lease that was given back needs no wait"


def test_a_handover_and_a_backfill_whatever_the_checkpoint_is_called(application: Application) -> None:
    with application.running() as process:
        finish(application, process)
    status, printed = application.run("handover", "--to", "local")
    assert (status, "offsets of 2 partitions" in printed) == (ExitCode.OK, True), printed
    status, printed = application.run("handover", "--to", "spark")
    assert (status, "Moved 1 store, 5 keys" in printed) == (ExitCode.OK, True), printed
    application.start_over()
    status, printed = application.run("backfill")
    assert (status, "Spark has read 2,000 records" in printed) == (ExitCode.OK, True), printed


@pytest.mark.parametrize(("command", "options"), [("run", ("--engine", "spark")), ("handover", ("--to", "local"))])
@pytest.mark.parametrize("program", ["spark-submit", "SparkSubmit"])  # the shell script, and the Java that it becomes
def test_ctrl_c_while_java_starts_leaves_no_process(
    application: Application, command: str, options: tuple[str, ...], program: str
) -> None:
    with application.command(command, *options) as process:
        java = child(process, program)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == (ExitCode.OK if command == "run" else ExitCode.FAILED), printed
        assert "Traceback" not in printed
        assert not java.is_running() or java.status() == psutil.STATUS_ZOMBIE


def child(process: subprocess.Popen[str], program: str) -> psutil.Process:
    """Return the child whose command line names a program, waiting for it."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        for found in psutil.Process(process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
                if any(word.endswith(program) for word in found.cmdline()):
                    return found
        time.sleep(0.01)
    raise TimeoutError(f"no {program}")


@pytest.mark.parametrize("to_java", [False, True])  # a shell's `kill %1` and `timeout`; systemd's KillMode=control-group
def test_sigterm_to_all_processes_is_a_clean_stop(application: Application, to_java: bool) -> None:
    with application.running() as process:
        count_more(application)
        java = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGTERM)
        for each in java if to_java else ():
            each.terminate()
        assert process.wait(DEADLINE_SECONDS) == ExitCode.OK, application.log.read_text()
    assert "Traceback" not in application.log.read_text()
    assert not [each for each in java if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("master", ["nonsense", "local[0]", "yarn", "spark://127.0.0.1:1"])
def test_a_master_that_spark_does_not_start_with_is_named_in_the_last_line(
    application: Application, master: str
) -> None:
    status, printed = application.run("run", "--engine", "spark", master=master)
    last = printed.splitlines()[-1]
    assert (status, last.startswith(f"Error: Spark does not start with --master {master}: ")) == (2, True), printed
