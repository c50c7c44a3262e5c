"""A broker's connection on the event loop, for infrequent requests; opened on first use.

Requests are sent and answered in order. The stream thread's own connections are in connection/broker_link.py; both
follow connection/connection.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

from ..connection.broker_socket import BrokerSocket
from ..connection.connection import Connection, Step
from ..connection.opening import Opened, authenticate
from ..errors import UnreachableError
from ..log_context import PrefixedLogger
from ..network_settings import NetworkSettings
from ..protocol.schema import Request, SchemaApi

_LOG = PrefixedLogger(__name__, "")


class BrokerConnection:
    """One connection. Only the event loop may use it.

    open_: reconnects on the next use after a loss. note_throttle: called with the name of each answered request, and
    how long the broker throttles the client, in ms.
    """

    def __init__(
        self,
        open_: Callable[[], Awaitable[Opened]],
        settings: NetworkSettings,
        note_throttle: Callable[[str, int], None] = lambda request, ms: None,
    ) -> None:
        self._open = open_
        self._note_throttle = note_throttle
        self._settings = settings
        self._turn = asyncio.Lock()  # serializes opening, authenticating and sending
        self._connection = Connection(settings, _LOG)
        self._socket: BrokerSocket | None = None
        self._drained = asyncio.Event()  # set while no response is outstanding

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        return self._socket is not None

    async def version(self, api: SchemaApi) -> int:
        """Return the request version in use; raises as ask does."""
        async with self._turn:
            return (await self._ready()).version_of(api)

    async def ask(self, request: Request, timeout_ms: float | None = None) -> SimpleNamespace:
        """Send a request and return the response. timeout_ms: for the response, None for the connection's default.

        Raises UnreachableError, or BrokerError if the broker rejects the connection or does not support the request.
        """
        limit_ms = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        async with self._turn:
            opened = await self._ready()
            waiting = self._send(request, opened.version_of(request.api, request.version_max), limit_ms)
        try:
            async with asyncio.timeout(limit_ms / 1000):
                response = await waiting
        except TimeoutError:
            error = UnreachableError(f"{opened.host}: no response within {limit_ms:.0f} ms")
            if self._connection.opened is opened:  # else its successor would be closed
                self._lose(error)
            raise error from None
        self._note_throttle(request.api.name, getattr(response, "throttle_time_ms", 0))
        return response

    async def _ready(self) -> Opened:
        """Return the connection once a request may be sent; reopen or reauthenticate it if necessary."""
        connection = self._connection
        while (step := connection.next_step(_now_ms())) is not Step.SEND:
            match step:
                case Step.WAIT:
                    await asyncio.sleep((connection.not_before_ms - _now_ms()) / 1000)
                case Step.BUSY:
                    await self._drained.wait()
                case Step.DROP:
                    self._close()
                case Step.OPEN:
                    connection.connecting()
                    await self._take(self._open())
                case Step.RENEW:
                    connection.renewing()
                    assert connection.opened is not None
                    asyncio.get_running_loop().remove_reader(connection.opened.socket)
                    await self._take(authenticate(connection.opened, self._settings))
        assert connection.opened is not None
        return connection.opened

    async def _take(self, opening: Awaitable[Opened]) -> None:
        try:
            opened = await opening
        except BaseException:
            self._close()
            raise
        self._socket = BrokerSocket(opened.socket, self._settings.max_response_bytes, opened.traffic)
        asyncio.get_running_loop().add_reader(opened.socket, self._receive)
        self._connection.ready(opened, _now_ms())

    def _send(self, request: Request, version: int, limit_ms: float) -> asyncio.Future[SimpleNamespace]:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[SimpleNamespace] = loop.create_future()

        def encode(correlation_id: int) -> bytes:
            return request.encode(version, correlation_id, self._settings.client_id)

        self._drained.clear()
        data = self._connection.request(request.api, version, encode, _now_ms(), limit_ms, waiting)
        try:
            self._socket.send(data)
        except OSError as error:
            self._lose(error)
            return waiting
        if self._socket.has_unsent:
            loop.add_writer(self._socket, self._flush)
        return waiting

    def _flush(self) -> None:
        assert self._socket is not None
        try:
            self._socket.flush()
        except OSError as error:
            self._lose(error)
            return
        if not self._socket.has_unsent:
            asyncio.get_running_loop().remove_writer(self._socket)

    def _receive(self) -> None:
        try:
            while self._socket is not None and (data := self._socket.receive()) is not None:
                first, response = self._connection.response(data, _now_ms())
                if not first.asked.done():
                    first.asked.set_result(response)
                if self._connection.deadline_ms is None:
                    self._drained.set()
        except (OSError, ValueError) as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        """Close the connection and fail all requests in flight."""
        for waiting in self._close():
            if not waiting.done():
                waiting.set_exception(UnreachableError(str(error) or type(error).__name__))

    def _close(self) -> list[asyncio.Future[SimpleNamespace]]:
        """Close the connection, and return what waits for the responses of the requests in flight."""
        if self._socket is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket)
            loop.remove_writer(self._socket)
            self._socket.close()
        self._socket = None
        self._drained.set()
        return self._connection.lost()

    def close(self) -> None:
        """Close the connection."""
        self._lose(UnreachableError("the connections are being closed"))


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
