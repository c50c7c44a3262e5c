"""Reads over HTTP and by the program itself while tasks move and stores close: each result is complete, or an error."""

from __future__ import annotations

import os
import signal
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, Self

import pytest
from broker_stage import PARTITIONS, Counting, replaced, shared_by, tasks
from confluent_kafka import Producer
from http_client import HttpClient, host_config
from typing_extensions import override

from penstock import InvalidStateStoreError, KafkaStreams, ReadOnlyKeyValueStore
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

#: Rows of a store; a million takes minutes.
SIZES = [40_000, pytest.param(1_000_000, marks=pytest.mark.long)]
LIMIT = 10_000
#: Errors that are allowed while a task moves.
MOVING = {"INCOMPLETE", "NOT_HERE", "RESTORING", "HOST_UNREACHABLE", "NOT_RUNNING", "TIMEOUT"}


def key(number: int) -> str:
    return f"key-{number:07}"


@pytest.fixture(params=SIZES)
def rows(request: pytest.FixtureRequest) -> int:
    """The number of rows."""
    number: int = request.param
    return number


@pytest.fixture
def filled(counting: Counting, rows: int) -> Counting:
    """The source has one record of each key."""
    producer = Producer({"bootstrap.servers": counting.bootstrap_servers, "queue.buffering.max.messages": 0})
    for number in range(rows):
        producer.produce(counting.source, key=key(number), value="x")
        producer.poll(0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    return counting


class Reader(ABC):
    """Reads a store repeatedly until it is stopped."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answers: Counter[str] = Counter()
        self.wrong: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:  # the tasks are at rest now: a read succeeds
                eventually(lambda: self.answers["whole"] > 0 or not self._thread.is_alive(), lambda: self.answers)
        finally:
            self._stopped.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.read()

    @abstractmethod
    def read(self) -> None:
        """Read once, and keep the result."""


class HttpReader(Reader):
    """Reads page by page, and then starts over. isolation: of the reads; all rows are committed."""

    def __init__(self, http: HttpClient, rows: int, isolation: str = "read_uncommitted") -> None:
        super().__init__()
        self._http = http
        self._isolation = isolation
        self._rows = rows
        self._first = 0

    @override
    def read(self) -> None:
        how = f"limit={LIMIT}&from={key(self._first)}&isolation={self._isolation}&timeout_ms=30000"
        answer = self._http.ask(f"/stores/counts?{how}")
        if answer.status == 200:
            self.answers["whole"] += 1
            self.wrong += flaws(answer.json, self._first, self._rows)
            self._first = (self._first + LIMIT) % self._rows
        else:
            self.answers[answer.error["code"]] += 1


def flaws(page: dict[str, Any], first: int, of: int) -> Iterator[str]:
    """Yield the errors of a page of a store with this many rows; first: the key at which it begins."""
    rows = [(row["key"], row["value"]) for row in page["rows"]]
    expected = [(key(number), 1) for number in range(first, min(first + LIMIT, of))]
    if len(page["tasks"]) != PARTITIONS or not page["complete"]:
        yield f"{page['tasks']}, complete: {page['complete']}"
    positions = [offset for topic in page["position"].values() for offset in topic.values()]
    if sum(positions) + len(positions) != of:
        yield f"{page['position']} is not the position of all {of} records"
    if rows != expected:
        twice = sum(count > 1 for count in Counter(rows).values())
        yield f"from {key(first)}: {len(rows)} rows, {twice} of them twice, {len(set(expected) - set(rows))} missing"


def all_is_counted(http: HttpClient, rows: int) -> bool:
    last = http.ask(f"/stores/counts?limit={LIMIT}&from={key(rows - LIMIT)}&isolation=read_committed")
    return last.status == 200 and not list(flaws(last.json, rows - LIMIT, rows))


def test_tasks_move_between_the_threads_of_a_host(filled: Counting, rows: int) -> None:
    filled.config["penstock.http.port"] = 0
    with filled.streams(1) as streams:
        streams.start()
        http = HttpClient.of(streams)
        eventually(lambda: all_is_counted(http, rows), "all rows are there")
        with HttpReader(http, rows) as reader, HttpReader(http, rows, "read_committed") as other:
            for _ in range(5):
                streams.add_stream_thread()
                eventually(lambda: shared_by(streams, 2), "the new thread has tasks")
                streams.remove_stream_thread()
                eventually(lambda: shared_by(streams, 1), "its tasks are back")
        check(reader, other)


def check(*readers: HttpReader) -> None:
    """Raise AssertionError unless all results were complete, or errors that moving tasks explain."""
    for reader in readers:
        assert not reader.wrong, reader.wrong[:5]
        assert reader.answers["whole"], "some reads succeed"
        assert reader.answers.keys() <= {"whole", *MOVING}


def running_tasks(streams: KafkaStreams) -> int:
    return sum(map(len, tasks(streams.status()).values()))


def test_tasks_move_between_hosts(filled: Counting, rows: int, tmp_path: Path) -> None:
    def host(name: str) -> KafkaStreams:
        # A task that has more rows to restore than this moves by the probing rebalance only, minutes later.
        moves_at_once = {"acceptable.recovery.lag": rows}
        return KafkaStreams(filled.topology(), filled.config | host_config(tmp_path / name) | moves_at_once)

    with host("one") as one:
        one.start()
        http = HttpClient.of(one)
        eventually(lambda: all_is_counted(http, rows), "all rows are there")
        with HttpReader(http, rows) as reader, HttpReader(http, rows, "read_committed") as other:
            for _ in range(3):
                with host("two") as two:
                    two.start()
                    eventually(lambda: 0 < running_tasks(two) < PARTITIONS, "the second host has tasks")
                    two.close(leave_group=True)
                eventually(lambda: running_tasks(one) == PARTITIONS, "the first host has all tasks")
        check(reader, other)


class ProgramReader(Reader):
    """Reads all rows, and each row, in the process that runs the application."""

    def __init__(self, streams: KafkaStreams, expected: dict[str, int]) -> None:
        super().__init__()
        self._store: ReadOnlyKeyValueStore[str, int] = streams.store("counts")
        self._expected = expected
        self._keys = cycle(expected)

    @override
    def read(self) -> None:
        one = next(self._keys)
        try:
            found = dict(self._store.all())
            if found != self._expected:
                self.wrong.append(f"{len(found)} of {len(self._expected)} rows")
            if (value := self._store.get(one)) != self._expected[one]:
                self.wrong.append(f"{one}: {value}")
            self.answers["whole"] += 1
        except (InvalidStateStoreError, TimeoutError):
            self.answers["error"] += 1


def test_a_programs_reads_while_tasks_move_and_a_process_is_replaced(counting: Counting) -> None:
    counting.produce(1)
    with counting.streams(2) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 2), "both threads have tasks")
        counting.wait_for_all_counts()
        with ProgramReader(streams, dict(counting.expected)) as reader:
            victim, before = streams.status()[0], tasks(streams.status())
            os.kill(victim.pid, signal.SIGKILL)
            eventually(lambda: replaced(streams.status(), victim, before), "the process is replaced")
            streams.add_stream_thread()
            eventually(lambda: shared_by(streams, 3), "the new thread has tasks")
            streams.remove_stream_thread()
            eventually(lambda: shared_by(streams, 2), "its tasks are back")
        assert not reader.wrong, reader.wrong[:5]
        assert reader.answers["whole"], "some reads succeed"
        assert reader.answers["error"], "tasks were away"
