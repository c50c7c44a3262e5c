"""Reads partitions from their leaders byte by byte, with a Kafka client of a hundred lines that nothing else uses.

It uses old, simple versions of four requests, which every broker since 2.1 supports. It is for a cluster at rest:
errors are raised, not retried.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

from tests.chaos.checkers.record_batches import Batch, decode

FETCH, LIST_OFFSETS, METADATA = 1, 2, 3
FETCH_VERSION, LIST_OFFSETS_VERSION, METADATA_VERSION = 4, 1, 1
TIMEOUT_SECONDS = 30.0
#: Size of a response; the first batch of a partition is always returned complete, even if it is larger.
FETCH_BYTES = 4 * 1024 * 1024
FETCH_WAIT_MS = 500
EARLIEST, LATEST = -2, -1
NONE, READ_UNCOMMITTED = 0, 0

Partition = tuple[str, int]


@dataclass(frozen=True)
class Log:
    """The contents of a partition. start: its log start offset; end: its log end offset."""

    start: int
    end: int
    batches: tuple[Batch, ...]


class Fields:
    """Reads fields from a response, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    def take(self, layout: str) -> int:
        """Return the next number."""
        (number,) = struct.unpack_from(f">{layout}", self._data, self._position)
        self._position += struct.calcsize(f">{layout}")
        return int(number)

    def data(self, layout: str) -> bytes:
        """Return length-prefixed bytes; b"" for null."""
        length = max(self.take(layout), 0)
        self._position += length
        return self._data[self._position - length : self._position]

    def text(self) -> str:
        """Return a length-prefixed text."""
        return self.data("h").decode()

    def count(self) -> range:
        """Return the indexes of an array's elements."""
        return range(self.take("i"))

    # Newer versions instead have lengths plus one as unsigned varints, and tagged fields.

    def unsigned(self) -> int:
        """Return the next unsigned varint."""
        number = shift = 0
        while (byte := self.take("B")) >= 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
        return number | byte << shift

    def length(self, flexible: bool) -> int:
        """Return the length of an array, 0 for null."""
        return max(self.unsigned() - 1 if flexible else self.take("i"), 0)

    def compact_text(self) -> str:
        """Return a length-prefixed text of the compact encoding."""
        return bytes(self.take("B") for _ in range(self.length(flexible=True))).decode()

    def skip_tags(self) -> None:
        """Skip tagged fields."""
        for _ in range(self.unsigned()):
            self.unsigned()
            for _ in range(self.unsigned()):
                self.take("B")


class _Connection:
    """A connection to one broker. Raises OSError if it is unreachable."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), TIMEOUT_SECONDS)
        self._stream = self._socket.makefile("rb")

    def ask(self, api: int, version: int, body: bytes) -> Fields:
        """Return the response to a request."""
        header = struct.pack(">hhi", api, version, api) + _text("chaos-log-reader")
        self._socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        size = struct.unpack(">i", self._read(4))[0]
        answer = Fields(self._read(size))
        answer.take("i")  # the correlation id
        return answer

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise ConnectionError("the broker has closed the connection in the middle of an answer")
        return data

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


class LogReader:
    """A context manager. bootstrap_servers: host:port; the first one is asked for the others."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, _, port = bootstrap_servers.split(",")[0].rpartition(":")
        self._first = _Connection(host, int(port))
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[Partition, int] = {}
        self._connections: dict[int, _Connection] = {}
        self._ask_metadata()

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for connection in (self._first, *self._connections.values()):
            connection.close()

    def partitions(self, topic: str) -> list[Partition]:
        """Return the partitions of a topic, none if it does not exist."""
        return sorted(partition for partition in self._leaders if partition[0] == topic)

    def read(self, partition: Partition) -> Log:
        """Return the whole contents of a partition; raises ConnectionError if its leader responds with an error."""
        start, end = self._offset(partition, EARLIEST), self._offset(partition, LATEST)
        return Log(start, end, tuple(self._batches(partition, start, end)))

    def read_topics(self, *topics: str) -> dict[Partition, Log]:
        """Return all partitions of topics."""
        return {partition: self.read(partition) for topic in topics for partition in self.partitions(topic)}

    def _batches(self, partition: Partition, start: int, end: int) -> Iterator[Batch]:
        while start < end:
            batches = list(decode(self._fetch(partition, start)))
            if not batches:
                raise ConnectionError(f"{partition} gives nothing at offset {start}, although it ends at {end}")
            yield from batches
            start = batches[-1].last + 1

    def _ask_metadata(self) -> None:
        answer = self._first.ask(METADATA, METADATA_VERSION, struct.pack(">i", -1))  # of all topics
        for _ in answer.count():
            node, host, port = answer.take("i"), answer.text(), answer.take("i")
            answer.text()  # the rack
            self._brokers[node] = (host, port)
        answer.take("i")  # the controller
        for _ in answer.count():
            answer.take("h")  # e.g. the error of a topic that is just being deleted, which has no partitions
            topic = answer.text()
            answer.take("b")  # is_internal
            for _ in answer.count():
                answer.take("h")  # the error of a partition without a leader: -1
                number, leader = answer.take("i"), answer.take("i")
                for _ in range(2):  # replicas and in-sync replicas
                    for _ in answer.count():
                        answer.take("i")
                self._leaders[topic, number] = leader

    def _leader(self, partition: Partition) -> _Connection:
        leader = self._leaders[partition]
        if leader not in self._brokers:
            raise ConnectionError(f"{partition} has no leader: is the cluster at rest?")
        if leader not in self._connections:
            self._connections[leader] = _Connection(*self._brokers[leader])
        return self._connections[leader]

    def _offset(self, partition: Partition, which: int) -> int:
        body = struct.pack(">i", -1) + _one_partition(partition, struct.pack(">q", which))
        answer = self._leader(partition).ask(LIST_OFFSETS, LIST_OFFSETS_VERSION, body)
        self._one_answer(answer, partition)
        answer.take("q")  # the timestamp
        return answer.take("q")

    def _fetch(self, partition: Partition, offset: int) -> bytes:
        limits = struct.pack(">iiiib", -1, FETCH_WAIT_MS, 1, FETCH_BYTES, READ_UNCOMMITTED)
        body = limits + _one_partition(partition, struct.pack(">qi", offset, FETCH_BYTES))
        answer = self._leader(partition).ask(FETCH, FETCH_VERSION, body)
        answer.take("i")  # the throttle time
        self._one_answer(answer, partition)
        answer.take("q")  # the high watermark
        answer.take("q")  # the last stable offset
        for _ in answer.count():  # aborted transactions, which the markers show too
            answer.take("q")
            answer.take("q")
        return answer.data("i")

    def _one_answer(self, answer: Fields, partition: Partition) -> None:
        """Move to the part of the response about the only requested partition."""
        answer.take("i")  # topics
        answer.text()
        answer.take("i")  # partitions
        answer.take("i")
        _check(answer.take("h"), str(partition))


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _one_partition(partition: Partition, rest: bytes) -> bytes:
    topic, number = partition
    return struct.pack(">i", 1) + _text(topic) + struct.pack(">ii", 1, number) + rest


def _check(error: int, what: str) -> None:
    if error != NONE:
        raise ConnectionError(f"{what} is answered with error {error}: is the cluster at rest?")
