"""An application and its branch, and the operator who exchanges them, for the tests of cutover and rollback.

As a program it is `penstock`, which is killed before a step: ``python -m tests.exchange_stage stop:2 branch …``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from click.testing import Result

from penstock.cli import cli
from penstock.cli.branches.exchange_side import ExchangeSide
from tests.branch_stage import RunningBranch, assert_equal, results, started
from tests.command_stage import ROOT, Stage
from tests.waiting import PATIENCE_SECONDS, eventually

#: A busy machine commits later.
LIMIT = ("--stop-at-most", "20")
#: How often a command is run until both applications have committed in time.
ATTEMPTS = 8


#: By application, the options of its first process, and of its second one, if any.
Hosts = Mapping[str, tuple[tuple[str, ...], tuple[str, ...] | None]]


def until_shared(stage: Stage, name: str) -> None:
    """Wait until an application has tasks both in the process that commands find, and in another one."""

    def has_a_part() -> bool:
        result = stage.run("status", "--json", "-c", f"application.id={name}")
        if result.exit_code:
            return False
        tasks = [task for thread in json.loads(result.stdout)["threads"] for task in thread["tasks"]]
        return 0 < len({task["task_id"] for task in tasks if task["kind"] == "active"}) < stage.tasks

    eventually(has_a_part)


class Operator:
    """Runs an application and its branch, does what the commands say, and remembers which one is the writer.

    hosts: by application, the options of the process that commands find, and of a second one that runs beside it.
    """

    def __init__(self, stage: Stage, branch: str, hosts: Hosts | None = None) -> None:
        self.stage, self.branch = stage, branch
        self._hosts = hosts or {}
        self._second: dict[str, RunningBranch] = {}
        self.names = (stage.application_id, branch)
        self.writer = stage.application_id
        self._started: dict[str, RunningBranch] = {}

    def process(self, name: str) -> subprocess.Popen[str]:
        """Return the process of an application, which may have ended."""
        if name in self._started:
            return self._started[name].process
        assert self.stage.process is not None
        assert name == self.stage.application_id
        return self.stage.process

    def log(self, name: str) -> str:
        """Return the end of the log of an application that start() has started."""
        return self._started[name].log

    def start(self, name: str, prefix: str) -> RunningBranch:
        """Start an application that has ended, and wait until it answers or has ended again."""
        if name in self._started or name != self.branch:
            self.wait(name)
        role = ("-c", f"penstock.sink.prefix={prefix}")
        first, second = self._hosts.get(name, ((), None))
        running = self._started[name] = RunningBranch(self.stage, name, *role, *first)
        if second is not None:
            self._second[name] = RunningBranch(self.stage, name, *role, *second)
        answers = ("status", "--json", "-c", f"application.id={name}")
        eventually(
            lambda: running.process.poll() is not None or self.stage.run(*answers).exit_code == 0, lambda: running.log
        )
        return running

    def wait(self, name: str) -> None:
        """Wait until an application has ended, on all hosts."""
        self.process(name).wait(PATIENCE_SECONDS)
        if name in self._second:
            self._second[name].process.wait(PATIENCE_SECONDS)

    def start_second(self, name: str) -> RunningBranch:
        """Start the second process of an application whose first one runs already, as the writer."""
        options = self._hosts[name][1]
        assert options is not None
        self._second[name] = RunningBranch(self.stage, name, "-c", "penstock.sink.prefix=", *options)
        return self._second[name]

    def start_missing(self) -> None:
        """Start those that do not run, as the last completed exchange has left them."""
        for name in self.names:
            if (name not in self._started and name == self.branch) or self.process(name).poll() is not None:
                self.start(name, "" if name == self.writer else f"{name}.")

    def stop(self) -> None:
        """Stop both."""
        for running in (*self._started.values(), *self._second.values()):
            running.stop()

    def exchange(self, command: str) -> Result:
        """Run a command once, and start nothing."""
        return self.stage.run("branch", command, self.branch, *LIMIT, "--json")

    def complete(self, command: str) -> dict[str, Any]:
        """Run a command until it succeeds, start what has ended, and return its answer."""
        for _ in range(ATTEMPTS):
            result = self.exchange(command)
            if result.exit_code == 0:
                done: dict[str, Any] = json.loads(result.stdout)
                self.writer = done["writer"]
                for name in self.names:  # an exchange stops both
                    self.wait(name)
                self.start_missing()
                return done
            assert isinstance(result.exception, SystemExit), result.exc_info
            self.start_missing()
        raise AssertionError(result.output)

    def kill_command(self, command: str, step: str) -> None:
        """Run a command that is killed before a step; again if it has ended before, as both must commit in time."""
        arguments = (sys.executable, "-m", "tests.exchange_stage", step, "branch", command, self.branch, *LIMIT)
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PENSTOCK_CONFIG": str(self.stage.config_file)}
        for _ in range(ATTEMPTS):
            ended = subprocess.run(
                arguments,
                cwd=self.stage.folder,
                env=environment,
                timeout=PATIENCE_SECONDS,
                capture_output=True,
                text=True,
                check=False,
            )
            if ended.returncode == -signal.SIGKILL:
                return
            assert "Traceback" not in ended.stderr, ended.stderr
            self.start_missing()
        raise AssertionError(ended.stderr)

    def kill_supervisor(self, name: str) -> None:
        """Kill the supervisor of an application, if it still runs, and wait for its end."""
        process = self.process(name)
        process.kill()
        process.wait(PATIENCE_SECONDS)

    def kill_thread(self, name: str) -> None:
        """Kill the first stream thread of an application, if it still runs."""
        result = self.stage.run("status", "--json", "-c", f"application.id={name}")
        pids = [thread["pid"] for thread in json.loads(result.stdout)["threads"]] if result.exit_code == 0 else []
        for pid in filter(None, pids[:1]):
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(pid, signal.SIGKILL)


@contextmanager
def operated(stage: Stage, branch: str, hosts: Hosts | None = None) -> Iterator[Operator]:
    """Yield the operator of a running application; its branch is created and started. hosts: as Operator's."""
    operator = Operator(stage, branch, hosts)
    try:
        if hosts is not None:
            operator.start_second(stage.application_id)
            until_shared(stage, stage.application_id)
        made = stage.run("branch", "create", branch, "--stop-at-most", "10")
        assert made.exit_code == 0, made.output
        operator.start_missing()
        yield operator
    finally:
        operator.stop()


def assert_as_of_one(stage: Stage, written: int, *options: str) -> int:
    """Assert that the real outputs are those of one application that has processed all of the input alone.

    written: the number of input records; options: of that application. Returns how many records the outputs have.
    """
    control = f"{stage.application_id}-control"
    stage.make_topics(f"{control}.{stage.sink}")

    def has_all() -> bool:
        found = results(stage.bootstrap_servers, f"{control}.{stage.sink}")
        return sum(len(records) for (_, key), records in found.items() if key.startswith(b"of ")) == written

    with started(stage, control, *options) as running:
        eventually(lambda: running.process.poll() is not None or has_all(), lambda: running.log)
        assert running.process.poll() is None, running.log
    expected = results(stage.bootstrap_servers, f"{control}.{stage.sink}")
    number = sum(map(len, expected.values()))
    eventually(lambda: sum(map(len, results(stage.bootstrap_servers, stage.sink).values())) >= number)
    assert_equal(results(stage.bootstrap_servers, stage.sink), expected)
    return number


def before_step(step: str, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a function before a step: "stop:2" is the second call of ExchangeSide.stop."""
    name, _, number = step.partition(":")
    called, left = getattr(ExchangeSide, name), [int(number)]

    def counted(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            act()
        return called(*arguments, **named)

    monkeypatch.setattr(ExchangeSide, name, counted)


if __name__ == "__main__":
    before_step(sys.argv[1], lambda: os.kill(os.getpid(), signal.SIGKILL), pytest.MonkeyPatch())
    cli(sys.argv[2:], prog_name="penstock")
