"""A broker's connection on the event loop, for infrequent requests; opened on first use.

Requests are sent and answered in order. The stream thread's own connections are in connection/broker_link.py.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace

from ..connection.broker_socket import BrokerSocket
from ..connection.opening import RENEWAL, Opened, authenticate
from ..errors import UnreachableError
from ..network_settings import NetworkSettings
from ..protocol.schema import Api, Request


@dataclass(frozen=True, slots=True)
class _Pending:
    correlation_id: int
    api: Api
    version: int
    answer: asyncio.Future[SimpleNamespace]


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
        self._opened: Opened | None = None
        self._socket: BrokerSocket | None = None
        self._pending: deque[_Pending] = deque()
        self._drained = asyncio.Event()
        self._correlation_id = 0
        self._renew_at = 0.0  # loop time, infinity for never
        self._quiet_until = 0.0  # quota throttle (KIP-219)
        self._used_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        return self._socket is not None

    async def version(self, api: Api) -> int:
        """Return the request version in use; raises as ask does."""
        async with self._turn:
            return (await self._ready()).version_of(api)

    async def ask(self, request: Request, timeout_ms: float | None = None) -> SimpleNamespace:
        """Send a request and return the response. timeout_ms: for the response, None for the connection's default.

        Raises UnreachableError, or BrokerError if the broker rejects the connection or does not support the request.
        """
        loop = asyncio.get_running_loop()
        async with self._turn:
            opened = await self._ready()
            version = opened.version_of(request.api, request.version_max)
            if loop.time() < self._quiet_until:
                await asyncio.sleep(self._quiet_until - loop.time())
            answer = self._send(request, version)
        limit_ms = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                found = await answer
        except TimeoutError:
            self._lose(UnreachableError(f"{opened.host}: no response within {limit_ms:.0f} ms"))
            raise UnreachableError(f"{opened.host}: no response within {limit_ms:.0f} ms") from None
        throttle_ms = getattr(found, "throttle_time_ms", 0)
        self._note_throttle(request.api.name, throttle_ms)
        self._quiet_until = max(self._quiet_until, loop.time() + throttle_ms / 1000)
        return found

    async def _ready(self) -> Opened:
        """Return the connection; reopen or reauthenticate it if necessary."""
        now = asyncio.get_running_loop().time()
        if self._socket is not None and not self._pending and now - self._used_at > self._settings.max_idle_ms / 1000:
            self._close()  # a device in between may have dropped it silently
        if self._opened is not None and now >= self._renew_at:
            await self._renew(self._opened)
        if self._opened is None:
            self._take(await self._open())
        self._used_at = now
        assert self._opened is not None
        return self._opened

    async def _renew(self, opened: Opened) -> None:
        """Reauthenticate once all requests in flight are answered (KIP-368)."""
        if self._pending:
            self._drained.clear()
            await self._drained.wait()
        if self._opened is not opened:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(opened.socket)
        try:
            renewed = await authenticate(opened, self._settings)
        except BaseException:
            self._close()
            raise
        self._take(renewed)

    def _take(self, opened: Opened) -> None:
        loop = asyncio.get_running_loop()
        self._opened = opened
        self._socket = BrokerSocket(opened.socket, self._settings.max_answer_bytes)
        loop.add_reader(opened.socket, self._receive)
        self._renew_at = float("inf")
        if opened.session_ms is not None:
            self._renew_at = loop.time() + opened.session_ms / 1000 * random.uniform(*RENEWAL)

    def _send(self, request: Request, version: int) -> asyncio.Future[SimpleNamespace]:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        self._correlation_id = (self._correlation_id + 1) % (1 << 31)
        answer: asyncio.Future[SimpleNamespace] = loop.create_future()
        try:
            self._socket.send(request.encode(version, self._correlation_id, self._settings.client_id))
        except OSError as error:
            self._lose(error)
            raise UnreachableError(str(error)) from error
        self._pending.append(_Pending(self._correlation_id, request.api, version, answer))
        if self._socket.has_unsent:
            loop.add_writer(self._socket, self._flush)
        return answer

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
                self._settle(data)
        except (OSError, ValueError) as error:
            self._lose(error)

    def _settle(self, data: bytearray) -> None:
        if not self._pending:
            raise ConnectionError("a response without a request")
        first = self._pending.popleft()
        try:
            number, answer = first.api.decode_response(data, first.version)
            if number != first.correlation_id:
                raise ConnectionError(f"response {number} to request {first.correlation_id}")
        except (OSError, ValueError):
            self._pending.appendleft(first)
            raise
        if not first.answer.done():
            first.answer.set_result(answer)
        if not self._pending:
            self._drained.set()

    def _lose(self, error: Exception) -> None:
        """Close the connection and fail all unanswered requests."""
        self._close()
        pending, self._pending = self._pending, deque()
        for each in pending:
            if not each.answer.done():
                each.answer.set_exception(UnreachableError(str(error) or type(error).__name__))
        self._drained.set()

    def _close(self) -> None:
        if self._socket is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket)
            loop.remove_writer(self._socket)
            self._socket.close()
        self._socket = self._opened = None

    def close(self) -> None:
        """Close the connection."""
        self._lose(UnreachableError("the connections are being closed"))
