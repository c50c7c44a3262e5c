"""Who may ask what over HTTP, and how much: before any endpoint sees a request."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import orjson

from penstock.topology.errors import ConfigError
from penstock.topology.streams_config import StreamsConfig

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Longest path with its query string, in bytes: a key and its bounds fit, a flood does not.
URL_BYTES_MAX = 8192
#: Nothing that is asked needs a body.
BODY_BYTES_MAX = 4096
#: Answered to everybody: what a probe asks that has no token, and the page that asks for it.
OPEN_PATHS = ("/health/live", "/health/ready", "/", "/dashboard.css", "/dashboard.js")
#: Sent with each answer. The page takes everything from this server, and nobody else may frame it.
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
)


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where is served, and what a request must carry. hosts: names by which a browser may call it without a token."""

    host: str
    port: int
    token: str | None
    hosts: frozenset[str]

    @classmethod
    def of(cls, config: StreamsConfig) -> HttpAddress | None:
        """Return the configured one, None if HTTP is off. Raises ConfigError for an open address without a token."""
        port = config["penstock.http.port"]
        if port is None:
            return None
        host, token = config["penstock.http.host"], config["penstock.http.token"] or None
        if token is None and not is_loopback(host):
            raise ConfigError(
                f"penstock.http.host={host} can be reached from other hosts: set penstock.http.token, which every "
                "request must then carry (Authorization: Bearer ...), or serve at 127.0.0.1."
            )
        server = config["application.server"].rpartition(":")[0]
        return cls(host, port, token, frozenset({"localhost", "127.0.0.1", "[::1]", host, server} - {""}))


def is_loopback(host: str) -> bool:
    """Return whether an address is this host's own; a name other than localhost may be anything."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Gate:
    """ASGI middleware: bounds, the Host header, the token.

    Without a token reading is free for those who call the server by one of its own names: a page from elsewhere that
    has its name point here (DNS rebinding) does not. Changing something needs a token in any case, as a header that a
    foreign page cannot send.
    """

    def __init__(self, app: Application, address: HttpAddress) -> None:
        self._app = app
        self._address = address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request: pass it on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        refusal = self._refusal(scope, headers)
        if refusal is None:
            await self._app(scope, receive, send_guarded)
        else:
            await _refuse(send_guarded, *refusal)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        url = len(scope.get("raw_path") or scope["path"].encode()) + len(scope["query_string"])
        if url > URL_BYTES_MAX:
            return 414, "URL_TOO_LONG", f"The URL has {url} bytes; {URL_BYTES_MAX} are allowed."
        if int(headers.get(b"content-length", b"0") or 0) > BODY_BYTES_MAX or b"transfer-encoding" in headers:
            return 413, "BODY_TOO_LARGE", f"No request needs a body of more than {BODY_BYTES_MAX} bytes."
        changes = scope["method"] not in ("GET", "HEAD")
        if self._address.token is not None:
            if scope["path"] in OPEN_PATHS and not changes:
                return None
            given = headers.get(b"authorization", b"")
            wanted = f"Bearer {self._address.token}".encode()
            if hmac.compare_digest(given, wanted):
                return None
            return 401, "UNAUTHORIZED", "Send penstock.http.token as header: Authorization: Bearer <token>."
        if changes:
            return 403, "TOKEN_NEEDED", "Nothing can be changed over HTTP until penstock.http.token is set."
        host = headers.get(b"host", b"").decode("latin-1")
        if _name(host) not in self._address.hosts:
            return 421, "WRONG_HOST", f"This server is not called {host!r}; use localhost, or set penstock.http.token."
        return None


def _name(host: str) -> str:
    """Return a Host header without its port."""
    return host if host.endswith("]") or ":" not in host else host.rpartition(":")[0]


async def _refuse(send: Send, status: int, code: str, message: str) -> None:
    body = orjson.dumps({"error": {"status": status, "code": code, "message": message}})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
