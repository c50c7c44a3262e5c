"""Tools of the supervisor's tests: the puppets, the log, and the application."""

from __future__ import annotations

import json
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from penstock.supervisor.application_state import ApplicationState
from penstock.supervisor.supervisor import Supervisor
from tests.waiting import PATIENCE_SECONDS


class ManualClock:
    """A clock that only the test advances, so that the start time of a process does not matter."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_clock_ms(self) -> int:
        return self.now_ms


def until(check: Callable[[], object]) -> None:
    """Wait for an effect that only a report of a process can have."""
    deadline, pace = time.monotonic() + PATIENCE_SECONDS, threading.Event()
    while not check():
        assert time.monotonic() < deadline
        pace.wait(0.01)


class WorkerOnStage:
    """The test's end of the connection to one puppet."""

    def __init__(self, line: socket.socket) -> None:
        line.settimeout(PATIENCE_SECONDS)
        self._socket = line
        self._file = line.makefile("rw")
        hello = self.hear()
        self.slot: int = hello["slot"]
        self.pid: int = hello["pid"]
        self.name: str = hello["name"]
        self.threads: int = hello["threads"]
        self.process = psutil.Process(self.pid)

    def order(self, do: str, **details: Any) -> None:
        self._file.write(json.dumps({"do": do, **details}) + "\n")
        self._file.flush()

    def hear(self) -> dict[str, Any]:
        """Wait for the puppet's next message."""
        heard: dict[str, Any] = json.loads(self._file.readline())
        return heard

    def run_up(self) -> None:
        """Have the puppet report that it is running."""
        self.order("go", states=["PARTITIONS_ASSIGNED", "RUNNING"])

    def close(self) -> None:
        with suppress(OSError):  # an order that the puppet has not read
            self._file.close()
        self._socket.close()


class Conductor:
    """Accepts the connections of puppets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(path))
        self._door.listen(16)
        self._door.settimeout(PATIENCE_SECONDS)
        self._stage: list[WorkerOnStage] = []

    def next(self) -> WorkerOnStage:
        """Wait for the next process."""
        worker = WorkerOnStage(self._door.accept()[0])
        self._stage.append(worker)
        return worker

    def running(self, count: int) -> list[WorkerOnStage]:
        """Wait for this many processes and have them report that they run; return them by slot."""
        workers = sorted((self.next() for _ in range(count)), key=lambda worker: worker.slot)
        for worker in workers:
            worker.run_up()
        return workers

    def nobody_waits(self) -> bool:
        """Return True if no further process has connected."""
        self._door.settimeout(0)
        try:
            self._stage.append(WorkerOnStage(self._door.accept()[0]))
        except BlockingIOError:
            return True
        finally:
            self._door.settimeout(PATIENCE_SECONDS)
        return False

    def close(self) -> None:
        for worker in self._stage:
            worker.close()
        self._door.close()


class LogLines(logging.Handler):
    """All log lines, to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []
        self._changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._changed:
            self._lines.append(record.getMessage())
            self._changed.notify_all()

    def wait_for(self, text: str) -> str:
        """Wait for a line with this text and return it."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(text in line for line in self._lines), PATIENCE_SECONDS), (
                f"{text!r} was not logged; what was: " + "\n".join(self._lines)
            )
            return next(line for line in self._lines if text in line)

    def has(self, text: str) -> bool:
        return text in self.text

    @property
    def text(self) -> str:
        return "\n".join(self._lines)


class Application:
    """A supervisor with shortcuts for tests."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.changes: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        supervisor.states.listener = lambda new, old: self.changes.put((old.name, new.name))

    def wait_for(self, *states: ApplicationState) -> None:
        assert self.supervisor.states.wait_for(states, PATIENCE_SECONDS), f"still {self.supervisor.states.state.name}"

    def ends(self) -> int:
        """Wait for the end and return the exit code."""
        assert self.supervisor.join(PATIENCE_SECONDS), "the supervisor does not end"
        return self.supervisor.exit_code


MakeApplication = Callable[..., Application]
