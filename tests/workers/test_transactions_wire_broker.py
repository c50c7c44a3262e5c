"""What of a transaction is on the wire, with a real broker, and what a late request does there (KIP-890)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Producer
from request_relay import Passed, RequestRelay
from test_exactly_once_broker import LOG, WAIT_SECONDS, committed_values, new_topic, settings

from penstock import kernel
from penstock.clients.clock import SystemClock
from penstock.clients.cluster.brokers import KafkaBrokers
from penstock.clients.errors import ErrorCode, TransactionError
from penstock.clients.librdkafka import LibrdkafkaWriter
from penstock.clients.protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from penstock.clients.writing.produce_settings import produce_settings
from penstock.clients.writing.transactional_producer import TransactionalKafkaProducer
from penstock.clients.writing.writer import TransactionalWriter
from penstock.dev.dev_broker import HOST, DevBroker
from penstock.dev.kafka_distribution import preferred
from penstock.topology.records import TopicPartition

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(kernel.record_accumulator is None, reason="the compiled kernel is not built here"),
    pytest.mark.skipif(int(preferred().split(".")[0]) < 4, reason="these transactions came with Kafka 4"),
]
PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 0, 24, 25, 26, 28
OF_TRANSACTIONS = (PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT)


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RequestRelay]:
    """A relay in front of a broker of its own."""
    made = RequestRelay()
    config = {"advertised.listeners": f"BROKER://{HOST}:{made.port}"}
    with DevBroker("behind-a-relay", tmp_path_factory.mktemp("relay"), config=config) as broker:
        made.start(broker.bootstrap_servers)
        yield made
        made.close()


def librdkafkas(address: str, transactional_id: str) -> TransactionalWriter:
    return LibrdkafkaWriter(Producer(settings(address, transactional_id), logger=LOG.logger))


def ours(address: str, transactional_id: str) -> TransactionalWriter:
    found = produce_settings(settings(address, transactional_id))
    return TransactionalKafkaProducer(KafkaBrokers(found, creates_topics=True), found, SystemClock(), LOG, seed=0)


def test_the_newest_broker_is_asked_by_the_new_protocol(relay: RequestRelay) -> None:
    topic, before = new_topic(relay.address), len(relay.passed)
    producer = ours(relay.address, f"tx-{uuid.uuid4().hex}")
    producer.init_transactions(WAIT_SECONDS)
    for _ in range(2):
        producer.begin_transaction()
        producer.produce(topic, b"k", b"v", 0, 5)
        producer.flush()
        offsets = {TopicPartition(topic, 0): OffsetAndMetadata(1, "", -1)}
        producer.send_offsets_to_transaction(offsets, GroupMetadata("group"), WAIT_SECONDS)
        producer.commit_transaction(WAIT_SECONDS)
    producer.close()
    passed = {request for request in relay.passed[before:] if request.api in OF_TRANSACTIONS}
    passed -= {Passed(ADD_PARTITIONS, version) for version in (4, 5)}  # a broker itself asks that
    assert passed == {Passed(PRODUCE, 12), Passed(TXN_OFFSET_COMMIT, 5), Passed(END_TXN, 5)}
    assert committed_values(relay.address, topic) == [b"v", b"v"]


@pytest.mark.parametrize(("make", "is_safe"), [(librdkafkas, False), (ours, True)], ids=["librdkafka", "penstock"])
def test_a_late_commit_does_not_commit_the_next_transaction(relay: RequestRelay, make: Any, is_safe: bool) -> None:
    """Found by Jepsen (Bufstream 0.1.0); in librdkafka's protocol a network can do this (librdkafka#5423)."""
    topic = new_topic(relay.address)
    producer = make(relay.address, f"tx-{uuid.uuid4().hex}")
    producer.init_transactions(WAIT_SECONDS)

    def write(value: bytes) -> None:
        producer.produce(topic, b"k", value, 0, 5)
        producer.flush(WAIT_SECONDS)

    producer.begin_transaction()
    write(b"first")
    relay.hold_next(END_TXN)
    producer.commit_transaction(WAIT_SECONDS)
    assert relay.has_held, "the commit was sent twice, and the first one is still on its way"
    producer.begin_transaction()
    write(b"second, to be aborted")
    answer = relay.deliver_held()
    if is_safe:
        assert int.from_bytes(answer[9:11], "big", signed=True) == ErrorCode.PRODUCER_FENCED
        producer.abort_transaction(WAIT_SECONDS)
        assert committed_values(relay.address, topic) == [b"first"]
    else:
        with suppress(TransactionError):  # there is nothing to abort any more
            producer.abort_transaction(WAIT_SECONDS)
        assert committed_values(relay.address, topic) == [b"first", b"second, to be aborted"]
    producer.close()
