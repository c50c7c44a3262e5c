"""Standard streams of a process: writing never waits for the reader."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TextIO

#: Maximum buffered characters: the output of some seconds, for a pause of the reader.
BUFFER_CHARS = 8 << 20
#: Maximum size of one write.
BATCH_CHARS = 64 << 10
#: Seconds that the end of a process waits for a reader that does not read.
DRAIN_SECONDS = 2.0


@dataclass(eq=False)
class OutputStream:
    """Text for one stream, written by its own thread; any thread may write.

    A pipe without a reader, or a terminal after Ctrl-S, blocks only that thread. The buffer is bounded: beyond
    BUFFER_CHARS lines are dropped. stream: returns the target stream. on_full: called when the first line is dropped,
    in the thread that wrote it. on_dropped: called with the number of dropped lines once the stream is read again.
    on_error: called once with the error if the stream is closed at its other end; all further text is dropped.
    """

    stream: Callable[[], TextIO]
    _: KW_ONLY
    on_full: Callable[[], object] = lambda: None
    on_dropped: Callable[[int], object] = lambda count: None
    on_error: Callable[[OSError], object] = lambda error: None

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._texts: deque[str] = deque()
        #: Buffered characters, including those being written.
        self._waiting = 0
        self._written = 0
        self._dropped = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> None:
        """Enqueue text, lines with their ends; returns at once.

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
            self.on_full()

    def drain(self) -> bool:
        """Wait until all text is written; False if nothing was read for DRAIN_SECONDS."""
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
                # Not as soon as one line fits again: a slow reader would mostly get such reports.
                dropped = self._dropped if self._waiting < BUFFER_CHARS // 2 else 0
                self._dropped -= dropped
                self._changed.notify_all()
            if dropped and is_written:
                self.on_dropped(dropped)

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
            _write_now(self.stream(), text)
        except BrokenPipeError as error:  # e.g. `| head` has ended: no reason to stop processing
            self._is_closed = True
            self.on_error(error)
        except (OSError, ValueError):  # e.g. its disk is full, or a notebook has closed it: it may accept text later
            return False
        return True


def _write_now(stream: TextIO, text: str) -> None:
    """Write text, escaped if the stream's encoding cannot represent it; may wait for the reader."""
    encoding = stream.encoding or "utf-8"
    data = text.encode(encoding, "backslashreplace")
    if stream is not sys.__stdout__ and stream is not sys.__stderr__:
        stream.write(data.decode(encoding))
        stream.flush()
        return
    # Not through the stream: a thread that waits in it holds a lock that the interpreter needs to exit.
    rest = memoryview(data)
    writable = select.poll()
    writable.register(stream.fileno(), select.POLLOUT)
    while rest:
        writable.poll()  # a terminal's other users may have made it non-blocking
        with suppress(BlockingIOError):
            rest = rest[os.write(stream.fileno(), rest) :]


def open_standard_streams() -> None:
    """Connect closed standard streams to /dev/null: otherwise the next file or socket would get their descriptors."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            stream = open(descriptor, "w" if descriptor else "r", closefd=False)  # noqa: SIM115  as long as the program
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
