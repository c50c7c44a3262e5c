"""Starts the processes of stream threads."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass, replace

from penstock.clients.log_context import PrefixedLogger

from ..logs.worker_output import Note
from .restore_listeners import RestoreListeners
from .spare_process import SpareProcess
from .worker import Worker
from .worker_process import Prepare, WorkerSpec, WorkerTarget


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
        self.spare.look(running, behind, replace(self.spec, num_threads=num_threads))
