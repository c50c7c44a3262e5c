"""PartitionConsumer over a consumer of librdkafka, which remembers what was paused, and over a reader in memory."""

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
from tests.workers.memory_io import MemoryReader
from tests.workers.memory_kafka import Cluster, ManualClock

IN_0 = TopicPartition("in", 0)
DEADLINE_SECONDS = 60.0


def over(reader: Reader) -> PartitionConsumer:
    return PartitionConsumer(reader, PrefixedLogger("penstock.test", ""))


def test_a_partition_that_was_paused_is_fetched_when_it_is_assigned_again(cluster: Cluster, clock: ManualClock) -> None:
    cluster.create_topic("in", 1)
    cluster.append("in", 0, b"k", b"v")
    consumer = over(MemoryReader(cluster, clock, False))
    consumer.assign({IN_0: 0})
    consumer.pause([IN_0])
    consumer.unassign([IN_0])
    consumer.assign({IN_0: 0})
    assert consumer.paused() == frozenset()
    assert [message.offset() for message in consumer.poll(10, 0)[IN_0]] == [0]


def test_a_partition_that_is_sought_stays_paused(cluster: Cluster, clock: ManualClock) -> None:
    cluster.create_topic("in", 1)
    cluster.append("in", 0, b"k", b"v")
    consumer = over(MemoryReader(cluster, clock, False))
    consumer.assign({IN_0: 0})
    consumer.pause([IN_0])
    consumer.seek({IN_0: 0})
    assert consumer.paused() == {IN_0}
    assert not consumer.poll(10, 0)
    consumer.resume([IN_0])
    assert IN_0 in consumer.poll(10, 0)


@pytest.mark.broker
def test_librdkafka_reads_a_partition_again_that_was_paused_and_unassigned(
    bootstrap_servers: str, make_topic: Callable[..., str], unique_name: Callable[[str], str]
) -> None:
    """It continues to pause a partition that is unassigned."""
    partition = TopicPartition(make_topic("in"), 0)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(partition.topic, b"value")
    assert producer.flush(DEADLINE_SECONDS) == 0
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
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not consumer.poll(10, 0.05):
        assert time.monotonic() < deadline
