"""The Admin's requests to real brokers, and its handling of refusals, silence, and leaders that move."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, AdminClient
from confluent_kafka.cimpl import NewTopic as PlacedTopic

from penstock.clients.cluster.admin import KafkaAdmin, NewTopic, TopicSetting, answered, results
from penstock.clients.cluster.offsets import EARLIEST, LATEST, NO_RECORD
from penstock.clients.errors import BrokerError, ErrorCode, RetriableBrokerError, UnreachableError
from penstock.testing.wire import WireProxy
from penstock.topology.errors import BrokerUnavailableError, StreamsError
from penstock.topology.records import TopicPartition
from tests.brokers import FIRST, SECOND, SecuredBroker, ThreeBrokers
from tests.clients.conftest import MakeTopic, Open
from tests.free_port import free_port
from tests.suspended import suspended
from tests.topics import create_topics, delete_topics
from tests.waiting import PATIENCE_SECONDS, deny, eventually, wait_for_partitions

pytestmark = pytest.mark.broker
MS = 30_000
#: For requests that get no response.
SHORT_MS = 1_000


@pytest.fixture
def asking(opened: Open, bootstrap_servers: str) -> KafkaAdmin:
    return opened(KafkaAdmin, bootstrap_servers)


def code_of(asked: Future[Any]) -> ErrorCode:
    error = asked.exception(PATIENCE_SECONDS)
    assert isinstance(error, BrokerError), error
    return error.code


def fill(bootstrap_servers: str, topic: str, *timestamps: int, transactional_id: str = "") -> Producer:
    """Write records with these timestamps to partition 0; return the producer, whose transaction, if any, is still
    open.
    """
    transactional = {"transactional.id": transactional_id} if transactional_id else {}
    producer = Producer({"bootstrap.servers": bootstrap_servers, **transactional})
    if transactional_id:
        producer.init_transactions(PATIENCE_SECONDS)
        producer.begin_transaction()
    for timestamp in timestamps:
        producer.produce(topic, b"x", partition=0, timestamp=timestamp)
    assert producer.flush(PATIENCE_SECONDS) == 0
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


def test_the_end_for_read_committed_is_before_an_open_transaction(
    asking: KafkaAdmin, bootstrap_servers: str, make_topic: MakeTopic, unique_name: Callable[[str], str]
) -> None:
    topic = make_topic("in")
    partition = TopicPartition(topic, 0)
    fill(bootstrap_servers, topic, 1, 2)
    producer = fill(bootstrap_servers, topic, 3, 4, 5, transactional_id=unique_name("id"))

    def ends() -> list[int]:
        return [asking.offsets({partition: LATEST}, MS, committed)[partition].result() for committed in (True, False)]

    assert ends() == [2, 5]
    producer.commit_transaction(PATIENCE_SECONDS)
    eventually(lambda: ends() == [6, 6], "the marker, at offset 5, is behind both")


def test_a_leader_gets_one_request_for_all_its_partitions_and_leaders_are_cached(
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


def test_unknown_partitions_do_not_delay_others(asking: KafkaAdmin, make_topic: MakeTopic) -> None:
    topic = make_topic("in")
    known, no_topic, no_partition = (
        TopicPartition(topic, 0),
        TopicPartition("no-such-topic", 0),
        TopicPartition(topic, 9),
    )
    asked = asking.offsets(dict.fromkeys((known, no_topic, no_partition), LATEST), 8 * SHORT_MS)
    assert asked[known].result(PATIENCE_SECONDS) == 0
    assert not asked[no_topic].done()
    assert not asked[no_partition].done()
    assert code_of(asked[no_topic]) is code_of(asked[no_partition]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert isinstance(asked[no_topic].exception(), RetriableBrokerError)


def test_a_topic_created_in_the_meantime_is_found(
    asking: KafkaAdmin, admin: AdminClient, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("late")
    asked = asking.offsets({TopicPartition(topic, 0): LATEST}, MS)[TopicPartition(topic, 0)]
    assert asking.create_topics([NewTopic(topic, 1, 1)], MS) == {topic: None}
    assert asked.result(PATIENCE_SECONDS) == 0
    delete_topics(admin, topic)


def test_a_recreated_topic_is_not_looked_up_with_cached_data_of_the_old_one(
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
        first, last = TopicPartition(topic, 0), TopicPartition(topic, 2)
        assert results(asking.offsets({first: LATEST}, MS), MS) == {first: partitions}
        gone = asking.offsets({last: LATEST}, MS if partitions == 3 else SHORT_MS)[last].exception(PATIENCE_SECONDS)
        assert (gone is None) == (partitions == 3)
        delete_topics(admin, topic)
        eventually(lambda: topic not in asking.describe([topic], MS).topics, "the topic is gone")
    assert ids[0] != ids[1]


# -- topics


def test_existing_topics_are_described_and_others_left_out(asking: KafkaAdmin, make_topic: MakeTopic) -> None:
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


def test_topics_are_created_with_their_settings(
    asking: KafkaAdmin, admin: AdminClient, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("made")
    assert asking.create_topics([NewTopic(topic, 3, -1, {"cleanup.policy": "compact"})], MS) == {topic: None}
    wait_for_partitions(admin, topic, 3)
    missing = "no-such-topic"
    found = asking.topic_config([topic, missing], ("cleanup.policy",), MS)
    assert found[topic] == {"cleanup.policy": TopicSetting("compact", is_own=True)}
    assert isinstance(refused := found[missing], BrokerError)
    assert refused.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    made = asking.create_topics([NewTopic(topic, 3, 1), NewTopic(f"{topic}-2", 1, 1, {"cleanup.policy": "none"})], MS)
    codes = {name: None if error is None else error.code for name, error in made.items()}
    assert codes == {topic: ErrorCode.TOPIC_ALREADY_EXISTS, f"{topic}-2": ErrorCode.INVALID_CONFIG}
    assert "cleanup.policy" in str(made[f"{topic}-2"])
    delete_topics(admin, topic)


def test_records_are_deleted_up_to_an_offset(asking: KafkaAdmin, bootstrap_servers: str, make_topic: MakeTopic) -> None:
    topic, compacted = make_topic("in", 2), make_topic("compacted", config={"cleanup.policy": "compact"})
    first, second, third = TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition(compacted, 0)
    fill(bootstrap_servers, topic, 1, 2, 3)
    asked = asking.delete_records({first: 2, second: 7, third: 0}, MS)
    assert asked[first].result(PATIENCE_SECONDS) == 2
    assert code_of(asked[second]) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert code_of(asked[third]) is ErrorCode.POLICY_VIOLATION
    assert results(asking.offsets({first: EARLIEST}, MS), MS) == {first: 2}


# -- refusals


@pytest.fixture
def secret_and_open(secured_broker: SecuredBroker, opened: Open, unique_name: Callable[[str], str]) -> tuple[str, str]:
    """Two topics. The first one permits no operation to any client."""
    secret, free = unique_name("secret"), unique_name("open")
    admin = AdminClient({"bootstrap.servers": secured_broker.bootstrap_servers})
    made = opened(KafkaAdmin, secured_broker.bootstrap_servers)
    assert made.create_topics([NewTopic(secret, 1, 1), NewTopic(free, 1, 1)], MS) == {secret: None, free: None}
    for topic in (secret, free):
        wait_for_partitions(admin, topic, 1)
    deny(admin, secret, AclOperation.ALL)
    return secret, free


def test_a_forbidden_operation_fails_at_once_and_is_named(
    opened: Open, secured_broker: SecuredBroker, secret_and_open: tuple[str, str]
) -> None:
    asking = opened(KafkaAdmin, secured_broker.bootstrap_servers)
    secret, free = (TopicPartition(topic, 0) for topic in secret_and_open)
    forbidden = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert {*secret_and_open} & asking.describe(None, MS).partition_counts.keys() == {free.topic}
    started = time.monotonic()
    asked = asking.offsets({secret: LATEST, free: LATEST}, MS)
    assert code_of(asked[secret]) is forbidden
    assert asked[free].result(PATIENCE_SECONDS) == 0
    with pytest.raises(BrokerError, match=f"TOPIC_AUTHORIZATION_FAILED: topic {secret.topic}"):
        asking.describe([*secret_and_open], MS)
    assert code_of(asking.delete_records({secret: 0}, MS)[secret]) is forbidden
    config = asking.topic_config([*secret_and_open], ("cleanup.policy",), MS)
    assert isinstance(config[secret.topic], BrokerError)
    assert config[free.topic] == {"cleanup.policy": TopicSetting("delete", is_own=False)}
    assert time.monotonic() - started < MS / 1000
    with (
        pytest.raises(StreamsError, match="Not known: TOPIC_AUTHORIZATION_FAILED; the principal needs READ") as raised,
        answered("Not known"),
    ):
        asked[secret].result()
    assert not isinstance(raised.value, BrokerUnavailableError)


# -- silence


def test_unreachable_brokers_are_waited_for_until_the_timeout(opened: Open) -> None:
    asking, partition = opened(KafkaAdmin, f"127.0.0.1:{free_port()}"), TopicPartition("in", 0)
    started = time.monotonic()
    asked = asking.offsets({partition: LATEST}, SHORT_MS)[partition]
    with pytest.raises(UnreachableError, match="refused"):
        asked.result(PATIENCE_SECONDS)
    for ask in (
        lambda: asking.describe(["in"], SHORT_MS),
        lambda: asking.create_topics([NewTopic("in", 1, 1)], SHORT_MS),
        lambda: asking.topic_config(["in"], ("cleanup.policy",), SHORT_MS),
    ):
        with pytest.raises(BrokerUnavailableError, match=r"Nobody says: .*refused"), answered("Nobody says"):
            ask()
    assert (time.monotonic() - started) * 1000 >= 4 * (SHORT_MS - 300)


def test_a_silent_broker_is_skipped(opened: Open, bootstrap_servers: str, make_topic: MakeTopic) -> None:
    topic = make_topic("in")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for _ in range(4):  # the first broker is chosen at random
            asking = opened(KafkaAdmin, f"127.0.0.1:{silent.getsockname()[1]},{bootstrap_servers}")
            assert asking.describe([topic], 3_000).partition_counts == {topic: 1}


def test_close_ends_all_pending_requests(opened: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asking, partition = opened(KafkaAdmin, f"127.0.0.1:{silent.getsockname()[1]}"), TopicPartition("in", 0)
        asked = asking.offsets({partition: LATEST}, MS)[partition]
        asking.close()
        with pytest.raises(UnreachableError, match="closed"):
            asked.result(PATIENCE_SECONDS)


# -- leaders that move


@pytest.mark.slow
def test_the_new_leader_gets_the_request_when_the_old_one_is_suspended(
    three_brokers: ThreeBrokers, opened: Open, unique_name: Callable[[str], str]
) -> None:
    """A suspended broker keeps its connections open, and only fails to respond.

    For a partition without another replica the request succeeds when the broker continues.
    """
    asking = opened(KafkaAdmin, three_brokers.second.bootstrap_servers)
    kept, lonely = unique_name("in"), unique_name("alone")
    replicas = {kept: [SECOND, FIRST], lonely: [SECOND]}
    placed = [PlacedTopic(topic, 1, replica_assignment=[where]) for topic, where in replicas.items()]
    placing = AdminClient({"bootstrap.servers": three_brokers.bootstrap_servers})
    create_topics(placing, *placed)

    def is_led_by_second(topic: str) -> bool:
        found = asking.describe([topic], MS).topics.get(topic)
        partition = None if found is None else found.partitions.get(0)
        in_sync = [] if partition is None else sorted(partition.in_sync)
        return in_sync == sorted(replicas[topic]) and partition is not None and partition.leader.node == SECOND

    eventually(lambda: all(map(is_led_by_second, replicas)), "all replicas are in sync")
    led, alone = [TopicPartition(kept, 0)], TopicPartition(lonely, 0)
    assert results(asking.offsets(dict.fromkeys(led, LATEST), MS), MS) == dict.fromkeys(led, 0)
    pid = three_brokers.second.status().pid
    assert pid is not None
    with suspended(pid):
        asked = asking.offsets(dict.fromkeys(led, LATEST), int(PATIENCE_SECONDS * 1000))
        assert results(asked, int(PATIENCE_SECONDS * 1000)) == dict.fromkeys(led, 0)
        assert code_of(asking.offsets({alone: LATEST}, SHORT_MS)[alone]) is ErrorCode.LEADER_NOT_AVAILABLE
        late = asking.offsets({alone: LATEST}, int(PATIENCE_SECONDS * 1000))[alone]
    assert late.result(PATIENCE_SECONDS) == 0
