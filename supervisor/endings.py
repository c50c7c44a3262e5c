"""What the end of a process means: whether another try could help, and what to tell."""

from __future__ import annotations

import os
import signal

from penstock.topology.shadowing import advice, shadows
from penstock.workers.stream_thread_state import StreamThreadState

from .exit_codes import WorkerExitCode
from .worker import UNKNOWN_EXIT, Worker

#: Signals that come from outside, e.g. from the kernel short of memory: they say nothing against another try.
FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, UNKNOWN_EXIT)


def cannot_start(worker: Worker, any_has_started: bool) -> bool:
    """Return whether a process ended in a way in which another one would end too.

    any_has_started: a stream thread of the application has come further than this one. If none has, then a crash or an
    exit while the topology is imported would only happen again, with ten more tracebacks.
    """
    if worker.exit_code == WorkerExitCode.BOOT_FAILED or (worker.exit_code > 0 and not worker.has_started):
        return True
    crashed = worker.failure is None and worker.exit_code not in FROM_OUTSIDE
    return crashed and worker.state is StreamThreadState.CREATED and not any_has_started


def reason(worker: Worker) -> str:
    """Return in a line why a process ended."""
    if worker.failure is None:
        when = " before its stream thread started" if worker.state is StreamThreadState.CREATED else ""
        told = f"process {worker.pid} ended with {worker.cause_of_death()}{when}; its stderr has more"
        hidden = [] if worker.has_started else shadows(os.getcwd())
        return f"{told}. {advice(hidden)}" if hidden else told
    return f"{worker.failure.kind}: {worker.failure.message}" if worker.failure.message else worker.failure.kind


def explanation(worker: Worker) -> str:
    """Return why a process ended, with the traceback if it has one that is not in the log yet."""
    failure = worker.failure
    if failure is None or failure.logged or failure.traceback == failure.message:
        return reason(worker)
    if failure.traceback.startswith(failure.message):
        return f"{failure.kind}: {failure.traceback}"
    return f"{reason(worker)}\n{failure.traceback}"
