"""Transactions on a real broker: fencing, timeouts, refusals by broker and topic, and the messages about them."""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AclOperation, AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.clients.clock import SystemClock
from penstock.clients.cluster.admin import KafkaAdmin
from penstock.clients.cluster.brokers import KafkaBrokers
from penstock.clients.errors import TransactionError
from penstock.clients.librdkafka import LibrdkafkaWriter
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.network_settings import network_settings
from penstock.clients.protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from penstock.clients.writing.kafka_producer import KafkaProducer
from penstock.clients.writing.produce_settings import produce_settings
from penstock.clients.writing.transactional_producer import TransactionalKafkaProducer
from penstock.clients.writing.writer import Writer
from penstock.dev.dev_broker import DevBroker
from penstock.dev.kafka_distribution import newest
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.exception_handlers import FailedProcessingError
from penstock.topology.errors import BrokerUnavailableError, ConfigError, StreamsError, TaskMigratedError
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.control.messages import ThreadSpec
from penstock.workers.tasks import streams_producer
from penstock.workers.tasks.record_collector import production_error_handler
from penstock.workers.tasks.record_sends import task_output
from penstock.workers.tasks.sink_topics import SinkTopics
from penstock.workers.tasks.streams_producer import StreamsProducer
from tests.brokers import SecuredBroker
from tests.read_to_end import read_to_end
from tests.topics import create_topics
from tests.waiting import PATIENCE_FACTOR, PATIENCE_SECONDS, deny, eventually
from tests.workers.counting import counting_topics
from tests.workers.test_stream_thread_broker import Runner

pytestmark = pytest.mark.broker

LOG = PrefixedLogger("penstock.test", "")
TASK = TaskId(0, 3)
#: The last epoch of a producer id.
LAST_EPOCH = 32_766
#: The member id and generation of a client without a group.
NO_MEMBER = GroupMetadata("none")
MakeTopic = Callable[..., str]
MakeStreamsProducer = Callable[..., StreamsProducer]


def settings(address: str, transactional_id: str | None, **more: Any) -> dict[str, Any]:
    """Return the settings of a stream thread's client, except for the wait for a new topic, which is 30 s by
    default.
    """
    own = {"bootstrap.servers": address, "linger.ms": 0, "topic.metadata.propagation.max.ms": 500, "log_level": 2}
    if transactional_id is not None:
        own |= {"transactional.id": transactional_id, "transaction.timeout.ms": 900_000}
    return own | more


@pytest.fixture(params=["penstock", "librdkafka"])
def make(request: pytest.FixtureRequest, bootstrap_servers: str) -> Iterator[MakeStreamsProducer]:
    """Make producers: ``make(transactional_id, handler=…, timeout_ms=…, **settings)``; None: at-least-once.

    Both writers must behave the same.
    """
    made: list[StreamsProducer] = []
    admins: list[KafkaAdmin] = []

    def new(
        transactional_id: str | None = None, address: str = bootstrap_servers, options: Any = (), **more: Any
    ) -> StreamsProducer:
        given = settings(address, transactional_id, **more)

        def writer() -> Writer:
            if request.param == "librdkafka":
                return LibrdkafkaWriter(Producer(given, logger=LOG.logger))
            found = produce_settings(given)
            kind = KafkaProducer if transactional_id is None else TransactionalKafkaProducer
            return kind(KafkaBrokers(found, creates_topics=True), found, SystemClock(), LOG, seed=0)

        admins.append(KafkaAdmin(network_settings(given)))
        topics, transactional = SinkTopics(admins[-1], SystemClock()), transactional_id is not None
        made.append(StreamsProducer(writer, LOG, topics=topics, transactional=transactional, **dict(options)))
        while not made[-1].initialize():
            pass
        made[-1].collector.register_writer(TASK, {"out"})
        return made[-1]

    yield new
    for close in (*(one.close for one in made), *(one.close for one in admins)):
        close()


@pytest.fixture(scope="module")
def strict_broker(secured_broker: SecuredBroker) -> str:
    """A broker with access control that checks for expired transactions five times a second."""
    return secured_broker.bootstrap_servers


def an_id() -> str:
    return f"id-{uuid.uuid4().hex}"


def committed_values(address: str, topic: str) -> list[bytes]:
    """Return the values that read_committed sees, up to the last stable offset."""
    return [message.value() or b"" for message in read_to_end(address, topic)]


def write_and_commit(producer: StreamsProducer, topic: str, value: bytes, partition: int | None = 0) -> None:
    task_output(producer, {}, TASK).send(topic, b"k", value, None, None, partition)
    if producer.transactional:
        producer.commit_transaction({}, NO_MEMBER)
    producer.flush()


# -- fencing


def test_a_replaced_worker_fences_its_predecessor_at_once(
    make: MakeStreamsProducer, make_topic: MakeTopic, bootstrap_servers: str
) -> None:
    topic, shared = make_topic("out"), an_id()
    old = make(shared)
    send = task_output(old, {}, TASK).send
    send(topic, b"k", b"never committed", None, None, 0)
    old.flush()
    new = make(shared)
    assert committed_values(bootstrap_servers, topic) == [], "the transaction is over, not only abandoned"
    with pytest.raises(TaskMigratedError):
        write_and_commit(old, topic, b"too late")
    task_output(new, {}, TASK).send(topic, b"k", b"continues", None, None, 0)
    new.commit_transaction({}, NO_MEMBER)
    assert committed_values(bootstrap_servers, topic) == [b"continues"]


def test_a_fenced_producer_is_replaced_by_a_working_one(make: MakeStreamsProducer, make_topic: MakeTopic) -> None:
    topic, shared = make_topic("out"), an_id()
    old = make(shared)
    task_output(old, {}).send(topic, b"k", b"1", None, None, 0)
    make(shared)
    with pytest.raises(TaskMigratedError):
        write_and_commit(old, topic, b"2")
    old.abort_transaction()
    task_output(old, {}).send(topic, b"k", b"2", None, None, 0)  # a task that is created afterwards
    old.flush()


def test_a_transaction_that_timed_out_closes_the_tasks(make: MakeStreamsProducer, strict_broker: str) -> None:
    topic = new_topic(strict_broker)
    # The last transaction must not time out on a busy machine.
    producer = make(an_id(), strict_broker, **{"transaction.timeout.ms": int(2_000 * PATIENCE_FACTOR)})
    send = task_output(producer, {}).send
    send(topic, b"k", b"1", None, None, 0)
    producer.flush()
    blocker = Producer(settings(strict_broker, None))
    blocker.produce(topic, b"behind", b"k", 0)
    assert blocker.flush(PATIENCE_SECONDS) == 0
    eventually(lambda: committed_values(strict_broker, topic) == [b"behind"])  # the broker has aborted it
    with pytest.raises(TaskMigratedError, match=r"fenced|cannot continue"):
        write_and_commit(producer, topic, b"2")
    producer.abort_transaction()
    task_output(producer, {}).send(topic, b"k", b"3", None, None, 0)
    producer.commit_transaction({}, NO_MEMBER)
    assert committed_values(strict_broker, topic) == [b"behind", b"3"]


def test_an_offset_of_a_stale_generation_is_refused_and_the_producer_continues(
    make: MakeStreamsProducer, make_topic: MakeTopic, bootstrap_servers: str
) -> None:
    topic, group = make_topic("out"), an_id()
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group})
    consumer.subscribe([topic])
    eventually(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()))
    member_id = bytes(consumer.consumer_group_metadata()).split(b"\0")[-2].decode()
    metadata = GroupMetadata(group, 1, member_id)
    stale = metadata._replace(generation=77)
    producer = make(an_id())
    client = producer._writer
    task_output(producer, {}).send(topic, b"k", b"1", None, None, 0)
    with pytest.raises(TaskMigratedError, match="fenced"):
        producer.commit_transaction({TopicPartition(topic, 0): OffsetAndMetadata(1, "")}, stale)
    producer.abort_transaction()
    assert producer._writer is client
    task_output(producer, {}).send(topic, b"k", b"2", None, None, 0)
    producer.commit_transaction({TopicPartition(topic, 0): OffsetAndMetadata(1, "")}, metadata)
    consumer.close()
    assert committed_values(bootstrap_servers, topic) == [b"2"]


def test_a_new_owner_waits_for_the_pending_commit_of_the_former_owner(
    bootstrap_servers: str, application_id: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """A process is suspended between its offsets and its commit. Its task moves; the process resumes and commits.

    Its offsets then count, so the new owner must restore its changelog records too, although they appear later.
    """
    source, sink = make_topic("in"), make_topic("out")
    case = Counted(bootstrap_servers, application_id, source, sink, tmp_path)
    case.feed(5)
    first = case.start()
    first.until(lambda: first.processed == 5).stop()

    case.feed(1)
    former = Producer(settings(bootstrap_servers, an_id()))
    former.init_transactions(PATIENCE_SECONDS)
    former.begin_transaction()
    group = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": application_id}).consumer_group_metadata()
    former.send_offsets_to_transaction([RdTopicPartition(source, 0, 6)], group, PATIENCE_SECONDS)
    second = case.start()
    second.until(lambda: second.state == "PARTITIONS_ASSIGNED")
    former.poll(1.0)  # it has every opportunity to continue without waiting
    former.produce(f"{application_id}-counts-changelog", struct.pack(">q", 6), b"k", 0)
    former.commit_transaction(PATIENCE_SECONDS)

    case.feed(1)
    second.until(lambda: second.processed == 1).stop()
    assert committed_values(bootstrap_servers, sink)[-1] == struct.pack(">q", 7)


class Counted:
    """An application that counts the records of one key."""

    def __init__(self, address: str, application_id: str, source: str, sink: str, state_dir: Path) -> None:
        self._source = source
        self._topology = counting_topics(source, sink)
        self._config = {
            "application.id": application_id,
            "bootstrap.servers": address,
            "state.dir": str(state_dir),
            "processing.guarantee": "exactly_once_v2",
            "heartbeat.interval.ms": 200,
            "penstock.worker.beat.interval.ms": 50,
        }
        self._producer = Producer(settings(address, None))

    def feed(self, records: int) -> None:
        for _ in range(records):
            self._producer.produce(self._source, b"v", b"k")
        assert self._producer.flush(PATIENCE_SECONDS) == 0

    def start(self) -> Runner:
        return Runner(self._topology, ThreadSpec(1, "test", str(uuid.uuid4()), 1, StreamsConfig(self._config)))


# -- brokers without transactions


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_producer, "INITIALIZE_SECONDS", 2.0)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_broker_that_cannot_keep_its_transaction_log(
    make: MakeStreamsProducer, unusual_broker: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = "1 broker.*no topic __transaction_state.*transaction.state.log.replication.factor above"
    with pytest.raises(BrokerUnavailableError, match=f"not be initialized within 3000 ms.*{said}"):
        make(an_id(), unusual_broker, {"timeout_ms": 3_000})
    assert "Failed to initialize transactions, trying again" in caplog.text


def test_a_transaction_timeout_above_that_of_the_broker(make: MakeStreamsProducer) -> None:
    with pytest.raises(ConfigError, match=r"transaction\.timeout\.ms: it is above the broker's transaction\.max\.tim"):
        make(an_id(), **{"transaction.timeout.ms": 1_000_000})


# -- output topics that refuse records


def new_topic(address: str, config: dict[str, str] | None = None) -> str:
    topic = f"topic-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": address})
    create_topics(admin, NewTopic(topic, 1, 1, config=config or {}))
    return topic


def forbidden_topic(address: str) -> str:
    topic = new_topic(address)
    deny(AdminClient({"bootstrap.servers": address}), topic, AclOperation.WRITE)
    return topic


REFUSALS: dict[str, tuple[Callable[[str], str], bytes, str]] = {
    "missing": (lambda _: "not-there", b"v", "The topic does not exist: create it"),
    "invalid name": (lambda _: "no topic!", b"v", "INVALID_TOPIC|The topic does not exist"),
    "too large for the topic": (
        lambda a: new_topic(a, {"max.message.bytes": "100"}),
        b"v" * 1_000,
        "size too large|MESSAGE_TOO_LARGE",
    ),
    "too large for the client": (new_topic, b"v" * 1_100_000, "size too large|MESSAGE_TOO_LARGE"),
    "forbidden": (forbidden_topic, b"v", "AUTHORIZATION_FAILED"),
}


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
@pytest.mark.parametrize("case", REFUSALS)
def test_the_error_names_a_topic_that_refuses_records(
    make: MakeStreamsProducer, strict_broker: str, case: str, exactly_once: bool
) -> None:
    topic_of, value, said = REFUSALS[case]
    topic = topic_of(strict_broker)
    producer = make(an_id() if exactly_once else None, strict_broker)
    producer.collector.register_writer(TASK, {topic})
    with pytest.raises(StreamsError) as failed:
        write_and_commit(producer, topic, value, None)
    text = str(failed.value)
    assert isinstance(failed.value, FailedProcessingError), text
    assert f"sending record to topic {topic}" in text
    assert "written by [0_3]" in text
    assert re.search(said, text)
    producer.abort_transaction()
    ok = new_topic(strict_broker)
    task_output(producer, {}, TASK).send(ok, b"k", b"continues", None, None, 0)
    producer.flush()


def test_the_error_names_a_topic_that_is_missing_beyond_the_transaction_timeout(
    make: MakeStreamsProducer, strict_broker: str
) -> None:
    more = {"transaction.timeout.ms": 2_000, "topic.metadata.propagation.max.ms": 30_000}
    producer = make(an_id(), strict_broker, **more)
    task_output(producer, {}, TASK).send("not-there", b"k", b"v", None, None)
    with pytest.raises(FailedProcessingError, match=r"not-there.* The topic does not exist: create it"):
        producer.commit_transaction({}, NO_MEMBER)


def test_a_handler_skips_a_record_that_the_client_refuses_and_the_transaction_continues(
    make: MakeStreamsProducer, strict_broker: str
) -> None:
    topic = new_topic(strict_broker)
    handler = production_error_handler({"production.exception.handler": "continue"})
    producer = make(an_id(), strict_broker, {"handler": handler})
    send = task_output(producer, {}, TASK).send
    send(topic, b"k", b"1", None, None, 0)
    send(topic, b"k", b"v" * 1_100_000, None, None, 0)
    send(topic, b"k", b"2", None, None, 0)
    producer.commit_transaction({}, NO_MEMBER)
    assert producer.collector.dropped == 1
    assert committed_values(strict_broker, topic) == [b"1", b"2"]


def test_a_record_that_the_broker_refuses_cannot_be_left_out_of_a_transaction(
    make: MakeStreamsProducer, strict_broker: str
) -> None:
    topic = new_topic(strict_broker, {"max.message.bytes": "100"})
    handler = production_error_handler({"production.exception.handler": "continue"})
    producer = make(an_id(), strict_broker, {"handler": handler})
    task_output(producer, {}, TASK).send(topic, b"k", b"v" * 1_000, None, None, 0)
    with pytest.raises(FailedProcessingError, match="exactly_once_v2 it cannot be skipped"):
        producer.commit_transaction({}, NO_MEMBER)


@pytest.mark.long
@pytest.mark.parametrize("kafka", [newest(), "4.0.1"])
def test_a_transactional_id_outlives_its_epochs(kafka: str, tmp_path: Path) -> None:
    """An epoch has 15 bits, and each transaction uses one: 55 minutes at 100 ms. Then the id gets a new producer id.

    Around that moment producers are killed with an open transaction and fenced by their successors; others leave
    transactions open until the broker aborts them.
    """
    config = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    with DevBroker("epochs", tmp_path, config=config, kafka=kafka) as broker:  # its own, for its version
        outlive(broker.bootstrap_servers)


def outlive(address: str) -> None:
    topic, name = new_topic(address), an_id()
    given = produce_settings(settings(address, name, **{"transaction.timeout.ms": 2_000}))
    made: list[TransactionalKafkaProducer] = []

    def successor() -> TransactionalKafkaProducer:
        brokers = KafkaBrokers(given, creates_topics=True)
        made.append(TransactionalKafkaProducer(brokers, given, SystemClock(), LOG, seed=0))
        made[-1].init_transactions(PATIENCE_SECONDS)
        return made[-1]

    producer, number, late, fenced = successor(), 0, 0, 0
    identities: set[int] = set()
    while len(identities) < 2 or number < LAST_EPOCH + 50:
        producer.begin_transaction()
        producer.produce(topic, b"k", b"%d" % number, 0, 1)
        identity = producer._transactions.producer
        assert identity is not None
        identities.add(identity.id)
        if identity.epoch > LAST_EPOCH - 40 and number % 3:
            former = producer
            if number % 3 == 1:
                producer, fenced = successor(), fenced + 1
            else:
                assert producer.flush(PATIENCE_SECONDS)
                eventually(lambda: is_stable(address, topic), "the broker aborts the transaction")
                late += 1
            with pytest.raises(TransactionError, match=r"FENCED|PRODUCER_EPOCH|ABORTABLE|TXN_STATE"):
                former.commit_transaction(PATIENCE_SECONDS)
            if producer is former:
                producer = successor()
            producer.begin_transaction()
            producer.produce(topic, b"k", b"%d" % number, 0, 1)
        producer.commit_transaction(PATIENCE_SECONDS)
        number += 1
    for one in made:
        one.close()
    assert [int(value) for value in committed_values(address, topic)] == list(range(number))
    assert fenced >= 3
    assert late >= 3


def is_stable(address: str, topic: str) -> bool:
    """Return whether no transaction is open in the first partition."""
    reader = Consumer({"bootstrap.servers": address, "group.id": "none", "isolation.level": "read_committed"})
    dirty = Consumer({"bootstrap.servers": address, "group.id": "none", "isolation.level": "read_uncommitted"})
    partition = RdTopicPartition(topic, 0)
    ends = [one.get_watermark_offsets(partition, PATIENCE_SECONDS)[1] for one in (reader, dirty)]
    reader.close()
    dirty.close()
    return ends[0] == ends[1]
