"""Opens and authenticates connections to brokers, on an event loop (Kafka: Selector, SaslClientAuthenticator)."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import BrokerError, ErrorCode, UnreachableError, raise_for_code
from ..network_settings import NetworkSettings
from ..protocol.messages import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, api_versions
from ..protocol.schema import Api, Request
from .broker_socket import BrokerSocket
from .sasl import Exchange
from .waiting import in_thread, wait_for_socket

_END = object()
#: When a session is renewed, as fractions of its lifetime, spread out over connections (Kafka: 85 to 95 %).
RENEWAL = 0.85, 0.95


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection that is ready for requests, owned by the caller.

    versions: the lowest and highest version that the broker supports, by api key. features: levels of the cluster's
    finalized features. session_ms: how long it stays authenticated; None means no limit (KIP-368).
    """

    socket: socket.socket
    versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    host: str = ""
    features: Mapping[str, int] = field(default_factory=dict)
    session_ms: int | None = None

    def version_of(self, api: Api, version_max: int | None = None) -> int:
        """Return the highest version of an API that both sides support. Raises BrokerError if there is none."""
        least, most = self.versions.get(api.key, (0, -1))
        highest = api.highest if version_max is None else min(api.highest, version_max)
        if max(least, api.lowest) > min(most, highest):
            raise BrokerError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker supports versions {least} to {most} of {api.name}, this client {api.lowest} to {highest}",
            )
        return min(most, highest)


async def open_connection(host: str, port: int, settings: NetworkSettings) -> Opened:
    """Connect to a broker. Raises UnreachableError, or BrokerError if authentication fails."""
    try:
        async with asyncio.timeout(settings.setup_timeout_ms / 1000):
            connected = await _connect(host, port)
            try:
                return await _prepare(connected, host, settings)
            except BaseException:
                connected.close()
                raise
    except TimeoutError as error:
        raise UnreachableError(f"{host}:{port}: no connection within {settings.setup_timeout_ms} ms") from error
    except (OSError, ValueError) as error:
        raise UnreachableError(f"{host}:{port}: {error or type(error).__name__}") from error


async def authenticate(opened: Opened, settings: NetworkSettings) -> Opened:
    """Reauthenticate an open connection with nothing in flight (KIP-368). Raises as open_connection."""
    try:
        async with asyncio.timeout(settings.setup_timeout_ms / 1000):
            return await _authenticate(_Conversation(opened.socket, settings), opened, settings)
    except TimeoutError as error:
        raise UnreachableError(f"{opened.host}: not authenticated within {settings.setup_timeout_ms} ms") from error
    except (OSError, ValueError) as error:
        raise UnreachableError(f"{opened.host}: {error or type(error).__name__}") from error


async def _connect(host: str, port: int) -> socket.socket:
    """Return a socket connected to the first of the host's addresses that accepts a connection."""
    failure: OSError | None = None
    for family, kind, protocol, _, address in await in_thread(
        socket.getaddrinfo, host, port, socket.AF_UNSPEC, socket.SOCK_STREAM
    ):
        try:
            return await _connect_to(socket.socket(family, kind, protocol), address)
        except OSError as error:
            failure = error
    raise failure or OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))


async def _connect_to(made: socket.socket, address: Any) -> socket.socket:
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = made.connect_ex(address)
        if code == errno.EINPROGRESS:
            await wait_for_socket(made, writable=True)
            code = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        made.close()
        raise
    return made


async def _prepare(connected: socket.socket, host: str, settings: NetworkSettings) -> Opened:
    ready = connected
    if settings.security.ssl_context is not None:
        ready = await _with_tls(connected, host, settings.security.ssl_context)
    try:
        conversation = _Conversation(ready, settings)
        opened = await _with_versions(conversation, Opened(ready, host=host))
        return await _authenticate(conversation, opened, settings)
    except BaseException:
        ready.close()
        raise


async def _with_tls(connected: socket.socket, host: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    wrapped = context.wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False)
    try:
        while True:
            try:
                wrapped.do_handshake()
                return wrapped
            except ssl.SSLWantReadError:
                await wait_for_socket(wrapped, writable=False)
            except ssl.SSLWantWriteError:
                await wait_for_socket(wrapped, writable=True)
    except BaseException:
        wrapped.close()
        raise


class _Conversation:
    """Requests and responses in turn."""

    def __init__(self, ready: socket.socket, settings: NetworkSettings) -> None:
        self._raw = ready
        self._socket = BrokerSocket(ready, settings.max_answer_bytes)
        self._client_id = settings.client_id
        self._correlation_id = 0

    async def exchange(self, request: Request, version: int) -> bytearray:
        """Send a request in the given version, and return the response's bytes. Raises OSError."""
        self._correlation_id += 1
        self._socket.send(request.encode(version, self._correlation_id, self._client_id))
        while self._socket.has_unsent:
            await wait_for_socket(self._raw, writable=True)
            self._socket.flush()
        while (answer := self._socket.receive()) is None:
            await wait_for_socket(self._raw, writable=False)
        return answer

    async def ask(self, request: Request, version: int) -> Any:
        """Send a request and return the decoded response. Raises OSError, ValueError."""
        number, answer = request.api.decode_response(await self.exchange(request, version), version)
        if number != self._correlation_id:
            raise ConnectionError(f"response {number} to request {self._correlation_id}")
        return answer


async def _with_versions(conversation: _Conversation, opened: Opened) -> Opened:
    version = API_VERSIONS.highest
    while True:
        data = await conversation.exchange(api_versions(), version)
        if int.from_bytes(data[4:6], "big", signed=True) == ErrorCode.UNSUPPORTED_VERSION and version:
            _, answer = API_VERSIONS.decode_response(data, 0)  # lists the versions that the broker supports (KIP-511)
            known = {each.api_key: each.max_version for each in answer.api_keys}
            version = min(known.get(API_VERSIONS.key, 0), version - 1)
            continue
        _, answer = API_VERSIONS.decode_response(data, version)
        raise_for_code(answer.error_code)
        return replace(
            opened,
            versions={each.api_key: (each.min_version, each.max_version) for each in answer.api_keys},
            features={each.name: each.max_version_level for each in answer.finalized_features},
        )


async def _authenticate(conversation: _Conversation, opened: Opened, settings: NetworkSettings) -> Opened:
    security = settings.security
    if security.mechanism is None:
        return opened
    handshake = await conversation.ask(
        SASL_HANDSHAKE(mechanism=security.mechanism_name), opened.version_of(SASL_HANDSHAKE)
    )
    if handshake.error_code:
        raise BrokerError(
            handshake.error_code,
            f"{opened.host} has sasl.enabled.mechanisms={','.join(handshake.mechanisms)}, "
            f"not {security.mechanism_name}",
        )
    version = opened.version_of(SASL_AUTHENTICATE)
    exchange = security.mechanism(opened.host)
    said = await in_thread(_next, exchange, None)
    session_ms = 0
    while said is not _END:
        answer = await conversation.ask(SASL_AUTHENTICATE(auth_bytes=said), version)
        raise_for_code(answer.error_code, answer.error_message)
        session_ms = answer.session_lifetime_ms
        said = await in_thread(_next, exchange, answer.auth_bytes)
    return replace(opened, session_ms=session_ms or None)


def _next(exchange: Exchange, answer: bytes | None) -> Any:
    """Return the client's next message, _END after the last one."""
    try:
        return next(exchange) if answer is None else exchange.send(answer)
    except StopIteration:
        return _END
