"""Topics of tests: when a change is made, all brokers have heard of it; records stay in the order of writing."""

from __future__ import annotations

import uuid
from collections import defaultdict

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.read_to_end import read_to_end
from tests.topics import create_topics, delete_topics
from tests.waiting import PATIENCE_SECONDS, allow_deletions, delete_records

TOPICS, PARTITIONS, VALUES = 10, 8, 4
#: Without waiting, the broker refused one deletion of 60.
CHANGES = 40


@pytest.mark.broker
def test_no_batch_of_a_new_topic_is_refused_and_overtaken(bootstrap_servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    topics = [f"ordered-{uuid.uuid4().hex[:8]}" for _ in range(TOPICS)]
    create_topics(admin, *(NewTopic(topic, PARTITIONS, 1) for topic in topics))
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0, "batch.num.messages": 1})
    for topic in topics:
        for partition in range(PARTITIONS):
            for value in range(VALUES):
                producer.produce(topic, b"%d" % value, partition=partition)
    assert producer.flush(PATIENCE_SECONDS) == 0
    for topic in topics:
        found = defaultdict(list)
        for message in read_to_end(bootstrap_servers, topic):
            found[message.partition()].append(int(message.value() or b""))
        assert found == {partition: list(range(VALUES)) for partition in range(PARTITIONS)}
    delete_topics(admin, *topics)


@pytest.mark.broker
def test_a_change_of_what_is_allowed_has_reached_the_brokers(bootstrap_servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    topics = [f"compacted-{uuid.uuid4().hex[:8]}" for _ in range(CHANGES)]
    create_topics(admin, *(NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"}) for topic in topics))
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for topic in topics:
        producer.produce(topic, b"value", b"key")
    assert producer.flush(PATIENCE_SECONDS) == 0
    for topic in topics:
        allow_deletions(admin, topic)
        delete_records(admin, topic, {0: 1})
        place = TopicPartition(topic, 0)
        earliest = admin.list_offsets({place: OffsetSpec.earliest()})  # type: ignore[no-untyped-call]
        assert earliest[place].result(PATIENCE_SECONDS).offset == 1
    delete_topics(admin, *topics)


@pytest.mark.broker
def test_a_topic_that_is_gone_already_can_be_deleted(bootstrap_servers: str) -> None:
    delete_topics(AdminClient({"bootstrap.servers": bootstrap_servers}), f"gone-{uuid.uuid4().hex[:8]}")
