"""Operators' actions on an application on Spark, with real processes: starting it twice, stopping it, starting it
wrongly.
"""

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

from penstock.pipeline.checkpoint.checkpoint_lease import LEASE_FILE
from penstock.supervisor.exit_codes import ExitCode
from tests.differential.application import Application, kill_all
from tests.differential.kills import count_more, finish
from tests.waiting import PATIENCE_FACTOR, PATIENCE_SECONDS, eventually, has_ended

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

#: How long a clean stop takes at most on a quiet machine.
STOP_SECONDS = 10.0


@pytest.fixture
def application(bootstrap_servers: str, tmp_path: Path) -> Iterator[Application]:
    found = Application(bootstrap_servers, tmp_path)
    with found.topics():
        yield found


@pytest.mark.long  # waits for a lease; test_lease.py tests the lease itself
def test_a_checkpoint_has_one_driver_across_all_hosts(application: Application) -> None:
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


@pytest.mark.long  # as long as a lease
def test_a_driver_suspended_beyond_its_lease_stops(application: Application) -> None:
    with application.running() as process:
        count_more(application)
        first = psutil.Process(process.pid)
        suspended = [first, *first.children(recursive=True)]
        for each in suspended:
            each.suspend()
        with application.command("run", "--engine", "spark", host="other", output=subprocess.DEVNULL) as other:
            lease = application.checkpoint / LEASE_FILE
            eventually(lambda: f'"pid":{other.pid}' in lease.read_text(), lease.read_text, PATIENCE_SECONDS)
            other.send_signal(signal.SIGTERM)
            assert other.wait(PATIENCE_SECONDS) == ExitCode.OK
        for each in suspended:
            each.resume()
        assert process.wait(PATIENCE_SECONDS) == ExitCode.LOCKED, application.log.read_text()
    assert "was taken over by another driver" in application.log.read_text()


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *((("run", "--engine", "spark"), name) for name in ("check point", "50%", "a#b", "é", "{a,b}")),
        (("handover", "--to", "local"), "50%"),
        (("backfill",), "50%"),
    ],
)
def test_a_checkpoint_whose_state_cannot_be_handed_over_is_refused_at_once(
    application: Application, command: tuple[str, ...], name: str
) -> None:
    application.checkpoint = application.checkpoint.with_name(name)
    status, printed = application.run(*command)
    assert (status, f"{name} cannot have the characters" in printed) == (ExitCode.USAGE, True), printed
    assert not application.checkpoint.exists()


@pytest.mark.parametrize(("command", "options"), [("run", ("--engine", "spark")), ("handover", ("--to", "local"))])
@pytest.mark.parametrize(
    # The shell script, which runs for some milliseconds, and the Java that it becomes.
    "program",
    [pytest.param("spark-submit", marks=pytest.mark.long), "SparkSubmit"],
)
def test_ctrl_c_during_javas_start_leaves_no_process(
    application: Application, command: str, options: tuple[str, ...], program: str
) -> None:
    with application.command(command, *options) as process:
        java = child(process, program)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == (ExitCode.OK if command == "run" else ExitCode.FAILED), printed
        assert "Traceback" not in printed
        eventually(lambda: has_ended(java), "its Java has ended, too")


def child(process: subprocess.Popen[str], program: str) -> psutil.Process:
    """Wait for the child whose command line names a program, and return it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for found in psutil.Process(process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
                if any(word.endswith(program) for word in found.cmdline()):
                    return found
        time.sleep(0.01)
    raise TimeoutError(f"no {program}")


# A shell's `kill %1` and `timeout` signal the process group, as does the kernel for a terminal that is closed (SIGHUP);
# systemd's KillMode=control-group all processes.
@pytest.mark.parametrize(
    ("number", "to_java"),
    [
        (signal.SIGTERM, False),
        pytest.param(signal.SIGHUP, False, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, True, marks=pytest.mark.long),
    ],
)
def test_a_signal_to_all_processes_stops_cleanly(
    application: Application, number: signal.Signals, to_java: bool
) -> None:
    with application.running() as process:
        count_more(application)
        java = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, number)
        for each in java if to_java else ():
            each.terminate()
        assert process.wait(PATIENCE_SECONDS) == ExitCode.OK, application.log.read_text()
    assert "Traceback" not in application.log.read_text()
    assert to_java or "ERROR" not in application.log.read_text()
    eventually(lambda: all(map(has_ended, java)), "its Java has ended, too")


@pytest.mark.parametrize(
    "phase",
    ["planned", pytest.param("counted", marks=pytest.mark.long), pytest.param("finished", marks=pytest.mark.long)],
)
def test_ctrl_c_in_a_micro_batch_stops_within_seconds(application: Application, phase: str) -> None:
    with application.running() as process:
        count_more(application)
        application.produce_until(phase)
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == ExitCode.OK, application.log.read_text()
        took = time.monotonic() - began
    print(f"{phase}: {took:.1f} s")
    assert took < STOP_SECONDS * PATIENCE_FACTOR
    assert "Traceback" not in application.log.read_text()
    with application.running() as process:
        application.await_counts()
        finish(application, process)


@pytest.mark.long
def test_the_error_names_a_killed_java(application: Application) -> None:
    with application.running() as process:
        count_more(application)
        child(process, "SparkSubmit").kill()
        assert process.wait(PATIENCE_SECONDS) == ExitCode.FAILED, application.log.read_text()
    *_, last = application.log.read_text().splitlines()
    assert last.startswith("Error: Spark's Java has ended"), last
    with application.running() as process:
        finish(application, process)


# Java ends at the first and the third. With the last two, SparkContext raises as with the second, but a minute later.
@pytest.mark.parametrize(
    "master",
    [
        "nonsense",
        "local[0]",
        "yarn",
        pytest.param("spark://127.0.0.1:1", marks=pytest.mark.long),
        pytest.param("k8s://https://127.0.0.1:1", marks=pytest.mark.long),
    ],
)
def test_the_last_line_names_a_master_with_which_spark_does_not_start(application: Application, master: str) -> None:
    status, printed = application.run("run", "--engine", "spark", master=master)
    last = printed.splitlines()[-1]
    assert (status, last.startswith(f"Error: Spark does not start with --master {master}: ")) == (2, True), printed


@pytest.mark.long
def test_a_recreated_or_repartitioned_source_topic_is_refused(application: Application) -> None:
    with application.running() as process:
        finish(application, process)
    application.add_partition()
    status, printed = application.run("run", "--engine", "spark")
    assert (status, "-in had 2, and has 3" in printed) == (ExitCode.FAILED, True), printed
    with application.running("--accept-changes") as process:
        ends = application.ends()
        application.produce()
        application.await_growth(ends)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == ExitCode.OK, application.log.read_text()
    application.recreate_source()
    application.add_partition()
    application.produce(3 * application.produced)
    status, printed = application.run("run", "--engine", "spark")
    assert (status, "-in was deleted and created again" in printed) == (ExitCode.FAILED, True), printed


@pytest.mark.long
def test_an_interrupted_backfill_is_continued_and_the_local_engine_says_how(application: Application) -> None:
    application.produce()
    with application.command("backfill") as process:
        eventually(application.handed_over.exists, lambda: str(process.poll()), PATIENCE_SECONDS)
        kill_all(process)
    status, printed = application.run("run")
    assert (status, "run `penstock backfill` again" in printed) == (ExitCode.TOPOLOGY, True), printed
    assert "handover" not in printed
    status, printed = application.run("backfill")
    assert (status, "The application is now on the local engine" in printed) == (ExitCode.OK, True), printed


@pytest.mark.long
def test_after_a_local_run_by_mistake_spark_continues_with_its_checkpoint(application: Application) -> None:
    with application.running() as process:
        finish(application, process)
    ends = application.ends()
    with application.command("run", output=subprocess.DEVNULL) as process:
        application.await_growth(ends)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == ExitCode.OK
    status, printed = application.run("run", "--engine", "spark")
    assert (status, "handover --to spark --keep-checkpoint" in printed) == (ExitCode.FAILED, True), printed
    status, printed = application.run("handover", "--to", "spark", "--keep-checkpoint", "--wait", "120")
    assert (status, "of the local run are dropped" in printed) == (ExitCode.OK, True), printed
    status, printed = application.run("handover", "--to", "spark", "--keep-checkpoint", "--wait", "120")
    assert (status, "was Spark's with this checkpoint already" in printed) == (ExitCode.OK, True), printed
    with application.running() as process:
        finish(application, process)
