"""The output and log of a stream thread's process, written by the supervisor's thread as whole lines and records."""

from __future__ import annotations

import logging
import os
import select
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

from ..channels.channel import READ_BYTES, Channel
from .log_floods import LIBRDKAFKA, FloodGate
from .output_stream import OutputStream
from .text_blocks import TextBlocks

#: A line without an end is written in pieces of this size, to limit memory.
LINE_BYTES_MAX = 64 << 10
#: For all processes: equal lines of several processes are logged once.
_FLOODS = FloodGate()
_log = logging.getLogger(__name__)
#: The target of the processes' stdout: this process's, possibly without a reader.
STDOUT = OutputStream(
    lambda: sys.stdout,
    on_full=lambda: _log.warning("stdout is not read: lines that stream threads print are dropped now"),
    on_dropped=lambda count: _log.warning("%d lines that stream threads printed were dropped", count),
    on_error=lambda error: _log.warning(
        "Cannot write to stdout (%s): output of stream threads is dropped from now on", error
    ),
)

#: Called with each log record of a process before it is logged here.
Note = Callable[[logging.LogRecord], None]


def ignore(record: logging.LogRecord) -> None:
    """Do nothing."""


class LineReader:
    """Reads lines from a text pipe; never waits."""

    def __init__(self, connection: Connection[object, object], write: Callable[[str], None]) -> None:
        self._connection = connection
        self._write = write
        self._rest = b""
        os.set_blocking(connection.fileno(), False)

    def fileno(self) -> int:
        """Return the file descriptor to wait for."""
        return self._connection.fileno()

    def read(self) -> bool:
        """Write the lines that have arrived; False at the end of the pipe."""
        try:
            data = os.read(self.fileno(), READ_BYTES)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._rest and (not data or len(self._rest) > LINE_BYTES_MAX):
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._write(line.decode(errors="backslashreplace"))
        return bool(data)

    def flush(self) -> None:
        """Write buffered lines, because nothing may follow; a line without its end stays."""

    def close(self) -> None:
        """Close the pipe's end."""
        self._connection.close()


class BlockReader(LineReader):
    """Reads text from a pipe like LineReader, but writes related lines as one text."""

    def __init__(self, connection: Connection[object, object], write: Callable[[str], None]) -> None:
        super().__init__(connection, self._add)
        self._blocks = TextBlocks()
        self._write_block = write

    def read(self) -> bool:
        """Write the blocks that are complete; False at the end of the pipe."""
        more = super().read()
        if not more:
            self.flush()
        elif not _has_data(self):
            self._put(self._blocks.pause())
        return more

    def flush(self) -> None:
        """Write the current block, complete or not."""
        self._put(self._blocks.take())

    def _add(self, line: str) -> None:
        self._put(self._blocks.add(line))

    def _put(self, block: str | None) -> None:
        if block is not None:
            self._write_block(block)


class RecordReader:
    """Reads log records from a pipe and passes them to this process's logging; never waits."""

    def __init__(self, connection: Connection[object, object], note: Note = ignore) -> None:
        self._note = note
        self._channel = Channel(connection, blocking=False)

    def fileno(self) -> int:
        """Return the file descriptor to wait for."""
        return self._channel.fileno()

    def read(self) -> bool:
        """Write the records that have arrived; False at the end of the pipe."""
        try:
            records = self._channel.receive()
        except EOFError:
            return False
        for record in records:
            if record.name == LIBRDKAFKA and not _FLOODS.admits(record):
                continue
            self._note(record)
            target = logging.getLogger(record.name)
            if target.isEnabledFor(record.levelno):
                target.handle(record)
        return True

    def flush(self) -> None:
        """Do nothing: no record is buffered."""

    def close(self) -> None:
        """Close the pipe's end."""
        self._channel.close()


Reader = LineReader | RecordReader


class WorkerOutput:
    """The three pipes of one process: log records, stdout and stderr.

    stdout goes unchanged to this process's stdout, because it may be a result. stderr, to which librdkafka, the
    interpreter and faulthandler write, goes to the log under the thread's name.
    """

    def __init__(
        self,
        name: str,
        log: Connection[object, object],
        stdout: Connection[object, object],
        stderr: Connection[object, object],
        note: Note = ignore,
    ) -> None:
        logger = logging.getLogger("penstock.supervisor.stderr")
        #: The stream thread's name; a spare process gets it later.
        self.name = name
        self.readers: list[Reader] = [
            RecordReader(log, note),
            LineReader(stdout, lambda line: STDOUT.write(f"{line}\n")),
            BlockReader(stderr, lambda text: logger.warning("stream-thread [%s] stderr: %s", self.name, text)),
        ]

    def read(self, reader: Reader) -> None:
        """Write the arrived data of one of ``readers``; at its end, remove it."""
        if not reader.read():
            reader.close()
            self.readers.remove(reader)

    def drain(self) -> None:
        """Write the remaining output of an ended process."""
        for reader in list(self.readers):
            while reader in self.readers and _has_data(reader):
                self.read(reader)
            reader.flush()

    def close(self) -> None:
        """Close all pipes; their remaining data is lost."""
        for reader in self.readers:
            reader.close()
        self.readers.clear()


def _has_data(reader: Reader) -> bool:
    """Return True if a read would return data or the end. A grandchild may hold the pipe open without writing."""
    poll = select.poll()
    poll.register(reader.fileno(), select.POLLIN)
    return bool(poll.poll(0))
