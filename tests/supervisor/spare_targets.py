"""What spare processes prepare in tests."""

from __future__ import annotations

import os
import socket

from worker_targets import CONDUCTOR

from penstock.supervisor.processes.worker_process import WorkerSpec

#: Behind the conductor's path: where spare processes say that they prepare, and wait until they may continue.
DOOR = ".spare"


def prepare_quietly(spec: WorkerSpec) -> None:
    """Have nothing to prepare."""


def prepare_with_leave(spec: WorkerSpec) -> None:
    """Say the own name and pid; continue with what the test answers."""
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(spec.config[CONDUCTOR] + DOOR)
        door.sendall(f"{spec.name} {os.getpid()}".encode())
        door.recv(1)


def refuse_to_prepare(spec: WorkerSpec) -> None:
    """Fail, as a user's module does that wants something for itself alone."""
    raise OSError("Address already in use")
