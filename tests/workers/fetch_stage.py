"""Brokers as a Fetcher sees them, played by a test: it reads the requests, and answers what it likes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from kafka.protocol.consumer import FetchRequest
from memory_kafka import ManualClock

from penstock.topology.records import TopicPartition
from penstock.workers.fetching.brokers import Leader, Leaders
from penstock.workers.fetching.fetch_settings import FetchSettings
from penstock.workers.fetching.fetcher import Fetcher
from penstock.workers.log_context import PrefixedLogger
from tests.record_bytes import Given, GivenAnswer, GivenBatch, GivenResponse, encoded_log, encoded_response

RECEIVE_SECONDS = 5.0
IN_0, IN_1 = TopicPartition("in", 0), TopicPartition("in", 1)
LOG = PrefixedLogger("penstock.test", "")


class Request:
    """A request that was received. asked: by partition, with fetch_offset, current_leader_epoch, last_fetched_epoch."""

    def __init__(self, data: bytes) -> None:
        self.fields = FetchRequest.decode(data, version=12, header=True)
        self.correlation_id: int = self.fields.header.correlation_id
        self.asked: dict[TopicPartition, Any] = {
            TopicPartition(topic.topic, partition.partition): partition
            for topic in self.fields.topics
            for partition in topic.partitions
        }

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """Return from where each partition is asked for."""
        return {partition: asked.fetch_offset for partition, asked in self.asked.items()}


class PlayedBrokers:
    """Brokers whose every word is the test's. refused: why a node cannot be connected to."""

    def __init__(self, leaders: Mapping[TopicPartition, Leader]) -> None:
        self.answer: Leaders | Exception = Leaders(leaders)
        self.asked: list[set[str]] = []
        self.refused: dict[int, Exception] = {}
        self.opened: list[int] = []
        self.ends: dict[int, socket.socket] = {}
        self.closed = False
        self.failure: BaseException | None = None

    def leaders(self, topics: Collection[str], on_done: Callable[[], None]) -> Future[Leaders]:
        self.asked.append(set(topics))
        on_done()
        return _done(self.answer)

    def open(self, node: int, on_done: Callable[[], None]) -> Future[socket.socket]:
        self.opened.append(node)
        on_done()
        if node in self.refused:
            return _done(self.refused[node])
        ours, theirs = socket.socketpair()
        theirs.settimeout(RECEIVE_SECONDS)
        if node in self.ends:
            self.ends[node].close()
        self.ends[node] = theirs
        return _done(ours)

    def close(self) -> None:
        self.closed = True
        for end in self.ends.values():
            end.close()

    def request(self, node: int = 1) -> Request:
        """Return the request that a broker has received."""
        size = int.from_bytes(self._read(node, 4), "big")
        return Request(self._read(node, size))

    def _read(self, node: int, size: int) -> bytes:
        found = b""
        while len(found) < size:
            found += self.ends[node].recv(size - len(found))
        return found

    def has_request(self, node: int = 1) -> bool:
        """Return whether there is something to read."""
        end = self.ends[node]
        end.setblocking(False)
        try:
            return bool(end.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        finally:
            end.settimeout(RECEIVE_SECONDS)

    def reply(self, request: Request, *answers: GivenAnswer, node: int = 1, **response: int) -> None:
        """Answer a request."""
        data = encoded_response(GivenResponse(list(answers), **response), request.correlation_id)
        self.ends[node].sendall(len(data).to_bytes(4, "big") + data)


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


class FetchStage:
    """A Fetcher, the brokers it reads from, and its clock."""

    def __init__(self, leaders: Mapping[TopicPartition, Leader], **settings: Any) -> None:
        self.clock = ManualClock()
        self.brokers = PlayedBrokers(leaders)
        self.settings = FetchSettings(max_wait_ms=100, queue_backoff_ms=10, check_crcs=True, **settings)
        self.fetcher = Fetcher(self.brokers, self.settings, self.clock, LOG)

    def fetch(self, limit: int = 1_000) -> tuple[dict[TopicPartition, list[int]], list[tuple[Any, ...]]]:
        """Return offsets by partition, and (topic, partition, offset, code) of the events; waits for nothing."""
        records, events = self.fetcher.fetch(limit, 0)
        offsets = {partition: [message.offset() for message in run] for partition, run in records.items()}
        return offsets, [(e.topic(), e.partition(), e.offset(), e.error().code()) for e in events]

    def run(self, ms: int = 0) -> Any:
        """Let time pass, then have the fetcher do what it can: a connection takes it three steps."""
        self.clock.advance(ms)
        found: Any = ({}, [])
        for _ in range(3):
            records, events = self.fetch()
            found = ({**found[0], **records}, [*found[1], *events])
        return found


def two_partitions() -> Iterator[FetchStage]:
    """A stage for a fixture: two partitions that broker 1 leads."""
    made = FetchStage({IN_0: Leader(1, 5), IN_1: Leader(1, 6)}, read_committed=False)
    yield made
    made.fetcher.close()


def log_of(count: int, base_offset: int = 0, **batch: Any) -> bytes:
    """Return so many records in one batch."""
    return encoded_log([GivenBatch([Given(b"k%d" % n) for n in range(count)], **batch)], base_offset)
