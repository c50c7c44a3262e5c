"""Opens and authenticates connections to brokers, on an event loop (Kafka: Selector, SaslClientAuthenticator)."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any, NamedTuple

from ..errors import BrokerError, ErrorCode, TlsError, UnreachableError, raise_for_code
from ..network_settings import NetworkSettings
from ..protocol.api import Api, correlation_id
from ..protocol.messages import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, api_versions
from ..protocol.schema import Request
from ..traffic import Connections, ConnectionTraffic
from .broker_socket import BrokerSocket
from .sasl import Exchange
from .waiting import first_result, in_thread, wait_for_socket

_END = object()
#: The answer of another broker than the one that is meant.
_OTHER = (ErrorCode.REBOOTSTRAP_REQUIRED,)
#: When a session is renewed, as fractions of its lifetime, spread out over connections (Kafka: 85 to 95 %).
RENEWAL = 0.85, 0.95
#: How long an address may be silent before the next one of the host is tried beside it, in seconds (RFC 8305, 5).
NEXT_ADDRESS_SECONDS = 0.25


class Identity(NamedTuple):
    """The broker that a connection is meant to reach, which checks that it is this one (KIP-1242)."""

    cluster_id: str
    node_id: int


class _Resolved(NamedTuple):
    """An address of a host, as getaddrinfo returns it."""

    family: int
    kind: int
    protocol: int
    address: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection that is ready for requests, owned by the caller.

    versions: the lowest and highest version that the broker supports, by api key. features: levels of the cluster's
    finalized features. session_ms: how long it stays authenticated; None means no limit (KIP-368). traffic: its
    numbers.
    """

    socket: socket.socket
    versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    host: str = ""
    features: Mapping[str, int] = field(default_factory=dict)
    session_ms: int | None = None
    traffic: ConnectionTraffic = field(default_factory=ConnectionTraffic)

    def version_of(self, api: Api[Any], version_max: int | None = None) -> int:
        """Return the highest version of an API that both sides support. Raises BrokerError if there is none."""
        least, most = self.versions.get(api.key, (0, -1))
        highest = api.highest if version_max is None else min(api.highest, version_max)
        if max(least, api.lowest) > min(most, highest):
            raise BrokerError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker supports versions {least} to {most} of {api.name}, this client {api.lowest} to {highest}",
            )
        return min(most, highest)


async def open_connection(
    host: str,
    port: int,
    settings: NetworkSettings,
    connections: Connections | None = None,
    identity: Identity | None = None,
) -> Opened:
    """Connect to the first of a broker's addresses that answers ApiVersions, and authenticate.

    connections: counts it. identity: of the broker, None if it is not known or not to be checked. Raises
    UnreachableError if none answers, BrokerError if authentication fails, or with the code REBOOTSTRAP_REQUIRED if it
    is another broker.
    """
    connections = connections or Connections()
    addresses = await _addresses(host, port, settings)
    answered = await _first_response(host, port, addresses, settings, connections, identity)
    try:
        authenticated = await authenticate(answered, settings)
    except BaseException as error:
        connections.failed_authentications += isinstance(error, BrokerError)
        answered.socket.close()
        raise
    connections.authenticated += settings.security.mechanism is not None or settings.security.tls is not None
    return authenticated


async def authenticate(opened: Opened, settings: NetworkSettings) -> Opened:
    """Reauthenticate an open connection with nothing in flight (KIP-368). Raises as open_connection."""
    try:
        async with asyncio.timeout(settings.setup_timeout_ms / 1000):
            return await _authenticate(_Conversation(opened, settings), opened, settings)
    except TimeoutError as error:
        raise UnreachableError(f"{opened.host}: not authenticated within {settings.setup_timeout_ms} ms") from error
    except (OSError, ValueError) as error:
        raise UnreachableError(f"{opened.host}: {error or type(error).__name__}") from error


async def _addresses(host: str, port: int, settings: NetworkSettings) -> list[_Resolved]:
    """Return a host's addresses in the order in which to try them: families take turns (RFC 8305, 4)."""
    try:
        async with asyncio.timeout(settings.setup_timeout_ms / 1000):
            found = await in_thread(socket.getaddrinfo, host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)
    except TimeoutError as error:
        raise UnreachableError(f"{host}:{port}: no address within {settings.setup_timeout_ms} ms") from error
    except (OSError, UnicodeError) as error:
        raise UnreachableError(f"{host}:{port}: {error}") from error
    by_family: dict[int, list[_Resolved]] = {}
    for family, kind, protocol, _, address in dict.fromkeys(found):
        by_family.setdefault(family, []).append(_Resolved(family, kind, protocol, address))
    turns = zip_longest(*by_family.values())
    return [resolved for turn in turns for resolved in turn if resolved is not None]


async def _first_response(
    host: str,
    port: int,
    addresses: list[_Resolved],
    settings: NetworkSettings,
    connections: Connections,
    identity: Identity | None,
) -> Opened:
    """Return a connection that has answered ApiVersions; a host that accepts connections may still be silent."""
    reasons: dict[_Resolved, UnreachableError | BrokerError] = {}

    async def attempt(resolved: _Resolved) -> Opened | None:
        try:
            return await _connected(resolved, host, settings, connections, identity)
        except (UnreachableError, BrokerError) as error:
            reasons[resolved] = error
            return None

    attempts = [partial(attempt, resolved) for resolved in addresses]
    first = await first_result(attempts, NEXT_ADDRESS_SECONDS, lambda late: late.socket.close())
    if first is not None:
        return first
    others = [reason for reason in reasons.values() if isinstance(reason, BrokerError) and reason.code in _OTHER]
    if others or len(reasons) == 1:
        only: UnreachableError | BrokerError = [*others, *reasons.values()][0]
        raise only if isinstance(only, BrokerError) else type(only)(f"{host}:{port}: {only}")
    said = "; ".join(f"{resolved.address[0]}: {reason}" for resolved, reason in reasons.items())
    refused = any(isinstance(reason, TlsError) for reason in reasons.values())
    raise (TlsError if refused else UnreachableError)(f"{host}:{port}: {said}")


async def _connected(
    resolved: _Resolved, host: str, settings: NetworkSettings, connections: Connections, identity: Identity | None
) -> Opened:
    """Connect to one address. Raises UnreachableError without the host, BrokerError."""
    try:
        async with asyncio.timeout(settings.setup_timeout_ms / 1000):
            return await _prepare(await _connect_to(resolved), host, settings, connections, identity)
    except TimeoutError as error:
        raise UnreachableError(f"no connection within {settings.setup_timeout_ms} ms") from error
    except ssl.SSLEOFError as error:
        raise UnreachableError("the TLS handshake was broken off: the broker has ended, or has no TLS there") from error
    except ssl.SSLError as error:
        raise TlsError(_tls_failure(error)) from error
    except (OSError, ValueError) as error:
        raise UnreachableError(str(error) or type(error).__name__) from error


#: What to change, by a part of OpenSSL's reason; an alert is what the broker says of this client.
_TLS_ADVICE = {
    "HOSTNAME_MISMATCH": (
        "the broker's certificate is for another name: connect to that name, or set "
        "ssl.endpoint.identification.algorithm=none"
    ),
    "CERTIFICATE_VERIFY_FAILED": "ssl.ca.location must have the CA of the broker's certificate",
    "ALERT_CERTIFICATE_REQUIRED": (
        "the broker wants a client certificate: set ssl.certificate.location and ssl.key.location"
    ),
    "ALERT_UNKNOWN_CA": "the broker does not know the CA of ssl.certificate.location",
    "CERTIFICATE": "the broker refuses ssl.certificate.location",
    "WRONG_VERSION_NUMBER": "the listener does not speak TLS: see security.protocol",
    "HANDSHAKE_FAILURE": (
        "the broker found no common version or cipher, or wants a client certificate (ssl.certificate.location)"
    ),
    "PROTOCOL_VERSION": "the broker speaks other versions of TLS: see ssl.enabled.protocols of both sides",
}


def _tls_failure(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError) and "mismatch" in (error.verify_message or "").lower():
        reason = "HOSTNAME_MISMATCH"
    advice = next((f" ({text})" for part, text in _TLS_ADVICE.items() if part in reason), "")
    return f"the TLS handshake has failed: {error.strerror or error}{advice}"


async def _connect_to(resolved: _Resolved) -> socket.socket:
    made = socket.socket(resolved.family, resolved.kind, resolved.protocol)
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = made.connect_ex(resolved.address)
        if code == errno.EINPROGRESS:
            await wait_for_socket(made, writable=True)
            code = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        made.close()
        raise
    return made


async def _prepare(
    connected: socket.socket, host: str, settings: NetworkSettings, connections: Connections, identity: Identity | None
) -> Opened:
    ready = connected
    try:
        if (tls := settings.security.tls) is not None:
            ready = await _with_tls(connected, host, await in_thread(tls.context))
        opened = Opened(ready, host=host, traffic=connections.add(ready))
        return await _with_versions(_Conversation(opened, settings), opened, identity)
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

    def __init__(self, opened: Opened, settings: NetworkSettings) -> None:
        self._raw = opened.socket
        self._socket = BrokerSocket(opened.socket, settings.max_response_bytes, opened.traffic)
        self._client_id = settings.client_id
        self._correlation_id = 0

    async def exchange(self, request: Request, version: int) -> bytearray:
        """Send a request in the given version, and return the response's bytes. Raises OSError."""
        self._correlation_id += 1
        self._socket.send(request.encode(version, self._correlation_id, self._client_id))
        while self._socket.has_unsent:
            await wait_for_socket(self._raw, writable=True)
            self._socket.flush()
        while (response := self._socket.receive()) is None:
            await wait_for_socket(self._raw, writable=False)
        return response

    async def ask(self, request: Request, version: int) -> SimpleNamespace:
        """Send a request and return the decoded response. Raises OSError, ValueError."""
        data = await self.exchange(request, version)
        number = correlation_id(data)
        if number != self._correlation_id:
            raise ConnectionError(f"response {number} to request {self._correlation_id}")
        return request.api.decode(data, version)


async def _with_versions(conversation: _Conversation, opened: Opened, identity: Identity | None) -> Opened:
    version = API_VERSIONS.highest
    request = api_versions() if identity is None else api_versions(*identity)
    while True:
        data = await conversation.exchange(request, version)
        if int.from_bytes(data[4:6], "big", signed=True) == ErrorCode.UNSUPPORTED_VERSION and version:
            response = API_VERSIONS.decode(data, 0)  # lists the versions that the broker supports (KIP-511)
            known = {each.api_key: each.max_version for each in response.api_keys}
            version = min(known.get(API_VERSIONS.key, 0), version - 1)
            continue
        response = API_VERSIONS.decode(data, version)
        raise_for_code(response.error_code)
        return replace(
            opened,
            versions={each.api_key: (each.min_version, each.max_version) for each in response.api_keys},
            features={each.name: each.max_version_level for each in response.finalized_features},
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
        response = await conversation.ask(SASL_AUTHENTICATE(auth_bytes=said), version)
        raise_for_code(response.error_code, response.error_message)
        session_ms = response.session_lifetime_ms
        said = await in_thread(_next, exchange, response.auth_bytes)
    return replace(opened, session_ms=session_ms or None)


def _next(exchange: Exchange, response: bytes | None) -> object:
    """Return the client's next message, _END after the last one."""
    try:
        return next(exchange) if response is None else exchange.send(response)
    except StopIteration:
        return _END
