"""A transaction whose coordinator dies: the next one ends it, and coordinates from then on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from itertools import count

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock import kernel
from penstock.clients.protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from penstock.topology.records import TopicPartition
from tests import waiting
from tests.brokers import SECOND
from tests.two_racks import FIRST, TwoRacks, two_racks
from tests.workers.test_exactly_once_broker import committed_values
from tests.workers.test_transactions_wire_broker import librdkafkas, ours

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.skipif(kernel.record_accumulator is None, reason="the compiled kernel is not built here"),
]
PATIENCE_SECONDS = 60.0
LOG_TOPIC, LOG_PARTITIONS = "__transaction_state", 4
eventually = partial(waiting.eventually, patience_seconds=PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRacks]:
    with two_racks(tmp_path_factory.mktemp("coordinators")) as made:
        yield made


def log_partition(transactional_id: str) -> int:
    """Return where the coordinator keeps a transactional id (Kafka: Utils.abs of String.hashCode)."""
    found = 0
    for character in transactional_id:
        found = found * 31 + ord(character) & 0xFFFFFFFF
    return (found & 0x7FFFFFFF) % LOG_PARTITIONS


def coordinated_by(admin: AdminClient, node: int) -> str:
    """Return a transactional id whose coordinator is a broker."""

    def led() -> set[int]:
        partitions = admin.list_topics(timeout=PATIENCE_SECONDS).topics[LOG_TOPIC].partitions
        return {number for number, partition in partitions.items() if partition.leader == node}

    eventually(lambda: bool(led()), led)
    partitions = led()
    ids = (f"tx-{uuid.uuid4().hex}" for _ in count())
    return next(found for found in ids if log_partition(found) in partitions)


def test_the_coordinator_dies_before_the_commit(brokers: TwoRacks) -> None:
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap_servers})
    admin.create_topics([NewTopic("out", 1, replica_assignment=[[FIRST]])])["out"].result(PATIENCE_SECONDS)
    opener = librdkafkas(brokers.bootstrap_servers, "opener")  # makes the transaction log
    opener.init_transactions(PATIENCE_SECONDS)
    producer = ours(brokers.bootstrap_servers, coordinated_by(admin, SECOND))
    producer.init_transactions(PATIENCE_SECONDS)

    def write(value: bytes, offset: int) -> None:
        producer.begin_transaction()
        producer.produce("out", b"k", value, 0, 5)
        offsets = {TopicPartition("out", 0): OffsetAndMetadata(offset, "", -1)}
        producer.send_offsets_to_transaction(offsets, GroupMetadata("group"), PATIENCE_SECONDS)
        producer.flush()

    write(b"1", 1)
    brokers.second.kill()
    producer.commit_transaction(PATIENCE_SECONDS)
    write(b"2", 2)
    producer.commit_transaction(PATIENCE_SECONDS)
    assert committed_values(brokers.bootstrap_servers, "out") == [b"1", b"2"]
    producer.close()
