"""A TCP proxy before an HTTP server that fails, by a seed: it cuts, delays, and answers 500 in place of the server."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

FAULTS = ("none", "none", "cut", "cut late", "500", "slow")
ERROR = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
PIECE_BYTES = 64 << 10
SLOW_SECONDS = 0.05


class FaultyFront:
    """Listens on port once it runs. counts: connections by fault. is_faulty: may be changed at any time."""

    def __init__(self, target: int, seed: int) -> None:
        self.port = 0
        self.is_faulty = True
        self.counts = dict.fromkeys(FAULTS, 0)
        self._target, self._random = target, random.Random(seed)

    async def serve(self, started: threading.Event, stopped: asyncio.Event) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        await stopped.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault = self._random.choice(FAULTS) if self.is_faulty else "none"
        self.counts[fault] += 1
        try:
            if fault == "500":
                await reader.read(PIECE_BYTES)
                writer.write(ERROR)
                await writer.drain()
            elif fault != "cut":
                await self._pass(reader, writer, fault)
        except OSError:
            pass  # one side has closed its connection: so the other one sees it closed, too
        finally:
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: str) -> None:
        back, to = await asyncio.open_connection("127.0.0.1", self._target)
        left = self._random.randrange(1, 4 * PIECE_BYTES) if fault == "cut late" else None
        both = [
            asyncio.create_task(self._copy(source, target, left, fault))
            for source, target in ((reader, to), (back, writer))
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            to.close()

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, left: int | None, fault: str
    ) -> None:
        while data := await source.read(PIECE_BYTES):
            if fault == "slow":
                await asyncio.sleep(SLOW_SECONDS)
            target.write(data if left is None else data[:left])
            await target.drain()
            if left is not None:
                left -= len(data)
                if left <= 0:
                    return


@contextmanager
def faulty_front(target: int, seed: int = 1) -> Iterator[FaultyFront]:
    """Run a proxy before a port of this machine."""
    front, started = FaultyFront(target, seed), threading.Event()
    loop, stopped = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(front.serve(started, stopped)))
    thread.start()
    started.wait()
    try:
        yield front
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
