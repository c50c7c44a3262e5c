"""A blocked fetch ends when another thread wakes it, and serves a descriptor, in the fetcher and over librdkafka."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
from confluent_kafka import Consumer

from penstock.clients.librdkafka import LibrdkafkaReader
from penstock.clients.reading.fetcher import Fetcher
from penstock.clients.reading.reader import Reader
from tests.clients.fetch_stage import FetchStage, two_partitions
from tests.waiting import PATIENCE_SECONDS

#: No test waits so long: a fetch that is not woken fails after PATIENCE_SECONDS.
LONG = 3600.0


@pytest.fixture(params=["fetcher", "librdkafka"])
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    if request.param == "librdkafka":
        made = LibrdkafkaReader(Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "unused", "log_level": 0}))
        yield made
        made.close()
        return
    for stage in two_partitions():
        yield stage.fetcher


def fetches(reader: Reader) -> threading.Thread:
    thread = threading.Thread(target=reader.fetch, args=(10, LONG), daemon=True)
    thread.start()
    return thread


def test_a_blocked_fetch_is_woken_and_the_next_one_blocks_again(reader: Reader) -> None:
    reader.wake()  # a wake-up from before must not be waited for
    first = fetches(reader)
    first.join(PATIENCE_SECONDS)
    assert not first.is_alive()
    second = fetches(reader)
    second.join(0.2)
    assert second.is_alive(), "it was woken once"
    reader.wake()
    second.join(PATIENCE_SECONDS)
    assert not second.is_alive()


class Line:
    """A pipe that a fetch serves. served: the bytes that were taken, one at a time; "." ends the wait."""

    def __init__(self) -> None:
        self.descriptor, self._end = os.pipe()
        self.served: list[bytes] = []
        self.called = threading.Semaphore(0)

    def serve(self) -> bool:
        self.served.append(os.read(self.descriptor, 1))
        self.called.release()
        return self.served[-1] != b"."

    def write(self, data: bytes) -> None:
        os.write(self._end, data)

    def close(self) -> None:
        os.close(self._end)
        os.close(self.descriptor)


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


def test_a_descriptor_is_served_while_a_fetch_is_blocked_and_may_end_it(reader: Reader, line: Line) -> None:
    reader.watch(line.descriptor, line.serve)
    line.write(b"a")
    blocked = fetches(reader)
    assert line.called.acquire(timeout=PATIENCE_SECONDS)
    line.write(b"bc")
    assert line.called.acquire(timeout=PATIENCE_SECONDS)
    assert line.called.acquire(timeout=PATIENCE_SECONDS)
    assert blocked.is_alive()
    line.write(b".d")
    blocked.join(PATIENCE_SECONDS)
    assert not blocked.is_alive()
    assert line.served == [b"a", b"b", b"c", b"."], "the rest is served later"


def test_a_wake_up_ends_a_fetch_although_a_descriptor_is_readable(reader: Reader, line: Line) -> None:
    reader.watch(line.descriptor, line.serve)
    line.write(b"a")
    blocked = fetches(reader)
    assert line.called.acquire(timeout=PATIENCE_SECONDS)
    line.write(b"b")
    reader.wake()
    blocked.join(PATIENCE_SECONDS)
    assert not blocked.is_alive()


def test_a_fetch_ends_in_time_however_often_it_serves_a_descriptor(line: Line) -> None:
    for stage in two_partitions():
        served: list[int] = []

        def leave(stage: FetchStage = stage, served: list[int] = served) -> bool:
            stage.clock.advance(25)
            served.append(stage.clock.monotonic_ms())
            return True

        stage.fetcher.watch(line.descriptor, leave)
        line.write(b"a")  # never taken
        assert stage.fetcher.fetch(10, 0.1) == ({}, [])
        assert len(served) == 4


def test_a_fetcher_that_reads_ahead_serves_nothing_and_does_not_spin(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stage in two_partitions():
        fetcher = stage.fetcher
        assert isinstance(fetcher, Fetcher)
        fetcher.watch(line.descriptor, line.serve)
        line.write(b"a")
        turns: list[int] = []
        advance: Callable[[int], None] = fetcher._advance

        def counted(now: int, turns: list[int] = turns, advance: Callable[[int], None] = advance) -> None:
            turns.append(now)
            advance(now)

        monkeypatch.setattr(fetcher, "_advance", counted)
        answer: Future[None] = Future()
        timer = threading.Timer(0.2, answer.set_result, (None,))
        timer.start()
        fetcher.read_ahead(answer)
        assert line.served == []
        assert len(turns) < 50
        fetches(fetcher)
        assert line.called.acquire(timeout=PATIENCE_SECONDS)
        line.write(b".")
        assert line.called.acquire(timeout=PATIENCE_SECONDS)
