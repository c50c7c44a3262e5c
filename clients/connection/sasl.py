"""SASL mechanisms (RFC 4422): each is a generator that yields the client's messages and is sent the broker's.

A step may be slow (a callback that requests a token, a key derivation), so it must not run on an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

from ..errors import BrokerError, ErrorCode
from .secret_file import newest

#: Yields the client's messages, starting with the first; is sent the broker's reply to each. Returns after the client's
#: last message; raises BrokerError if the broker must not be trusted or there are no credentials.
Exchange = Generator[bytes, bytes, None]
#: Makes an exchange with the broker on this host.
Mechanism = Callable[[str], Exchange]

#: Sent after GSSAPI's own messages: no security layer (TLS provides it), no maximum message size (RFC 4752).
_NO_SECURITY_LAYER = b"\1\0\0\0"


def plain(username: str, password: str) -> Mechanism:
    """PLAIN (RFC 4616)."""

    def exchange(host: str) -> Exchange:
        yield b"\0".join((b"", username.encode(), newest(password).encode()))

    return exchange


def scram(name: str, username: str, password: str) -> Mechanism:
    """SCRAM-SHA-256 or SCRAM-SHA-512 (RFC 5802, RFC 7677)."""

    def exchange(host: str) -> Exchange:
        from scramp import ScramClient, ScramException  # the import takes 20 ms and is rarely needed

        client = ScramClient([name], username, newest(password))
        try:
            client.set_server_first((yield client.get_client_first().encode()).decode())
            client.set_server_final((yield client.get_client_final().encode()).decode())
        except (ScramException, UnicodeDecodeError) as error:
            raise _refused(f"{name}: the broker's response is invalid: {error}") from error

    return exchange


def oauthbearer(fetch_token: Callable[[], tuple[Any, ...]]) -> Mechanism:
    """OAUTHBEARER (RFC 7628, KIP-255). fetch_token: returns the token first and optionally a dict of extensions fourth.

    librdkafka's oauth_cb returns the same: token, expiry time, principal, extensions.
    """

    def exchange(host: str) -> Exchange:
        try:
            token, *rest = fetch_token()
        except Exception as error:
            raise _refused(f"cannot get a token: {error!r}") from error
        extensions: Mapping[str, str] = (rest[2] if len(rest) > 2 else None) or {}
        pairs = "".join(f"{name}={value}\1" for name, value in extensions.items())
        failure = yield f"n,,\1auth=Bearer {token}\1{pairs}\1".encode()
        if failure:  # the broker sends the reason, and rejects after another message (RFC 7628, 3.2.3)
            yield b"\1"
            raise _refused(f"OAUTHBEARER: {failure.decode(errors='replace')}")

    return exchange


def gssapi(service: str) -> Mechanism:
    """GSSAPI (RFC 4752), with the ticket in the credential cache of this process."""

    def exchange(host: str) -> Exchange:
        try:
            from gssapi import Name, NameType, SecurityContext  # type: ignore[import-not-found, unused-ignore]
            from gssapi.exceptions import GSSError  # type: ignore[import-not-found, attr-defined, unused-ignore]
        except ImportError as error:
            raise _refused(
                "sasl.mechanism=GSSAPI needs the package gssapi: pip install 'penstock-streams[kerberos]'"
            ) from error
        try:
            name = Name(f"{service}@{host}", name_type=NameType.hostbased_service)
            context = SecurityContext(name=name, usage="initiate")
            challenge: bytes | None = None
            while not context.complete:
                challenge = yield context.step(challenge) or b""
            context.unwrap(challenge or b"")  # which security layers the broker offers
            yield context.wrap(_NO_SECURITY_LAYER + str(context.initiator_name).encode(), False).message
        except GSSError as error:  # no ticket, or one that the broker cannot read
            raise _refused(f"GSSAPI: {error}") from error

    return exchange


def _refused(message: str) -> BrokerError:
    return BrokerError(ErrorCode.SASL_AUTHENTICATION_FAILED, message)
