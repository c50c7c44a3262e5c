"""The wire proxy's rules before the in-memory broker: both ends of each connection are in this process.

It needs kio, as the proxy does, so only EmbeddedKafka with rules imports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from typing_extensions import override

from penstock.testing.wire.board import Board, Broker
from penstock.testing.wire.exchange import Action, Connection, Line, Side
from penstock.testing.wire.framing import Request
from penstock.testing.wire.record import Event, Record
from penstock.testing.wire.rules import Rule, Rules

from .cluster import Node
from .output import Output


class _MemoryOutput:
    """Writes to a reader at the other end."""

    def __init__(self, other: asyncio.StreamReader) -> None:
        self._other = other
        self._closed = False

    def write(self, data: bytes) -> None:
        """Send bytes, unless it is closed."""
        if not self._closed:
            self._other.feed_data(data)

    def close(self) -> None:
        """Signal the end of data to the reader."""
        if not self._closed:
            self._closed = True
            self._other.feed_eof()


class _MemorySide(Side):
    """The broker, as the proxy sees it."""

    def __init__(self, reader: asyncio.StreamReader, output: Output) -> None:
        self.reader = reader
        self.silent = False
        self._output = output

    @override
    async def write(self, data: bytes) -> None:
        if not self.silent:
            self._output.write(data)

    @override
    def end(self) -> None:
        self._output.close()

    @override
    async def close(self) -> None:
        self._output.close()

    @override
    def abort(self) -> None:
        self._output.close()

    @override
    def reset(self) -> None:
        self._output.close()


class Faults:
    """Rules for all connections of a cluster. failure: the first error in forwarding."""

    def __init__(self, rules: Iterable[Rule], seed: int) -> None:
        self._record = Record(None)
        self._board = Board(self._record)
        self._rules = Rules(rules, seed)
        self.failure: Exception | None = None

    @property
    def events(self) -> list[Event]:
        """The actions so far."""
        return self._record.events()

    def set_rules(self, rules: Iterable[Rule], seed: int) -> None:
        """Replace the rules for later requests."""
        self._rules = Rules(rules, seed)

    async def serve(
        self,
        node: Node,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        serve: Callable[[Node, asyncio.StreamReader, Output], Awaitable[None]],
    ) -> None:
        """Pass a connection's requests to ``serve``, and the responses back, subject to the rules."""
        requests, answers = asyncio.StreamReader(), asyncio.StreamReader()
        broker = Broker(node.host, node.port, node.id)
        upstream = _MemorySide(answers, _MemoryOutput(requests))
        line = Line(Side(reader, writer), upstream, broker, self._board)

        def choose(request: Request) -> Action:
            self._record.count(request)
            action, is_fault = self._rules.choose(request, node.id)
            if is_fault:
                self._board.note(request, broker, str(action))
            return action

        served = asyncio.ensure_future(serve(node, requests, _MemoryOutput(answers)))
        try:
            await Connection(line, choose, _same_place).serve()
        except OSError:
            pass  # the client has disconnected
        except Exception as error:  # noqa: BLE001  EmbeddedKafka raises it at its end
            self.failure = self.failure or error
        finally:
            served.cancel()
            await asyncio.gather(served, return_exceptions=True)


async def _same_place(_node: int, host: str, port: int) -> tuple[str, int]:
    return host, port
