"""A fetcher reads over TLS, authenticated by SASL, from a broker that lets no other in."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import kernel
from penstock.clients.librdkafka import as_reader
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.reading.fetcher import Fetcher
from penstock.dev.dev_broker import DevBroker
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.records import TopicPartition
from penstock.workers.tasks.partition_consumer import PartitionConsumer
from penstock.workers.thread.client_supplier import KafkaClientSupplier

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(kernel.record_batches is None, reason="the compiled kernel is not built here"),
]
DEADLINE_SECONDS = 60.0
RECORDS = 30_000
IN_0 = TopicPartition("in", 0)


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


@pytest.fixture
def secured(certificate: Path, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What a client needs to know of a broker with a listener for TLS and SASL/PLAIN."""
    keystore = tmp_path / "keystore.pem"
    keystore.write_text((certificate / "key.pem").read_text() + (certificate / "cert.pem").read_text())
    plain, controller, secure = free_ports(3)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    config = {
        "listeners": f"BROKER://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller},SECURE://127.0.0.1:{secure}",
        "advertised.listeners": f"BROKER://127.0.0.1:{plain},SECURE://localhost:{secure}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": f'{module} required user_reader="secret";',
    }
    with DevBroker("secured", tmp_path / "broker", port=plain, config=config):
        yield {
            "application.id": "secured",
            "bootstrap.servers": f"localhost:{secure}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "reader",
            "sasl.password": "secret",
            "ssl.ca.location": str(certificate / "cert.pem"),
        }


@pytest.fixture
def opened() -> Iterator[Callable[[dict[str, Any]], PartitionConsumer]]:
    """Return consumers as a stream thread has them; they are closed at the end."""
    made: list[PartitionConsumer] = []

    def open_one(config: dict[str, Any]) -> PartitionConsumer:
        supplier = KafkaClientSupplier(StreamsConfig(config))
        reader = as_reader(supplier.get_consumer("c"))
        made.append(PartitionConsumer(reader, PrefixedLogger("penstock.test", "")))
        return made[-1]

    yield open_one
    for consumer in made:
        consumer.close()


def test_records_come_over_tls_to_whoever_has_the_password(
    secured: dict[str, Any],
    opened: Callable[[dict[str, Any]], PartitionConsumer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    supplier = KafkaClientSupplier(StreamsConfig(secured))
    admin: AdminClient = supplier.get_admin_client("a")
    admin.create_topics([NewTopic("in", 1)])["in"].result(DEADLINE_SECONDS)
    producer = supplier.confluent_producer("p")
    for number in range(RECORDS):
        producer.produce("in", b"%d" % number * 20)
    assert producer.flush(DEADLINE_SECONDS) == 0
    consumer = opened(secured)
    assert isinstance(consumer._reader, Fetcher)
    consumer.assign({IN_0: 0})
    found: list[Any] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while consumer.lag(IN_0) != 0:
        assert time.monotonic() < deadline
        found += [message.value() for message in consumer.poll(1_000, 0.1).get(IN_0, [])]
    assert found == [b"%d" % number * 20 for number in range(RECORDS)]

    stranger = opened({**secured, "sasl.password": "guessed"})
    stranger.assign({IN_0: 0})
    deadline = time.monotonic() + DEADLINE_SECONDS
    while "Authentication failed" not in caplog.text:
        assert time.monotonic() < deadline
        assert not stranger.poll(10, 0.1)
