"""Rows equal the records of a real broker, whatever is killed: workers, supervisors, the database, and at a commit."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from confluent_kafka import Producer

from tests.chaos.hosts import Host, is_stream_thread
from tests.postgres_server import HOST, PostgresDatabase, postgres_server
from tests.sinks.commit_breaker import Break, CommitBreaker, commit_breaker
from tests.sinks.ordering_program import DSN_VARIABLE, TOPIC_VARIABLE
from tests.suspended import suspended
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker

PARTITIONS = 4
KEYS = 20
SESSION_MS = 6_000
#: Records that are written at once.
BURST = 50
#: The topologies of ordering_program.
COUNTING, APPENDING = "counting", "appending"


@dataclass(eq=False)
class Ordering:
    """`penstock run` of a topology of ordering_program, its topic, and its tables behind a proxy."""

    host: Host
    bootstrap_servers: str
    source: str
    database: PostgresDatabase
    proxy: CommitBreaker
    counts_too: bool
    random: random.Random = field(default_factory=lambda: random.Random(1))
    produced: list[tuple[int, str]] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the application, and stop it cleanly, unless the block fails."""
        self.host.start()
        yield
        assert self.host.stop() == 0, self.host.last_error()

    def threads(self) -> list[psutil.Process]:
        """Return the processes of stream threads."""
        return [worker for worker in self.host.workers() if is_stream_thread(worker)]

    def produce(self, records: int = BURST) -> None:
        """Write records, and wait until they are acknowledged."""
        producer = Producer({"bootstrap.servers": self.bootstrap_servers})
        for _ in range(records):
            order = len(self.produced), f"item-{self.random.randrange(KEYS)}"
            self.produced.append(order)
            producer.produce(self.source, json.dumps({"number": order[0], "item": order[1]}), order[1])
        assert producer.flush(PATIENCE_SECONDS) == 0

    def rows(self, query: str) -> Counter[tuple[Any, ...]]:
        """Return the rows of a query; none while the database or the table is not there."""
        assert self.host.exit_code in (None, 0), self.host.last_error()
        try:
            return Counter(self.database.rows(query))
        except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
            return Counter()

    def missing(self) -> int:
        """Return how many orders are not in the table."""
        return (Counter(self.produced) - self.rows("SELECT number, item FROM orders")).total()

    def wait_for_rows(self, missing: int = 0) -> None:
        """Wait until at most so many orders are missing."""
        eventually(lambda: self.missing() <= missing, self.progress)

    def progress(self) -> str:
        """Return what is missing."""
        return f"{self.missing()} of {len(self.produced)} orders are missing; last error: {self.host.last_error()}"

    def check(self) -> None:
        """Wait until nothing is missing; then assert that nothing is repeated."""
        self.wait_for_rows()
        if self.counts_too:
            wanted = Counter(Counter(item for _, item in self.produced).items())
            counts = "SELECT item, value FROM counts"
            eventually(lambda: self.rows(counts) == wanted, lambda: f"the counts are {self.rows(counts)}")
        assert self.rows("SELECT number, item FROM orders") == Counter(self.produced)

    @contextmanager
    def held_commit(self) -> Iterator[int]:
        """Hold a commit of rows back before it reaches the database; yield the process that has sent it."""
        self.proxy.hold_next()
        try:
            self.produce()
            eventually(lambda: self.proxy.held_port is not None, "a commit is held back")
            yield next(thread.pid for thread in self.threads() if self.proxy.held_port in local_ports(thread))
        finally:
            self.proxy.let_go.set()


def local_ports(process: psutil.Process) -> set[int]:
    """Return the local ports of a process's connections."""
    return {found.laddr.port for found in process.net_connections("tcp") if found.laddr}


@pytest.fixture
def database() -> Iterator[PostgresDatabase]:
    """A database of a server that this test may kill and start again."""
    with postgres_server() as server, server.database() as database:
        yield database


MakeOrdering = Callable[..., Ordering]


@pytest.fixture
def ordering(
    bootstrap_servers: str,
    application_id: str,
    make_topic: Callable[..., str],
    tmp_path: Path,
    database: PostgresDatabase,
) -> Iterator[MakeOrdering]:
    """Make an application: ``ordering(topology, **config)``."""
    hosts: list[Host] = []
    with commit_breaker(HOST, database.server.port) as proxy:

        def make(topology: str, **config: object) -> Ordering:
            source = make_topic("orders", PARTITIONS)
            dsn = database.dsn.replace(str(database.server.port), str(proxy.port))
            settings = {
                "application.id": application_id,
                "bootstrap.servers": bootstrap_servers,
                "processing.guarantee": "exactly_once_v2",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 300,
                "penstock.worker.restart.max": 1_000,
                "penstock.worker.restart.backoff.max.ms": 500,
                **{name.replace("_", "."): value for name, value in config.items()},
            }
            environment = {TOPIC_VARIABLE: source, DSN_VARIABLE: dsn}
            host = Host("host", tmp_path, settings, environment, f"tests.sinks.ordering_program:{topology}")
            hosts.append(host)
            return Ordering(host, bootstrap_servers, source, database, proxy, topology == COUNTING)

        try:
            yield make
        finally:
            for host in hosts:
                host.kill()


# -- faults

Fault = Callable[[Ordering], None]


def kill_worker(ordering: Ordering) -> None:
    eventually(lambda: bool(ordering.threads()), "there is a stream thread")
    ordering.random.choice(ordering.threads()).kill()


def break_commit(ordering: Ordering) -> None:
    ordering.proxy.plan.append(ordering.random.choice(list(Break)))


def kill_database(ordering: Ordering) -> None:
    """It stays away until a task has found it so."""
    ordering.database.server.kill()
    before = ordering.proxy.refused
    ordering.produce()
    eventually(lambda: ordering.proxy.refused > before, "a task is refused")
    ordering.database.server.start()


def kill_worker_at_commit(ordering: Ordering) -> None:
    """Kill all processes while the answer to a commit is missing: the connection breaks only in the next step."""
    break_commit(ordering)
    ordering.produce()
    eventually(lambda: not ordering.proxy.plan, "a connection breaks at a commit")
    for thread in ordering.threads():
        thread.kill()


def kill_supervisor(ordering: Ordering) -> None:
    assert ordering.host.kill_supervisor(), "its workers have outlived it"
    ordering.host.start()


def kill_supervisor_at_commit(ordering: Ordering) -> None:
    """The commit of its worker reaches the database after another process has written the same rows."""
    with ordering.held_commit():
        kill_supervisor(ordering)
        ordering.wait_for_rows()


def stop_worker_at_commit(ordering: Ordering) -> None:
    """Its session in the group ends between its rows and their commit, and another process writes them.

    The zombie has the locks of its partition's offsets, and its commit is still on its way to the database.
    """
    with ordering.held_commit() as zombie, suspended(zombie):
        ordering.produce()
        ordering.wait_for_rows()
        ordering.proxy.let_go.set()


FAULTS: list[Fault] = [
    kill_worker,
    break_commit,
    kill_database,
    kill_supervisor_at_commit,
    kill_worker_at_commit,
    kill_supervisor,
]


def run(ordering: Ordering, faults: Iterator[Fault]) -> None:
    """Cause faults, one after the other, while records are written."""
    with ordering.running():
        for fault in faults:
            ordering.produce()
            fault(ordering)
            ordering.produce()
            ordering.wait_for_rows(missing=2 * BURST)
        ordering.proxy.plan.clear()
        ordering.check()
    ordering.check()


# -- tests


def test_a_stop_and_a_start_continue_at_the_stored_offsets(ordering: MakeOrdering) -> None:
    made = ordering(COUNTING, processing_guarantee="at_least_once", commit_interval_ms=100)
    for _ in range(2):
        with made.running():
            made.produce()
            made.check()
    made.check()


def test_rows_equal_records_after_a_kill_and_without_a_database(ordering: MakeOrdering) -> None:
    run(ordering(COUNTING), iter([kill_worker, kill_database]))


@pytest.mark.slow
def test_rows_equal_records_after_each_fault(ordering: MakeOrdering) -> None:
    run(ordering(COUNTING), iter(FAULTS))


@pytest.mark.slow
def test_a_zombie_that_is_stopped_before_its_commit_writes_nothing(ordering: MakeOrdering) -> None:
    """Without state: a stopped process keeps the locks of its state on this host."""
    run(ordering(APPENDING), iter([stop_worker_at_commit]))


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("topology", "faults", "count"), [(COUNTING, FAULTS, 200), (APPENDING, [*FAULTS, stop_worker_at_commit], 70)]
)
def test_rows_equal_records_after_many_faults(
    ordering: MakeOrdering, topology: str, faults: list[Fault], count: int
) -> None:
    run(ordering(topology), islice(cycle(faults), count))


def test_the_time_of_a_row(ordering: MakeOrdering) -> None:
    """Rows of a quiet topic do not wait for the commit."""
    made = ordering(APPENDING, processing_guarantee="at_least_once", commit_interval_ms=600_000)
    with made.running():
        made.produce(1)
        began = time.monotonic()
        made.check()
    assert time.monotonic() - began < 300
