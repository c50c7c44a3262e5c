"""Stands between clients and one broker: notes which requests pass, and keeps one back until a test lets it go."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import Counter
from typing import Any, NamedTuple

from penstock.dev.dev_broker import HOST

_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">hh")
ANSWER_SECONDS = 10.0


class Passed(NamedTuple):
    """A request, by its API key and version."""

    api: int
    version: int


class RequestRelay:
    """Forwards connections; the broker has to advertise its address. A context manager."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._broker: tuple[str, int] = (HOST, 0)
        #: All requests, in the order in which they came.
        self.passed: list[Passed] = []
        #: How many bytes the requests of each API had.
        self.bytes: Counter[int] = Counter()
        self._hold: int | None = None
        self._held: list[bytes] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def address(self) -> str:
        """The bootstrap server for clients."""
        return f"{HOST}:{self.port}"

    def start(self, broker: str) -> None:
        """Begin to forward to a broker's own address."""
        host, port = broker.split(":")
        self._broker = host, int(port)
        self._thread.start()
        self._run(asyncio.start_server(self._serve, sock=self._listener))

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(ANSWER_SECONDS)

    def hold_next(self, api: int) -> None:
        """Keep the next request of an API back, and end its connection: it then comes again, on another."""
        self._hold = api

    @property
    def has_held(self) -> bool:
        """Whether a request was kept back."""
        return bool(self._held)

    def deliver_held(self) -> bytes:
        """Deliver the request that was kept back on a connection of its own; return the answer."""
        with socket.create_connection(self._broker, ANSWER_SECONDS) as late:
            late.sendall(self._held.pop())
            stream = late.makefile("rb")
            return stream.read(_LENGTH.unpack(stream.read(_LENGTH.size))[0])

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        broker, to_broker = await asyncio.open_connection(*self._broker)
        answers = asyncio.create_task(self._forward_answers(broker, to_client))
        try:
            while await self._forward_request(client, to_broker):
                pass
        except (EOFError, OSError):
            pass  # the client has closed its connection
        finally:
            answers.cancel()
            to_broker.close()
            to_client.close()

    async def _forward_request(self, client: asyncio.StreamReader, to_broker: asyncio.StreamWriter) -> bool:
        length = await client.readexactly(_LENGTH.size)
        frame = await client.readexactly(_LENGTH.unpack(length)[0])
        request = Passed(*_HEADER.unpack(frame[: _HEADER.size]))
        self.passed.append(request)
        self.bytes[request.api] += _LENGTH.size + len(frame)
        if request.api == self._hold:
            self._hold = None
            self._held.append(length + frame)
            return False
        to_broker.write(length + frame)
        await to_broker.drain()
        return True

    async def _forward_answers(self, broker: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        while data := await broker.read(65_536):
            to_client.write(data)
            await to_client.drain()
        to_client.close()

    def close(self) -> None:
        """End all connections."""
        self._run(self._cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_SECONDS)
        self._loop.close()
        self._listener.close()

    async def _cancel_all(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
