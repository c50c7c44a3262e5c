"""A KafkaProducer writes the same to a real broker as librdkafka, field by field; and
records that cannot be written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from penstock.clients.clock import SystemClock
from penstock.clients.cluster.admin import Admin
from penstock.clients.errors import BrokerError, ErrorCode, broker_error
from penstock.clients.librdkafka import as_writer
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.writing import sender
from penstock.clients.writing.kafka_producer import KafkaProducer
from penstock.clients.writing.produce_settings import COMPRESSION_TYPES
from penstock.dev.dev_broker import DevBroker
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.exception_handlers import FailedProcessingError, ProducerRecord, Response
from penstock.topology.errors import StreamsError, TaskMigratedError
from penstock.topology.records import TaskId
from penstock.workers.tasks.record_collector import production_error_handler
from penstock.workers.tasks.record_sends import task_output
from penstock.workers.tasks.sink_topics import SinkTopics
from penstock.workers.tasks.streams_producer import StreamsProducer
from penstock.workers.thread.client_supplier import KafkaClientSupplier
from tests.read_to_end import read_to_end
from tests.topics import create_topics, delete_topics
from tests.waiting import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.broker,
]
PARTITIONS = 3
TASK = TaskId(0, 1)
LOG = PrefixedLogger("penstock.test", "")
HEADERS: list[Any] = [None, [("a", b"1"), ("a", None), ("ü", b"")], [("h", b"%d" % n) for n in range(100)]]

Open = Callable[..., StreamsProducer]


@pytest.fixture
def opened(bootstrap_servers: str, unique_name: Callable[[str], str]) -> Iterator[Open]:
    """Return producers with a stream thread's settings; they are closed at the end."""
    made: list[StreamsProducer] = []
    admins: list[Admin] = []
    application_id = unique_name("app")

    def open_one(config: Mapping[str, Any] | None = None, handler: Any = None) -> StreamsProducer:
        base = {"application.id": application_id, "bootstrap.servers": bootstrap_servers, "producer.linger.ms": 5}
        supplier = KafkaClientSupplier(StreamsConfig({**base, **(config or {})}))
        options: dict[str, Any] = (
            {} if handler is None else {"handler": production_error_handler({"production.exception.handler": handler})}
        )
        admins.append(supplier.get_admin("c"))
        topics = SinkTopics(admins[-1], SystemClock())
        made.append(StreamsProducer(lambda: as_writer(supplier.get_producer("c")), LOG, topics=topics, **options))
        return made[-1]

    yield open_one
    for close in (*(one.close for one in made), *(one.close for one in admins)):
        close()


def read(bootstrap_servers: str, topic: str, partitions: int = PARTITIONS) -> list[tuple[Any, ...]]:
    """Return the fields of all records, in order within each partition."""
    found: list[tuple[Any, ...]] = [
        (m.partition(), m.offset(), m.key(), m.value(), m.timestamp(), m.headers())
        for m in read_to_end(bootstrap_servers, topic)
    ]
    return sorted(found, key=lambda fields: fields[:2])


def write(producer: StreamsProducer, topic: str) -> None:
    send, number = task_output(producer, {}).send, 0
    for number in range(3_000):
        key = [b"", b"key-%d" % number, "ключ".encode()][number % 3]
        value = None if number % 7 == 0 else b"%d " % number * (number % 50)
        at = 1_700_000_000_000 - number * 60_000
        send(topic, key, value, at, HEADERS[number % 3 if number % 10 == 0 else 0])
        send(topic, None, value, at, None, number % PARTITIONS)
    producer.flush()


@pytest.mark.parametrize("codec", COMPRESSION_TYPES)
def test_kafka_producer_and_librdkafka_write_the_same(
    opened: Open, make_topic: Any, bootstrap_servers: str, codec: str
) -> None:
    config = {"producer.compression.type": codec, "producer.batch.size": 20_000}
    written = {}
    for who in ("auto", "librdkafka"):
        topic = make_topic(
            f"out-{who}", PARTITIONS, {"compression.type": "uncompressed"}
        )  # so that Java can read it too
        producer = opened({**config, "penstock.sender": who})
        assert isinstance(producer._writer, KafkaProducer) == (who == "auto")
        write(producer, topic)
        written[who] = read(bootstrap_servers, topic)
    assert len(written["auto"]) == 6_000
    assert written["auto"] == written["librdkafka"]


def test_unsent_records_are_dropped_when_their_tasks_are_lost(
    opened: Open, make_topic: Any, bootstrap_servers: str
) -> None:
    topic = make_topic("out", PARTITIONS)
    producer = opened({"producer.linger.ms": 60_000})
    send = task_output(producer, {}).send
    send(topic, b"before", b"v", 1, None, 0)
    producer.flush()
    send(topic, b"lost", b"v", 1, None, 0)
    producer.abort_transaction()
    send(topic, b"after", b"v", 1, None, 0)
    producer.flush()
    assert [fields[2] for fields in read(bootstrap_servers, topic)] == [b"before", b"after"]


def test_a_flush_includes_the_dead_letter_of_a_refused_record(
    opened: Open, make_topic: Any, bootstrap_servers: str
) -> None:
    """The broker refuses the record, not the client: the dead letter is written while flush() waits."""
    topic = make_topic("compacted", PARTITIONS, config={"cleanup.policy": "compact"})
    letters = make_topic("letters", 1)
    asked = []

    def handler(context: Any, record: Any, exception: Exception) -> Response:
        asked.append(record.value)
        return Response.resume([ProducerRecord(letters, b"letter", record.value, 7, None, 0)])

    producer = opened({"producer.linger.ms": 60_000}, handler)
    task_output(producer, {}).send(topic, None, b"without a key", 1, None, 0)
    producer.flush()
    assert [fields[2:4] for fields in read(bootstrap_servers, letters, 1)] == [(b"letter", b"without a key")]
    assert (asked, producer.collector.dropped) == ([b"without a key"], 1)


def test_changelog_records_timestamps_and_the_task_of_a_record(
    opened: Open, make_topic: Any, bootstrap_servers: str
) -> None:
    topic = make_topic("changelog", PARTITIONS)
    producer = opened()
    log_change = task_output(producer, {"store": (topic, 1)}).log_change  # type: ignore[dict-item]
    log_change("store", b"k", b"v", 0)
    log_change("store", b"k", None, 8, [("h", b"x")])
    log_change("store", b"now", b"v", None)
    producer.flush()
    put, deleted, now = read(bootstrap_servers, topic)
    assert put == (1, 0, b"k", b"v", (1, 0), None)
    assert deleted == (1, 1, b"k", None, (1, 8), [("h", b"x")])
    assert now[4][1] > 1_700_000_000_000


def test_a_topic_with_a_limit_smaller_than_a_batch(
    opened: Open, make_topic: Any, admin: AdminClient, bootstrap_servers: str
) -> None:
    topic = make_topic("small", 1, config={"max.message.bytes": "2000"})
    producer = opened({"producer.linger.ms": 100})
    send = task_output(producer, {}).send
    for number in range(500):
        send(topic, b"%d" % number, b"x" * 50, number, None)
    producer.flush()
    assert [fields[2] for fields in read(bootstrap_servers, topic, 1)] == [b"%d" % number for number in range(500)]
    send(topic, b"large", b"x" * 3_000, 1, None)
    with pytest.raises(FailedProcessingError, match=f"topic {topic} partition 0.*MESSAGE_TOO_LARGE"):
        producer.flush()


def test_a_record_refused_by_the_client_and_its_dead_letter(
    opened: Open, make_topic: Any, bootstrap_servers: str
) -> None:
    topic, asked = make_topic("out", PARTITIONS), []

    def handler(context: Any, record: Any, exception: Exception) -> Response:
        asked.append((record.topic, record.key, context.task_id))
        return Response.resume([ProducerRecord(topic, record.key, b"letter", 99, [("h", b"1")], 1)])

    producer = opened({"producer.message.max.bytes": 1_000}, handler)
    task_output(producer, {}, TASK).send(topic, b"k", b"v" * 2_000, 1, None, 0)
    producer.flush()
    assert asked == [(topic, b"k", TASK)]
    assert read(bootstrap_servers, topic) == [(1, 0, b"k", b"letter", (1, 99), [("h", b"1")])]


def test_a_record_that_the_broker_refuses_may_be_skipped(opened: Open, make_topic: Any, bootstrap_servers: str) -> None:
    topic = make_topic("compacted", 1, config={"cleanup.policy": "compact"})
    told: list[tuple[ErrorCode, str]] = []

    def handler(context: Any, record: Any, exception: Exception) -> str:
        assert isinstance(exception, BrokerError)
        told.append((exception.code, exception.message))
        return "continue"

    producer = opened(handler=handler)
    send = task_output(producer, {}).send
    send(topic, None, b"without a key", 1, None)
    producer.flush()
    ((code, message),) = told
    assert code is ErrorCode.INVALID_RECORD
    assert "Compacted topic cannot accept message without key" in message
    send(topic, b"k", b"v", 1, None)
    producer.flush()
    assert producer.collector.dropped == 1
    assert [fields[2] for fields in read(bootstrap_servers, topic, 1)] == [b"k"]


def test_a_missing_topic(opened: Open) -> None:
    producer = opened({"producer.topic.metadata.propagation.max.ms": 500})
    with pytest.raises(FailedProcessingError, match=r"topic nowhere.*The topic does not exist: create it"):
        task_output(producer, {}, TASK).send("nowhere", b"k", b"v", 1, None)


def test_unreachable_brokers(opened: Open) -> None:
    producer = opened({"bootstrap.servers": "127.0.0.1:1", "producer.delivery.timeout.ms": 500})
    task_output(producer, {}).send("out", b"k", b"v", 1, None, 0)
    with pytest.raises(TaskMigratedError, match=r"topic out partition 0 due to: not acknowledged within 500 ms"):
        producer.flush()


def test_added_partitions_are_written_to(
    opened: Open, make_topic: Any, admin: AdminClient, bootstrap_servers: str
) -> None:
    topic = make_topic("growing", 1)
    producer = opened()
    send = task_output(producer, {}).send
    send(topic, b"k", b"v", 1, None)
    producer.flush()
    admin.create_partitions([NewPartitions(topic, PARTITIONS)])[topic].result(PATIENCE_SECONDS)
    send(topic, b"k", b"v", 2, None, 2)
    producer.flush()
    assert [fields[0] for fields in read(bootstrap_servers, topic)] == [0, 2]


def test_the_error_for_an_old_broker_says_which_client_can_write_to_it(
    opened: Open, make_topic: Any, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "PRODUCE", replace(sender.PRODUCE, lowest=99, highest=99))
    topic = make_topic("out", 1)
    producer = opened()
    task_output(producer, {}).send(topic, b"k", b"v", 1, None)
    with pytest.raises(
        StreamsError, match=r"older than Kafka 2\.4: .* the broker supports versions .*penstock\.sender=librdkafka"
    ):
        producer.flush()


@pytest.mark.slow
def test_a_broker_restart_loses_and_duplicates_nothing(
    stoppable_broker: DevBroker, opened: Open, unique_name: Callable[[str], str]
) -> None:
    address, topic = stoppable_broker.bootstrap_servers, unique_name("out")
    producer = opened({"bootstrap.servers": address, "producer.batch.size": 1_000})
    client = AdminClient({"bootstrap.servers": address})
    create_topics(client, NewTopic(topic, PARTITIONS))
    send, stopping = task_output(producer, {}).send, threading.Event()

    def restarts() -> None:
        stoppable_broker.stop()
        stoppable_broker.start()
        stopping.set()

    restart = threading.Thread(target=restarts)
    sent = 0
    while not stopping.is_set():
        for _ in range(50):
            # A restarted broker forgets producers whose last record is older than producer.id.expiration.ms.
            send(topic, b"%d" % sent, b"x" * 20, None, None)
            sent += 1
        producer.poll()
        if sent == 5_000:
            restart.start()
        stopping.wait(0.001)
    restart.join()
    producer.flush()
    found = read(address, topic)
    assert sorted(int(fields[2]) for fields in found) == list(range(sent))
    for partition in range(PARTITIONS):
        numbers = [int(fields[2]) for fields in found if fields[0] == partition]
        assert numbers == sorted(numbers)


def test_forgotten_errors_are_not_raised_again(opened: Open, make_topic: Any) -> None:
    topic = make_topic("out", 1)
    producer = opened()
    producer.collector.note_failure(broker_error(ErrorCode.INVALID_RECORD))
    with pytest.raises(StreamsError):
        task_output(producer, {}).send(topic, b"k", b"v", 1, None)
    producer.collector.forget_errors()
    task_output(producer, {}).send(topic, b"k", b"v", 1, None)
    producer.flush()


def test_records_written_during_long_processing_do_not_expire(
    opened: Open, make_topic: Any, bootstrap_servers: str
) -> None:
    """Nothing is sent while an input record is processed, so that time does not count against the brokers."""
    topic = make_topic("out", 1)
    producer = opened({"delivery.timeout.ms": 5_000, "producer.linger.ms": 0})
    send = task_output(producer, {}).send
    for number in range(2):
        send(topic, b"%d" % number, b"v", 1, None, 0)
        time.sleep(5.5 * (1 - number))  # as long as a user's function may take
        producer.send_due()
    producer.flush()
    assert [fields[2] for fields in read(bootstrap_servers, topic, 1)] == [b"0", b"1"]


def test_after_a_topic_was_recreated_with_fewer_partitions_the_work_is_repeated(
    opened: Open, make_topic: Any, bootstrap_servers: str, admin: AdminClient
) -> None:
    topic = make_topic("out", 4)
    producer = opened({"producer.linger.ms": 0, "producer.topic.metadata.propagation.max.ms": 1_000})
    keys = [b"%d" % number for number in range(40)]

    def write_all() -> None:
        for key in keys:
            task_output(producer, {}).send(topic, key, b"v", 1, None)
        producer.flush()

    write_all()
    delete_topics(admin, topic)
    create_topics(admin, NewTopic(topic, 2, 1))
    with pytest.raises(TaskMigratedError, match=r"now has 2 partition\(s\), and no partition"):
        write_all()
    producer.abort_transaction()
    write_all()
    assert {fields[2] for fields in read(bootstrap_servers, topic, 2)} == set(keys)
    with pytest.raises(FailedProcessingError, match="and no partition 3"):
        task_output(producer, {}).send(topic, b"k", b"v", 1, None, 3)
    producer.collector.forget_errors()
