"""A process with everything imported, ready to replace a stream thread that dies.

After the death of a stream thread, most of the time goes into starting an interpreter and importing Penstock, its
libraries and the user's module. So one process does that in advance: it replaces the dead one at once.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import InitVar, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.clients.log_context import PrefixedLogger
from penstock.workers.control.messages import Shutdown, ThreadControl

from ..exit_codes import WorkerExitCode
from ..logs.worker_output import Note
from .endings import explanation
from .restore_listeners import RestoreListeners
from .worker import Worker
from .worker_process import PipeControl, Prepare, SpareReady, TakeOver, WorkerSpec, WorkerTarget, show_in_ps

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

#: How long all stream threads must have run, and have kept up with their input, before the spare process starts, in ms:
#: it uses CPU time when the application is idle, and a short-lived application never has one.
QUIET_MS = 5_000
#: How long it waits at most for running stream threads to catch up, in ms.
BEHIND_MS = 60_000
#: How long to wait before replacing a killed spare process, in ms: the host may be short of memory.
KILLED_MS = 60_000
#: Its number while it has no stream thread.
NO_SLOT = 0

#: Starts a process: Worker.spawn without its first and last argument.
Spawn = Callable[[WorkerSpec, WorkerTarget, int], Worker]


@dataclass(eq=False)
class WorkerStarter:
    """Uses the spare process if there is one, otherwise starts a new one.

    spec: the common part of all stream threads' specs. note: called with each log record of a process. now: returns
    the supervisor's monotonic ms.
    """

    spec: WorkerSpec
    target: WorkerTarget
    prepare: InitVar[Prepare | None]
    listeners: RestoreListeners
    note: Note
    now: Callable[[], int]
    log: PrefixedLogger

    def __post_init__(self, prepare: Prepare | None) -> None:
        self.spare = SpareProcess(prepare, self.target, self._spawn, self.now, self.log)

    def start(self, slot: int, num_threads: int) -> Worker:
        """Return the process of a slot's stream thread, just started. Raises OSError if the kernel refuses one."""
        spec = replace(self.spec, slot=slot, num_threads=num_threads, listeners=self.listeners.wanted)
        worker = self.spare.take(spec)
        ready = ", which was ready" if worker is not None else ""
        if worker is None:
            worker = self._spawn(spec, self.target, self.now())
        self.log.info("Started %s as process %d%s", spec.name, worker.pid, ready)
        return worker

    def _spawn(self, spec: WorkerSpec, target: WorkerTarget, now: int) -> Worker:
        # A forked librdkafka handle hangs, so nothing is forked.
        return Worker.spawn(multiprocessing.get_context("spawn"), spec, target, now, self.note)

    def look(self, running: bool, workers: Iterable[Worker], num_threads: int) -> None:
        """Start the spare process when it is due; see SpareProcess.look."""
        behind = any(worker.is_behind for worker in workers)
        self.spare.look(running, behind, lambda: replace(self.spec, num_threads=num_threads))


@dataclass(frozen=True, slots=True)
class SpareTarget:
    """The main function of a spare process: it prepares, waits for TakeOver, and becomes the stream thread."""

    prepare: Prepare
    target: WorkerTarget

    def __call__(self, spec: WorkerSpec, control: ThreadControl) -> None:
        """Return on a shutdown request, before or after the take-over. Raises what prepare and target raise."""
        assert isinstance(control, PipeControl)
        self.prepare(spec)
        control.send(SpareReady())
        command: object = None
        while not isinstance(command, TakeOver):
            command = control.wait_for_command()
            if isinstance(command, Shutdown):
                return
        spec = replace(spec, slot=command.slot, num_threads=command.num_threads, listeners=command.listeners)
        multiprocessing.current_process().name = spec.name
        show_in_ps(spec)
        self.target(spec, control)


class SpareProcess:
    """The supervisor's side: starts the spare process, watches it, and hands it over.

    prepare: the preparation; None: there is never a spare process. now: returns the supervisor's monotonic ms.
    Only the supervisor's thread may use it.
    """

    def __init__(
        self, prepare: Prepare | None, target: WorkerTarget, spawn: Spawn, now: Callable[[], int], log: PrefixedLogger
    ) -> None:
        self._spawn = spawn
        self._now = now
        self._target = SpareTarget(prepare, target) if prepare is not None else None
        self._log = log
        self._worker: Worker | None = None
        self._running_since: int | None = None
        self._quiet_since: int | None = None
        self._not_before: int | None = None

    def look(self, running: bool, behind: bool, spec: Callable[[], WorkerSpec]) -> None:
        """Start the process if it is time. running: all stream threads run; behind: one has work; spec: makes that of
        NO_SLOT.
        """
        if self._target is None or self._worker is not None:
            return
        now = self._now()
        if not running:
            self._running_since = self._quiet_since = None
            return
        if self._running_since is None:
            self._running_since = now
        if behind:
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now
        due_at = self._running_since + BEHIND_MS
        if self._quiet_since is not None:
            due_at = min(due_at, self._quiet_since + QUIET_MS)
        if now >= max(due_at, self._not_before or 0):
            self._start(spec(), self._target, now)

    def _start(self, spec: WorkerSpec, target: SpareTarget, now: int) -> None:
        try:
            self._worker = self._spawn(spec, target, now)
        except OSError as error:
            self._do_without(f"cannot be started: {error}")

    def sources(self) -> Iterator[tuple[FileDescriptorLike, Callable[[], object]]]:
        """Yield objects to wait for, with their callbacks: see Supervisor."""
        worker = self._worker
        if worker is None:
            return
        for reader in worker.output.readers:
            yield reader, partial(self._act, worker, partial(worker.output.read, reader))
        if not worker.hung_up:
            yield worker.control, partial(self._act, worker, partial(self._read_reports, worker))
        yield worker.sentinel, partial(self._act, worker, partial(self._on_end, worker))

    def _act(self, worker: Worker, callback: Callable[[], object]) -> None:
        """Call back, unless the process was ended, and its pipes closed, since sources() was read."""
        if worker is self._worker:
            callback()

    def _read_reports(self, worker: Worker) -> bool:
        reports = worker.receive(self._now())
        if any(isinstance(report, SpareReady) for report in reports):
            self._log.info("Process %d is ready to replace a stream thread that dies", worker.pid)
        return bool(reports)

    def _on_end(self, worker: Worker) -> None:
        if not worker.has_ended():
            return
        while self._read_reports(worker):
            pass
        self._worker = None
        if worker.failure is not None or worker.exit_code > WorkerExitCode.STOPPED:
            self._do_without(f"failed: {explanation(worker)}")
        else:
            self._log.warning(
                "The spare process, %d, ended: %s. Another one starts in %d s",
                worker.pid,
                worker.cause_of_death(),
                KILLED_MS // 1000,
            )
            self._not_before = self._now() + KILLED_MS
        worker.close()

    def _do_without(self, why: str) -> None:
        self._target = None
        self._log.warning(
            "There will be no spare process, since it %s. A stream thread that dies is replaced by a new process, "
            "which takes a second longer. penstock.worker.spare=false does without from the start.",
            why,
        )

    def take(self, spec: WorkerSpec) -> Worker | None:
        """Return the spare process as the stream thread of a spec, None if there is none. It may still be starting."""
        worker, self._worker = self._worker, None
        self._running_since = self._quiet_since = None
        if worker is None:
            return None
        if not worker.has_ended() and worker.take_over(spec, self._now()):
            return worker
        worker.kill()
        worker.close()
        return None

    def end(self) -> None:
        """Kill it: it has no state to lose."""
        worker, self._worker, self._target = self._worker, None, None
        if worker is not None:
            worker.kill()
            worker.close()
