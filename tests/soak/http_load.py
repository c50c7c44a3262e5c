"""Load on the HTTP server beside the soak's records: silent connections, slow headers, malformed requests, probes."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from itertools import groupby
from statistics import median
from typing import Any

from penstock.supervisor.http.connections import CONNECTIONS_MAX, IDLE_SECONDS
from tests.soak.figures import MIB, Sample

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
#: Clients at a time. Together they need more connections than the server has.
SILENT, SLOW, MALFORMED = 300, 60, 4
#: How long a silent client rests after the server has closed its connection, in seconds.
REST_SECONDS = 1.0
#: How long a slow client waits between two bytes, and a malformed one between two requests, in seconds.
DRIP_SECONDS, PACE_SECONDS = 0.5, 0.02
#: How long a load balancer waits between two probes, and for an answer, in seconds.
PROBE_EVERY_SECONDS, PROBE_SECONDS = 0.5, 2.0
#: After this many failed probes in a row, Kubernetes restarts a container (failureThreshold). A single one may fail: on
#: a busy machine, clients that send their request slowly are closed like silent ones.
FAILURES_MAX = 3
#: The server's time limit for everything, in seconds.
PATIENCE_SECONDS = 30.0
SLOW_HEADER = b"GET /status HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"x" * 1_000
REQUESTS = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # TLS
    b"HELLO\r\n\r\n",
    b"GET /sta tus HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /status HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET /status HTTP/1.1\r\nHost: localhost\r\nContent-Length: many\r\n\r\n",
    b"GET /status HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n",
    b"GET /status HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 33_000,
    b"GET /stores%2Fcounts HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /stores/counts/%ff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /stores/counts?partition=2147483647 HTTP/1.1\r\nHost: localhost\r\n\r\n",
)
#: The supervisor's allowed increase under load: a descriptor for each connection and some more, and the memory of that
#: many requests.
MORE_HANDLES, MORE_RSS = CONNECTIONS_MAX + 16, 48 * MIB
#: The last share of a run, in percent, long after the load; and what may be left of its connections and threads: idle
#: ones of the server end after ten seconds.
RESTED_PERCENT, LEFT_HANDLES, LEFT_THREADS = 10, 16, 2
#: Allowed bytes of log for the start, and for each minute of load.
LOG_BYTES = 64 << 10
#: The minimum rate of processing with load, in percent of the rate without.
RATE_PERCENT = 95


class HttpLoad:
    """Clients on a separate thread, as a context manager.

    port: the server's. begin, end: when they start and end, in seconds after entering; probes go to the end of the
    block. counts: connections by kind, and responses to malformed requests by status. wrong: violations by the server.
    waits: of each probe, in seconds, infinite for one that was closed without a response. longest: the longest time of
    a connection without a request, in seconds.
    """

    def __init__(self, port: int, begin: float, end: float, seed: int = 1) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.waits: list[float] = []
        self.longest = 0.0
        self._port, self._begin, self._seconds, self._rng = port, begin, end - begin, random.Random(seed)
        self._end = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="http-load")
        self._running: Future[None] | None = None

    def __enter__(self) -> HttpLoad:
        self._running = self._pool.submit(lambda: asyncio.run(self._run()))
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        assert self._running is not None
        self._running.result(PATIENCE_SECONDS)
        self._pool.shutdown()

    async def _run(self) -> None:
        ended = asyncio.create_task(asyncio.to_thread(self._end.wait))
        await asyncio.wait([ended], timeout=self._begin)
        kinds = ((self._silent, SILENT), (self._slow, SLOW), (self._malformed, MALFORMED))
        crowd = asyncio.gather(*(kind() for kind, count in kinds for _ in range(count)))
        probes = asyncio.gather(self._probe())
        for clients, timeout in ((crowd, self._seconds), (probes, None)):
            either: list[asyncio.Future[Any]] = [ended, clients]
            await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            clients.cancel()
            with suppress(asyncio.CancelledError):
                await clients  # raises errors that a client did not expect

    async def _silent(self) -> None:
        while True:
            async with self._connection("silent") as (reader, _):
                await reader.read()  # until it is closed
            await asyncio.sleep(REST_SECONDS)

    async def _slow(self) -> None:
        while True:
            async with self._connection("slow") as (_, writer):
                for byte in SLOW_HEADER:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(DRIP_SECONDS)

    @asynccontextmanager
    async def _connection(self, kind: str) -> AsyncIterator[Streams]:
        """Connect; the block ends when the server closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self.counts[kind] += 1
        begin = time.monotonic()
        try:
            with suppress(ConnectionError):
                yield reader, writer
            self.longest = max(self.longest, time.monotonic() - begin)
        finally:
            writer.transport.abort()

    async def _malformed(self) -> None:
        while True:
            request = self._rng.choice(REQUESTS)
            answer = await self._ask(request)
            status = int(answer.split(maxsplit=2)[1]) if answer else 0
            self.counts["malformed"] += 1
            self.counts[f"answered {status or 'by closing'}"] += 1
            if not (status in (0, 503) or 400 <= status < 500):
                self.wrong.append(f"{request[:60]!r} was answered {answer[:60]!r}")
            await asyncio.sleep(PACE_SECONDS)

    async def _probe(self) -> None:
        while True:
            for path in (b"live", b"ready"):
                begin = time.monotonic()
                answer = await self._ask(b"GET /health/" + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.waits.append(time.monotonic() - begin if answer else math.inf)
                if answer and not answer.startswith(b"HTTP/1.1 200 "):
                    self.wrong.append(f"/health/{path.decode()} was answered {answer!r}")
                await asyncio.sleep(PROBE_EVERY_SECONDS)

    async def _ask(self, request: bytes) -> bytes:
        """Return the start of the response, empty if the connection was closed instead."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(request)
            return await asyncio.wait_for(reader.read(4096), PATIENCE_SECONDS)
        except ConnectionError:
            return b""
        finally:
            writer.transport.abort()

    def faults(self) -> Iterator[str]:
        """Yield the server's violations."""
        yield from self.wrong[:5]
        for kind in ("silent", "slow", "malformed"):
            if not self.counts[kind]:
                yield f"HTTP: there was no {kind} client"
        if self.longest > 2 * IDLE_SECONDS:
            yield f"HTTP: a connection without a request was open for {self.longest:.0f} s"
        in_a_row = max((len(list(run)) for failed, run in groupby(map(is_late, self.waits)) if failed), default=0)
        if in_a_row >= FAILURES_MAX:
            yield f"HTTP: {in_a_row} probes in a row were late or not answered"

    def lines(self) -> Iterator[str]:
        """Yield a summary."""
        kinds = ", ".join(f"{self.counts[kind]} {kind}" for kind in ("silent", "slow", "malformed"))
        answers = ", ".join(
            f"{self.counts[kind]} {kind}" for kind in sorted(self.counts) if kind.startswith("answered")
        )
        yield f"HTTP connections: {kinds}; {answers}; the longest without a request {self.longest:.1f} s"
        half, late = median(self.waits or [0.0]), sum(map(is_late, self.waits))
        yield f"HTTP probes: {len(self.waits)}, half within {1000 * half:.0f} ms, {late} late or not answered"


def is_late(wait: float) -> bool:
    """Return True if a load balancer would count a probe as failed."""
    return wait > PROBE_SECONDS


def rate(progress: Sequence[tuple[float, int]]) -> float:
    """Return the records processed per second between the first and the last moment (seconds, records)."""
    (begin, first), (end, last) = progress[0], progress[-1]
    return (last - first) / (end - begin)


def compared(
    progress: Sequence[tuple[float, int]], samples: Sequence[Sample], begin: float, end: float, log_bytes: int
) -> tuple[list[str], list[str]]:
    """Return lines about the application before, under and after the load, and the violations.

    progress: seconds since the start of the run, and the records processed then. begin, end: of the load, in the same
    seconds. log_bytes: the size of its log.
    """
    before = rate([one for one in progress if one[0] < begin])
    under = rate([one for one in progress if begin <= one[0] < end])
    lines = [f"Processed without load {before:.0f} records/s, with load {under:.0f}; the log has {log_bytes >> 10} KiB"]
    wrong = [] if 100 * under >= RATE_PERCENT * before else [f"{lines[0]}: {RATE_PERCENT} % are allowed"]
    allowed = LOG_BYTES * (1 + (end - begin) / 60)
    if log_bytes > allowed:
        wrong.append(f"the log has {log_bytes >> 10} KiB, allowed are {allowed / 1024:.0f}")
    mine = [one for one in samples if one.process == "supervisor"]
    quiet = [one for one in mine if one.at < begin]
    loaded = [one for one in mine if begin <= one.at < end]
    rested = [one for one in mine if one.at >= progress[-1][0] * (100 - RESTED_PERCENT) / 100]
    for field, when, seen, more in (
        ("handles", "under load", loaded, MORE_HANDLES),
        ("rss", "under load", loaded, MORE_RSS),
        ("handles", "after it", rested, LEFT_HANDLES),
        ("threads", "after it", rested, LEFT_THREADS),
    ):
        highest, limit = max(getattr(one, field) for one in seen), more + max(getattr(one, field) for one in quiet)
        if highest > limit:
            wrong.append(f"supervisor: {field} {highest} {when}, allowed are {limit}")
    return lines, wrong
