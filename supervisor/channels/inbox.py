"""Work for the supervisor's loop, added by other threads and by signal handlers."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from penstock.topology.type_variables import R

#: Wake-ups that are read at a time; fewer mean that the pipe is empty.
WAKE_UPS = 4096


class Inbox:
    """A queue that wakes the loop: ``fileno`` is readable while the queue is not empty.

    ``put`` may be called from a signal handler: SimpleQueue is re-entrant, and the write never waits.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        # Not closed explicitly: a late signal would write into the next file with this descriptor.
        weakref.finalize(self, _close, self._read_end, self._write_end)

    def fileno(self) -> int:
        """Return the file descriptor to wait for."""
        return self._read_end

    def put(self, action: Callable[[], None]) -> None:
        """Make the loop call this function."""
        self._queue.put(action)
        with contextlib.suppress(BlockingIOError):  # the pipe is full of wake-ups already
            os.write(self._write_end, b"\0")

    def take(self) -> Iterator[Callable[[], None]]:
        """Yield the functions put since the last call."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._read_end, WAKE_UPS)) == WAKE_UPS:
                pass
        while True:
            try:
                yield self._queue.get_nowait()
            except Empty:
                return


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def set_answer(answer: Future[R], function: Callable[[], R]) -> None:
    """Call a function and pass its result or exception to a waiting caller."""
    try:
        answer.set_result(function())
    except Exception as error:  # noqa: BLE001  raised where the answer is waited for
        answer.set_exception(error)
