"""A fetcher reads over TLS with SASL authentication, from a broker that requires both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.clients.librdkafka import as_reader
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.reading.fetcher import Fetcher
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.records import TopicPartition
from penstock.workers.tasks.partition_consumer import PartitionConsumer
from penstock.workers.thread.client_supplier import KafkaClientSupplier
from tests.brokers import SecuredBroker
from tests.topics import create_topics
from tests.waiting import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.broker,
]
RECORDS = 30_000


@pytest.fixture
def secured(secured_broker: SecuredBroker, certificate: Path, unique_name: Callable[[str], str]) -> dict[str, Any]:
    """The client settings for a broker with a listener for TLS and SASL/PLAIN."""
    return {
        "application.id": unique_name("app"),
        "bootstrap.servers": secured_broker.addresses["TLS"],
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "reader",
        "sasl.password": "secret",
        "ssl.ca.location": str(certificate / "cert.pem"),
    }


@pytest.fixture
def opened() -> Iterator[Callable[[dict[str, Any]], PartitionConsumer]]:
    """Return consumers with a stream thread's settings; they are closed at the end."""
    made: list[PartitionConsumer] = []

    def open_one(config: dict[str, Any]) -> PartitionConsumer:
        supplier = KafkaClientSupplier(StreamsConfig(config))
        reader = as_reader(supplier.get_consumer("c"))
        made.append(PartitionConsumer(reader, PrefixedLogger("penstock.test", "")))
        return made[-1]

    yield open_one
    for consumer in made:
        consumer.close()


def test_a_client_with_the_password_reads_over_tls(
    secured: dict[str, Any],
    opened: Callable[[dict[str, Any]], PartitionConsumer],
    unique_name: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = unique_name("in")
    partition = TopicPartition(topic, 0)
    supplier = KafkaClientSupplier(StreamsConfig(secured))
    admin: AdminClient = supplier.get_admin_client("a")
    create_topics(admin, NewTopic(topic, 1))
    producer = supplier.confluent_producer("p")
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number * 20)
    assert producer.flush(PATIENCE_SECONDS) == 0
    consumer = opened(secured)
    assert isinstance(consumer._reader, Fetcher)
    consumer.assign({partition: 0})
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while consumer.lag(partition) != 0:
        assert time.monotonic() < deadline
        found += [message.value() for message in consumer.poll(1_000, 0.1).get(partition, [])]
    assert found == [b"%d" % number * 20 for number in range(RECORDS)]

    stranger = opened({**secured, "sasl.password": "guessed"})
    stranger.assign({partition: 0})
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "Authentication failed" not in caplog.text:
        assert time.monotonic() < deadline
        assert not stranger.poll(10, 0.1)
