"""The size of Fetch requests when one thread reads 256 partitions of a real broker, with 100 records a second."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.clients.clock import SystemClock
from penstock.clients.cluster.brokers import KafkaBrokers
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.reading.fetch_settings import fetch_settings
from penstock.clients.reading.fetcher import Fetcher
from penstock.testing.wire import Action, Direction, Exchange, Rule, WireProxy
from penstock.topology.records import TopicPartition
from tests.brokers import SmallBroker
from tests.topics import create_topics
from tests.waiting import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.broker,
    pytest.mark.long,
]
PARTITIONS = 256
RECORDS, RECORDS_PER_SECOND = 500, 100


class Weighed(Action):
    """Forwards requests and counts their bytes."""

    bytes = 0

    async def on_request(self, exchange: Exchange) -> None:
        self.bytes += len(exchange.frame(Direction.REQUEST))
        await exchange.forward()


def bytes_per_second(directory: Path, sessions: int) -> float:
    """Return the bytes of Fetch requests per second. sessions: the number of sessions that the broker keeps."""
    # A separate broker, because its limit of sessions applies to all clients.
    config, fetches = {"max.incremental.fetch.session.cache.slots": str(sessions)}, Weighed()
    with (
        SmallBroker("fetched", directory, config=config) as broker,
        WireProxy(broker.bootstrap_servers, [Rule(fetches, api="Fetch")]) as proxy,
    ):
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        create_topics(admin, NewTopic("in", PARTITIONS, 1))
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
        found = fetch_settings({"bootstrap.servers": proxy.bootstrap_servers, "fetch.wait.max.ms": 100})
        reader = Fetcher(KafkaBrokers(found), found, SystemClock(), PrefixedLogger("penstock.test", ""))
        try:
            reader.assign({TopicPartition("in", number): 0 for number in range(PARTITIONS)})
            ends: set[TopicPartition | None] = set()
            while len(ends) < PARTITIONS:  # each of them is fetched
                ends.update(event.partition for event in reader.fetch(1_000, 1.0)[1])
            before, began, read = fetches.bytes, time.monotonic(), 0
            written = 0
            while read < RECORDS:
                seconds = time.monotonic() - began
                assert seconds < PATIENCE_SECONDS, f"{read} of {written} records are read"
                for number in range(written, min(RECORDS, int(seconds * RECORDS_PER_SECOND))):
                    producer.produce("in", b"x", partition=number % PARTITIONS)
                    written = number + 1
                producer.poll(0)
                read += sum(map(len, reader.fetch(1_000, 0.01)[0].values()))
            return (fetches.bytes - before) / (time.monotonic() - began)
        finally:
            reader.close()
            producer.flush(PATIENCE_SECONDS)


def test_bytes_of_requests_per_second_without_and_with_sessions(tmp_path: Path) -> None:
    without, with_them = (bytes_per_second(tmp_path / str(sessions), sessions) for sessions in (0, 1_000))
    print(f"bytes of Fetch requests per second: {without:,.0f} without sessions, {with_them:,.0f} with them")
    assert with_them < without / 20
