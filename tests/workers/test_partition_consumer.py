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


@pytest.fixture
def limited(cluster: DirectKafka, clock: ManualClock) -> PartitionConsumer:
    """A consumer of six records, with a limit at offset 3."""
    cluster.create_topic("in", 1)
    for _ in range(6):
        cluster.append("in", 0, b"k", b"v")
    consumer = over(DirectReader(cluster, "reader", False))
    consumer.assign({IN_0: 0})
    consumer.limit({IN_0: 3})
    return consumer


def offsets(consumer: PartitionConsumer, max_records: int = 10) -> list[int]:
    return [message.offset() for message in consumer.poll(max_records, 0).get(IN_0, ())]


def test_a_partition_is_read_up_to_its_limit_and_then_has_no_lag(limited: PartitionConsumer) -> None:
    assert offsets(limited) == [0, 1, 2]
    assert offsets(limited) == []
    assert (limited.position(IN_0), limited.lag(IN_0)) == (3, 0)
    assert limited.paused() == {IN_0}


def test_records_behind_a_limit_follow_once_each_when_it_moves(limited: PartitionConsumer) -> None:
    assert offsets(limited) == [0, 1, 2]
    limited.limit({IN_0: 4})
    assert (offsets(limited), offsets(limited), limited.position(IN_0)) == ([3], [], 4)
    limited.limit({})
    assert (offsets(limited), offsets(limited)) == ([4, 5], [])
    assert (limited.position(IN_0), limited.paused()) == (6, frozenset())


def test_a_partition_that_is_beyond_its_limit_stops_where_it_is(limited: PartitionConsumer) -> None:
    limited.limit({})
    assert offsets(limited, 4) == [0, 1, 2, 3]
    limited.limit({IN_0: 2})
    assert (offsets(limited), limited.position(IN_0), limited.lag(IN_0)) == ([], 4, 0)
    limited.limit({IN_0: 5})
    assert (offsets(limited), limited.position(IN_0)) == ([4], 5)


def test_a_limit_holds_for_partitions_that_are_assigned_later(limited: PartitionConsumer) -> None:
    assert offsets(limited) == [0, 1, 2]
    limited.unassign([IN_0])
    limited.assign({IN_0: 1})
    assert (offsets(limited), limited.position(IN_0)) == ([1, 2], 3)
    limited.limit({})
    assert offsets(limited) == [3, 4, 5]


def test_a_paused_partition_stays_paused_when_its_limit_ends(limited: PartitionConsumer) -> None:
    assert offsets(limited) == [0, 1, 2]
    limited.pause([IN_0])
    limited.limit({})
    assert offsets(limited) == []
    assert limited.paused() == {IN_0}
    limited.resume([IN_0])
    assert offsets(limited) == [3, 4, 5]


def test_a_resumed_partition_stays_at_its_limit(limited: PartitionConsumer, cluster: DirectKafka) -> None:
    assert offsets(limited) == [0, 1, 2]
    limited.pause([IN_0])
    limited.resume([IN_0])
    cluster.append("in", 0, b"k", b"v")
    assert offsets(limited) == []
    limited.limit({})
    assert offsets(limited) + offsets(limited) == [3, 4, 5, 6]


def test_a_position_behind_the_marker_of_a_transaction_does_not_pass_the_limit(
    cluster: DirectKafka, clock: ManualClock
) -> None:
    """Two applications have the same position then, whichever of them has read the marker."""
    cluster.create_topic("in", 1)
    for _ in range(4):
        cluster.append("in", 0, b"k", b"v")
    consumer = over(DirectReader(cluster, "reader", False))
    consumer.assign({IN_0: 0})
    assert offsets(consumer) == [0, 1, 2, 3]
    consumer._ends[IN_0] = 5  # as after an end-of-partition event behind a marker
    assert consumer.position(IN_0) == 5
    consumer.limit({IN_0: 4})
    assert consumer.position(IN_0) == 4


def test_records_that_are_kept_are_not_behind_the_position(limited: PartitionConsumer) -> None:
    """A commit between the end of a limit and the next poll must not skip them, although the end was reported."""
    assert offsets(limited) == [0, 1, 2]
    limited.limit({IN_0: 5})
    assert limited.position(IN_0) == 3
    limited.limit({})
    assert (limited.position(IN_0), limited.lag(IN_0)) == (3, 3)
    assert offsets(limited) == [3, 4, 5]
    assert (limited.position(IN_0), limited.lag(IN_0)) == (6, 0)
