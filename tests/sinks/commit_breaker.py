"""A proxy before a database that breaks connections exactly at a commit, or holds a commit back."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum


class Break(Enum):
    """When the connection breaks: the server never gets the COMMIT, or it does, and its answer is lost."""

    BEFORE_COMMIT = "before"
    AFTER_COMMIT = "after"


#: Statements that change rows of a sink's table.
CHANGES = (b"COPY ", b"DELETE FROM ", b"INSERT INTO ")


class CommitBreaker:
    """Forwards connections to a server. plan: what happens at the next commits of rows, in order."""

    def __init__(self, host: str, port: int) -> None:
        self.server = host, port
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]
        self.plan: list[Break] = []
        self.broken: list[Break] = []
        #: Connections that the server refused, because it was down.
        self.refused = 0
        #: Ends the wait of a commit that hold_next() holds back. held_port: of its client.
        self._holds = threading.Event()
        self.let_go = threading.Event()
        self.held_port: int | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def hold_next(self) -> None:
        """Hold the next commit of rows back until let_go is set."""
        self.held_port = None
        self.let_go.clear()
        self._holds.set()

    def takes_hold(self, port: int) -> bool:
        """Return whether the commit of a client is to be held back; it is the one then."""
        if not self._holds.is_set():
            return False
        self._holds.clear()
        self.held_port = port
        return True

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self.server)
                except ConnectionRefusedError:  # the server is down, and the client has to see that
                    self.refused += 1
                    client.close()
                    continue
                _Connection(self, client, server).run()

    def close(self) -> None:
        """Accept no more connections."""
        self.let_go.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@dataclass(eq=False)
class _Connection:
    proxy: CommitBreaker
    client: socket.socket
    server: socket.socket
    swallows: threading.Event = field(default_factory=threading.Event)
    committed: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        threading.Thread(target=self._forward, daemon=True).start()

    def _forward(self) -> None:
        back = threading.Thread(target=self._to_client, daemon=True)
        back.start()
        self._to_server()
        back.join()
        self.client.close()
        self.server.close()

    def _to_server(self) -> None:
        changes = False
        with suppress(OSError):
            while data := self.client.recv(65_536):
                changes |= any(statement in data for statement in CHANGES)
                if b"COMMIT" in data and changes:
                    changes = False
                    if self.proxy.takes_hold(self.client.getpeername()[1]):
                        self.proxy.let_go.wait()
                    if self.proxy.plan:
                        self._break(data)
                        break
                self.server.sendall(data)
        self._shut_down()

    def _break(self, data: bytes) -> None:
        how = self.proxy.plan.pop(0)
        if how is Break.AFTER_COMMIT:
            self.swallows.set()
            self.server.sendall(data)
            self.committed.wait()
        self.proxy.broken.append(how)

    def _to_client(self) -> None:
        with suppress(OSError):
            while data := self.server.recv(65_536):
                if not self.swallows.is_set():
                    self.client.sendall(data)
                elif b"COMMIT" in data:
                    self.committed.set()
        self.committed.set()
        self._shut_down()

    def _shut_down(self) -> None:
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def commit_breaker(host: str, port: int) -> Iterator[CommitBreaker]:
    """Run a proxy."""
    proxy = CommitBreaker(host, port)
    try:
        yield proxy
    finally:
        proxy.close()
