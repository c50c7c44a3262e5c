"""Exchanges of a request and its response, the default action, which forwards both, and the pumps of a connection."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from .board import Board, Broker
from .framing import Request, WireError, correlation_id, framed, parse_request, read_frame
from .messages import answer_type, decode_answer, encode_answer, error_codes, wants_answer

_LINGER_NOT = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST


#: The field of each API's response that lists brokers. A response of FindCoordinator below version 4 is a broker
#: itself. The last four APIs name new leaders (KIP-951).
BROKERS = {
    "Metadata": "brokers",
    "DescribeCluster": "brokers",
    "FindCoordinator": "coordinators",
    "Produce": "node_endpoints",
    "Fetch": "node_endpoints",
    "ShareFetch": "node_endpoints",
    "ShareAcknowledge": "node_endpoints",
}

#: place(node, host, port) returns where clients reach the broker instead.
Place = Callable[[int, str, int], Awaitable[tuple[str, int]]]


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
        """Send bytes, or nothing if the side is silenced or closed; its reader detects the end."""
        if self.silent:
            return
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError:
            self.silent = True

    def end(self) -> None:
        """End it cleanly after the buffered bytes have been sent."""
        self._writer.close()

    async def close(self) -> None:
        """End it cleanly and wait until it has ended."""
        self.end()
        with suppress(OSError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """End it immediately; buffered bytes are lost."""
        self._writer.transport.abort()

    def reset(self) -> None:
        """End it immediately with a TCP reset."""
        handle: socket.socket = self._writer.get_extra_info("socket")
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self.abort()


@dataclass
class Line:
    """A client's connection to a broker. under_way: exchanges without a response so far, oldest first.

    arrivals: the broker's responses; empty bytes: check under_way again; None: the broker has ended the connection.
    """

    client: Side
    upstream: Side
    broker: Broker
    board: Board
    under_way: deque[Exchange] = field(default_factory=deque)
    arrivals: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(maxsize=8))


class Exchange:
    """An exchange, as its action sees it. answer: the broker's or a generated response; empty until known."""

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
        """Send a response to the client, at most once per exchange."""
        await self.write(Direction.ANSWER, framed(answer))
        self._line.board.passed(self.request)

    async def refuse(self, answer: bytes) -> None:
        """Respond in place of the broker, in order; a client that expects no response gets none."""
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
        """Return a whole frame; that of the response only after it has arrived."""
        return framed(self.request.data if direction is Direction.REQUEST else self.answer)

    def take(self, answer: bytes) -> None:
        """Set the broker's response."""
        self.answer = answer
        self._answered.set()

    async def answered(self) -> None:
        """Wait for the broker's response, and report its errors."""
        await self._answered.wait()
        errors = {error.name.upper() for error in error_codes(decode_answer(self.request, self.answer)) if error}
        self.note(f"the broker answers: {', '.join(sorted(errors)) or 'no error'}")

    def close(self, *, reset: bool = False) -> None:
        """End the connection on both sides, with reset by a TCP reset. Always raises ConnectionEndedError."""
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
        """Discard all later bytes of the connection in one direction."""
        (self._line.upstream if direction is Direction.REQUEST else self._line.client).silent = True

    def passing(self, api: str, nth: int) -> Awaitable[None]:
        """Wait until the nth response of an API from now on was sent to its client, on any connection."""
        return self._line.board.passing(api, nth)

    def note(self, what: str) -> None:
        """Add a line to the proxy's output."""
        self._line.board.note(self.request, self._line.broker, what)


class Action:
    """Forwards everything; the base of other actions."""

    async def on_request(self, exchange: Exchange) -> None:
        """Handle the request."""
        await exchange.forward()

    async def on_answer(self, exchange: Exchange, answer: bytes) -> None:
        """Handle the response."""
        await exchange.give(answer)


class Connection:
    """Pumps frames until one side ends.

    choose(request) returns the action of an exchange, place(node, host, port) the proxy's address for a broker's.
    """

    def __init__(self, line: Line, choose: Callable[[Request], Action], place: Place) -> None:
        self._line = line
        self._choose = choose
        self._place = place

    async def serve(self) -> None:
        """Run until either side ends; raises WireError for bytes that are not Kafka's protocol."""
        sides = self._line.client, self._line.upstream
        try:
            await self._pump()
            for side in sides:
                await side.close()
        except BaseException:
            for side in sides:
                side.abort()
            raise

    async def _pump(self) -> None:
        pumps = [asyncio.create_task(pump) for pump in (self._requests(), self._answers())]
        receiver = asyncio.create_task(self._receive())
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*pumps, receiver):
                task.cancel()
            outcomes = await asyncio.gather(*pumps, receiver, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, EOFError | OSError):
                raise outcome

    async def _requests(self) -> None:
        while True:
            request = parse_request(await read_frame(self._line.client.reader))
            action = self._choose(request)
            await action.on_request(Exchange(self._line, request, action))

    async def _receive(self) -> None:
        """Keep reading while a response is held back, to detect that the broker has closed the connection."""
        try:
            while True:
                await self._line.arrivals.put(await read_frame(self._line.upstream.reader))
        except (EOFError, OSError, WireError) as error:
            await self._line.arrivals.put(None)
            if isinstance(error, WireError):
                raise

    async def _answers(self) -> None:
        """Send responses in the order of the requests, as brokers do."""
        under_way = self._line.under_way
        while (answer := await self._line.arrivals.get()) is not None:
            if answer:
                await self._take(answer)
            while under_way and under_way[0].answer:
                exchange = under_way.popleft()
                await exchange.action.on_answer(exchange, exchange.answer)

    async def _take(self, answer: bytes) -> None:
        waiting = next((exchange for exchange in self._line.under_way if not exchange.answer), None)
        if waiting is None or waiting.request.correlation_id != correlation_id(answer):
            raise WireError(f"an answer to no request; the first that waits: {waiting and waiting.request}")
        waiting.take(await rewrite(waiting.request, answer, self._place))


async def rewrite(request: Request, answer: bytes, place: Place) -> bytes:
    """Return a response with the brokers' addresses replaced by those of place."""
    name = BROKERS.get(request.api)
    if name is None:
        return answer
    known = answer_type(request).__dataclass_fields__
    if name in known:
        decoded = decode_answer(request, answer)
        brokers = getattr(decoded, name)
        moved = tuple([await _moved(broker, place) for broker in brokers])
        return encode_answer(request, replace(decoded, **{name: moved})) if moved != brokers else answer
    if "host" in known:
        return encode_answer(request, await _moved(decode_answer(request, answer), place))
    return answer


async def _moved(broker: Any, place: Place) -> object:
    if not broker.host:  # no coordinator
        return broker
    node = broker.broker_id if hasattr(broker, "broker_id") else broker.node_id
    host, port = await place(node, broker.host, broker.port)
    return replace(broker, host=host, port=port)
