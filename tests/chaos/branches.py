"""Branches of the application while faults hit it: one is made, started, compared with its original, deleted; again.

The command that makes a branch is sometimes killed, and fails while the application or a broker is down. Then it runs
again, as an operator would. A branch runs on another host, where its stream threads are killed sometimes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from confluent_kafka import KafkaException

from tests.chaos import program
from tests.chaos.checker import Sight, read_all, read_table
from tests.chaos.checkers import Report
from tests.chaos.checkers.branch_outputs import BranchOutputs
from tests.chaos.hosts import ROOT, Host
from tests.chaos.process_faults import TOLD_TO_STOP, send

#: The outputs in which each key has the same records in the branch, and all outputs.
EXACT = (program.COPIES, program.TALLIES)
OUTPUTS = (*EXACT, program.GROUP_TALLIES)
STORES = (program.TALLY_STORE, program.GROUP_STORE)
#: Seconds until a command has to succeed, and until a branch must have caught up: faults go on meanwhile.
SUCCESS_SECONDS, CATCH_UP_SECONDS = 300.0, 300.0
#: The share of commands that are killed, after a time in seconds between these, and the longest time of all others.
KILLED, LIFE_SECONDS, COMMAND_SECONDS = 0.3, (0.5, 4.0), 240.0
#: Settings by which other hosts reach the original.
OWN = ("application.server", "penstock.http.")
#: The share of branches of which a stream thread's process is killed.
HIT = 0.5
#: Seconds between two attempts, and between two looks at a branch.
PAUSE_SECONDS = 1.0
#: For a hold, in seconds: a commit takes longer on a busy machine.
STOP_AT_MOST = "10"


class BranchFailedError(Exception):
    """A command has not succeeded in SUCCESS_SECONDS or was interrupted by a bug, or a branch has ended or is late."""


class RecordLostError(Exception):
    """A fault has deleted the state directory, and with it the file of a branch."""


@dataclass
class BranchCounts:
    """What happened. compared: outputs; left: branches whose file was deleted by a fault."""

    checked: int = 0
    compared: int = 0
    killed: int = 0
    failed: int = 0
    left: int = 0

    def __str__(self) -> str:
        return (
            f"outputs of {self.checked} branches, {self.killed} commands killed and {self.failed} failed before they "
            f"succeeded, {self.left} branches left behind by a deleted state directory"
        )


class Branches(threading.Thread):
    """Makes and checks branches until ``end``.

    original: the host where the commands run. environment, topology: as for a Host. every_seconds: the time between the
    beginnings of two branches, a third of which each one runs at least.
    """

    def __init__(
        self,
        original: Host,
        directory: Path,
        environment: Mapping[str, str],
        topology: str,
        bootstrap_servers: str,
        seed: int,
        every_seconds: float,
    ) -> None:
        super().__init__(name="branches", daemon=True)
        #: Lines for the run's output.
        self.news: SimpleQueue[str] = SimpleQueue()
        self._original, self._directory = original, directory
        self._environment, self._topology = environment, topology
        self._address = bootstrap_servers
        self._rng = random.Random(seed)
        self._every_seconds = every_seconds
        self._ended = threading.Event()
        self._counts = BranchCounts()
        self._faults: list[str] = []
        self._branch: Host | None = None

    def run(self) -> None:
        """Make one branch after the other."""
        number = 0
        while not self._ended.is_set():
            number, began = number + 1, time.monotonic()
            name = f"{program.BRANCHES}{number}"
            try:
                self._one(name)
            except RecordLostError:
                self._counts.left += 1
                self.news.put(f"branch {name} is left behind: its file was in a state directory that was deleted")
            except Exception as error:  # noqa: BLE001  the report has it
                self._fault(f"{name}: {type(error).__name__}: {error}")
            finally:
                self.kill()
            self._ended.wait(max(0.0, began + self._every_seconds - time.monotonic()))

    def end(self) -> None:
        """Make no more branches; the thread ends when the current one is checked and deleted."""
        self._ended.set()

    def kill(self) -> None:
        """Kill the processes of a branch that runs."""
        if self._branch is not None:
            self._branch.kill()

    def report(self) -> Report:
        """Return the findings."""
        return Report.of("branches", self._counts.compared, str(self._counts), self._faults)

    def _fault(self, what: str) -> None:
        self._faults.append(f"branches: {what}")
        self.news.put(f"FAILURE  branch {what}")

    # -- one branch

    def _one(self, name: str) -> None:
        self._insist("create", name, "--stop-at-most", STOP_AT_MOST, "--wait", "60")
        cut = self._cut_of(name)
        shared = {key: value for key, value in self._original.config.items() if not key.startswith(OWN)}
        config = {**shared, "application.id": name, "penstock.sink.prefix": f"{name}."}
        self._branch = Host(name, self._directory, config, self._environment, self._topology)
        self._branch.start()
        self._let_it_run(self._branch)
        outputs = self._compare(self._branch, cut)
        code = self._branch.stop()
        if code:
            self._fault(f"{name} {TOLD_TO_STOP} with exit code {code}: {self._branch.last_error()}")
        for fault in outputs.faults():
            self._fault(f"{name}: {fault}")
        self._counts.checked += 1
        self._counts.compared += outputs.compared
        self.news.put(f"branch {name}: {outputs.compared} outputs compared")
        self._insist("delete", name, "--execute", "--wait", "120")

    def _let_it_run(self, branch: Host) -> None:
        """Let faults hit its original while it runs, and itself too."""
        least = self._every_seconds / 3
        before = self._rng.uniform(0, least)
        self._ended.wait(before)
        victim = branch.victim(self._rng.random()) if self._rng.random() < HIT else None
        if victim is not None and send(victim[0], signal.SIGKILL):
            self.news.put(f"branch {victim[1]} killed")
        self._ended.wait(least - before)

    def _compare(self, branch: Host, cut: Mapping[str, list[int]]) -> BranchOutputs:
        """Wait until a branch has all that its original has now; return both."""
        deadline = time.monotonic() + CATCH_UP_SECONDS
        prefix = f"{branch.name}."
        starts = {(topic, number): offset for topic, ends in cut.items() for number, offset in enumerate(ends)}
        while (found := self._original_outputs(prefix, starts)) is None:
            self._pause(branch, deadline, ["the original's outputs could not be read"])
        while not self._has_all(branch.name, found):
            self._pause(branch, deadline, found.missing())
        return found

    def _original_outputs(self, prefix: str, starts: Mapping[tuple[str, int], int]) -> BranchOutputs | None:
        try:
            records = read_all(self._address, OUTPUTS, starts)
            return BranchOutputs(EXACT, prefix, records, self._tables(program.APPLICATION_ID))
        except (KafkaException, TimeoutError):  # a broker is down
            return None

    def _has_all(self, name: str, found: BranchOutputs) -> bool:
        try:
            records: Iterable[Sight] = read_all(self._address, [f"{name}.{topic}" for topic in OUTPUTS])
            found.see(records, self._tables(name))
        except (KafkaException, TimeoutError):
            return False
        return not found.missing()

    def _tables(self, application_id: str) -> dict[str, dict[str, Any]]:
        return {store: read_table(self._address, f"{application_id}-{store}-changelog") for store in STORES}

    def _pause(self, branch: Host, deadline: float, missing: list[str]) -> None:
        if branch.exit_code is not None:
            raise BranchFailedError(f"it ended by itself with exit code {branch.exit_code}: {branch.last_error()}")
        if time.monotonic() > deadline:
            raise BranchFailedError(f"it has not caught up within {CATCH_UP_SECONDS:.0f} s: {missing[:3]}")
        time.sleep(PAUSE_SECONDS)  # the interval of looks at the brokers

    # -- commands

    def _insist(self, command: str, name: str, *options: str) -> None:
        """Run a command until it succeeds. Raises RecordLostError if it cannot any more."""
        deadline, file = time.monotonic() + SUCCESS_SECONDS, self._file_of(name)
        had_file = command == "delete"
        while True:
            life = self._rng.uniform(*LIFE_SECONDS) if self._rng.random() < KILLED else None
            code, _, errors = self._run(life, command, name, *options)
            last = " ".join(errors.strip().splitlines()[-1:])
            if code == 0 or self._is_done(command, name, errors):
                self.news.put(f"branch {command} {name}: {last or 'done'}")
                return
            if had_file and not file.exists():
                raise RecordLostError
            had_file = file.exists()
            if "Traceback" in errors or time.monotonic() > deadline:
                raise BranchFailedError(f"branch {command} ends with exit code {code}: {errors.strip()[-2_000:]}")
            if code != -signal.SIGKILL:
                self._counts.failed += 1
                self.news.put(f"branch {command} {name} failed: {last}")
            self._ended.wait(PAUSE_SECONDS)

    def _is_done(self, command: str, name: str, errors: str) -> bool:
        """Return whether an earlier attempt was killed behind its last step."""
        if command == "create":
            return f"There is a branch {name} already" in errors
        file = self._file_of(name)
        return file.parent.exists() and not file.exists()

    def _cut_of(self, name: str) -> Mapping[str, list[int]]:
        """Return the offsets of the original's outputs behind which a branch begins."""
        code, output, errors = self._run(None, "list", "--json")
        if code:
            raise BranchFailedError(f"branch list ends with exit code {code}: {errors.strip()[-2_000:]}")
        found: dict[str, Mapping[str, list[int]]] = {each["name"]: each["outputs"] for each in json.loads(output)}
        if name not in found:
            raise RecordLostError
        return found[name]

    def _file_of(self, name: str) -> Path:
        return self._original.state / program.APPLICATION_ID / "branches" / f"{name}.json"

    def _run(self, life: float | None, command: str, *options: str) -> tuple[int, str, str]:
        """Run a command, or kill it after some seconds; return its exit code, output and errors."""
        arguments = ["branch", command, *options, "--config", "penstock.toml"]
        with subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", *arguments],
            cwd=self._original.directory,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=life or COMMAND_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                output, errors = process.communicate()
                if life is None:
                    raise BranchFailedError(f"branch {command} takes longer than {COMMAND_SECONDS:.0f} s") from None
                self._counts.killed += 1
                self.news.put(f"branch {' '.join(options[:1])}: {command} killed after {life:.1f} s")
        return process.returncode, output, errors
