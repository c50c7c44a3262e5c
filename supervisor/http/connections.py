"""The connections of the HTTP server: their number, their lifetime, and which one is closed to make room.

All of it is decided here, before a request is read. Uvicorn does not limit silent connections: its limit_concurrency
answers 503 to accepted connections, and its timeout starts after the first response.
"""

from __future__ import annotations

import asyncio
import re
import socket
from typing import Any

import httptools
import orjson
import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ..channels.descriptors import RETRY_SECONDS, is_reserved
from ..logs.log_floods import bounded_logger
from .security import REQUESTS_MAX, Message, Receive, Scope, Send

logger = bounded_logger(__name__)

#: Maximum number of connections. Those over REQUESTS_MAX are for health checks, and for clients without a request yet.
CONNECTIONS_MAX = REQUESTS_MAX + 32
#: Seconds that a connection may take to send a complete request line and headers, even if single bytes arrive.
IDLE_SECONDS = 10
#: Seconds until the client must have read a response, but for what is buffered: twice the longest timeout_ms plus the
#: transfer.
ANSWER_SECONDS = 120
#: Seconds until the client must have read a part of a response that has further parts, but for what is buffered.
PART_SECONDS = 10
#: Seconds before an idle connection may be closed to make room: the round trip of a distant client. This also limits
#: how many connections a second a crowd can close.
GRACE_SECONDS = 0.1
#: Maximum size of an incomplete request line with its headers, in bytes; for the URL alone see security.py.
HEADER_BYTES_MAX = 32_768
#: A request target that names the server, as for a proxy (RFC 9112, absolute-form): it overrides the Host header.
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE)


class ResponseWriter:
    """Where a response is written. holds: set before the headers of a response that has one part, which follows at
    once: both are sent together, by one system call, and the client wakes up once.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self.close = transport.close
        self.is_closing = transport.is_closing
        self.holds = False
        self._send = transport.write
        self._headers = b""

    def write(self, data: bytes) -> None:
        """Write data, or hold headers until the next call."""
        if self.holds:
            self.holds, self._headers = False, data
        elif self._headers:
            self._send(self._headers + data)
            self._headers = b""
        else:
            self._send(data)


class Connection(HttpToolsProtocol):
    """One connection, closed if its client is too slow, or sends more than a request line and headers may have."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._application = self.app
        self.app = self._answer
        #: Bytes of a request whose headers are not complete; None while its body arrives.
        self._head_bytes: int | None = 0
        #: Bytes of a body that the parser does not take: of a request for another protocol.
        self._body_left = 0
        #: The time (event loop's clock) since when no request is pending; None while a response is being made.
        self.idle_since: float | None = self.loop.time()
        self._ends_at = self.loop.time() + IDLE_SECONDS
        self._deadline = self.loop.call_later(IDLE_SECONDS, self._check_deadline)

    def end(self) -> None:
        """Close it at once, without sending pending data: the client may never read it."""
        self.transport.abort()

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._writer = ResponseWriter(transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.idle_since = None
        self._end_in(ANSWER_SECONDS)
        has_body = scope["method"] != "HEAD"

        async def send_part(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._writer.holds = has_body and any(name == b"content-length" for name, _ in message["headers"])
            has_more = message.get("more_body", False)
            if has_more:
                self._end_in(PART_SECONDS)
            await send(message)
            if has_more:
                self._end_in(ANSWER_SECONDS)

        try:
            await self._application(scope, receive, send_part)
        finally:
            self.idle_since = self.loop.time()
            self._end_in(IDLE_SECONDS)

    def _end_in(self, seconds: float) -> None:
        self._ends_at = self.loop.time() + seconds

    def _check_deadline(self) -> None:
        """End the connection when its time is over; look again after the shortest limit, instead of a timer for each
        request.
        """
        left = self._ends_at - self.loop.time()
        if left <= 0:
            self.end()
        else:
            self._deadline = self.loop.call_later(min(left, IDLE_SECONDS, PART_SECONDS), self._check_deadline)

    @override
    def data_received(self, data: bytes) -> None:
        while data:
            data = self._take_body(data) if self._body_left else self._parse(data)

    def _parse(self, data: bytes) -> bytes:
        """Parse data; return what follows a request for another protocol.

        The response ignores such a wish (RFC 9110, 7.8), but to the parser even the request's body is not HTTP any
        more. Java's client sends it with each first request.
        """
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return data[upgrade.args[0] :]
        except httptools.HttpParserError:
            self.logger.warning(problem := "Invalid HTTP request received.")
            self.send_400_response(problem)
        else:
            self._check_head()
        return b""

    def _take_body(self, data: bytes) -> bytes:
        part, rest = data[: self._body_left], data[self._body_left :]
        self._body_left -= len(part)
        self.on_body(part)
        if not self._body_left:
            self._complete()
        return rest

    def _check_head(self) -> None:
        if self._head_bytes is None or self._head_bytes <= HEADER_BYTES_MAX:
            return
        if self.cycle is None or self.cycle.response_complete:
            self.send_400_response(f"The headers have more than {HEADER_BYTES_MAX} bytes.")
        else:  # an earlier request has no response yet
            self.end()

    @override
    def on_headers_complete(self) -> None:
        """Accept a request. The parser refuses it if this raises an exception."""
        self._head_bytes = None
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):
            raise ValueError("a request needs one Host header (RFC 9112, 3.2)")
        if absolute := _ABSOLUTE.fullmatch(self.url):
            self.headers[:] = [(b"host", absolute[1]), *(field for field in self.headers if field[0] != b"host")]
            self.url = absolute[2] if absolute[2].startswith(b"/") else b"/" + absolute[2]
        super().on_headers_complete()
        self.cycle.transport = self._writer  # type: ignore[assignment]

    @override
    def on_message_complete(self) -> None:
        """Note the end of a request, or find out how much body follows it; see _parse."""
        if self.parser.should_upgrade():
            self._body_left = int(dict(self.headers).get(b"content-length", b"0"))
        if not self._body_left:
            self._complete()

    def _complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    @override
    def send_400_response(self, msg: str) -> None:
        """Respond to invalid HTTP in the same form as to all errors."""
        if self.pipeline:  # earlier requests have no response yet
            self.end()
            return
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started or not self.cycle.more_body:  # the request itself is valid
                self.cycle.keep_alive = False
                return
            self.cycle.disconnected = True  # it gets this response
        body = orjson.dumps({"error": {"status": 400, "code": "BAD_REQUEST", "message": msg}})
        own = (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), (b"connection", b"close")
        fields = [b"%b: %b\r\n" % field for field in (*self.server_state.default_headers, *own)]
        self.transport.write(b"".join((STATUS_LINE[400], *fields, b"\r\n", body)))
        self.transport.close()


class Server(uvicorn.Server):
    """Accepts connections while there is room: none if all have pending responses.

    If there is none, it closes the connection that has been without a request for longest, so silent clients cannot
    keep out active ones.
    """

    def __init__(self, config: uvicorn.Config, listener: socket.socket, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._listener = listener
        self._stopping = stopping
        listener.setblocking(False)

    async def main_loop(self) -> None:
        """Serve until should_exit is set; then set the event for responses that wait for it."""
        async with asyncio.TaskGroup() as group:
            accepting = group.create_task(self._accept_all())
            await super().main_loop()
            accepting.cancel()
        self._stopping.set()
        self._listener.close()

    async def _accept_all(self) -> None:
        while True:
            while not self._has_room():
                await asyncio.sleep(GRACE_SECONDS)
            try:
                await self._accept()
            except ConnectionAbortedError:  # by the client, before its turn
                continue
            except OSError as error:
                logger.warning("HTTP cannot take a connection: %s. It tries again in %g s", error, RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)

    def _has_room(self) -> bool:
        if len(self.server_state.connections) < CONNECTIONS_MAX:
            return True
        since = _idle_since(self._most_idle())
        return asyncio.get_running_loop().time() - since >= GRACE_SECONDS

    def _most_idle(self) -> Connection | None:
        idle = (c for c in self.server_state.connections if isinstance(c, Connection) and c.idle_since is not None)
        return min(idle, key=_idle_since, default=None)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        accepted, _ = await loop.sock_accept(self._listener)
        reserved = is_reserved(accepted.fileno())
        if reserved or len(self.server_state.connections) >= CONNECTIONS_MAX:
            most_idle = self._most_idle()
            if most_idle is not None:
                most_idle.end()
            elif reserved:
                accepted.close()
                raise OSError("the file descriptors that are left are kept for the stream threads' processes")
        await loop.connect_accepted_socket(
            lambda: Connection(self.config, self.server_state, self.lifespan.state, loop), accepted
        )


def _idle_since(connection: Connection | None) -> float:
    """Return the time since when a connection has been idle; infinity if it is not."""
    return float("inf") if connection is None or connection.idle_since is None else connection.idle_since
