"""The low-level reader against a real broker: batches, markers, transactions, and the coordinators' decisions."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.checker import TopicReader
from tests.chaos.checkers.log_reader import LogReader
from tests.chaos.checkers.record_batches import varint
from tests.chaos.checkers.transactions import OFFSETS_TOPIC, History, committed_offset
from tests.topics import create_topics, delete_topics
from tests.waiting import PATIENCE_SECONDS, delete_records, eventually

MakeTopic = Callable[..., str]
pytestmark = pytest.mark.broker


def producer(bootstrap_servers: str, transactional_id: str, **settings: str) -> Producer:
    made = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": transactional_id} | settings)
    made.init_transactions(PATIENCE_SECONDS)
    return made


def transaction(made: Producer, topic: str, *values: bytes | None, commit: bool = True) -> None:
    made.begin_transaction()
    for value in values:
        made.produce(topic, value, b"key", partition=0, headers=[("h", None)])
    made.flush(PATIENCE_SECONDS)  # a transaction aborted before it is sent is never written
    (made.commit_transaction if commit else made.abort_transaction)(PATIENCE_SECONDS)


def test_every_kind_of_batch_is_read(
    bootstrap_servers: str, make_topic: MakeTopic, unique_name: Callable[[str], str], admin: AdminClient
) -> None:
    topic = make_topic("in", config={"max.message.bytes": "6000000"})
    plain = Producer({"bootstrap.servers": bootstrap_servers, "message.max.bytes": 6_000_000})
    large = b"x" * 5_000_000
    plain.produce(topic, large, None, partition=0)
    plain.flush(PATIENCE_SECONDS)
    made = producer(bootstrap_servers, unique_name("writer"))
    transaction(made, topic, b"a", b"b")
    transaction(made, topic, b"never", commit=False)
    packed = producer(bootstrap_servers, unique_name("packer"), **{"compression.type": "gzip"})
    transaction(packed, topic, b"c" * 500, None)
    with LogReader(bootstrap_servers) as reader:
        # A broker writes the last marker after it has answered the producer.
        eventually(lambda: reader.read((topic, 0)).end == 9, "the last marker is there")
        log = reader.read((topic, 0))
        batches = [b for b in log.batches if b.marker is None]
        assert [b.transactional for b in batches] == [False, True, True, True]
        assert [(r.key, r.value) for b in batches for r in b.records] == [
            (None, large), (b"key", b"a"), (b"key", b"b"), (b"key", b"never"), (b"key", b"c" * 500), (b"key", None),
        ]  # fmt: skip
        assert [r.offset for b in batches for r in b.records] == [0, 1, 2, 4, 6, 7]
        assert [b.marker.commit for b in log.batches if b.marker is not None] == [True, False, True]
        assert (log.start, log.end) == (0, 9)
        delete_records(admin, topic, {0: 4})
        assert reader.read((topic, 0)).start == 4
        assert reader.partitions("no-such-topic") == []


def test_transactions_are_reassembled_across_partitions_and_offsets(
    bootstrap_servers: str, make_topic: MakeTopic, unique_name: Callable[[str], str]
) -> None:
    source, out, group = make_topic("in"), make_topic("out"), unique_name("group")
    made = producer(bootstrap_servers, unique_name("writer"))
    transaction(made, source, b"1", b"2")
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group})
    made.begin_transaction()
    made.produce(out, b"copy", partition=0)
    place = TopicPartition(source, 0, 2)
    made.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), PATIENCE_SECONDS)
    made.commit_transaction(PATIENCE_SECONDS)
    transaction(made, out, b"never", commit=False)
    consumer.close()
    with LogReader(bootstrap_servers) as reader:
        history = History.read(reader, [source, out])
    mine = [t for t in history.transactions if {(source, 0), (out, 0)} & t.decision.partitions]
    assert [t.decision.commit for t in mine] == [True, True, False]
    values = [[r.value for p, part in t.parts.items() if p[0] != OFFSETS_TOPIC for r in part] for t in mine]
    assert values == [[b"1", b"2"], [b"copy"], [b"never"]]
    offsets = [committed_offset(r, group) for p, part in mine[1].parts.items() if p[0] == OFFSETS_TOPIC for r in part]
    assert offsets == [((source, 0), 2)]


def test_an_open_transaction_is_detected(
    bootstrap_servers: str, make_topic: MakeTopic, unique_name: Callable[[str], str]
) -> None:
    topic = make_topic("in")
    made = producer(bootstrap_servers, unique_name("writer"))
    made.begin_transaction()
    made.produce(topic, b"1", partition=0)
    made.flush(PATIENCE_SECONDS)
    try:
        with LogReader(bootstrap_servers) as reader:
            faults = History.read(reader, [topic]).faults
    finally:
        made.abort_transaction(PATIENCE_SECONDS)
    assert [fault for fault in faults if topic in fault and fault.startswith("open: ")]


@pytest.mark.parametrize(
    ("data", "number"), [(b"\x00", 0), (b"\x01", -1), (b"\x02", 1), (b"\x80\x02", 128), (b"\xff\x03", -256)]
)
def test_numbers_of_variable_length(data: bytes, number: int) -> None:
    assert varint(data, 0) == (number, len(data))


def test_a_renewed_reader_continues_at_its_position(bootstrap_servers: str, make_topic: MakeTopic) -> None:
    topic = make_topic("in")
    plain = Producer({"bootstrap.servers": bootstrap_servers})
    reader = TopicReader(bootstrap_servers, [topic])
    try:
        found = []
        for number in range(4):
            plain.produce(topic, b"%d" % number, None, partition=0)
            plain.flush(PATIENCE_SECONDS)
            found += [sight.value for sight in reader.read_to_end()]
            reader.renew()
        assert found == [b"0", b"1", b"2", b"3"]
        assert list(reader.offsets[topic, 0]) == [0, 1, 2, 3]
    finally:
        reader.close()


def test_a_reader_waits_until_its_broker_knows_the_topic(bootstrap_servers: str) -> None:
    """Otherwise it never reads anything, and the run blames the application for missing output."""
    topic = f"created-late-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    with ThreadPoolExecutor(1) as others:
        made = others.submit(TopicReader, bootstrap_servers, [topic])
        with pytest.raises(TimeoutError):
            made.result(1)
        create_topics(admin, NewTopic(topic, 2, 1))
        reader = made.result(PATIENCE_SECONDS)
    try:
        producer = Producer({"bootstrap.servers": bootstrap_servers})
        producer.produce(topic, b"value", partition=1)
        producer.flush(PATIENCE_SECONDS)
        assert [sight.value for sight in reader.read_to_end()] == [b"value"]
    finally:
        reader.close()
        delete_topics(admin, topic)
