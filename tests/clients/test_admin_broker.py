"""What the Admin asks real brokers, and what it makes of their refusals, of silence, and of leaders that move."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from penstock.clients.cluster.admin import KafkaAdmin, NewTopic, answered, results
from penstock.clients.cluster.offsets import EARLIEST, LATEST, NO_RECORD
from penstock.clients.errors import BrokerError, ErrorCode, RetriableBrokerError, UnreachableError
from penstock.clients.network_settings import network_settings
from penstock.dev.dev_broker import DevBroker
from penstock.testing.wire import WireProxy
from penstock.topology.errors import BrokerUnavailableError, StreamsError
from penstock.topology.records import TopicPartition
from tests.brokers import SECOND, LedBroker
from tests.clients.conftest import MakeTopic, Open
from tests.waiting import eventually, wait_for_partitions

pytestmark = pytest.mark.broker
DEADLINE_SECONDS = 60.0
START_SECONDS = 180.0
MS = 30_000
#: For questions that are not answered.
SHORT_MS = 1_000


@pytest.fixture
def asking(opened: Open, bootstrap_servers: str) -> KafkaAdmin:
    return opened(KafkaAdmin, bootstrap_servers)


def code_of(asked: Future[Any]) -> ErrorCode:
    error = asked.exception(DEADLINE_SECONDS)
    assert isinstance(error, BrokerError), error
    return error.code


def fill(bootstrap_servers: str, topic: str, *timestamps: int, transactional_id: str = "") -> Producer:
    """Write records of these times to partition 0; return the producer, its transaction, if any, being still open."""
    transactional = {"transactional.id": transactional_id} if transactional_id else {}
    producer = Producer({"bootstrap.servers": bootstrap_servers, **transactional})
    if transactional_id:
        producer.init_transactions(DEADLINE_SECONDS)
        producer.begin_transaction()
    for timestamp in timestamps:
        producer.produce(topic, b"x", partition=0, timestamp=timestamp)
    assert producer.flush(DEADLINE_SECONDS) == 0
    return producer


# -- offsets


def test_beginnings_ends_and_the_first_record_since_a_time(
    asking: KafkaAdmin, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic("in", 2)
    first, second = (TopicPartition(topic, number) for number in range(2))
    fill(bootstrap_servers, topic, 1_000, 2_000, 3_000)
    found = [results(asking.offsets({first: at}, MS), MS) for at in (EARLIEST, 0, 1_500, 3_000, 3_001, LATEST)]
    assert [each[first] for each in found] == [0, 0, 1, 2, NO_RECORD, 3]
    assert results(asking.offsets({first: 1_500, second: LATEST}, MS), MS) == {first: 1, second: 0}
    assert asking.offsets({}, MS) == {}


def test_an_open_transaction_is_behind_the_end_of_who_reads_committed_records_only(
    asking: KafkaAdmin, bootstrap_servers: str, make_topic: MakeTopic, unique_name: Callable[[str], str]
) -> None:
    topic = make_topic("in")
    partition = TopicPartition(topic, 0)
    fill(bootstrap_servers, topic, 1, 2)
    producer = fill(bootstrap_servers, topic, 3, 4, 5, transactional_id=unique_name("id"))

    def ends() -> list[int]:
        return [asking.offsets({partition: LATEST}, MS, committed)[partition].result() for committed in (True, False)]

    assert ends() == [2, 5]
    producer.commit_transaction(DEADLINE_SECONDS)
    eventually(lambda: ends() == [6, 6], "the marker, at offset 5, is behind both")


def test_a_leader_is_asked_once_for_all_its_partitions_and_leaders_are_remembered(
    asking: KafkaAdmin, opened: Open, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topics = [make_topic(name, 3) for name in ("one", "two")]
    partitions = [TopicPartition(topic, number) for topic in topics for number in range(3)]
    results(asking.offsets(dict.fromkeys(partitions, LATEST), MS), MS)  # so that the broker knows them
    with WireProxy(bootstrap_servers) as proxy:
        seen = opened(KafkaAdmin, proxy.bootstrap_servers)
        for _ in range(4):
            assert results(seen.offsets(dict.fromkeys(partitions, LATEST), MS), MS) == dict.fromkeys(partitions, 0)
        asked = {api: count for (api, _), count in proxy.requests.items()}
    assert asked == {"ApiVersions": 1, "Metadata": 1, "ListOffsets": 4}


def test_what_does_not_exist_keeps_nothing_else_waiting(asking: KafkaAdmin, make_topic: MakeTopic) -> None:
    topic = make_topic("in")
    known, no_topic, no_partition = (
        TopicPartition(topic, 0),
        TopicPartition("no-such-topic", 0),
        TopicPartition(topic, 9),
    )
    started = time.monotonic()
    asked = asking.offsets(dict.fromkeys((known, no_topic, no_partition), LATEST), 3 * SHORT_MS)
    assert asked[known].result(DEADLINE_SECONDS) == 0
    assert time.monotonic() - started < 2 * SHORT_MS / 1000
    assert code_of(asked[no_topic]) is code_of(asked[no_partition]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert isinstance(asked[no_topic].exception(), RetriableBrokerError)
    assert time.monotonic() - started >= 3 * SHORT_MS / 1000 - 0.3


def test_a_topic_that_is_made_meanwhile_is_answered_for(
    asking: KafkaAdmin, admin: AdminClient, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("late")
    asked = asking.offsets({TopicPartition(topic, 0): LATEST}, MS)[TopicPartition(topic, 0)]
    assert asking.create_topics([NewTopic(topic, 1, 1)], MS) == {topic: None}
    assert asked.result(DEADLINE_SECONDS) == 0
    admin.delete_topics([topic])[topic].result(DEADLINE_SECONDS)


def test_a_recreated_topic_is_not_asked_for_by_what_was_known_of_the_other(
    asking: KafkaAdmin, admin: AdminClient, bootstrap_servers: str, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("again")
    ids = []
    for partitions in (3, 1):
        assert asking.create_topics([NewTopic(topic, partitions, 1)], MS) == {topic: None}
        wait_for_partitions(admin, topic, partitions)
        fill(bootstrap_servers, topic, *range(1, partitions + 1))
        eventually(
            lambda count=partitions: asking.describe([topic], MS).partition_counts == {topic: count},  # type: ignore[misc]
            "the new count is known",
        )
        ids.append(asking.describe([topic], MS).topics[topic].id)
        ends = asking.offsets(dict.fromkeys((TopicPartition(topic, n) for n in range(3)), LATEST), SHORT_MS)
        assert ends[TopicPartition(topic, 0)].result(DEADLINE_SECONDS) == partitions
        gone = ends[TopicPartition(topic, 2)].exception(DEADLINE_SECONDS)
        assert (gone is None) == (partitions == 3)
        admin.delete_topics([topic])[topic].result(DEADLINE_SECONDS)
        eventually(lambda: topic not in asking.describe([topic], MS).topics, "the topic is gone")
    assert ids[0] != ids[1]


# -- topics


def test_topics_are_described_and_those_that_do_not_exist_left_out(asking: KafkaAdmin, make_topic: MakeTopic) -> None:
    one, two = make_topic("one", 1), make_topic("two", 4)
    eventually(
        lambda: asking.describe([one, two, "no-such-topic"], MS).partition_counts == {one: 1, two: 4},
        "the broker has heard of both",
    )
    found = asking.describe([one, two, "no-such-topic"], MS)
    assert [(p.leader.node, p.replicas, p.in_sync) for p in found.topics[one].partitions.values()] == [(1, (1,), (1,))]
    assert len(found.topics[one].id) == 16
    assert found.racks == {1: None}
    every = asking.describe(None, MS).partition_counts
    assert every.items() >= {one: 1, two: 4}.items()
    assert "no-such-topic" not in every


def test_topics_are_made_with_their_settings(
    asking: KafkaAdmin, admin: AdminClient, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("made")
    assert asking.create_topics([NewTopic(topic, 3, -1, {"cleanup.policy": "compact"})], MS) == {topic: None}
    wait_for_partitions(admin, topic, 3)
    missing = "no-such-topic"
    found = asking.topic_config([topic, missing], "cleanup.policy", MS)
    assert found[topic] == "compact"
    assert isinstance(refused := found[missing], BrokerError)
    assert refused.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    made = asking.create_topics([NewTopic(topic, 3, 1), NewTopic(f"{topic}-2", 1, 1, {"cleanup.policy": "none"})], MS)
    codes = {name: None if error is None else error.code for name, error in made.items()}
    assert codes == {topic: ErrorCode.TOPIC_ALREADY_EXISTS, f"{topic}-2": ErrorCode.INVALID_CONFIG}
    assert "cleanup.policy" in str(made[f"{topic}-2"])
    admin.delete_topics([topic])[topic].result(DEADLINE_SECONDS)


def test_records_are_deleted_up_to_an_offset(asking: KafkaAdmin, bootstrap_servers: str, make_topic: MakeTopic) -> None:
    topic, compacted = make_topic("in", 2), make_topic("compacted", config={"cleanup.policy": "compact"})
    first, second, third = TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition(compacted, 0)
    fill(bootstrap_servers, topic, 1, 2, 3)
    asked = asking.delete_records({first: 2, second: 7, third: 0}, MS)
    assert asked[first].result(DEADLINE_SECONDS) == 2
    assert code_of(asked[second]) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert code_of(asked[third]) is ErrorCode.POLICY_VIOLATION
    assert results(asking.offsets({first: EARLIEST}, MS), MS) == {first: 2}


# -- refusals


@pytest.fixture(scope="module")
def strict_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker where no one may do anything with the topic "secret"."""
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:nobody",
    }
    with DevBroker("strict", tmp_path_factory.mktemp("strict"), config=config) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        made = KafkaAdmin(network_settings({"bootstrap.servers": broker.bootstrap_servers}))
        assert made.create_topics([NewTopic("secret", 1, 1), NewTopic("open", 1, 1)], MS) == {
            "secret": None,
            "open": None,
        }
        wait_for_partitions(admin, "secret", 1)
        made.close()
        pattern, who = ResourcePatternType.LITERAL, ("User:ANONYMOUS", "*")
        rule = AclBinding(ResourceType.TOPIC, "secret", pattern, *who, AclOperation.ALL, AclPermissionType.DENY)
        admin.create_acls([rule])[rule].result(DEADLINE_SECONDS)
        yield broker.bootstrap_servers


def test_what_is_forbidden_is_told_at_once_and_for_what(opened: Open, strict_broker: str) -> None:
    asking = opened(KafkaAdmin, strict_broker)
    secret, free = TopicPartition("secret", 0), TopicPartition("open", 0)
    forbidden = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    eventually(
        lambda: asking.describe(None, MS).partition_counts == {"open": 1}, "the broker has heard what is forbidden"
    )
    started = time.monotonic()
    asked = asking.offsets({secret: LATEST, free: LATEST}, MS)
    assert code_of(asked[secret]) is forbidden
    assert asked[free].result(DEADLINE_SECONDS) == 0
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED: topic secret"):
        asking.describe(["secret", "open"], MS)
    assert code_of(asking.delete_records({secret: 0}, MS)[secret]) is forbidden
    config = asking.topic_config(["secret", "open"], "cleanup.policy", MS)
    assert isinstance(config["secret"], BrokerError)
    assert config["open"] == "delete"
    assert time.monotonic() - started < MS / 1000
    with (
        pytest.raises(StreamsError, match=r"Not known: TOPIC_AUTHORIZATION_FAILED\.") as raised,
        answered("Not known"),
    ):
        asked[secret].result()
    assert not isinstance(raised.value, BrokerUnavailableError)


# -- silence


def test_brokers_that_are_away_are_waited_for_as_long_as_was_said(opened: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    asking, partition = opened(KafkaAdmin, f"127.0.0.1:{port}"), TopicPartition("in", 0)
    started = time.monotonic()
    asked = asking.offsets({partition: LATEST}, SHORT_MS)[partition]
    with pytest.raises(UnreachableError, match="refused"):
        asked.result(DEADLINE_SECONDS)
    for ask in (
        lambda: asking.describe(["in"], SHORT_MS),
        lambda: asking.create_topics([NewTopic("in", 1, 1)], SHORT_MS),
        lambda: asking.topic_config(["in"], "cleanup.policy", SHORT_MS),
    ):
        with pytest.raises(BrokerUnavailableError, match=r"Nobody says: .*refused"), answered("Nobody says"):
            ask()
    assert 4 * (SHORT_MS - 300) <= (time.monotonic() - started) * 1000 < 4 * SHORT_MS + 5_000


def test_a_broker_that_accepts_and_says_nothing_is_passed_over(
    opened: Open, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic("in")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for _ in range(4):  # which of them is asked first is by chance
            asking = opened(KafkaAdmin, f"127.0.0.1:{silent.getsockname()[1]},{bootstrap_servers}")
            assert asking.describe([topic], 3_000).partition_counts == {topic: 1}


def test_no_question_is_left_open_by_a_close(opened: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asking, partition = opened(KafkaAdmin, f"127.0.0.1:{silent.getsockname()[1]}"), TopicPartition("in", 0)
        asked = asking.offsets({partition: LATEST}, MS)[partition]
        asking.close()
        with pytest.raises(UnreachableError, match="closed"):
            asked.result(DEADLINE_SECONDS)


# -- leaders that move


@pytest.fixture
def two_brokers(tmp_path: Path) -> Iterator[LedBroker]:
    """The second of two brokers: it may go, the controller is the first one's."""
    config = {"broker.session.timeout.ms": "6000"}
    first = DevBroker("first", tmp_path / "first", config=config)
    first.start(START_SECONDS)
    try:
        second = LedBroker(first, "second", tmp_path / "second", config)
        second.start(START_SECONDS)
        try:
            yield second
        finally:
            second.stop()
    finally:
        first.stop()


@pytest.mark.slow
def test_the_new_leader_is_asked_when_the_old_one_stands_still(two_brokers: LedBroker, opened: Open) -> None:
    """A broker whose process is stopped keeps its connections: only that it does not answer tells.

    What has no other replica is answered for when the broker goes on.
    """
    asking = opened(KafkaAdmin, two_brokers.bootstrap_servers)
    assert asking.create_topics([NewTopic("in", 4, 2), NewTopic("alone", 4, 1)], MS) == {"in": None, "alone": None}

    def led_by_second(topic: str, replicas: int) -> list[TopicPartition]:
        found = asking.describe([topic], MS).topics.get(topic)
        partitions = {} if found is None else found.partitions
        ready = len(partitions) == 4 and all(len(each.in_sync) == replicas for each in partitions.values())
        return [TopicPartition(topic, n) for n, each in partitions.items() if ready and each.leader.node == SECOND]

    eventually(lambda: bool(led_by_second("in", 2) and led_by_second("alone", 1)), "all replicas are in sync")
    led, alone = led_by_second("in", 2), led_by_second("alone", 1)[0]
    assert results(asking.offsets(dict.fromkeys(led, LATEST), MS), MS) == dict.fromkeys(led, 0)
    pid = two_brokers.status().pid
    assert pid is not None
    broker = psutil.Process(pid)
    broker.suspend()
    try:
        asked = asking.offsets(dict.fromkeys(led, LATEST), int(DEADLINE_SECONDS * 1000))
        assert results(asked, int(DEADLINE_SECONDS * 1000)) == dict.fromkeys(led, 0)
        assert code_of(asking.offsets({alone: LATEST}, SHORT_MS)[alone]) is ErrorCode.LEADER_NOT_AVAILABLE
        late = asking.offsets({alone: LATEST}, int(DEADLINE_SECONDS * 1000))[alone]
    finally:
        broker.resume()
    assert late.result(DEADLINE_SECONDS) == 0
