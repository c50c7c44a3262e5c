"""An HTTP proxy before a server of this machine: a test decides for each request what happens to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer

from typing_extensions import override

from tests.passing_handler import HOST, PassingHandler


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


def _handler(front: ScriptedFront) -> type[PassingHandler]:
    class Handler(PassingHandler):
        target = front.target

        @override
        def handle_request(self) -> None:
            body = self.body()
            fate = front.fate(self.command, self.path)
            with suppress(ConnectionError):  # the client has gone: the server has got the request nevertheless
                if isinstance(fate, Refuse):
                    text = f"<Error><Code>{fate.code}</Code><Message>as the test says</Message></Error>"
                    self.reply(fate.status, {}, text.encode())
                    return
                if isinstance(fate, Hold):
                    fate.arrived.set()
                    fate.let_go.wait()
                passed = body[: len(body) // 2] if isinstance(fate, Tear) else body
                self.reply(*self.ask(self.command, self.path, passed, self.request_headers()))

    return Handler


@contextmanager
def scripted_front(target: int) -> Iterator[ScriptedFront]:
    """Run a proxy before a port of this machine."""
    front = ScriptedFront(target)
    try:
        yield front
    finally:
        front.close()
