"""An HTTP proxy before a server of this machine: a test decides for each request what happens to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from typing_extensions import override

HOST = "127.0.0.1"
#: Of a server that has its body anyway, or that the proxy sets itself.
NOT_PASSED_ON = ("connection", "content-length", "transfer-encoding")


@dataclass(frozen=True)
class Refuse:
    """Answer with an error of S3 in place of the server."""

    status: int
    code: str


@dataclass(frozen=True)
class Tear:
    """Pass only the first half of the body on, and the server's answer back."""


@dataclass(eq=False)
class Hold:
    """Pass a request on only once it is let go, whether its client is still there or not.

    arrived: it is held, path is its path.
    """

    path: str = ""
    arrived: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)


Fate = Refuse | Tear | Hold | None


class ScriptedFront:
    """Listens on port. script: returns the fate of a request, by its method and path; None passes it on."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.script: Callable[[str, str], Fate] = lambda method, path: None
        #: All requests, as "PUT /bucket/object".
        self.seen: list[str] = []
        self._holds: list[Hold] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer((HOST, 0), _handler(self))
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def fate(self, method: str, path: str) -> Fate:
        """Return the fate of a request."""
        with self._lock:
            self.seen.append(f"{method} {path}")
            found = self.script(method, path)
            if isinstance(found, Hold):
                self._holds.append(found)
                found.path = path
            return found

    @contextmanager
    def holding(self, method: str, part: str) -> Iterator[Hold]:
        """Hold the next request with this part in its path; let it go at the end."""
        hold = Hold()
        unused = [hold]

        def script(asked: str, path: str) -> Fate:
            return unused.pop() if unused and asked == method and part in path else None

        before, self.script = self.script, script
        try:
            yield hold
        finally:
            self.script = before
            hold.let_go.set()

    def close(self) -> None:
        """End it; held requests are let go."""
        for hold in self._holds:
            hold.let_go.set()
        self._server.shutdown()
        self._server.server_close()


def _handler(front: ScriptedFront) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fate = front.fate(self.command, self.path)
            with suppress(ConnectionError):  # the client has gone: the server has got the request nevertheless
                if isinstance(fate, Refuse):
                    self._refuse(fate)
                    return
                if isinstance(fate, Hold):
                    fate.arrived.set()
                    fate.let_go.wait()
                self._pass_on(body[: len(body) // 2] if isinstance(fate, Tear) else body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request  # noqa: N815  names of the library

        def _refuse(self, fate: Refuse) -> None:
            text = f"<Error><Code>{fate.code}</Code><Message>as the test says</Message></Error>".encode()
            self.send_response(fate.status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _pass_on(self, body: bytes) -> None:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in NOT_PASSED_ON}
            connection = HTTPConnection(HOST, front.target)
            try:
                connection.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
                answer = connection.getresponse()
                data = answer.read()
            finally:
                connection.close()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in NOT_PASSED_ON:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(data)

        @override
        def log_message(self, format: str, *args: object) -> None:
            """Write nothing: `seen` has the requests."""

    return Handler


@contextmanager
def scripted_front(target: int) -> Iterator[ScriptedFront]:
    """Run a proxy before a port of this machine."""
    front = ScriptedFront(target)
    try:
        yield front
    finally:
        front.close()
