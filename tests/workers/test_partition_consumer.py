"""PartitionConsumer over a consumer of librdkafka, which remembers paused partitions, and over an in-memory reader."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from penstock.clients.librdkafka import LibrdkafkaReader
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.reading.reader import Reader
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.records import TopicPartition
from penstock.workers.tasks.partition_consumer import PartitionConsumer
from penstock.workers.thread.client_supplier import KafkaClientSupplier
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.waiting import PATIENCE_SECONDS
from tests.workers.direct_io import DirectReader

IN_0 = TopicPartition("in", 0)


def over(reader: Reader) -> PartitionConsumer:
    return PartitionConsumer(reader, PrefixedLogger("penstock.test", ""))


def test_a_paused_partition_is_fetched_after_it_is_assigned_again(cluster: DirectKafka, clock: ManualClock) -> None:
    cluster.create_topic("in", 1)
    cluster.append("in", 0, b"k", b"v")
    consumer = over(DirectReader(cluster, "reader", False))
    consumer.assign({IN_0: 0})
    consumer.pause([IN_0])
    consumer.unassign([IN_0])
    consumer.assign({IN_0: 0})
    assert consumer.paused() == frozenset()
    assert [message.offset() for message in consumer.poll(10, 0)[IN_0]] == [0]


def test_a_paused_partition_stays_paused_after_a_seek(cluster: DirectKafka, clock: ManualClock) -> None:
    cluster.create_topic("in", 1)
    cluster.append("in", 0, b"k", b"v")
    consumer = over(DirectReader(cluster, "reader", False))
    consumer.assign({IN_0: 0})
    consumer.pause([IN_0])
    consumer.seek({IN_0: 0})
    assert consumer.paused() == {IN_0}
    assert not consumer.poll(10, 0)
    consumer.resume([IN_0])
    assert IN_0 in consumer.poll(10, 0)


@pytest.mark.broker
def test_librdkafka_reads_a_partition_that_was_paused_and_unassigned(
    bootstrap_servers: str, make_topic: Callable[..., str], unique_name: Callable[[str], str]
) -> None:
    """librdkafka itself keeps a partition paused after it is unassigned."""
    partition = TopicPartition(make_topic("in"), 0)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(partition.topic, b"value")
    assert producer.flush(PATIENCE_SECONDS) == 0
    config = StreamsConfig({"application.id": unique_name("app"), "bootstrap.servers": bootstrap_servers})
    supplier = KafkaClientSupplier(config)
    reader = LibrdkafkaReader(supplier.confluent_consumer("restore-consumer"))
    consumer = PartitionConsumer(reader, PrefixedLogger("penstock.test", ""))
    try:
        consumer.assign({partition: 0})
        until_read(consumer)
        consumer.pause([partition])
        consumer.unassign([partition])
        consumer.assign({partition: 0})
        until_read(consumer)
    finally:
        consumer.close()


def until_read(consumer: PartitionConsumer) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not consumer.poll(10, 0.05):
        assert time.monotonic() < deadline
