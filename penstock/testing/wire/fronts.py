"""The sockets that stand in for brokers. All of it runs in the proxy's event loop."""

from __future__ import annotations

import asyncio
import socket

from .board import Board, Broker
from .connection import Connection
from .exchange import Action, Line, Side
from .framing import Request, TlsError
from .rules import Rules

HOST = "127.0.0.1"
#: So many bytes are read ahead of a frame's consumer; a Fetch answer has up to 50 MB.
_READ_AHEAD_BYTES = 1 << 20

Address = tuple[str, int]


class Fronts:
    """A front for each broker that is known by its address."""

    def __init__(self, board: Board, rules: Rules) -> None:
        self.board = board
        self.rules = rules
        self._fronts: dict[Address, Front] = {}

    def open(self, address: Address) -> Front:
        """Return the front of a broker; a new one listens already. Raises OSError."""
        if address not in self._fronts:
            self._fronts[address] = Front(self, Broker(*address))
        return self._fronts[address]

    def port(self, address: Address) -> int:
        """Return where the front of a broker listens."""
        return self._fronts[address].port

    async def place(self, node: int, host: str, port: int) -> Address:
        """Return where clients reach a broker."""
        front = self.open((host, port))
        front.broker.node = node
        return HOST, front.port

    async def close(self) -> None:
        """Stop listening and end all connections."""
        for front in self._fronts.values():
            front.close()
        await self.end_connections()

    async def end_connections(self) -> None:
        """End all connections."""
        for front in self._fronts.values():
            await front.end_connections()

    async def set_cut(self, node: int | None, cut: bool) -> None:
        """Cut off a broker or all, or let connections pass again."""
        for front in self._fronts.values():
            if node in (None, front.broker.node):
                front.cut = cut
                if cut:
                    await front.end_connections()


class Front:
    """Listens in place of one broker. cut: it refuses connections."""

    def __init__(self, fronts: Fronts, broker: Broker) -> None:
        self.broker = broker
        self.cut = False
        self._fronts = fronts
        self._connections: set[asyncio.Task[None]] = set()
        # Not asyncio's server: that loses a connection which it is just accepting when it is closed (Python 3.11).
        self._listener = socket.create_server((HOST, 0))
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    @property
    def port(self) -> int:
        """Return where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def close(self) -> None:
        """Stop listening."""
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()

    async def end_connections(self) -> None:
        """End all connections."""
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self) -> None:
        try:
            handle, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the client is gone already
            return
        handle.setblocking(False)
        task = asyncio.create_task(self._serve(handle))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: handle.close())  # it may be cancelled before it begins

    async def _serve(self, handle: socket.socket) -> None:
        client = Side(*await asyncio.open_connection(sock=handle, limit=_READ_AHEAD_BYTES))
        if self.cut:
            client.reset()
            return
        try:
            address = self.broker.host, self.broker.port
            upstream = Side(*await asyncio.open_connection(*address, limit=_READ_AHEAD_BYTES))
            line = Line(client, upstream, self.broker, self._fronts.board)
            await Connection(line, self._choose, self._fronts.place).serve()
        except asyncio.CancelledError:
            client.abort()
            raise
        except OSError:  # the broker is away: clients see a reset instead of a refused connection
            client.reset()
        except TlsError as error:  # as a broker's listener without TLS: the connection is closed
            self._fronts.board.tls = error
            client.reset()
        except Exception as error:  # noqa: BLE001  the proxy raises it at its end
            self._fronts.board.failure = self._fronts.board.failure or error
            client.reset()

    def _choose(self, request: Request) -> Action:
        board = self._fronts.board
        board.record.count(request)
        action, is_fault = self._fronts.rules.choose(request, self.broker.node)
        if is_fault:
            board.note(request, self.broker, str(action))
        return action
