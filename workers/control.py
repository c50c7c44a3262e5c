"""What a stream thread and its supervisor say to each other. Plain values: they are pickled through a pipe.

The stream thread sees only ThreadControl; supervisor/worker_process.py implements it over a duplex pipe, tests in
memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Command: go to PENDING_SHUTDOWN. leave_group: tell the group (scale-down), else keep the static membership."""

    leave_group: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Command: stop processing, stay in the group (KIP-834)."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Command: process again."""


@dataclass(frozen=True, slots=True)
class ShutDownApplication:
    """Command: ask all members of the group, on all hosts, to shut down (KIP-671); this thread is one of them."""


@dataclass(frozen=True, slots=True)
class Query:
    """Command: read a state store; the answer is a QueryResult with the same id."""

    id: int
    store: str
    method: str
    arguments: tuple[Any, ...] = ()


Command = Shutdown | Pause | Resume | ShutDownApplication | Query


@dataclass(frozen=True, slots=True)
class StateChanged:
    """Report: the stream thread went from one state to another (names of StreamThreadState)."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """What a status line shows of one task."""

    task_id: str
    kind: str  # "active" or "standby"
    state: str
    restore_remaining: int = 0
    restore_total: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """Report: the liveness beat, made by the loop itself. Totals count from the start of the process."""

    state: str
    tasks: tuple[TaskStatus, ...] = ()
    records_processed: int = 0
    lag: int = 0
    restore_rate: float = 0.0  # records per second
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Report: the answer to a Query; error is None or what went wrong."""

    id: int
    value: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Report: the stream thread dies of this exception. traceback is text; kind is the exception's class name."""

    kind: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class ApplicationShutdownRequested:
    """Report: a member of the group asked the whole application to shut down; this thread is doing so."""


Report = StateChanged | Status | QueryResult | Failed | ApplicationShutdownRequested


class ThreadControl(Protocol):
    """The stream thread's end of the line. Neither call blocks."""

    def poll_commands(self) -> list[Command]:
        """Return the commands that have arrived since the last call."""

    def report(self, report: Report) -> None:
        """Send a report."""
