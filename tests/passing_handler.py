"""What HTTP proxies of the tests have in common: a request is passed on to a server of this machine, and back."""

from __future__ import annotations

from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler

from typing_extensions import override

HOST = "127.0.0.1"
#: Of a server that has its body anyway, or that the proxy sets itself.
NOT_PASSED_ON = ("connection", "content-length", "transfer-encoding")


class PassingHandler(BaseHTTPRequestHandler):
    """One connection. target: the server's port, which subclasses set, as they define handle_request."""

    protocol_version = "HTTP/1.1"
    target: int

    def handle_request(self) -> None:
        """Answer a request, for example by pass_on."""
        raise NotImplementedError

    def _handle(self) -> None:
        self.handle_request()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815  names of the library

    def body(self) -> bytes:
        """Read the request's body."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def request_headers(self) -> dict[str, str]:
        """Return the headers to pass on."""
        return {name: value for name, value in self.headers.items() if name.lower() not in NOT_PASSED_ON}

    def ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Send a request to the server; return its status, headers and body."""
        connection = HTTPConnection(HOST, self.target)
        try:
            connection.request(method, path, body, headers | {"Content-Length": str(len(body))})
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        found = {name: value for name, value in response.getheaders() if name.lower() not in NOT_PASSED_ON}
        length = response.getheader("Content-Length") if method == "HEAD" else str(len(data))
        return response.status, found | {"Content-Length": length or "0"}, data

    def reply(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        """Send a response to the client."""
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Write nothing: the server behind has a log."""
