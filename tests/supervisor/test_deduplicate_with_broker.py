"""Deduplication on a real broker, with kills and without its state directory: each key is forwarded once."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from broker_stage import kill_one, shared_by
from confluent_kafka import Producer

from penstock import KafkaStreams, Serdes, StreamsBuilder
from tests.read_to_end import read_to_end
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]
TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
PARTITIONS = 4
KEYS = 30
KILLS = 3


class Application:
    """Forwards each key once, behind a repartition topic; the keys that were written."""

    def __init__(self, servers: str, application_id: str, make_topic: Callable[..., str], state_dir: Path) -> None:
        self.servers = servers
        self.source, self.sink = make_topic("in", PARTITIONS), make_topic("out")
        self.state_dir = state_dir
        self.expected: set[str] = set()
        self.config = {
            "application.id": application_id,
            "bootstrap.servers": servers,
            "state.dir": str(state_dir),
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": 100,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 300,
            "penstock.static.membership": False,
        }

    def streams(self) -> KafkaStreams:
        builder = StreamsBuilder()
        rekeyed = builder.stream(self.source, **TEXT).select_key(lambda key, value: value)
        unique = rekeyed.deduplicate_by_key(timedelta(days=1), name="once", **TEXT)
        unique.to(self.sink, **TEXT)
        return KafkaStreams(builder.build(), self.config | {"num.stream.threads": 2})

    def produce(self, prefix: str) -> None:
        """Write each key three times, with its duplicates in other partitions of the source."""
        producer = Producer({"bootstrap.servers": self.servers})
        for number in range(3 * KEYS):
            key = f"{prefix}-{number % KEYS}"
            producer.produce(self.source, key, str(number), partition=number % PARTITIONS)
            self.expected.add(key)
        assert producer.flush(PATIENCE_SECONDS) == 0

    def forwarded(self) -> list[str]:
        return sorted((message.key() or b"").decode() for message in read_to_end(self.servers, self.sink))

    def wait(self) -> None:
        eventually(lambda: len(self.forwarded()) >= len(self.expected), "each key is forwarded")


def test_each_key_is_forwarded_once(
    bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    application = Application(bootstrap_servers, application_id, make_topic, tmp_path / "state")
    choice = random.Random(11)
    with application.streams() as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 2, 2 * PARTITIONS), "two threads share the tasks")
        for number in range(KILLS):
            application.produce(f"kill {number}")
            kill_one(streams, choice)
            application.produce(f"kill {number}")
            eventually(lambda: shared_by(streams, 2, 2 * PARTITIONS), "the process is replaced")
        application.wait()
    shutil.rmtree(application.state_dir)
    with application.streams() as streams:
        streams.start()
        application.produce("kill 0")  # duplicates of rows that are restored
        application.produce("new")
        application.wait()
    assert application.forwarded() == sorted(application.expected)
    changelog = f"{application_id}-once-changelog"
    assert {(m.key() or b"").decode() for m in read_to_end(bootstrap_servers, changelog)} == application.expected
