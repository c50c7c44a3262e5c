"""Kills in the middle of uploads and loads of checkpoints."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
from typing_extensions import override

from penstock.statestore.directory.state_directory import STORES_DIRECTORY
from tests.chaos.faults import Faults, Stage, turn_until
from tests.chaos.hosts import Host
from tests.chaos.process_faults import resume, send
from tests.chaos.schedule import Action, Event

#: Seconds for a transfer to begin: an interval, the commit after it, and the start of processes on a busy machine.
BEGIN_SECONDS = 60.0


class CheckpointFaults(Faults):
    """bucket: the directory with the checkpoints. turn: see BrokerFaults."""

    def __init__(self, stage: Stage, hosts: Sequence[Host], bucket: Path, turn: Callable[[], object]) -> None:
        super().__init__(stage)
        self._hosts = hosts
        self._bucket = bucket
        self._turn = turn

    @property
    @override
    def actions(self) -> Mapping[Action, Callable[[Event], str]]:
        return {Action.KILL_UPLOAD: self._kill_upload, Action.KILL_LOAD: self._kill_load}

    def _kill_upload(self, event: Event) -> str:
        return self._kill(event, "upload")

    def _kill_load(self, event: Event) -> str:
        host = self._hosts[event.host]
        turn_until(self._has_checkpoints, self._turn, BEGIN_SECONDS)
        self._stage.agenda.drop(host.name)  # it may have been stopped already
        resume(host)
        host.kill()
        shutil.rmtree(host.state, ignore_errors=True)
        host.start()
        return f"{host.name} without its state, {self._kill(event, 'load')}"

    def _has_checkpoints(self) -> bool:
        """Return whether each task with state has a checkpoint."""
        tasks = {path.name for host in self._hosts for path in host.task_directories() if _has_state(path)}
        return bool(tasks) and tasks <= {path.parent.parent.name for path in self._bucket.glob("*/*/manifests/*.json")}

    def _kill(self, event: Event, kind: str) -> str:
        """Kill a stream thread's process with a transfer of this kind, once there is one."""
        seen: list[tuple[Host, psutil.Process]] = []

        def has_begun() -> bool:
            seen.extend((host, worker) for host in self._hosts for worker, _ in host.transfers(kind))
            return bool(seen)

        turn_until(has_begun, self._turn, BEGIN_SECONDS)
        if not seen:
            return f"no {kind} has begun"
        host, worker = seen[0]
        self._see(event, send(worker, signal.SIGKILL), f"{kind}s killed")
        return f"{kind} of {host.name}, pid {worker.pid}"


def _has_state(task: Path) -> bool:
    return any((task / STORES_DIRECTORY).glob("*"))
