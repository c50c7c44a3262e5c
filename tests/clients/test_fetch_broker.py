"""A fetcher and librdkafka read the same records from a real broker, field by field."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

from penstock.clients.librdkafka import as_reader
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.reading.fetcher import Fetcher
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.records import TopicPartition
from penstock.workers.tasks.partition_consumer import PartitionConsumer
from penstock.workers.thread.client_supplier import KafkaClientSupplier
from tests import waiting
from tests.waiting import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.broker,
]
PARTITIONS = 3
HEADERS: list[Any] = [None, [("a", b"1"), ("a", None), ("ü", b"")], [("h", b"%d" % n) for n in range(100)]]


@pytest.fixture
def config(bootstrap_servers: str, unique_name: Callable[[str], str]) -> dict[str, Any]:
    return {"application.id": unique_name("app"), "bootstrap.servers": bootstrap_servers}


CODECS = ["none", "gzip", "lz4", "snappy", "zstd"]


@pytest.fixture(params=[*((codec, "producer") for codec in CODECS), *((codec, codec) for codec in CODECS[1:])])
def topic(request: pytest.FixtureRequest, bootstrap_servers: str, make_topic: Callable[..., str]) -> str:
    """Records of all kinds: outside of transactions, and in committed and aborted ones.

    They are compressed by librdkafka, or by the broker, which uses Java's codecs.
    """
    codec, by_broker = request.param
    name = make_topic("in", PARTITIONS, {"compression.type": by_broker})
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap_servers}
    if by_broker == "producer":
        settings["compression.type"] = codec
    plain = Producer({**settings, "linger.ms": 20})
    transactional = Producer({**settings, "transactional.id": name, "linger.ms": 0})
    transactional.init_transactions(PATIENCE_SECONDS)
    for turn in range(6):
        write(plain, name, turn, 200)
        transactional.begin_transaction()
        write(transactional, name, 100 + turn, 20)
        assert transactional.flush(PATIENCE_SECONDS) == 0
        if turn % 2:
            transactional.abort_transaction(PATIENCE_SECONDS)
        else:
            transactional.commit_transaction(PATIENCE_SECONDS)
    waiting.eventually(lambda: stable_end(bootstrap_servers, name) == end(bootstrap_servers, name), "markers are there")
    return name


def stable_end(bootstrap_servers: str, topic: str) -> list[int]:
    """Return the last stable offset after all transactions have ended; commit_transaction returns before the markers
    are written.
    """
    return end(bootstrap_servers, topic, "read_committed")


def end(bootstrap_servers: str, topic: str, isolation: str = "read_uncommitted") -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "ends", "isolation.level": isolation})
    try:
        places = [Place(topic, number) for number in range(PARTITIONS)]
        return [consumer.get_watermark_offsets(place, PATIENCE_SECONDS)[1] for place in places]
    finally:
        consumer.close()


def write(producer: Producer, topic: str, turn: int, count: int) -> None:
    for number in range(count):
        key = [None, b"", b"key-%d" % number, "ключ".encode()][number % 4]
        value = None if number % 7 == 0 else b"%d " % turn * number
        headers, at = HEADERS[number % 3 if number % 10 == 0 else 0], 1_700_000_000_000 - turn * 60_000 + number
        producer.produce(topic, value, key, number % PARTITIONS, timestamp=at, headers=headers)
    assert producer.flush(PATIENCE_SECONDS) == 0


def fields(message: Any) -> tuple[Any, ...]:
    place = message.topic(), message.partition(), message.offset()
    return *place, message.key(), message.value(), message.timestamp(), message.headers(), message.error()


def opened(config: dict[str, Any], fetcher: str) -> PartitionConsumer:
    supplier = KafkaClientSupplier(StreamsConfig({**config, "penstock.fetcher": fetcher}))
    reader = as_reader(supplier.get_consumer("c"))
    return PartitionConsumer(reader, PrefixedLogger("penstock.test", ""))


def read(config: dict[str, Any], topic: str, fetcher: str) -> tuple[list[Any], dict[TopicPartition, Any]]:
    """Return the fields of all records by partition and offset, and the partition ends that the consumer reports."""
    consumer = opened(config, fetcher)
    assert isinstance(consumer._reader, Fetcher) == (fetcher == "auto")
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        consumer.assign(dict.fromkeys(partitions, 0))
        while any(consumer.lag(partition) != 0 for partition in partitions):
            assert time.monotonic() < deadline
            for run in consumer.poll(37, 0.1).values():
                found += map(fields, run)
        ends = {p: (consumer.position(p), consumer.end(p)) for p in partitions}
    finally:
        consumer.close()
    for partition in partitions:
        offsets = [offset for _, number, offset, *_ in found if number == partition.partition]
        assert offsets == sorted(offsets)
    return sorted(found, key=lambda record: record[:3]), ends


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_fetcher_and_librdkafka_read_the_same(config: dict[str, Any], topic: str, isolation: str) -> None:
    ours, our_ends = read({**config, "consumer.isolation.level": isolation}, topic, "auto")
    theirs, their_ends = read({**config, "consumer.isolation.level": isolation}, topic, "librdkafka")
    assert ours == theirs
    assert our_ends == their_ends
    assert len(ours) == 6 * 200 + (3 if isolation == "read_committed" else 6) * 20


def test_the_epoch_before_a_position_is_that_of_the_leader(
    config: dict[str, Any], bootstrap_servers: str, make_topic: Callable[..., str]
) -> None:
    first = TopicPartition(make_topic("in", PARTITIONS), 0)
    write(Producer({"bootstrap.servers": bootstrap_servers}), first.topic, 0, 30)
    consumer = opened(config, "auto")
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        consumer.assign({first: 0})
        assert consumer.epoch_before(first, 0) == -1
        while consumer.lag(first) != 0:
            assert time.monotonic() < deadline
            consumer.poll(100, 0.1)
        assert consumer.epoch_before(first, consumer.position(first) or 0) == 0  # that of its first and only leader
    finally:
        consumer.close()


def test_fetch_responses_may_be_smaller_than_a_record(
    config: dict[str, Any], bootstrap_servers: str, make_topic: Callable[..., str]
) -> None:
    topic = make_topic("large", PARTITIONS, {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "3000000"})
    producer = Producer({"bootstrap.servers": bootstrap_servers, "message.max.bytes": 3_000_000})
    for number in range(30):
        producer.produce(topic, b"%d" % number * (1_000_000 if number % 10 == 0 else 1), partition=number % PARTITIONS)
        producer.flush(PATIENCE_SECONDS)
    small = {**config, "consumer.max.partition.fetch.bytes": 1_000}
    ours, theirs = read(small, topic, "auto"), read(config, topic, "librdkafka")
    assert len(ours[0]) == 30
    assert ours == theirs


def test_with_a_setting_unknown_to_the_fetcher_librdkafka_reads(
    config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    consumer = opened({**config, "consumer.queued.max.messages.kbytes": 1_000}, "auto")
    consumer.close()
    assert not isinstance(consumer._reader, Fetcher)
    assert "Reading with librdkafka, which knows queued.max.messages.kbytes" in caplog.text
