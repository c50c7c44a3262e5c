"""Authorization and limits of HTTP requests, before any endpoint sees them."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import orjson

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError

Message = MutableMapping[str, Any]  # the scope of a request, and what it receives and sends (ASGI)
Scope = Message
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Longest path with its query string, in bytes: enough for a key and its bounds.
URL_BYTES_MAX = 8192
#: Only a query in SQL needs a body.
BODY_BYTES_MAX = 65_536
#: Maximum number of concurrent requests, except health checks; others are refused with 503.
REQUESTS_MAX = 96
HEALTH_PATHS = ("/health/live", "/health/ready")
#: Served without a token: health checks, and the pages that prompt for the token.
OPEN_PATHS = (*HEALTH_PATHS, "/", "/store", "/dashboard.css", "/page.js", "/dashboard.js", "/store.js")
#: Sent with each response, by uvicorn. The page loads everything from this server, and no other site may frame it.
HEADERS = (
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
    (
        "content-security-policy",
        "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
)


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """The served address, and the required token.

    hosts: lower-case names by which a browser may call it without a token.
    """

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
        names = {"localhost", "127.0.0.1", "[::1]", host.lower(), server.lower()}
        return cls(host, port, token, frozenset(names - {""}))


def is_loopback(host: str) -> bool:
    """Return whether an address is this host's own; a name other than localhost may be anything."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Gate:
    """ASGI middleware: bounds, the Host header, the token.

    Without a token, reads are allowed for requests to one of the server's own names, which excludes a foreign page
    whose name points here (DNS rebinding). Changes always need a token, in a header that a foreign page cannot send.
    """

    def __init__(self, app: Application, address: HttpAddress) -> None:
        self._app = app
        self._address = address
        self._answering = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request: pass it on, or refuse it.

        It is passed on with its original path: endpoints decode their parts (endpoints.py).
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["path"] = scope["raw_path"].decode("latin-1")
        refusal = self._refusal(scope, dict(scope["headers"]))
        if refusal is not None:
            await _refuse(send, *refusal)
        elif scope["path"] in HEALTH_PATHS:
            await self._app(scope, receive, send)
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._answering >= REQUESTS_MAX:
            await _refuse(send, 503, "TOO_MANY_REQUESTS", f"{REQUESTS_MAX} requests are already being processed.")
            return
        self._answering += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._answering -= 1

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        url = len(scope["raw_path"]) + len(scope["query_string"])
        if url > URL_BYTES_MAX:
            return 414, "URL_TOO_LONG", f"The URL has {url} bytes; {URL_BYTES_MAX} are allowed."
        if int(headers.get(b"content-length", b"0") or 0) > BODY_BYTES_MAX or b"transfer-encoding" in headers:
            return 413, "BODY_TOO_LARGE", f"No request needs a body of more than {BODY_BYTES_MAX} bytes."
        changes = scope["method"] not in ("GET", "HEAD")
        if self._address.token is not None:
            if scope["path"] in OPEN_PATHS and not changes:
                return None
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._address.token.encode()):
                return None
            return 401, "UNAUTHORIZED", "Send penstock.http.token as header: Authorization: Bearer <token>."
        if changes:
            return 403, "TOKEN_NEEDED", "Changes and SQL over HTTP need a token: set penstock.http.token."
        host = headers.get(b"host", b"").decode("latin-1")
        if _name(host) not in self._address.hosts:
            return 421, "WRONG_HOST", f"This server is not called {host!r}; use localhost, or set penstock.http.token."
        return None


def _name(host: str) -> str:
    """Return a Host header without its port; names are the same in upper and lower case."""
    return (host if host.endswith("]") or ":" not in host else host.rpartition(":")[0]).lower()


async def _refuse(send: Send, status: int, code: str, message: str) -> None:
    error: dict[str, object] = {"status": status, "code": code, "message": message}
    headers = [(b"content-type", b"application/json")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 503:
        error["retry_after_seconds"] = 1
        headers.append((b"retry-after", b"1"))
    body = orjson.dumps({"error": error})
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
