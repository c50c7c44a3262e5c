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


def cannot_start(worker: Worker, any_has_started: bool) -> bool:
    """Return whether another process would end in the same way.

    any_has_started: a stream thread of the application has already started. If none has, a crash or an exit during the
    import of the topology would only repeat, with ten more tracebacks.
    """
    if worker.exit_code == WorkerExitCode.BOOT_FAILED or (worker.exit_code > 0 and not worker.has_started):
        return True
    crashed = worker.failure is None and worker.exit_code not in FROM_OUTSIDE
    return crashed and worker.state is StreamThreadState.CREATED and not any_has_started


def reason(worker: Worker) -> str:
    """Return one line with the reason for the end of a process."""
    if worker.failure is None:
        when = " before its stream thread started" if worker.state is StreamThreadState.CREATED else ""
        told = f"process {worker.pid} ended with {worker.cause_of_death()}{when}; its stderr has more"
        hidden = [] if worker.has_started else shadows(os.getcwd())
        return f"{told}. {advice(hidden)}" if hidden else told
    return f"{worker.failure.kind}: {worker.failure.message}" if worker.failure.message else worker.failure.kind


def explanation(worker: Worker) -> str:
    """Return the reason for the end of a process, with its traceback unless that is already in the log."""
    failure = worker.failure
    if failure is None or failure.logged or failure.traceback == failure.message:
        return reason(worker)
    if failure.traceback.startswith(failure.message):
        return f"{failure.kind}: {failure.traceback}"
    return f"{reason(worker)}\n{failure.traceback}"
