"""A partition whose leader went and came back. librdkafka's own mock cluster loses one on demand."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from penstock.clients.log_context import PrefixedLogger
from penstock.kernel.librdkafka import loaded
from penstock.topology.errors import BrokerUnavailableError
from penstock.topology.records import TopicPartition
from penstock.workers.partition_consumer import PartitionConsumer
from tests.waiting import eventually

PARTITION = TopicPartition("in", 0)
NO_LEADER, BROKER = -1, 1
PATIENCE_SECONDS = 30.0  # librdkafka itself asks again after topic.metadata.refresh.interval.ms, 300 s


class MockCluster:
    """rdkafka_mock.h by ctypes: one broker, one topic with one partition."""

    def __init__(self) -> None:
        path = loaded()
        assert path is not None
        self._library = library = ctypes.CDLL(path)
        library.rd_kafka_new.restype = library.rd_kafka_conf_new.restype = ctypes.c_void_p
        library.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
        library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        conf, reason = ctypes.c_void_p(library.rd_kafka_conf_new()), ctypes.create_string_buffer(512)
        self._client = ctypes.c_void_p(library.rd_kafka_new(0, conf, reason, ctypes.c_size_t(512)))
        assert self._client, reason.value
        self._cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(self._client, 1))
        assert library.rd_kafka_mock_topic_create(self._cluster, PARTITION.topic.encode(), 1, 1) == 0

    def bootstrap_servers(self) -> str:
        servers: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return servers.decode()

    def set_leader(self, broker: int) -> None:
        topic, partition = PARTITION
        failed = self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, broker)
        assert failed == 0

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)


@pytest.fixture
def mock_cluster() -> Iterator[MockCluster]:
    cluster = MockCluster()
    yield cluster
    cluster.close()


def test_the_offsets_of_a_partition_are_known_as_soon_as_it_has_a_leader_again(mock_cluster: MockCluster) -> None:
    mock_cluster.set_leader(NO_LEADER)
    settings = {"bootstrap.servers": mock_cluster.bootstrap_servers(), "group.id": "g", "enable.partition.eof": True}
    consumer = PartitionConsumer(Consumer(settings), PrefixedLogger("penstock.test", ""))
    try:
        with pytest.raises(BrokerUnavailableError, match="in-0"):
            consumer.end_offsets([PARTITION])
        mock_cluster.set_leader(BROKER)
        eventually(lambda: is_empty(consumer), "the new leader is asked", PATIENCE_SECONDS)
    finally:
        consumer.close()


def is_empty(consumer: PartitionConsumer) -> bool:
    try:
        return consumer.end_offsets([PARTITION]) == {PARTITION: 0}
    except BrokerUnavailableError:
        return False
