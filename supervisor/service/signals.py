"""The signals that an application handles."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

#: Each of them stops the application.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Those with a meaning to the supervisor. Processes of stream threads leave them to it, except SIGTERM. They are
#: blocked while one is spawned, until it has its own handlers.
HANDLED_SIGNALS = (*STOP_SIGNALS, signal.SIGQUIT, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR1)
#: Blocked signals are inherited; these must reach a process of an application. Watchdogs send SIGABRT.
NEEDED_SIGNALS = (*HANDLED_SIGNALS, signal.SIGABRT)
#: Stop signals within this time after the first are the same request, in ms: `timeout` sends SIGTERM to its child and
#: again to the child's process group, and a terminal that closes sends SIGHUP more than once.
SAME_REQUEST_MS = 1_000


class Request(Enum):
    """The request of a stop signal."""

    STOP = "stop"
    SAME = "the same stop"
    KILL = "kill"


class StopRequests:
    """Distinguishes a second stop request from the echo of the first."""

    def __init__(self) -> None:
        self._first_ms: int | None = None

    def next(self, number: int, at_ms: int) -> Request:
        """Return the request of a signal that arrived at this time (monotonic ms)."""
        if number == signal.SIGQUIT:
            return Request.KILL
        if self._first_ms is None:
            self._first_ms = at_ms
            return Request.STOP
        return Request.SAME if at_ms - self._first_ms < SAME_REQUEST_MS else Request.KILL


@contextmanager
def handled(handle: Callable[[int], None], numbers: Iterable[signal.Signals] = HANDLED_SIGNALS) -> Iterator[None]:
    """Install handle(number) for each of these signals, in the main thread, and let them in: the parent of this process
    may have blocked them.

    A signal that was ignored before stays ignored: `nohup` ignores SIGHUP, and a shell ignores SIGINT and SIGQUIT for
    commands in the background.
    """
    before: dict[int, Any] = {}
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, lambda n, _: handle(n))
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # inherited; the exit codes of children would be lost
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = let_in()
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for taken, handler in before.items():
            signal.signal(taken, handler)


def let_in() -> set[int]:
    """Unblock NEEDED_SIGNALS in this thread; return the mask of before."""
    return signal.pthread_sigmask(signal.SIG_UNBLOCK, NEEDED_SIGNALS)


def ignore_stops() -> None:
    """Let no further stop signal change how this process ends: while its interpreter ends, one would kill it."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def blocked() -> Iterator[None]:
    """Block HANDLED_SIGNALS in this thread. Threads that start meanwhile never get them; the main thread does.

    Python runs handlers in the main thread only; if the kernel gives a signal to another one, it waits there for the
    main thread to wake up.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
