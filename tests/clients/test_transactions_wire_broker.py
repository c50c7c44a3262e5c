"""A transaction's requests on the wire, with a real broker, and the effect of a late request (KIP-890)."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock.clients.clock import SystemClock
from penstock.clients.cluster.brokers import KafkaBrokers
from penstock.clients.errors import TransactionError
from penstock.clients.librdkafka import LibrdkafkaWriter
from penstock.clients.protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from penstock.clients.writing.produce_settings import produce_settings
from penstock.clients.writing.transactional_producer import TransactionalKafkaProducer
from penstock.clients.writing.writer import TransactionalWriter
from penstock.dev.kafka_distribution import preferred
from penstock.testing.wire import Action, Exchange, Rule, WireProxy
from penstock.topology.records import TopicPartition
from tests.waiting import PATIENCE_SECONDS
from tests.workers.test_exactly_once_broker import LOG, committed_values, new_topic, settings

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(int(preferred().split(".")[0]) < 4, reason="these transactions came with Kafka 4"),
]
OF_TRANSACTIONS = ("Produce", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit")


@pytest.fixture
def proxy(bootstrap_servers: str) -> Iterator[WireProxy]:
    with WireProxy(bootstrap_servers) as made:
        yield made


class LateRequest(Action):
    """Closes the client's connection, and delivers the request later, on demand."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    async def on_request(self, exchange: Exchange) -> None:
        exchange.leave_client()
        await asyncio.to_thread(self.go_on.wait, PATIENCE_SECONDS)
        await exchange.forward()
        await exchange.answered()


def librdkafkas(address: str, transactional_id: str) -> TransactionalWriter:
    return LibrdkafkaWriter(Producer(settings(address, transactional_id), logger=LOG.logger))


def ours(address: str, transactional_id: str) -> TransactionalWriter:
    found = produce_settings(settings(address, transactional_id))
    return TransactionalKafkaProducer(KafkaBrokers(found, creates_topics=True), found, SystemClock(), LOG, seed=0)


def test_the_newest_broker_gets_the_new_protocol(bootstrap_servers: str, proxy: WireProxy) -> None:
    topic = new_topic(bootstrap_servers)
    producer = ours(proxy.bootstrap_servers, f"tx-{uuid.uuid4().hex}")
    producer.init_transactions(PATIENCE_SECONDS)
    for _ in range(2):
        producer.begin_transaction()
        producer.produce(topic, b"k", b"v", 0, 5)
        producer.flush()
        offsets = {TopicPartition(topic, 0): OffsetAndMetadata(1, "", -1)}
        producer.send_offsets_to_transaction(offsets, GroupMetadata("group"), PATIENCE_SECONDS)
        producer.commit_transaction(PATIENCE_SECONDS)
    producer.close()
    passed = {(api, version) for api, version in proxy.requests if api in OF_TRANSACTIONS}
    assert passed == {("Produce", 12), ("TxnOffsetCommit", 5), ("EndTxn", 5)}
    assert committed_values(bootstrap_servers, topic) == [b"v", b"v"]


@pytest.mark.parametrize(("make", "is_safe"), [(librdkafkas, False), (ours, True)], ids=["librdkafka", "penstock"])
def test_a_late_commit_does_not_commit_the_next_transaction(
    bootstrap_servers: str, proxy: WireProxy, make: Any, is_safe: bool
) -> None:
    """Found by Jepsen (Bufstream 0.1.0); with librdkafka's protocol a network can cause this (librdkafka#5423)."""
    topic = new_topic(bootstrap_servers)
    producer = make(proxy.bootstrap_servers, f"tx-{uuid.uuid4().hex}")
    producer.init_transactions(PATIENCE_SECONDS)

    def write(value: bytes) -> None:
        producer.produce(topic, b"k", value, 0, 5)
        producer.flush(PATIENCE_SECONDS)

    producer.begin_transaction()
    write(b"first")
    late_commit = LateRequest()
    proxy.set_rules([Rule(late_commit, api="EndTxn", nth=1)])
    producer.commit_transaction(PATIENCE_SECONDS)
    assert proxy.events, "the commit was sent twice, and the first one is still on its way"
    producer.begin_transaction()
    write(b"second, to be aborted")
    late_commit.go_on.set()
    late = proxy.wait_for(lambda event: event.what.startswith("the broker answers"))
    if is_safe:
        assert late.what == "the broker answers: PRODUCER_FENCED"
        producer.abort_transaction(PATIENCE_SECONDS)
        assert committed_values(bootstrap_servers, topic) == [b"first"]
    else:
        with suppress(TransactionError):  # there is nothing left to abort
            producer.abort_transaction(PATIENCE_SECONDS)
        assert committed_values(bootstrap_servers, topic) == [b"first", b"second, to be aborted"]
    producer.close()
