"""``python -m benchmarks.reads``: what reads of live state cost an application of two stream threads.

Point reads over HTTP beside a count at a steady rate: the ages of its results with and without them, in turn. And a
scan of a large store as Arrow over HTTP: rows per CPU second of all processes of the application, and its memory.
Missing rows end it with exit code 1.
"""

from __future__ import annotations

import http.client
import multiprocessing
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import click
import httptools
import orjson
import pyarrow as pa
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table

from benchmarks.data import FIRST_TIMESTAMP_MS, recreate_topic
from benchmarks.latency import KEYS, RATE, measured
from benchmarks.measure import BenchmarkError
from benchmarks.recovery import Instance, Run, running
from benchmarks.report import PAGE_WIDTH
from benchmarks.systems import THREADS, Penstock, broker
from penstock.topology.errors import PenstockError
from tests.topics import delete_topics_of

PERCENTILES = (50, 99)
#: Reads in flight at a time, each with its own connection.
CONNECTIONS = 8
ARROW = "application/vnd.apache.arrow.stream"
SCAN_SECONDS = 600.0
#: Added to the niceness of the process that sends the point reads: a user's clients run on other hosts.
NICENESS = 10
console = Console(stderr=True)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class PointReader:
    """A connection that reads one key at a time. found: how many of the responses had the row of their key."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.found = 0
        self._parser = httptools.HttpResponseParser(self)
        self._key = self._body = b""
        self._is_complete = False

    def ask(self, key: bytes) -> None:
        """Send a request, while none is in flight."""
        self._key, self._body, self._is_complete = key, b"", False
        self.socket.sendall(b"GET /stores/counts/%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % key)

    def receive(self) -> bool:
        """Take the data that has arrived; True if the response is complete. Raises BenchmarkError."""
        data = self.socket.recv(65_536)
        if not data:
            raise BenchmarkError("the application has closed the connection of a reader")
        self._parser.feed_data(data)
        if self._is_complete and self._parser.get_status_code() == http.client.OK:
            (row,) = orjson.loads(self._body)["rows"]
            self.found += row["key"].encode() == self._key
        return self._is_complete

    def on_body(self, data: bytes) -> None:
        """Take a part of the response; called by the parser."""
        self._body += data

    def on_message_complete(self) -> None:
        """Note the end of the response; called by the parser."""
        self._is_complete = True


def read_points(port: int, rate: int, parent: Connection) -> None:
    """Read one key after the other, so many a second, until the parent sends something; send it how many, how many of
    them had a row, and in how many seconds.

    One process, because each connection's own would take more CPU time than the application.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    readers = [PointReader(port) for _ in range(CONNECTIONS)]
    idle, asked, begin = deque(readers), 0, time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(parent, selectors.EVENT_READ)
        for reader in readers:
            selector.register(reader.socket, selectors.EVENT_READ, reader)
        while not parent.poll():
            while idle and begin + asked / rate <= time.monotonic():
                idle.popleft().ask(b"k%06d" % (asked % KEYS))
                asked += 1
            wait = begin + asked / rate - time.monotonic() if idle else None
            for ready, _ in selector.select(None if wait is None else max(wait, 0)):
                if ready.data is not None and ready.data.receive():
                    idle.append(ready.data)
    parent.send((asked, sum(reader.found for reader in readers), time.monotonic() - begin))


@contextmanager
def point_reads(port: int, rate: int, rates: list[float]) -> Iterator[None]:
    """Read points for the length of the block, and append the reads per second.

    Raises BenchmarkError for missing rows.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    reading = context.Process(target=read_points, args=(port, rate, there))
    reading.start()
    there.close()
    try:
        yield
    finally:
        try:
            here.send("end")
            asked, found, seconds = here.recv()
        except (EOFError, OSError) as error:
            raise BenchmarkError("the readers have failed; see above") from error
        finally:
            reading.join()
    rates.append(asked / seconds)
    if found < asked * 0.99:  # keys that have no record yet, in the first second
        raise BenchmarkError(f"only {found} of {asked} reads have found a row")


@dataclass(frozen=True, slots=True)
class Scan:
    """One scan. cpu_seconds: of all processes of the application; grown_bytes: of their memory meanwhile."""

    rows: int
    seconds: float
    cpu_seconds: float
    grown_bytes: int


def scan(run: Run, keys: int) -> Scan:
    """Restore a store with so many counts, and read it as Arrow."""
    port = free_port()
    run.config = {"penstock.http.port": str(port)}
    run.records = keys
    run.write_changelog(((b"k%08d" % n, (n + 1).to_bytes(8), FIRST_TIMESTAMP_MS) for n in range(keys)), keys)
    recreate_topic(run.bootstrap_servers, run.input)
    with running(run):
        program = run.start(THREADS)
        run.wait_until(partial(is_running, port), "the restore")
        rows_of(port, "?limit=0")  # imports what Arrow needs
        program.look()
        cpu, rss, begin = program.cpu_seconds, memory_of(program), time.monotonic()
        with console.status("Reading all rows"):
            rows = rows_of(port, "")
        seconds = time.monotonic() - begin
        program.look()
        found = Scan(rows, seconds, program.cpu_seconds - cpu, memory_of(program) - rss)
    if rows != keys:
        raise BenchmarkError(f"the scan has {rows} rows instead of {keys}")
    return found


def is_running(port: int) -> bool:
    """Return whether all tasks of the application run."""
    try:
        with connected(port) as connection:
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == http.client.OK
    except OSError:
        return False


@contextmanager
def connected(port: int) -> Iterator[http.client.HTTPConnection]:
    """Yield a connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SCAN_SECONDS)
    try:
        yield connection
    finally:
        connection.close()


def rows_of(port: int, query: str) -> int:
    """Return how many rows the store has as Arrow, read batch by batch."""
    with connected(port) as connection:
        connection.request("GET", f"/stores/counts{query}", headers={"Accept": ARROW})
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise BenchmarkError(f"the scan was refused: {response.read()[:500]!r}")
        with pa.ipc.open_stream(response) as batches:
            return sum(batch.num_rows for batch in batches)


def memory_of(program: Instance) -> int:
    """Return the memory of all processes now, in bytes."""
    return sum(process.memory_info().rss for process in program.tree())


def latencies(
    servers: str, directory: Path, rate: int, rounds: int
) -> tuple[dict[str, list[list[float]]], list[float]]:
    """Return the ages of the results of each run, without and with reads, and the reads per second."""
    found: dict[str, list[list[float]]] = {"without reads": [], "with reads": []}
    rates: list[float] = []
    for number in range(rounds):
        for way, runs in found.items():
            run, port = new_run(servers, directory), free_port()
            reads = partial(point_reads, port, rate, rates)
            config = {"penstock.http.port": str(port)}
            steady = measured(run, config, beside=reads) if way == "with reads" else measured(run, config)
            runs.append(steady.ages)
            shown = ", ".join(f"p{p} {percentile(steady.ages, p):.2f} ms" for p in PERCENTILES)
            console.print(f"round {number + 1}, {way}: {shown}")
            delete_topics_of(AdminClient({"bootstrap.servers": servers, "log_level": 3}), run.name)
    return found, rates


def percentile(ages: list[float], percent: int) -> float:
    """Return a percentile of sorted ages."""
    return ages[int(len(ages) * percent / 100)]


def new_run(servers: str, directory: Path) -> Run:
    """Return a run with a name and a directory that no other has."""
    name = f"benchmark-{uuid.uuid4().hex[:8]}-reads"
    home = directory / name
    home.mkdir()
    return Run(servers, Penstock(), name, home, f"{name}-input")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rate", type=click.IntRange(min=1), default=1_000, show_default=True, help="Point reads per second.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Of point reads.")
@click.option("--keys", type=click.IntRange(min=1), default=10_000_000, show_default=True, help="Rows of the scan.")
@click.option("--only", type=click.Choice(["points", "scan"]), help="One of the two.")
def main(rate: int, rounds: int, keys: int, only: str | None) -> None:
    """Read live state over HTTP beside a load, and a large store as Arrow."""
    output = Console()
    if not output.is_terminal:
        output.width = PAGE_WIDTH
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-reads-") as work, broker("reads", Path(work)) as servers:
            if only != "scan":
                found, rates = latencies(servers, Path(work), rate, rounds)
                output.print(f"{RATE:,} records/s to their answers, {median(rates):,.0f} point reads/s", table(found))
            if only != "points":
                one = scan(new_run(servers, Path(work)), keys)
                output.print(
                    f"a scan of {one.rows:,} rows: {one.seconds:.1f} s, {one.rows / one.cpu_seconds / 1e6:.2f} million "
                    f"rows per CPU second of all processes, memory grew by {one.grown_bytes / 1e6:,.0f} MB"
                )
    except (BenchmarkError, PenstockError) as error:
        raise click.ClickException(str(error)) from error


def table(found: dict[str, list[list[float]]]) -> Table:
    """Return the text to print: medians of the rounds."""
    shown = Table("ms", *found, "times")
    for percent in PERCENTILES:
        without, with_reads = (median(percentile(ages, percent) for ages in runs) for runs in found.values())
        shown.add_row(f"p{percent}", f"{without:.2f}", f"{with_reads:.2f}", f"{with_reads / without:.2f}")
    return shown


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the broker and the programs are stopped
    sys.exit(main())
