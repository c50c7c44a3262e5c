"""Records that the kernel takes from librdkafka are those that confluent-kafka's consumer returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import confluent_kafka
import orjson
import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from penstock import Serdes, StreamsBuilder, kernel
from penstock.clients.log_context import PrefixedLogger
from penstock.testing import TopologyTestDriver
from penstock.topology.records import RawRecord, TopicPartition
from penstock.workers.librdkafka_source import LibrdkafkaSource
from penstock.workers.partition_consumer import PartitionConsumer

pytestmark = pytest.mark.skipif(
    kernel.fetch is None or not kernel.fetch.USABLE, reason="the compiled kernel is not built here"
)
DEADLINE_SECONDS = 60.0
RECORDS: list[tuple[bytes | None, bytes | None, int, Any]] = [
    (b"key", b"value", 1_700_000_000_000, None),
    (None, b"value", 1, [("a", b"1"), ("a", None), ("b", b"")]),
    (b"", b"", 2, []),
    ("ключ".encode(), None, 3, [("ü", b"\0")]),
    (b"key", b"", 4, [("a", b"1")]),
    (b"key", b"\0", 5, [("a", b"\0")]),
    (b"key", b"\0\0", 6, None),
    (b"key", b"value", 7, [("a", b"%d" % number) for number in range(300)]),
]


def fields(message: Any) -> tuple[Any, ...]:
    place = message.topic(), message.partition(), message.offset()
    return *place, message.key(), message.value(), message.timestamp(), message.headers(), message.error()


@pytest.fixture(params=["none", "lz4"])
def topic(request: pytest.FixtureRequest, bootstrap_servers: str, make_topic: Callable[..., str]) -> str:
    """A topic of two partitions, each with RECORDS."""
    name = make_topic("in", 2)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "compression.type": request.param})
    for partition in range(2):
        for key, value, at, headers in RECORDS:
            producer.produce(name, value, key, partition, timestamp=at, headers=headers)
    assert producer.flush(DEADLINE_SECONDS) == 0
    return name


@pytest.fixture
def consumer(bootstrap_servers: str) -> Iterator[Consumer]:
    """A consumer as a stream thread has it."""
    made = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "kernel",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    yield made
    made.close()


def fetched(consumer: Consumer, topic: str, wanted: int, offset: int = 0) -> tuple[list[Any], list[Any]]:
    """Return the records and the events that a Fetcher finds."""
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset) for partition in range(2)])
    fetcher = kernel.fetch.fetcher_for(consumer)
    for partition in range(2):
        fetcher.take(topic, partition)
    records: list[Any] = []
    events: list[Any] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        while len(records) < wanted or len(events) < 2:
            assert time.monotonic() < deadline
            # Records that came before they could be taken, as PartitionConsumer has them.
            found = consumer.consume(100, 0)
            records += [message for message in found if message.error() is None]
            events += [message for message in found if message.error() is not None]
            runs, new_events = fetcher.fetch(3, 50)
            records += [message for run in runs.values() for message in run]
            events += new_events
    finally:
        fetcher.close()
    return records, events


@pytest.mark.broker
def test_records_and_events_have_what_confluent_kafkas_have(
    consumer: Consumer, bootstrap_servers: str, topic: str
) -> None:
    records, events = fetched(consumer, topic, 2 * len(RECORDS))
    other = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "other", "enable.partition.eof": True})
    try:
        other.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(2)])
        theirs: list[Any] = []
        while len(theirs) < 2 * len(RECORDS) + 2:
            message = other.poll(DEADLINE_SECONDS)
            assert message is not None
            theirs.append(message)
    finally:
        other.close()
    assert sorted(map(fields, records), key=str) == sorted(
        (fields(message) for message in theirs if message.error() is None), key=str
    )
    assert kernel.messages.timestamps(records) == [record.timestamp()[1] for record in records]
    ends = [(event.topic(), event.partition(), event.offset(), event.error().code()) for event in events]
    assert sorted(ends) == [(topic, partition, len(RECORDS), KafkaError._PARTITION_EOF) for partition in range(2)]


@pytest.mark.broker
def test_keys_that_are_asked_for_as_texts_stay_what_they_are(
    consumer: Consumer, bootstrap_servers: str, make_topic: Callable[..., str]
) -> None:
    """They come as texts from the second fetch on, if they are ASCII: key() then makes bytes anew in each call."""
    keys = [b"first", b"key", b"", None, "ключ".encode(), b"\x7f", b"\xff\xfe", b"k\x80", b"key-" * 100, b"a\0b", b"x"]
    topic = make_topic("texts", 1)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[Any] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    with closing(kernel.fetch.fetcher_for(consumer)) as fetcher:
        fetcher.take(topic, 0)
        producer = Producer({"bootstrap.servers": bootstrap_servers})
        for key in keys:
            producer.produce(topic, b"value", key)
        assert producer.flush(DEADLINE_SECONDS) == 0
        while len(found) < len(keys):
            assert time.monotonic() < deadline
            for run in fetcher.fetch(1, 50)[0].values():
                texts = [key for _, key, *_ in kernel.messages.Unpacked(run, True)]
                assert texts == [Serdes.string().deserialize(topic, message.key()) for message in run]
                found += run
    assert [message.key() for message in found] == keys
    assert [key for _, key, *_ in kernel.messages.Unpacked(found)] == keys
    assert [message.key() is message.key() for message in found if len(message.key() or b"") > 1] == [
        key is keys[0] or not key.isascii() for key in keys if key is not None and len(key) > 1
    ]


@pytest.mark.broker
def test_an_offset_that_is_not_there_is_an_event(consumer: Consumer, topic: str) -> None:
    _, events = fetched(consumer, topic, 0, offset=1_000)
    assert {event.error().code() for event in events} == {KafkaError._AUTO_OFFSET_RESET}
    assert all(event.error().str() for event in events)


@pytest.mark.broker
def test_records_come_in_order_though_some_came_before_the_kernel_took_the_partition(
    consumer: Consumer, topic: str
) -> None:
    """They are in the consumer's own queue then, and older than all that comes through the kernel."""
    partition = TopicPartition(topic, 0)
    tested = PartitionConsumer(consumer, PrefixedLogger("penstock.test", ""))
    take: list[Any] = []

    class Late:
        """Takes partitions when it is told to."""

        def __init__(self, fetcher: Any) -> None:
            self.fetcher = fetcher

        def take(self, *partition: Any) -> None:
            take.append(partition)

        def fetch(self, *arguments: Any) -> Any:
            return self.fetcher.fetch(*arguments)

        def close(self) -> None:
            self.fetcher.close()

    source = tested._source
    assert isinstance(source, LibrdkafkaSource)
    late = source._fetcher = Late(source._fetcher)
    try:
        tested.assign({partition: 0})
        deadline = time.monotonic() + DEADLINE_SECONDS
        offsets: list[int] = []
        while len(offsets) < len(RECORDS):
            assert time.monotonic() < deadline
            found = tested.poll(1, 0.05).get(partition, [])
            offsets += [message.offset() for message in found]
            if found and take:
                late.fetcher.take(*take.pop())
        assert offsets == list(range(len(RECORDS)))
    finally:
        late.close()


def test_only_a_consumer_has_a_fetcher() -> None:
    assert kernel.fetch.fetcher_for(object()) is None
    assert kernel.fetch.fetcher_for(Producer({"bootstrap.servers": "localhost:1", "log_level": 0})) is None


def test_a_closed_fetcher_says_so() -> None:
    consumer = Consumer({"bootstrap.servers": "localhost:1", "group.id": "kernel", "log_level": 0})
    fetcher = kernel.fetch.fetcher_for(consumer)
    fetcher.close()
    fetcher.close()
    with pytest.raises(RuntimeError, match="closed"):
        fetcher.fetch(1, 0)
    consumer.close()


def test_messages_of_any_kind_tell_their_timestamps() -> None:
    assert kernel.messages.timestamps([RawRecord("t", 0, n, n + 5, b"k", b"v") for n in range(3)]) == [5, 6, 7]


def test_messages_of_any_kind_are_unpacked() -> None:
    record = RawRecord("t", 0, 5, 77, b"k", None, [("h", b"v")])
    assert list(kernel.messages.Unpacked([record])) == [(record, b"k", None, 77, 77, [("h", b"v")])]


def test_values_are_read_on_the_way_and_the_message_of_one_that_cannot_be_is_known() -> None:
    values = [b"[1]", None, b"[", b"2"]
    records = [RawRecord("t", 0, n, 10 + n, b"k", value) for n, value in enumerate(values)]
    unpacked = kernel.messages.Unpacked(records, False, -1, orjson.loads)
    assert [next(unpacked)[2], next(unpacked)[2]] == [[1], None]
    with pytest.raises(orjson.JSONDecodeError):
        next(unpacked)
    assert unpacked.message is records[2]
    assert unpacked.without_last() == 11
    assert next(unpacked)[1:5] == (b"k", 2, 13, 13)


def test_what_somebody_keeps_of_an_unpacked_message_stays_as_it_was() -> None:
    records = [RawRecord("t", 0, n, n, b"k%d" % n, b"v") for n in range(4)]
    unpacked = kernel.messages.Unpacked(records)
    first = next(unpacked)
    second = list(next(unpacked))
    others = list(unpacked)
    assert [row[1] for row in (first, second, *others)] == [b"k0", b"k1", b"k2", b"k3"]


def test_stream_time_goes_along_and_a_negative_timestamp_is_none() -> None:
    records = [RawRecord("t", 0, n, at, b"k", b"v") for n, at in enumerate([4, 7, 7, 3, -2, 1 << 62])]
    times = [(at, stream_time) for _, _, _, at, stream_time, _ in kernel.messages.Unpacked(records, False, 5)]
    assert times == [(4, 5), (7, 7), (7, 7), (3, 7), (None, 7), (1 << 62, 1 << 62)]


def test_the_last_message_can_be_left_out_of_stream_time() -> None:
    unpacked = kernel.messages.Unpacked([RawRecord("t", 0, n, at, b"k", b"v") for n, at in enumerate([9, 8, 12])])
    assert unpacked.without_last() == -1
    assert [next(unpacked)[4], unpacked.without_last(), next(unpacked)[4], next(unpacked)[4]] == [9, -1, 8, 12]
    assert unpacked.without_last() == 8


def test_keys_are_read_on_the_way_and_the_message_of_a_key_that_is_no_text_is_known() -> None:
    class Broken(RawRecord):
        """A record whose key cannot be read at all."""

        def key(self) -> bytes | None:
            raise ValueError("no key")

    records = [RawRecord("t", 0, 0, 1, "ключ".encode(), b"v"), Broken("t", 0, 1, 1, b"", b"v")]
    unpacked = kernel.messages.Unpacked(records, True)
    assert next(unpacked)[1] == "ключ"
    with pytest.raises(ValueError, match="no key"):
        next(unpacked)
    assert unpacked.message is records[1]


def test_a_record_that_cannot_be_read_is_the_one_that_is_named() -> None:
    builder = StreamsBuilder()
    text: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
    builder.stream("in", **text).to("out")
    config = {"deserialization.exception.handler": "continue"}
    with TopologyTestDriver(builder.build(), config) as driver:
        source = driver._task.compiled.sources["in"]

        tried: list[bool] = []

        class Broken(RawRecord):
            """A record whose key cannot be read by the loop; the handler looks at it afterwards."""

            def key(self) -> bytes | None:
                if not tried:
                    tried.append(True)
                    raise ValueError("no key")
                return b""

        source.process_batch(
            [
                RawRecord("in", 0, 0, 1, b"a", b"v"),
                Broken("in", 0, 1, 1, b"", b"v"),
                RawRecord("in", 0, 2, 1, b"b", b"v"),
            ]
        )
        assert [(record.topic, record.key) for record in driver._task.take_produced()] == [("out", b"a"), ("out", b"b")]
