"""Messages over the pipe between the supervisor and one of its processes.

multiprocessing's ``recv`` blocks until a message is complete, so a process that hangs while it sends one would block
the supervisor. Here a message is received only when it has arrived completely.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

_LENGTH = struct.Struct(">Q")
#: Bytes per read of the pipe; the usual size of a socket buffer.
READ_BYTES = 256 * 1024


class Channel:
    """One end of a duplex pipe. The messages are pickled, and come only from our own process tree.

    Any thread may send, and close it; one receives.

    blocking: ``receive`` waits for at least one message (the process's end), otherwise it returns the arrived ones.
    """

    def __init__(self, connection: Connection[object, object], *, blocking: bool) -> None:
        self._connection = connection
        self._buffer = bytearray()
        self._sending = threading.Lock()
        os.set_blocking(connection.fileno(), blocking)

    def fileno(self) -> int:
        """Return the file descriptor, so that a loop can wait for messages."""
        return self._connection.fileno()

    def close(self) -> None:
        """Close this end; the other one gets EOFError."""
        with self._sending:
            self._connection.close()

    def send(self, message: object) -> None:
        """Send a message, waiting as long as the pipe is full; raises OSError if the other end is closed."""
        self._write(message, waits=True)

    def offer(self, message: object, at_most: int = sys.maxsize) -> bool:
        """Send a small message without waiting; False if the other end does not read or is closed.

        at_most: in bytes; False for a larger message.
        """
        try:
            return self._write(message, waits=False, at_most=at_most)
        except OSError:
            return False

    def _write(self, message: object, waits: bool, at_most: int = sys.maxsize) -> bool:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        if len(data) > at_most:
            return False
        rest = memoryview(_LENGTH.pack(len(data)) + data)
        with self._sending:
            while rest:
                try:
                    rest = rest[os.write(self.fileno(), rest) :]
                    waits = True  # a partly sent message is completed
                except BlockingIOError:
                    if not waits:
                        return False
                    writable = select.poll()
                    writable.register(self, select.POLLOUT)
                    writable.poll()
        return True

    def receive(self) -> list[Any]:
        """Return the messages that have arrived; raises EOFError when the other end is closed and nothing is left."""
        while not (messages := self._complete()):
            try:
                data = os.read(self.fileno(), READ_BYTES)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError
            self._buffer += data
        return messages

    def _complete(self) -> list[object]:
        messages = []
        start, have = 0, len(self._buffer)
        while have - start >= _LENGTH.size:
            end = start + _LENGTH.size + int(_LENGTH.unpack_from(self._buffer, start)[0])
            if end > have:
                break
            messages.append(pickle.loads(self._buffer[start + _LENGTH.size : end]))  # noqa: S301  our own processes
            start = end
        del self._buffer[:start]
        return messages
