"""One request and its response in the proxy, and the default action, which passes them."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from .board import Board, Broker
from .framing import Request, framed
from .messages import decode_answer, error_codes, wants_answer

_LINGER_NOT = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST


class Direction(Enum):
    """The direction of bytes."""

    REQUEST = "request"  # from the client to the broker
    ANSWER = "answer"


class ConnectionEndedError(ConnectionError):
    """An action has ended the connection."""


class Side:
    """One end of a connection: the client's or the broker's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer
        self.silent = False

    async def write(self, data: bytes) -> None:
        """Send bytes, none if the side is silenced or gone: its reader notices the end."""
        if self.silent:
            return
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError:
            self.silent = True

    def end(self) -> None:
        """End it cleanly, when what is buffered has been sent."""
        self._writer.close()

    async def close(self) -> None:
        """End it cleanly and wait until it has ended."""
        self.end()
        with suppress(OSError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """End it at once; what is buffered is lost."""
        self._writer.transport.abort()

    def reset(self) -> None:
        """End it at once with a TCP reset."""
        handle: socket.socket = self._writer.get_extra_info("socket")
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self.abort()


@dataclass
class Line:
    """A client's connection to a broker. under_way: exchanges without an answer so far, oldest first.

    arrivals: the broker's answers; empty bytes: look at under_way again; None: the broker has ended the connection.
    """

    client: Side
    upstream: Side
    broker: Broker
    board: Board
    under_way: deque[Exchange] = field(default_factory=deque)
    arrivals: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(maxsize=8))


class Exchange:
    """The state for an action. answer: the broker's, or a made-up one; empty until it is known."""

    def __init__(self, line: Line, request: Request, action: Action) -> None:
        self.request = request
        self.action = action
        self.answer = b""
        self._line = line
        self._answered = asyncio.Event()

    async def forward(self) -> None:
        """Send the request to the broker."""
        await self.write(Direction.REQUEST, self.frame(Direction.REQUEST))

    async def give(self, answer: bytes) -> None:
        """Send an answer to the client; an exchange has one at most."""
        await self.write(Direction.ANSWER, framed(answer))
        self._line.board.passed(self.request)

    async def refuse(self, answer: bytes) -> None:
        """Send a response in its turn, without the broker; not to a client that expects none."""
        if not wants_answer(self.request):
            return
        self.answer = answer
        self._line.under_way.append(self)
        await self._line.arrivals.put(b"")

    async def write(self, direction: Direction, data: bytes) -> None:
        """Send some bytes of a frame."""
        if direction is Direction.ANSWER:
            await self._line.client.write(data)
            return
        if wants_answer(self.request) and self not in self._line.under_way:
            self._line.under_way.append(self)
        await self._line.upstream.write(data)

    def frame(self, direction: Direction) -> bytes:
        """Return a whole frame; the answer's once it has arrived."""
        return framed(self.request.data if direction is Direction.REQUEST else self.answer)

    def take(self, answer: bytes) -> None:
        """Keep the broker's answer."""
        self.answer = answer
        self._answered.set()

    async def answered(self) -> None:
        """Wait for the broker's answer, and note its errors."""
        await self._answered.wait()
        errors = {error.name.upper() for error in error_codes(decode_answer(self.request, self.answer)) if error}
        self.note(f"the broker answers: {', '.join(sorted(errors)) or 'no error'}")

    def close(self, *, reset: bool = False) -> None:
        """End the connection on both sides, with a TCP reset if so; raises ConnectionEndedError always."""
        for side in (self._line.client, self._line.upstream):
            if reset:
                side.reset()
            else:
                side.end()
        raise ConnectionEndedError

    def leave_client(self) -> None:
        """End the client's side of the connection only."""
        self._line.client.silent = True
        self._line.client.end()

    def silence(self, direction: Direction) -> None:
        """Swallow all later bytes of the connection in one direction."""
        (self._line.upstream if direction is Direction.REQUEST else self._line.client).silent = True

    def passing(self, api: str, nth: int) -> Awaitable[None]:
        """Wait until the nth answer of an API from now on was given to its client, on any connection."""
        return self._line.board.passing(api, nth)

    def note(self, what: str) -> None:
        """Add a line to what the proxy shows."""
        self._line.board.note(self.request, self._line.broker, what)


class Action:
    """Lets everything pass; other actions derive from it."""

    async def on_request(self, exchange: Exchange) -> None:
        """Handle the request."""
        await exchange.forward()

    async def on_answer(self, exchange: Exchange, answer: bytes) -> None:
        """Handle the response."""
        await exchange.give(answer)
