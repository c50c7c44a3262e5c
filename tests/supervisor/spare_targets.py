"""Preparations of spare processes in tests."""

from __future__ import annotations

import os
import socket

from worker_targets import CONDUCTOR

from penstock.supervisor.processes.worker_process import WorkerSpec

#: Suffix of the conductor's path: the socket where spare processes report that they prepare, and wait for permission to
#: continue.
DOOR = ".spare"


def prepare_quietly(spec: WorkerSpec) -> None:
    """Prepare nothing."""


def prepare_with_leave(spec: WorkerSpec) -> None:
    """Report name and pid; continue when the test responds."""
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(spec.config[CONDUCTOR] + DOOR)
        door.sendall(f"{spec.name} {os.getpid()}".encode())
        door.recv(1)


def refuse_to_prepare(spec: WorkerSpec) -> None:
    """Fail, as a user's module does that needs a resource exclusively."""
    raise OSError("Address already in use")
