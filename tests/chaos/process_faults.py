"""Faults of the processes of hosts, and of their state directories while they are down."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import psutil
from typing_extensions import override

from tests.chaos.faults import Faults, Stage
from tests.chaos.hosts import THREADS_MAX, Host
from tests.chaos.schedule import Action, Event

TOLD_TO_STOP = "was told to stop and ended"


class ProcessFaults(Faults):
    """Kills, stops and restarts of hosts and stream threads."""

    def __init__(self, stage: Stage, hosts: Sequence[Host]) -> None:
        super().__init__(stage)
        self._hosts = hosts

    @property
    @override
    def actions(self) -> Mapping[Action, Callable[[Event], str]]:
        hosts = (Action.KILL_HOST, Action.KILL_SUPERVISOR, Action.DELETE_STATE, Action.CORRUPT_STATE)
        return {
            **dict.fromkeys((*hosts, Action.RESTART_HOST), self._absence),
            Action.KILL_WORKER: self._hit_worker,
            Action.STOP_WORKER: self._hit_worker,
            Action.ADD_WORKER: self._change_workers,
            Action.REMOVE_WORKER: self._change_workers,
        }

    def _absence(self, event: Event) -> str:
        host = self._hosts[event.host]
        self._stage.agenda.drop(host.name)  # it may have been stopped already
        if not host.runs:
            host.start()  # so that the fault hits something: its start
        if event.action is Action.RESTART_HOST:
            self._see(event, int(host.runs), "clean stops")
            what = f"exit code {stop_cleanly(self._stage, host)}"
        else:
            what = self._take_down(host, event)
        self._heal_later(event, host.start, host.name)
        return f"{host.name} {what}, back in {event.duration_ms} ms"

    def _take_down(self, host: Host, event: Event) -> str:
        workers = len(host.workers())
        if event.action is Action.KILL_SUPERVISOR:
            resume(host)
            self._see(event, int(host.runs), "supervisors killed")
            if not host.kill_supervisor():
                self._stage.fail(f"workers of {host.name} outlive their supervisor")
            return "supervisor"
        killed = host.kill()
        rng = random.Random(event.seed)
        if event.action is Action.DELETE_STATE:
            gone = host.delete_state(rng)
            self._see(event, len(gone), "directories deleted")
            return f"and {', '.join(gone) or 'nothing'} deleted"
        if event.action is Action.CORRUPT_STATE:
            damaged = host.corrupt_state(rng)
            self._see(event, len(damaged), "files damaged")
            return f"and {', '.join(damaged) or 'nothing'}"
        self._see(event, killed, "processes killed")
        return f"supervisor and {workers} workers"

    def _hit_worker(self, event: Event) -> str:
        host = self._hosts[event.host]
        victim = host.victim(event.victim)
        if victim is None:
            return f"{host.name}: nobody there"
        worker, name = victim
        if event.action is Action.KILL_WORKER:
            self._see(event, send(worker, signal.SIGKILL), "processes killed")
            return name
        self._see(event, send(worker, signal.SIGSTOP), "processes stopped")
        self._heal_later(event, lambda: send(worker, signal.SIGCONT))
        return f"{name}, for {event.duration_ms} ms"

    def _change_workers(self, event: Event) -> str:
        host, add = self._hosts[event.host], event.action is Action.ADD_WORKER
        wanted = host.threads + (1 if add else -1)
        if not host.runs or not 1 <= wanted <= THREADS_MAX:
            return f"{host.name} keeps {host.threads}"
        host.threads = wanted
        host.signal_supervisor(signal.SIGTTIN if add else signal.SIGTTOU)
        self._see(event, 1, "signals sent")
        return f"{host.name} now {wanted}"


def stop_cleanly(stage: Stage, host: Host) -> int:
    """Stop a host that may be running; return its exit code.

    Any other code than 0 fails the run, unless the host is excused.
    """
    resume(host)  # a stopped process cannot stop cleanly
    started = bool(host.workers())
    code = host.stop() if host.runs else 0
    if code and (started or code != -signal.SIGTERM):  # before it has signal handlers, SIGTERM just kills it
        stage.report_end(host, TOLD_TO_STOP, code)
    return code


def send(process: psutil.Process, number: signal.Signals) -> int:
    """Send a signal; return the number of processes that received it: 0 if it is gone."""
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
        return 1
    return 0


def resume(host: Host) -> None:
    """Let all suspended processes of a host continue."""
    for worker in host.workers():
        send(worker, signal.SIGCONT)
