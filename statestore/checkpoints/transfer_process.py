"""Starts the process of an upload or a load, and reads its results; see transfer.py."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping

from .transfer_messages import Report

#: A process that reports nothing for this long is ended, in seconds: requests are repeated for shorter.
SILENCE_SECONDS = 300.0


class TransferFailedError(Exception):
    """A transfer has failed; the message says why."""


class TransferProcess:
    """A process for one job. Raises OSError if it cannot be started.

    silence_seconds: it is ended if it reports nothing for so long.
    """

    def __init__(self, job: Mapping[str, object], silence_seconds: float = SILENCE_SECONDS) -> None:
        self._silence_seconds = silence_seconds
        self._was_silent = False
        self._process = subprocess.Popen(
            # What it does is not read, but shown by ps.
            [sys.executable, "-P", "-m", "penstock.statestore.checkpoints.transfer", str(job["kind"])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path)},
            text=True,
        )
        self._job = json.dumps(job)

    def run(self, on_report: Callable[[Report], None]) -> None:
        """Send the job, and call on_report with each result until the process ends.

        Raises TransferFailedError if it failed, was ended, or was silent for too long.
        """
        process, error = self._process, None
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended: its code says why
                process.stdin.write(self._job + "\n")
                process.stdin.flush()
            while line := self._next_line(process.stdout.readline):
                report: Report = json.loads(line)
                error = report.get("error", error)
                on_report(report)
            code = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            process.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        if self._was_silent:
            error = f"the bucket has not answered for {self._silence_seconds:.0f} s"
        if error is not None or code != 0:
            raise TransferFailedError(error or f"its process ended with code {code}")

    def _next_line(self, read: Callable[[], str]) -> str:
        timer = threading.Timer(self._silence_seconds, self._end_silent)
        timer.daemon = True
        timer.start()
        try:
            return read()
        finally:
            timer.cancel()

    def _end_silent(self) -> None:
        self._was_silent = True
        self.kill()

    def kill(self) -> None:
        """End it: run() returns soon."""
        self._process.kill()
