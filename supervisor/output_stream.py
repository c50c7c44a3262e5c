"""Standard streams of a process: what is written to them never waits for who reads them."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TextIO

#: What waits for a reader at most, in characters: the output of seconds, for a pause of the reader.
BUFFER_CHARS = 8 << 20
#: What is written at once.
BATCH_CHARS = 64 << 10
#: How long the end of a process waits for a reader that takes nothing, in seconds.
DRAIN_SECONDS = 2.0


class OutputStream:
    """Text for one stream, written by a thread of its own; any thread may write.

    A pipe that nothing reads, or a terminal after Ctrl-S, blocks that thread only. What waits is bounded: beyond
    BUFFER_CHARS lines are dropped. stream: returns where to write. on_full: called when the first line is dropped, in
    the thread that wrote it. on_dropped: called with the number of dropped lines once the stream takes text again.
    on_error: called with the error once if the stream is closed at its other end; all is dropped from then on.
    """

    def __init__(
        self,
        stream: Callable[[], TextIO],
        *,
        on_full: Callable[[], object] = lambda: None,
        on_dropped: Callable[[int], object] = lambda count: None,
        on_error: Callable[[OSError], object] = lambda error: None,
    ) -> None:
        self._stream = stream
        self._on_full = on_full
        self._on_dropped = on_dropped
        self._on_error = on_error
        self._changed = threading.Condition()
        self._texts: deque[str] = deque()
        #: Characters that wait, those that are just being written included.
        self._waiting = 0
        self._written = 0
        self._dropped = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> None:
        """Have a text written, lines with their ends; returns at once.

        Nothing is written once the interpreter is being finalized: a thread that a ``__del__`` starts then never runs.
        """
        if sys.is_finalizing():
            return
        with self._changed:
            fits = self._waiting + len(text) <= BUFFER_CHARS
            if fits:
                self._texts.append(text)
                self._waiting += len(text)
                self._changed.notify_all()
            else:
                self._dropped += 1
            is_first = self._dropped == 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-output", daemon=True)
                self._thread.start()
        if is_first and not fits:
            self._on_full()

    def drain(self) -> bool:
        """Wait until all is written; False if the reader took nothing for DRAIN_SECONDS."""
        with self._changed:
            while self._waiting:
                if not self._changed.wait_for(partial(self._has_written, self._written), DRAIN_SECONDS):
                    return False
        return True

    def _has_written(self, since: int) -> bool:
        return self._written != since

    def _run(self) -> None:
        while True:
            lines, text = self._next_batch()
            is_written = self._is_closed or self._write(text)
            with self._changed:
                self._waiting -= len(text)
                self._written += len(text)
                self._dropped += 0 if is_written else lines
                # Not as soon as one line fits again: a reader that is too slow would get little else.
                dropped = self._dropped if self._waiting < BUFFER_CHARS // 2 else 0
                self._dropped -= dropped
                self._changed.notify_all()
            if dropped and is_written:
                self._on_dropped(dropped)

    def _next_batch(self) -> tuple[int, str]:
        with self._changed:
            self._changed.wait_for(lambda: self._texts)
            texts: list[str] = []
            size = 0
            while self._texts and size < BATCH_CHARS:
                texts.append(self._texts.popleft())
                size += len(texts[-1])
        return len(texts), "".join(texts)

    def _write(self, text: str) -> bool:
        try:
            _write_now(self._stream(), text)
        except BrokenPipeError as error:  # e.g. `| head` has ended: no reason to stop processing
            self._is_closed = True
            self._on_error(error)
        except (OSError, ValueError):  # e.g. its disk is full, a notebook has closed it: later it may take text
            return False
        return True


def _write_now(stream: TextIO, text: str) -> None:
    """Write a text, escaped where the stream's encoding cannot take it; may wait for the reader."""
    encoding = stream.encoding or "utf-8"
    data = text.encode(encoding, "backslashreplace")
    if stream is not sys.__stdout__ and stream is not sys.__stderr__:
        stream.write(data.decode(encoding))
        stream.flush()
        return
    # Not through the stream: whoever waits in it holds a lock that an interpreter needs to end.
    rest = memoryview(data)
    writable = select.poll()
    writable.register(stream.fileno(), select.POLLOUT)
    while rest:
        writable.poll()  # a terminal's other users may have made it non-blocking
        with suppress(BlockingIOError):
            rest = rest[os.write(stream.fileno(), rest) :]


def open_standard_streams() -> None:
    """Connect standard streams that are closed to /dev/null: else the next file or socket would be taken for them."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            stream = open(descriptor, "w" if descriptor else "r", closefd=False)  # noqa: SIM115  as long as the program
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
