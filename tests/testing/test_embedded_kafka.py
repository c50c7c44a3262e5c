"""Third-party clients and whole applications work with the in-memory broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)
from confluent_kafka.admin import AdminClient, ConfigResource, ConsumerGroupDescription, ResourceType
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaConsumer, KafkaProducer

from penstock import KafkaStreams, Serdes, StreamsBuilder
from penstock.cli.plan import with_group
from penstock.testing import EmbeddedKafka
from penstock.testing.broker import ApiError, Cluster
from penstock.testing.broker.quotas import Quotas
from penstock.testing.wire import Direction, Dribble, Drop, Fail, Reset, Rule
from penstock.topology.graph.topology_facts import facts_of
from penstock.workers.thread.client_supplier import KafkaClientSupplier
from tests.waiting import PATIENCE_FACTOR, PATIENCE_SECONDS, eventually


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"in": 2, "out": 1}) as running:
        yield running


def consumer(kafka: EmbeddedKafka, group: str = "readers", **config: Any) -> Consumer:
    given = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    return Consumer({**given, **config})


def read(consumer: Consumer, count: int) -> list[Message]:
    found: list[Message] = []

    def arrived() -> bool:
        found.extend(consumer.consume(100, 0.1))
        return len(found) >= count

    eventually(arrived, f"{count} records arrive")
    assert not [message.error() for message in found if message.error()]
    return found


def test_it_is_ready_at_once() -> None:
    began = time.perf_counter()
    with EmbeddedKafka(topics={"in": 1}):
        seconds = time.perf_counter() - began
    print(f"ready after {seconds * 1000:.1f} ms")  # 2 to 20 on a quiet machine
    assert seconds < 5 * PATIENCE_FACTOR


def test_confluent_kafka_writes_and_reads(kafka: EmbeddedKafka) -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "compression.type": codec, "linger.ms": 5})
        for number in range(20):
            producer.produce("in", str(number) * 50, key=codec, headers={"codec": codec.encode()})
        assert producer.flush(PATIENCE_SECONDS) == 0
    reader = consumer(kafka)
    reader.subscribe(["in"])
    found = read(reader, 100)
    assert [message.headers() for message in found] == [[("codec", message.key())] for message in found]
    reader.commit(asynchronous=False)
    assert sum(partition.offset for partition in reader.committed(reader.assignment())) == 100
    reader.close()


PROTOCOLS: dict[str, dict[str, Any]] = {
    "classic": {},
    "consumer": {"group.protocol": "consumer"},
}


@pytest.fixture
def soon() -> Iterator[EmbeddedKafka]:
    """A broker whose members send heartbeats often."""
    settings = {"group.consumer.heartbeat.interval.ms": "100"}
    with EmbeddedKafka(topics={"in": 2, "other": 2}, config=settings) as running:
        yield running


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_share_a_topic_and_one_takes_over_all_of_it(soon: EmbeddedKafka, protocol: str) -> None:
    one, other = (consumer(soon, "readers", **PROTOCOLS[protocol]) for _ in range(2))
    for member in (one, other):
        member.subscribe(["in"])

    def shared() -> bool:
        for member in (one, other):
            member.poll(0.05)
        return [len(member.assignment()) for member in (one, other)] == [1, 1]

    eventually(shared, "each has one partition")
    one.close()

    def taken_over() -> bool:
        other.poll(0.05)
        return len(other.assignment()) == 2

    eventually(taken_over, "the other one has both partitions")
    other.close()


def test_a_consumer_group_follows_a_pattern_and_keeps_offsets(soon: EmbeddedKafka) -> None:
    """By KIP-848: the broker finds the topics, and offsets have member epochs."""
    reader = consumer(soon, **PROTOCOLS["consumer"])
    reader.subscribe(["^o.*r$"])
    for number in range(10):
        soon.append("other", b"%d" % number, partition=number % 2)
    assert {message.topic() for message in read(reader, 10)} == {"other"}
    reader.commit(asynchronous=False)
    soon.create_topic("over", 1)
    soon.append("over", b"new")
    (found,) = read(reader, 1)
    assert (found.topic(), found.value()) == ("over", b"new")
    reader.close()
    again = consumer(soon, **PROTOCOLS["consumer"])
    again.subscribe(["other"])
    soon.append("other", b"later")
    assert [message.value() for message in read(again, 1)] == [b"later"]
    again.close()
    (described,) = described_groups(soon, "readers")
    assert (described.type, described.state) == (ConsumerGroupType.CONSUMER, ConsumerGroupState.EMPTY)


def test_a_silent_member_of_a_consumer_group_loses_its_partitions() -> None:
    now = [0]
    with EmbeddedKafka(topics={"in": 2}, clock_ms=lambda: now[0]) as kafka:
        kafka.do(join_consumers)
        seen = []
        for now[0] in (44_999, 45_000):
            kafka.do(lambda cluster: None)  # time has passed
            seen.append(kafka.do(lambda cluster: list(cluster.groups.consumers("readers").members)))
    assert seen == [["silent"], []]


def join_consumers(cluster: Cluster) -> None:
    """Join a member that never sends another heartbeat."""
    heard: dict[str, Any] = {"member_epoch": 0, "rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["in"]}
    unsaid = dict.fromkeys(("instance_id", "rack_id", "server_assignor", "subscribed_topic_regex"))
    body = SimpleNamespace(topic_partitions=[], **heard, **unsaid)
    cluster.groups.consumers_to_join("readers").heartbeat(body, "silent", "client", "/127.0.0.1")


def described_groups(kafka: EmbeddedKafka, group: str) -> list[ConsumerGroupDescription]:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    return [admin.describe_consumer_groups([group])[group].result(PATIENCE_SECONDS)]


def test_transactions_of_confluent_kafka(kafka: EmbeddedKafka) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions(PATIENCE_SECONDS)
    for value, committed in (("a", True), ("b", False), ("c", True)):
        producer.begin_transaction()
        producer.produce("out", value)
        producer.flush(PATIENCE_SECONDS)
        producer.commit_transaction(PATIENCE_SECONDS) if committed else producer.abort_transaction(PATIENCE_SECONDS)
    reader = consumer(kafka)
    reader.subscribe(["out"])
    assert [message.value() for message in read(reader, 2)] == [b"a", b"c"]
    reader.close()
    dirty = consumer(kafka, "others", **{"isolation.level": "read_uncommitted"})
    dirty.subscribe(["out"])
    assert [message.value() for message in read(dirty, 3)] == [b"a", b"b", b"c"]
    dirty.close()


def test_a_former_producer_is_fenced(kafka: EmbeddedKafka) -> None:
    first, second = (
        Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "t"}) for _ in range(2)
    )
    first.init_transactions(PATIENCE_SECONDS)
    first.begin_transaction()
    first.produce("out", "a")
    second.init_transactions(PATIENCE_SECONDS)
    with pytest.raises(KafkaException) as raised:
        first.commit_transaction(PATIENCE_SECONDS)
    assert raised.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)


def test_the_admin_client_of_confluent_kafka(kafka: EmbeddedKafka) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic("new", 3, 1, config={"retention.ms": "60000"})])["new"].result(PATIENCE_SECONDS)
    assert len(admin.list_topics(timeout=PATIENCE_SECONDS).topics["new"].partitions) == 3
    resource = ConfigResource(ResourceType.TOPIC, "new")
    assert admin.describe_configs([resource])[resource].result(PATIENCE_SECONDS)["retention.ms"].value == "60000"
    admin.delete_topics(["new"])["new"].result(PATIENCE_SECONDS)
    assert "new" not in admin.list_topics(timeout=PATIENCE_SECONDS).topics


def test_kafka_python_writes_and_reads(kafka: EmbeddedKafka) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    for number in range(10):
        producer.send("in", b"%d" % number, partition=number % 2)
    producer.flush(PATIENCE_SECONDS)
    producer.close()
    reader = KafkaConsumer(
        "in", bootstrap_servers=kafka.bootstrap_servers, group_id="python", auto_offset_reset="earliest"
    )
    found = sorted(next(reader).value for _ in range(10))
    assert found == [b"%d" % number for number in range(10)]
    reader.commit()
    reader.close()


def test_wrong_password_is_refused() -> None:
    with EmbeddedKafka(topics={"in": 1}, users={"me": "secret"}) as kafka:
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
        base = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0, **login}
        good = Producer({**base, "sasl.password": "secret"})
        good.produce("in", "x")
        assert good.flush(PATIENCE_SECONDS) == 0
        seen: list[int] = []
        bad = Producer({**base, "sasl.password": "wrong", "error_cb": lambda error: seen.append(error.code())})
        eventually(lambda: (bad.poll(0.05) and False) or KafkaError._AUTHENTICATION in seen, "it is refused")
        assert len(kafka.records("in")) == 1


def test_a_leader_moves_and_clients_follow() -> None:
    with EmbeddedKafka(nodes=3) as kafka:
        kafka.do(lambda cluster: cluster.create_topic("in", 1, 3))
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for node in (1, 2, 3, 1):
            kafka.do(partial(Cluster.move_leader, topic="in", number=0, node=node))
            producer.produce("in", str(node))
            assert producer.flush(PATIENCE_SECONDS) == 0
        leader = kafka.do(lambda cluster: cluster.topics["in"].partitions[0].leader)
        kafka.do(lambda cluster: cluster.stop_node(leader))
        producer.produce("in", "away")
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert [record.value for record in kafka.records("in")] == [b"1", b"2", b"3", b"1", b"away"]


def test_a_client_above_its_quota_is_throttled() -> None:
    """10 kB need 20 s at 500 bytes per second; Kafka averages over the last ten seconds and the current half window."""
    quotas = Quotas()
    quotas.change((("client-id", None),), {"producer_byte_rate": 500.0})
    quotas.change((("client-id", "free"), ("user", "u")), {"producer_byte_rate": 1_000_000.0})
    wait = partial(quotas.wait_ms, "producer_byte_rate", "u")
    assert [wait("slow", 5_000, 0), wait("free", 5_000, 0)] == [0, 0]
    assert wait("slow", 5_000, 500) == 9_500
    assert wait("slow", 0, 11_501) == 0
    assert quotas.wait_ms("consumer_byte_rate", "u", "slow", 1 << 30, 0) == 0


def test_a_throttled_client_gets_no_early_response() -> None:
    now = [int(time.time() * 1000)]
    with EmbeddedKafka(topics={"in": 1}, clock_ms=lambda: now[0]) as kafka:
        kafka.do(lambda cluster: cluster.quotas.change((("client-id", "slow"),), {"producer_byte_rate": 100.0}))
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "client.id": "slow", "acks": 1})
        producer.produce("in", b"x" * 2_000)
        assert producer.flush(PATIENCE_SECONDS) == 0
        producer.produce("in", b"second")
        assert producer.flush(0.5) == 1
        assert len(kafka.records("in")) == 1
        now[0] += 60_000
        kafka.do(pass_time)
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert len(kafka.records("in")) == 2


def test_a_lost_acknowledgement_does_not_duplicate_a_record() -> None:
    with EmbeddedKafka(topics={"in": 1}, rules=[Rule(Drop(acted=True), api="Produce", nth=1)]) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
        producer.produce("in", b"one")
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert [event.api for event in kafka.events] == ["Produce"]
        assert [record.value for record in kafka.records("in")] == [b"one"]


def test_rules_fail_delay_and_reset_and_can_be_replaced() -> None:
    rules = [
        Rule(Fail("NOT_LEADER_OR_FOLLOWER"), api="Produce", times=1),
        Rule(Reset(Direction.ANSWER), api="Produce", times=1),
        Rule(Dribble(Direction.REQUEST, pieces=4, seconds=0.1), api="Produce", times=1),
    ]
    with EmbeddedKafka(topics={"in": 1}, rules=rules) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
        producer.produce("in", b"one")
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert [event.what.partition("(")[0] for event in kafka.events] == ["Fail", "Reset", "Dribble"]
        kafka.set_rules([Rule(Fail("TOPIC_AUTHORIZATION_FAILED"), api="Produce")])
        refused: list[int] = []
        producer.produce("in", b"two", on_delivery=lambda error, _: refused.append(error.code() if error else 0))
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert refused == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
        assert [record.value for record in kafka.records("in")] == [b"one"]
    with EmbeddedKafka() as kafka, pytest.raises(ValueError, match="rules"):
        kafka.set_rules(())


def pass_time(_cluster: Cluster) -> None:
    """Do nothing between two requests, so that the broker checks its clock."""


def test_expired_records_are_deleted_when_the_broker_checks() -> None:
    now = [1_000_000]
    with EmbeddedKafka(clock_ms=lambda: now[0], config={"log.retention.check.interval.ms": "1000"}) as kafka:
        kafka.create_topic("aged", config={"retention.ms": "5000"})
        kafka.create_topic("sized", config={"retention.bytes": "100"})
        kafka.create_topic("kept", config={"retention.ms": "5000", "cleanup.policy": "compact"})
        kafka.create_topic("all")
        topics = ("aged", "sized", "kept", "all")

        def counts() -> list[int]:
            return [len(kafka.records(topic)) for topic in topics]

        for topic in topics:
            for number in range(3):
                kafka.append(topic, b"%d" % number, key=b"k")
        assert counts() == [3, 3, 3, 3], "the broker has not looked yet"
        now[0] += 1_000
        kafka.do(pass_time)
        assert counts() == [3, 2, 3, 3]
        now[0] += 4_001
        kafka.do(pass_time)
        assert counts() == [0, 2, 3, 3]


def test_a_call_deletes_expired_records_and_compacts_topics() -> None:
    now = [1_000_000]
    with EmbeddedKafka(clock_ms=lambda: now[0]) as kafka:
        kafka.create_topic("aged", config={"retention.ms": "5000"})
        kafka.create_topic("table", config={"cleanup.policy": "compact"})
        for key in (b"a", b"b", b"a"):
            kafka.append("aged", b"x", key)
            now[0] += 3_000
            kafka.append("table", b"%d" % now[0], key)
        kafka.do(Cluster.delete_expired)
        kafka.do(partial(Cluster.compact, topic="table"))
        assert [record.offset for record in kafka.records("aged")] == [2]
        assert [(record.offset, record.key) for record in kafka.records("table")] == [(1, b"b"), (2, b"a")]
        with pytest.raises(ApiError, match="POLICY_VIOLATION"):
            kafka.do(partial(Cluster.compact, topic="aged"))


def itself(_key: str, value: str) -> str:
    return value


def counting() -> StreamsBuilder:
    builder = StreamsBuilder()
    text = Serdes.string()
    words = builder.stream("in", key_serde=text, value_serde=text)
    counts = words.group_by(itself, key_serde=text, value_serde=text).count(store="counts")
    counts.to_stream().to("out", key_serde=text, value_serde=Serdes.int64())
    return builder


@pytest.mark.parametrize("protocol", ["classic", "streams"])
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_an_application_counts_records(kafka: EmbeddedKafka, guarantee: str, protocol: str, tmp_path: Path) -> None:
    config = {
        "group.protocol": protocol,
        "application.id": "counting",
        "bootstrap.servers": kafka.bootstrap_servers,
        "processing.guarantee": guarantee,
        "state.dir": str(tmp_path),
        "statestore.cache.max.bytes": 0,
        "commit.interval.ms": 100,
    }
    streams = KafkaStreams(counting().build(), config)
    for number in range(30):
        kafka.append("in", b"w%d" % (number % 3), partition=number % 2)
    streams.start()
    reader = consumer(kafka)
    reader.subscribe(["out"])
    found = read(reader, 30)
    reader.close()
    with KafkaClientSupplier(streams.config).get_offsets_reader("test", int(PATIENCE_SECONDS * 1000)) as described:
        group = described.describe()
    assert (group.protocol, group.assignor) == (protocol, "sticky" if protocol == "streams" else None)
    (compared,) = with_group(streams.config, facts_of(counting().build(), streams.config))
    assert ("as its broker knows them, which assigns tasks with sticky" in compared.what) == (protocol == "streams")
    assert streams.close(timedelta(seconds=PATIENCE_SECONDS))
    last = {message.key(): int.from_bytes(message.value() or b"", "big") for message in found}
    assert last == {b"w0": 10, b"w1": 10, b"w2": 10}
