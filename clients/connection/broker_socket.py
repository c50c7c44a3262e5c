"""One broker's connection as length-prefixed requests and responses (Kafka: NetworkReceive)."""

from __future__ import annotations

import socket
import ssl
import struct
from collections import deque

from ..traffic import ConnectionTraffic

#: Raised by a socket that would block, or that needs a TLS read or write first.
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_LENGTH_BYTES = 4


class BrokerSocket:
    """Sends and receives without blocking. opened: a connected, authenticated socket, TLS or not; owned by this object.

    max_bytes: longer responses are rejected. traffic: counts sent and received bytes.
    """

    def __init__(self, opened: socket.socket, max_bytes: int, traffic: ConnectionTraffic) -> None:
        opened.setblocking(False)
        self._socket = opened
        self._max_bytes = max_bytes
        self._traffic = traffic
        self._unsent: deque[memoryview] = deque()
        self._length = bytearray()
        self._answer: bytearray | None = None
        self._received = 0
        #: Whether the last receive() read any bytes.
        self.has_received = False

    def fileno(self) -> int:
        """Return the file descriptor to wait on."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether part of a request did not fit into the socket buffer; the next calls send it."""
        return bool(self._unsent)

    def send(self, request: bytes) -> None:
        """Send a request, or part of it if the socket is full. Raises OSError."""
        self._traffic.requested(len(request))
        self._unsent.append(memoryview(len(request).to_bytes(_LENGTH_BYTES, "big") + request))
        self.flush()

    def flush(self) -> None:
        """Send as many unsent bytes as the socket takes. Raises OSError."""
        try:
            while self._unsent:
                first = self._unsent[0]
                sent = self._socket.send(first)
                self._traffic.wrote(sent)
                if sent < len(first):
                    self._unsent[0] = first[sent:]
                else:
                    self._unsent.popleft()
        except _LATER:
            return

    def receive(self) -> bytearray | None:
        """Return a response without its length, None if it is incomplete. Raises OSError if the connection is lost."""
        self.has_received = False
        if self._unsent:
            self.flush()
        try:
            while True:
                if self._answer is None:
                    some = self._socket.recv(_LENGTH_BYTES - len(self._length))
                    self._note_received(len(some))
                    self._length += some
                    if len(self._length) == _LENGTH_BYTES:
                        self._begin(int.from_bytes(self._length, "big", signed=True))
                else:
                    into = memoryview(self._answer)[self._received :]
                    count = self._socket.recv_into(into)
                    self._note_received(count)
                    self._received += count
                    if self._received == len(self._answer):
                        return self._complete()
        except _LATER:
            return None

    def _begin(self, length: int) -> None:
        if not 0 < length <= self._max_bytes:
            raise ConnectionError(f"a response of {length} bytes exceeds receive.message.max.bytes={self._max_bytes}")
        self._length.clear()
        self._answer = bytearray(length)
        self._received = 0

    def _complete(self) -> bytearray | None:
        response, self._answer = self._answer, None
        self._traffic.responses += 1
        return response

    def _note_received(self, received: int) -> None:
        if not received:
            raise ConnectionError("the broker closed the connection")
        self._traffic.read(received)
        self.has_received = True

    def drop_at_close(self, is_dropped: bool) -> None:
        """Choose whether the kernel drops unsent bytes when this is closed, or its process killed.

        Otherwise it delivers them, however late: a former owner's records, behind those of its successor.
        """
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", is_dropped, 0))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
