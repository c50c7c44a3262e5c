"""A stack of its own for each simulated process, so that it can be left in the middle of a call and taken up later.

Python's generators cannot suspend code that knows nothing of them; a thread can. But only one thread runs at any time,
and it is said which: whoever resumes a strand waits until the strand parks or ends. Nothing is left to the operating
system's scheduler, so a run is the same every time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class _Worker:
    """A thread that runs one strand after another: starting a thread costs more than a short strand does."""

    def __init__(self) -> None:
        self.work: Callable[[], None] | None = None
        self.go = threading.Lock()
        self.go.acquire()
        self.back = threading.Lock()
        self.back.acquire()
        self.thread = threading.Thread(target=self._run, name="simulated-process", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while True:
            self.go.acquire()
            if self.work is None:
                return
            self.work()
            self.work = None
            self.back.release()


class Strand:
    """Runs a function piece by piece: resume() runs it until it parks or ends. It must not raise."""

    _idle: list[_Worker] = []  # noqa: RUF012  shared by all strands on purpose

    def __init__(self, function: Callable[[], None]) -> None:
        self.ended = False
        self._worker = Strand._idle.pop() if Strand._idle else _Worker()
        self._worker.work = function

    def resume(self) -> None:
        """Go on where it parked."""
        worker = self._worker
        worker.go.release()
        worker.back.acquire()
        if worker.work is None:
            self.ended = True
            Strand._idle.append(worker)

    def park(self) -> None:
        """Called inside of it: give control back to whoever resumed it, until it is resumed again."""
        self._worker.back.release()
        self._worker.go.acquire()

    @classmethod
    def end_workers(cls) -> None:
        """End the threads that no strand uses any more."""
        idle, cls._idle = cls._idle, []
        for worker in idle:
            worker.go.release()
            worker.thread.join()
