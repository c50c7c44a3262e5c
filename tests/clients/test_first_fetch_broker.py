"""How quickly a connected consumer reads the first partition of a topic: librdkafka alone takes up to 1 s."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from penstock.clients.librdkafka import LibrdkafkaReader
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.records import TopicPartition
from penstock.workers.thread.client_supplier import KafkaClientSupplier
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker

#: librdkafka checks every second for new topics.
SCAN_SECONDS = 1.0


def test_the_first_partition_of_a_topic_is_read_at_once(
    bootstrap_servers: str, make_topic: Callable[..., str], unique_name: Callable[[str], str]
) -> None:
    other, topic = make_topic("other"), make_topic("in")
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(topic, b"value")
    assert producer.flush(PATIENCE_SECONDS) == 0
    config = StreamsConfig({"application.id": unique_name("app"), "bootstrap.servers": bootstrap_servers})

    def first_read_seconds() -> float:
        """Return after how many seconds a new client has read a partition of a topic that it did not know."""
        client = KafkaClientSupplier(config).confluent_consumer("restore-consumer")
        made_at = time.monotonic()
        consumer = LibrdkafkaReader(client)
        try:
            client.list_topics(other, PATIENCE_SECONDS)  # so that it is connected, but knows only another topic
            consumer.assign({TopicPartition(topic, 0): 0})
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not consumer.fetch(10, 0.05)[0]:
                assert time.monotonic() < deadline
            return time.monotonic() - made_at
        finally:
            consumer.close()

    # On a busy machine a single client may be slow; without the wake-up none is faster than the scan.
    eventually(lambda: first_read_seconds() < SCAN_SECONDS * 0.8, "a client does not wait for the scan")
