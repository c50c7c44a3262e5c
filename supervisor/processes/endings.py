"""The meaning of the end of a process: whether another attempt could help, and the message."""

from __future__ import annotations

import os
import signal

from penstock.topology.shadowing import advice, shadows
from penstock.workers.control.stream_thread_state import StreamThreadState

from ..exit_codes import WorkerExitCode
from .worker import UNKNOWN_EXIT, Worker

#: Signals that come from outside, e.g. from the kernel's OOM killer: another attempt may succeed.
FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, UNKNOWN_EXIT)


def could_not_boot(worker: Worker) -> bool:
    """Return whether a process ended before its stream thread started because the topology could not be loaded.

    Or the interpreter or Penstock could not be. While a deployment replaces files, that may pass.
    """
    refused = worker.exit_code == WorkerExitCode.BOOT_FAILED or (worker.exit_code > 0 and not worker.has_started)
    return refused and worker.state is StreamThreadState.CREATED


def is_hopeless(worker: Worker, any_has_run: bool) -> bool:
    """Return whether another process would end in the same way.

    any_has_run: a stream thread of the application has already been a member of its group. If none has, this is the
    first start, and what happens while the topology is loaded would only repeat, with ten more tracebacks. A stream
    thread itself knows if its configuration is wrong, or if the application was handed over.
    """
    if worker.state is not StreamThreadState.CREATED:
        return worker.exit_code == WorkerExitCode.BOOT_FAILED
    crashed = worker.failure is None and worker.exit_code not in FROM_OUTSIDE
    return not any_has_run and (could_not_boot(worker) or crashed)


def reason(worker: Worker) -> str:
    """Return one line with the reason for the end of a process."""
    if worker.failure is None:
        when = " before its stream thread started" if worker.state is StreamThreadState.CREATED else ""
        text = f"process {worker.pid} ended with {worker.cause_of_death()}{when}; its stderr has more"
        hidden = [] if worker.has_started else shadows(os.getcwd())
        return f"{text}. {advice(hidden)}" if hidden else text
    return f"{worker.failure.kind}: {worker.failure.message}" if worker.failure.message else worker.failure.kind


def explanation(worker: Worker) -> str:
    """Return the reason for the end of a process, with its traceback unless that is already in the log."""
    failure = worker.failure
    if failure is None or failure.logged or failure.traceback == failure.message:
        return reason(worker)
    if failure.traceback.startswith(failure.message):
        return f"{failure.kind}: {failure.traceback}"
    return f"{reason(worker)}\n{failure.traceback}"
