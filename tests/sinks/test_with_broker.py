"""Rows equal the records of a real broker, whatever is killed: processes, the database, connections at a commit."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from confluent_kafka import Producer

from penstock import KafkaStreams, Serdes, StreamsBuilder
from penstock.sinks import PostgresSink
from tests.postgres_server import HOST, PostgresDatabase, postgres_server
from tests.sinks.commit_breaker import Break, CommitBreaker, commit_breaker
from tests.suspended import suspended
from tests.waiting import eventually

pytestmark = pytest.mark.broker

PARTITIONS = 4
KEYS = 20
SESSION_MS = 6_000
#: Records that are written at once.
BURST = 50


@dataclass
class Order:
    """A row; number is different in each record."""

    number: int
    item: str


@dataclass(eq=False)
class Ordering:
    """An application that appends orders to a table, and counts them by their keys in another one."""

    config: dict[str, Any]
    source: str
    database: PostgresDatabase
    proxy: CommitBreaker
    random: random.Random
    produced: list[tuple[int, str]] = field(default_factory=list)
    #: Whether it counts, too. If not, the sink reads the topic itself, and no state is locked by a stopped process.
    counts_too: bool = True

    def topology(self) -> Any:
        dsn = self.database.dsn.replace(str(self.database.server.port), str(self.proxy.port))
        builder = StreamsBuilder()
        text, order = Serdes.string(), Serdes.json(Order)
        orders = builder.stream(self.source, key_serde=text, value_serde=order)
        orders.to_sink(PostgresSink(dsn, "orders"), name="orders-sink", max_records=100)
        if not self.counts_too:
            return builder.build()
        counts = orders.group_by_key().count(store="counts").to_stream()
        counts.to_sink(PostgresSink(dsn, "counts", "upsert", key="item"), name="counts-sink", max_records=100)
        return builder.build()

    @contextmanager
    def running(self, threads: int = 2) -> Iterator[KafkaStreams]:
        with KafkaStreams(self.topology(), self.config | {"num.stream.threads": threads}) as streams:
            streams.start()
            yield streams

    def produce(self, records: int) -> None:
        """Write records, and wait until they are acknowledged."""
        producer = Producer({"bootstrap.servers": self.config["bootstrap.servers"]})
        for _ in range(records):
            order = len(self.produced), f"item-{self.random.randrange(KEYS)}"
            self.produced.append(order)
            producer.produce(self.source, json.dumps({"number": order[0], "item": order[1]}), order[1])
        assert producer.flush(30) == 0

    def rows(self, query: str) -> Counter[tuple[Any, ...]]:
        """Return the rows of a query; none while the database or the table is not there."""
        try:
            return Counter(self.database.rows(query))
        except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
            return Counter()

    def orders(self) -> Counter[tuple[Any, ...]]:
        return self.rows("SELECT number, item FROM orders")

    def counts(self) -> Counter[tuple[Any, ...]]:
        return self.rows("SELECT item, value FROM counts")

    def has_written(self, least: int) -> bool:
        return sum(self.orders().values()) >= least

    def check(self) -> None:
        """Wait until nothing is missing; then assert that nothing is repeated."""
        expected = Counter(self.produced)
        wanted = Counter(Counter(item for _, item in self.produced).items())
        eventually(lambda: not expected - self.orders(), lambda: f"{len(expected - self.orders())} rows are missing")
        if self.counts_too:
            eventually(lambda: self.counts() == wanted, lambda: f"the counts are {wanted - self.counts()}")
        assert self.orders() == expected


@pytest.fixture
def database() -> Iterator[PostgresDatabase]:
    """A database of a server that this test may kill and start again."""
    with postgres_server() as server, server.database() as database:
        yield database


@pytest.fixture
def ordering(
    bootstrap_servers: str,
    application_id: str,
    make_topic: Callable[..., str],
    tmp_path: Path,
    database: PostgresDatabase,
) -> Iterator[Ordering]:
    config = {
        "application.id": application_id,
        "bootstrap.servers": bootstrap_servers,
        "state.dir": str(tmp_path / "state"),
        "processing.guarantee": "exactly_once_v2",
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": 300,
        "penstock.worker.beat.interval.ms": 50,
        "penstock.worker.restart.max": 1_000,
        "penstock.worker.restart.backoff.max.ms": 500,
    }
    with commit_breaker(HOST, database.server.port) as proxy:
        yield Ordering(config, make_topic("orders", PARTITIONS), database, proxy, random.Random(1))


def pids(streams: KafkaStreams) -> list[int]:
    """Return the processes of the stream threads that run tasks."""
    return [thread.pid for thread in streams.status() if thread.tasks]


def kill_worker(ordering: Ordering, streams: KafkaStreams) -> None:
    eventually(lambda: bool(pids(streams)), "some stream thread has tasks")
    os.kill(ordering.random.choice(pids(streams)), signal.SIGKILL)


def kill_database(ordering: Ordering, streams: KafkaStreams) -> None:
    ordering.database.server.kill()
    ordering.database.server.start()


def break_commit(ordering: Ordering, streams: KafkaStreams) -> None:
    ordering.proxy.plan.append(ordering.random.choice(list(Break)))


def kill_worker_at_commit(ordering: Ordering, streams: KafkaStreams) -> None:
    """Kill all processes while the answer to a commit is missing: the connection breaks only in the next step."""
    break_commit(ordering, streams)
    ordering.produce(BURST)
    eventually(lambda: not ordering.proxy.plan, "a connection breaks at a commit")
    for pid in pids(streams):
        os.kill(pid, signal.SIGKILL)


def run(ordering: Ordering, kills: int, actions: list[Callable[[Ordering, KafkaStreams], None]]) -> None:
    """Cause faults, one after the other, while records are written."""
    with ordering.running() as streams:
        for number in range(kills):
            ordering.produce(BURST)
            actions[number % len(actions)](ordering, streams)
            ordering.produce(BURST)
            eventually(
                lambda: ordering.has_written(len(ordering.produced) - 2 * BURST),
                lambda: f"{sum(ordering.orders().values())} of {len(ordering.produced)} orders are written",
            )
        ordering.proxy.plan.clear()
        ordering.check()
    ordering.check()


def test_a_stop_and_a_start_continue_at_the_stored_offsets(ordering: Ordering) -> None:
    ordering.config["processing.guarantee"] = "at_least_once"
    for _ in range(2):
        with ordering.running(1):
            ordering.produce(BURST)
            ordering.check()
    ordering.check()


def test_rows_equal_records_after_kills(ordering: Ordering) -> None:
    run(ordering, 2, [kill_worker, break_commit])


@pytest.mark.long
def test_rows_equal_records_after_many_faults(ordering: Ordering) -> None:
    run(ordering, 16, [kill_worker, break_commit, kill_database, kill_worker_at_commit])


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_rows_equal_records_after_200_kills(ordering: Ordering) -> None:
    run(ordering, 200, [kill_worker, kill_worker_at_commit, kill_worker, break_commit, kill_database])


@pytest.mark.slow
def test_a_zombie_that_is_stopped_before_its_commit_writes_nothing(ordering: Ordering) -> None:
    """Its session in the group ends between its rows and their commit, and another process writes them.

    The zombie has the locks of its partition's offsets, and its commit is still on its way to the database.
    """
    ordering.counts_too = False
    with ordering.running() as streams:
        ordering.produce(BURST)
        ordering.check()
        ordering.proxy.holds.set()
        ordering.produce(BURST)
        eventually(lambda: ordering.proxy.held_port is not None, "a commit is held back")
        zombie = next(pid for pid in pids(streams) if ordering.proxy.held_port in local_ports(pid))
        with suspended(zombie):
            ordering.produce(BURST)
            eventually(lambda: not Counter(ordering.produced) - ordering.orders(), "another process has its tasks")
            ordering.proxy.let_go.set()
        ordering.produce(BURST)
        ordering.check()
    ordering.check()


def local_ports(pid: int) -> set[int]:
    """Return the local ports of a process's connections."""
    return {found.laddr.port for found in psutil.Process(pid).net_connections("tcp") if found.laddr}


def test_the_time_of_a_row(ordering: Ordering) -> None:
    """Rows of a quiet topic do not wait for the commit."""
    ordering.config |= {"processing.guarantee": "at_least_once", "commit.interval.ms": 600_000}
    ordering.counts_too = False
    with ordering.running(1):
        ordering.produce(1)
        began = time.monotonic()
        ordering.check()
    assert time.monotonic() - began < 300
