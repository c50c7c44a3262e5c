"""A transaction whose coordinator dies: its successor ends the transaction, and coordinates from then on."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import count

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.clients.protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from penstock.topology.records import TopicPartition
from tests.brokers import FIRST, SECOND, THIRD, ThreeBrokers
from tests.clients.test_transactions_wire_broker import librdkafkas, ours
from tests.topics import create_topics
from tests.waiting import PATIENCE_SECONDS, eventually
from tests.workers.test_exactly_once_broker import committed_values

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
]
LOG_TOPIC, LOG_PARTITIONS = "__transaction_state", 4


def log_partition(transactional_id: str) -> int:
    """Return the partition of a transactional id in the transaction log (Kafka: Utils.abs of String.hashCode)."""
    found = 0
    for character in transactional_id:
        found = found * 31 + ord(character) & 0xFFFFFFFF
    return (found & 0x7FFFFFFF) % LOG_PARTITIONS


def coordinated_elsewhere(admin: AdminClient) -> tuple[str, int]:
    """Return a transactional id whose coordinator is not the first broker, and that coordinator's id."""

    def leaders() -> dict[int, int]:
        partitions = admin.list_topics(timeout=PATIENCE_SECONDS).topics[LOG_TOPIC].partitions
        return {number: partition.leader for number, partition in partitions.items() if partition.leader > FIRST}

    eventually(lambda: bool(leaders()), leaders)
    found = leaders()
    ids = (f"tx-{uuid.uuid4().hex}" for _ in count())
    transactional_id = next(one for one in ids if log_partition(one) in found)
    return transactional_id, found[log_partition(transactional_id)]


def test_the_coordinator_dies_before_the_commit(three_brokers: ThreeBrokers, unique_name: Callable[[str], str]) -> None:
    topic, group = unique_name("out"), unique_name("group")
    admin = AdminClient({"bootstrap.servers": three_brokers.bootstrap_servers})
    create_topics(admin, NewTopic(topic, 1, replica_assignment=[[FIRST]]))
    opener = librdkafkas(three_brokers.bootstrap_servers, unique_name("opener"))  # creates the transaction log
    opener.init_transactions(PATIENCE_SECONDS)
    transactional_id, coordinator = coordinated_elsewhere(admin)
    producer = ours(three_brokers.bootstrap_servers, transactional_id)
    producer.init_transactions(PATIENCE_SECONDS)

    def write(value: bytes, offset: int) -> None:
        producer.begin_transaction()
        producer.produce(topic, b"k", value, 0, 5)
        offsets = {TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
        producer.send_offsets_to_transaction(offsets, GroupMetadata(group), PATIENCE_SECONDS)
        producer.flush()

    write(b"1", 1)
    {SECOND: three_brokers.second, THIRD: three_brokers.third}[coordinator].kill()
    producer.commit_transaction(PATIENCE_SECONDS)
    write(b"2", 2)
    producer.commit_transaction(PATIENCE_SECONDS)
    assert committed_values(three_brokers.bootstrap_servers, topic) == [b"1", b"2"]
    producer.close()
