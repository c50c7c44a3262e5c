"""The connections of the HTTP server: their number, their lifetime, and which one is closed to make room.

All of it is decided here, before a request is read. Uvicorn does not limit silent connections: its limit_concurrency
answers 503 to accepted connections, and its timeout starts after the first response.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
import orjson
import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..channels.descriptors import RETRY_SECONDS, is_reserved
from ..logs.log_floods import bounded_logger
from .security import HEADERS, REQUESTS_MAX, Receive, Scope, Send

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


class Connection(H11Protocol):
    """One connection, closed if its client is too slow."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._application = self.app
        self.app = self._answer
        #: The time (event loop's clock) since when no request is pending; None while a response is being made.
        self.idle_since: float | None = self.loop.time()
        self._deadline = self.loop.call_later(IDLE_SECONDS, self.end)

    def end(self) -> None:
        """Close it at once, without sending pending data: the client may never read it."""
        self.transport.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.idle_since = None
        self._end_in(ANSWER_SECONDS)

        async def send_part(message: Any) -> None:
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
        self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self.end)

    def send_400_response(self, msg: str) -> None:
        """Respond to invalid HTTP in the same form as to all errors; called by uvicorn."""
        if self.conn.our_state is not h11.IDLE:  # data after a request that has, or will have, a response
            self.end()
            return
        body = orjson.dumps({"error": {"status": 400, "code": "BAD_REQUEST", "message": msg}})
        headers = [*HEADERS, (b"content-type", b"application/json"), (b"connection", b"close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
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
