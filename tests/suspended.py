"""Processes that exist, keep their connections, and do nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import eventually


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    """Suspend a process, and let it continue at the end.

    On a busy machine its threads do some more work after the signal: none of them does when the block begins.
    """
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: states(pid) == {"T"}, lambda: f"the threads of {pid} are in the states {states(pid)}")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def states(pid: int) -> set[str]:
    """Return the states of a process's threads, by the kernel's letters."""
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in Path("/proc", str(pid), "task").glob("*/stat")}
