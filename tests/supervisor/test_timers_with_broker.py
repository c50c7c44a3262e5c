"""Timers and rows with a ttl in real processes on a real broker, with exactly-once: killed, restored, changed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from broker_stage import kill_one, read_now, shared_by
from confluent_kafka import Producer

from penstock import (
    KafkaStreams,
    Materialized,
    Processor,
    Punctuation,
    Record,
    Serdes,
    Stores,
    StreamsBuilder,
    Topology,
    Ttl,
)
from tests.read_to_end import read_to_end
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker
PARTITIONS = 4
KEYS = 200
KILLS = 2
SOON_MS = 3_000
TEXTS: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
TIMERS = Stores.timer_store_builder(Stores.persistent_key_value_store("timers"), Serdes.string())


class Delay(Processor[str, str, str, str]):
    """Sends a key on when as many ms have passed as its value says."""

    stores = (TIMERS,)

    def process(self, record: Record[str, str]) -> None:
        at = self.context.current_system_time_ms() + int(record.value)
        self.context.timer(record.key, at, Punctuation.WALL_CLOCK_TIME)

    def on_timer(self, key: str, at: int) -> None:
        self.context.forward(Record(key, str(at), at))


class Application:
    """An application's topics, settings and input."""

    def __init__(self, servers: str, application_id: str, make_topic: Callable[..., str], state_dir: Path) -> None:
        self.servers, self.make_topic = servers, make_topic
        self.source, self.sink = make_topic("in", PARTITIONS), make_topic("out", PARTITIONS)
        self.application_id = application_id
        self.config = {
            "application.id": application_id,
            "bootstrap.servers": servers,
            "state.dir": str(state_dir),
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": 100,
            "num.stream.threads": 2,
        }

    def streams(self, topology: Topology) -> KafkaStreams:
        return KafkaStreams(topology, self.config)

    def delaying(self) -> Topology:
        builder = StreamsBuilder()
        builder.stream(self.source, **TEXTS).process(Delay).to(self.sink, **TEXTS)
        return builder.build()

    def counting(self, ttl: Any) -> Topology:
        builder = StreamsBuilder()
        counts = builder.stream(self.source, **TEXTS).group_by_key().count(store=Materialized("counts", ttl=ttl))
        counts.to_stream().to(self.sink, key_serde=Serdes.string(), value_serde=Serdes.int64())
        return builder.build()

    def produce(self, records: list[tuple[str, str, int]]) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for key, value, timestamp in records:
            producer.produce(self.source, value, key, timestamp=timestamp)
        assert producer.flush(PATIENCE_SECONDS) == 0

    def last_values(self, topic: str) -> dict[str, bytes | None]:
        found = read_to_end(self.servers, topic)
        return {(message.key() or b"").decode(): message.value() for message in found}


@pytest.fixture
def application(
    bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path
) -> Application:
    return Application(bootstrap_servers, application_id, make_topic, tmp_path)


def rows(streams: KafkaStreams, store: str) -> dict[str, Any] | None:
    """Return the rows of a store; None while its tasks move."""
    found: Any = streams.store(store)
    return read_now(lambda: dict(found.all()))


def has_rows(streams: KafkaStreams, expected: dict[str, Any]) -> bool:
    return rows(streams, "counts") == expected


def test_killed_processes_neither_lose_nor_repeat_a_timer(application: Application) -> None:
    choice = random.Random(3)
    names = [f"key-{number}" for number in range(KEYS)]
    with application.streams(application.delaying()) as streams:

        def fired() -> Counter[str]:
            found = read_to_end(application.servers, application.sink)
            return Counter((message.key() or b"").decode() for message in found)

        streams.start()
        eventually(lambda: shared_by(streams, 2, PARTITIONS), "two threads share the tasks")
        for part in range(KILLS):
            keys = names[part::KILLS]
            application.produce([(key, str(choice.randrange(SOON_MS)), 0) for key in keys])
            # On a busy machine all may have fired when the store is read for the first time.
            eventually(lambda: bool(rows(streams, "timers")) or set(keys) <= fired().keys(), "some wait")  # noqa: B023
            kill_one(streams, choice)
            eventually(lambda: shared_by(streams, 2, PARTITIONS), "the process is replaced")

        eventually(lambda: len(fired()) == KEYS, "each timer has fired")
        assert set(fired().values()) == {1}
        eventually(lambda: rows(streams, "timers") == {}, "none is left")
    log = application.last_values(f"{application.application_id}-timers-changelog")
    assert log == dict.fromkeys(names)


def test_rows_end_by_the_wall_clock(application: Application) -> None:
    with application.streams(application.counting(Ttl(1_000, Punctuation.WALL_CLOCK_TIME))) as streams:
        streams.start()
        application.produce([(f"key-{number}", "x", 0) for number in range(20)])
        eventually(lambda: len(application.last_values(application.sink)) == 20, "they are counted")
        changelog = f"{application.application_id}-counts-changelog"
        ended = {f"key-{number}": None for number in range(20)}
        eventually(lambda: application.last_values(application.sink) == ended, "the operators after the table are told")
        assert application.last_values(changelog) == ended
        eventually(lambda: rows(streams, "counts") == {}, "no row is left")


def test_a_store_gets_a_ttl_and_loses_it_again(application: Application) -> None:
    """Its files have another layout, so it is restored."""
    steps: list[tuple[Any, list[tuple[str, int]], dict[str, int]]] = [
        (None, [("a", 1_000), ("b", 5_000)], {"a": 1, "b": 1}),
        (10_000, [("b", 9_000), ("a", 9_500)], {"a": 2, "b": 2}),
        (None, [("a", 9_600)], {"a": 3, "b": 2}),
        (10_000, [("b", 19_600)], {"b": 1}),
    ]
    application.source = application.make_topic("all", 1)  # so that all keys have one stream time
    for ttl, records, expected in steps:
        with application.streams(application.counting(ttl)) as streams:
            streams.start()
            application.produce([(key, "x", timestamp) for key, timestamp in records])
            eventually(partial(has_rows, streams, expected), f"the rows are {expected}")
