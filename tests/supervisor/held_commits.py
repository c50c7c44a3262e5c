"""An application on a real broker whose commits are held back, for reads of committed and of other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from broker_stage import read_now
from confluent_kafka import Producer
from http_client import HttpClient

from penstock import (
    FixedKeyProcessor,
    IsolationLevel,
    KafkaStreams,
    Materialized,
    Position,
    Record,
    Serdes,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
)
from penstock.topology.context.store_interfaces import StoreBackend
from tests.waiting import PATIENCE_SECONDS, eventually

TEXT = Serdes.string()
#: The value of a record after which the task commits; nothing else commits within a test.
COMMIT = "commit"
NEVER_MS = 600_000
COMMITTED = {"isolation": IsolationLevel.READ_COMMITTED}


class CommitsOnRequest(FixedKeyProcessor[str, str, str]):
    """Forwards records, and requests a commit when a record says so."""

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)
        if record.value == COMMIT:
            self.context.commit()


class Held:
    """An application whose commits are held back until a record requests one."""

    def __init__(self, servers: str, application_id: str, source: str, table: str, state_dir: Path) -> None:
        self.source, self.table, self.servers = source, table, servers
        self._written = 0
        self.config = {
            "application.id": application_id,
            "bootstrap.servers": servers,
            "state.dir": str(state_dir),
            "commit.interval.ms": NEVER_MS,
            "transaction.timeout.ms": NEVER_MS + 1,
            "penstock.http.port": 0,
            "penstock.worker.spare": False,  # it would start in the middle of some test that shares the application
        }

    def declare(self, builder: StreamsBuilder) -> Any:
        """Declare the stores, and return the stream that fills them."""
        stream = builder.stream(self.source, key_serde=TEXT, value_serde=TEXT).process_values(CommitsOnRequest)
        grouped = stream.group_by_key()
        in_memory = StoreBackend.IN_MEMORY
        grouped.count(store="cached")
        grouped.count(store=Materialized("uncached", caching=False))
        grouped.count(store=Materialized("in-memory", store_type=in_memory))
        grouped.windowed_by(TimeWindows(1_000)).count(store="windows")
        grouped.windowed_by(TimeWindows(1_000)).count(store=Materialized("memory-windows", store_type=in_memory))
        grouped.windowed_by(SessionWindows(1_000)).count(store=Materialized("sessions", caching=False))
        builder.global_table(self.table, key_serde=TEXT, value_serde=TEXT, store="names")
        return stream

    @contextmanager
    def running(self) -> Iterator[KafkaStreams]:
        builder = StreamsBuilder()
        self.declare(builder)
        with KafkaStreams(builder.build(), self.config) as streams:
            streams.start()
            eventually(lambda: streams.state.name == "RUNNING", "it runs")
            yield streams

    def produce(self, *records: tuple[str, str], topic: str | None = None, timestamp: int = 5_000) -> Position:
        """Write records with one timestamp (ms); returns the position of the last one of the source."""
        producer = Producer({"bootstrap.servers": self.servers})
        for key, value in records:
            producer.produce(topic or self.source, key=key, value=value, timestamp=timestamp)
        assert producer.flush(PATIENCE_SECONDS) == 0
        self._written += 0 if topic else len(records)
        return self.at(self._written - 1)

    def at(self, offset: int) -> Position:
        return Position.from_map({self.source: {0: offset}})


def rows(streams: KafkaStreams, store: str, **how: Any) -> tuple[dict[str, Any], Position | None] | None:
    """Return the counts of a store by key, and their position; None while it cannot be read."""
    found = read_now(lambda: streams.store(store, **how).all())
    if found is None:
        return None
    return {key if isinstance(key, str) else key.key: value for key, value in found}, found.position


def has_committed(http: HttpClient, read: str, at: Position) -> Callable[[], bool]:
    """Return whether a read of the last commit over HTTP is at this position. read: its path and query."""
    position = {topic: {str(number): offset for number, offset in ends.items()} for topic, ends in at.to_map().items()}
    return lambda: http.ask(read).json.get("position") == position


def shows(streams: KafkaStreams, store: str, wanted: tuple[dict[str, Any], Position], **how: Any) -> Callable[[], bool]:
    """Return whether a store has these counts, at this position."""
    return lambda: rows(streams, store, **how) == wanted
