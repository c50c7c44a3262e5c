"""The proxy's interface for tests, and the sockets that clients see as brokers. Its event loop runs in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import TextIO

from .board import Board, Broker
from .exchange import Action, Connection, Line, Side
from .framing import Request, TlsError, WireError
from .record import Event, Record
from .rules import Rule, Rules

#: Timeout of calls to the proxy's thread, such as listening and ending connections.
_CALL_SECONDS = 10.0


HOST = "127.0.0.1"
#: Maximum number of bytes that are read ahead; a Fetch response has up to 50 MB.
_READ_AHEAD_BYTES = 1 << 20

Address = tuple[str, int]


class WireProxy:
    """A proxy in front of all brokers of a cluster; a context manager. Clients connect to ``bootstrap_servers``.

    bootstrap_servers: those of the real cluster, without TLS; the proxy finds other brokers in the responses. rules:
    the first one that applies determines the action of an exchange. seed: for the rules' probabilities. out: a file for
    one line per action, e.g. sys.stderr. Raises OSError if it cannot listen.
    """

    def __init__(
        self, bootstrap_servers: str, rules: Iterable[Rule] = (), *, seed: int = 0, out: TextIO | None = None
    ) -> None:
        self._addresses = [_address(server) for server in bootstrap_servers.split(",")]
        self._record = Record(out)
        self._fronts = Fronts(Board(self._record), Rules(rules, seed))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire-proxy", daemon=True)

    def __enter__(self) -> WireProxy:
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._fronts.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        board = self._fronts.board
        failure = board.failure or (None if self._record.requests() else board.tls)
        if failure is not None and error is None:
            raise WireError("the proxy could not pass something on") from failure

    @property
    def bootstrap_servers(self) -> str:
        """Return the addresses at which clients reach the cluster through the proxy."""
        return ",".join(f"{HOST}:{self._fronts.port(address)}" for address in self._addresses)

    @property
    def events(self) -> list[Event]:
        """Return the actions so far."""
        return self._record.events()

    @property
    def requests(self) -> Counter[tuple[str, int]]:
        """Return the number of requests, by API and version, e.g. {("EndTxn", 5): 12}."""
        return self._record.requests()

    def wait_for(self, fits: Callable[[Event], bool], seconds: float = 60.0) -> Event:
        """Return the first event for which fits(event) is true; raises TimeoutError if there is none in time."""
        return self._record.wait_for(fits, seconds)

    def set_rules(self, rules: Iterable[Rule], *, seed: int = 0) -> None:
        """Replace the rules for later requests."""
        self._fronts.rules = Rules(rules, seed)

    def heal(self) -> None:
        """Drop the rules and end all connections, also silent ones and those with something held or delayed."""
        self.set_rules(())
        self._run(self._fronts.end_connections())

    def cut(self, broker: int | None = None) -> None:
        """End all connections to a broker (its node id; by default to all) and refuse new ones until ``restore``."""
        self._run(self._fronts.set_cut(broker, True))

    def restore(self, broker: int | None = None) -> None:
        """Let connections to a broker pass again, by default to all."""
        self._run(self._fronts.set_cut(broker, False))

    async def _open(self) -> None:
        for address in self._addresses:
            self._fronts.open(address)

    def _run(self, work: Coroutine[object, object, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS)


def _address(server: str) -> tuple[str, int]:
    host, _, port = server.strip().rpartition(":")
    return host, int(port)


class Fronts:
    """The fronts of all known brokers, by address."""

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
        """Return the port on which the front of a broker listens."""
        return self._fronts[address].port

    async def place(self, node: int, host: str, port: int) -> Address:
        """Return the address at which clients reach a broker."""
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
    """Listens in place of one broker. cut: whether it refuses connections."""

    def __init__(self, fronts: Fronts, broker: Broker) -> None:
        self.broker = broker
        self.cut = False
        self._fronts = fronts
        self._connections: set[asyncio.Task[None]] = set()
        # Not asyncio's server, which loses a connection if it is closed while accepting it (Python 3.11).
        self._listener = socket.create_server((HOST, 0))
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    @property
    def port(self) -> int:
        """Return the port on which it listens."""
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
        except TlsError as error:  # a broker's listener without TLS closes the connection too
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
