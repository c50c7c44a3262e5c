"""PartitionConsumer over a consumer in memory that remembers, as librdkafka does, what was paused."""

from __future__ import annotations

from memory_kafka import Cluster, ManualClock, MemoryConsumer

from penstock.topology.records import TopicPartition
from penstock.workers.log_context import PrefixedLogger
from penstock.workers.partition_consumer import PartitionConsumer

IN_0 = TopicPartition("in", 0)


def test_a_partition_that_was_paused_is_fetched_when_it_is_assigned_again(cluster: Cluster, clock: ManualClock) -> None:
    cluster.create_topic("in", 1)
    cluster.append("in", 0, b"k", b"v")
    consumer = PartitionConsumer(MemoryConsumer(cluster, clock, False), PrefixedLogger("penstock.test", ""))
    consumer.assign({IN_0: 0})
    consumer.pause([IN_0])
    consumer.unassign([IN_0])
    consumer.assign({IN_0: 0})
    assert consumer.paused() == frozenset()
    assert [message.offset() for message in consumer.poll(10, 0)[IN_0]] == [0]


def test_a_partition_that_is_sought_stays_paused(cluster: Cluster, clock: ManualClock) -> None:
    cluster.create_topic("in", 1)
    cluster.append("in", 0, b"k", b"v")
    consumer = PartitionConsumer(MemoryConsumer(cluster, clock, False), PrefixedLogger("penstock.test", ""))
    consumer.assign({IN_0: 0})
    consumer.pause([IN_0])
    consumer.seek({IN_0: 0})
    assert consumer.paused() == {IN_0}
    assert not consumer.poll(10, 0)
    consumer.resume([IN_0])
    assert IN_0 in consumer.poll(10, 0)
