"""Where sources start without a committed offset: earliest, latest, none, or by age (KIP-1106)."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import AutoOffsetReset, ConfigError, StreamsBuilder, StreamsConfig, StreamsError, TopologyError
from penstock.clients.cluster.admin import KafkaAdmin
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.network_settings import network_settings
from penstock.topology.errors import BrokerUnavailableError
from penstock.topology.records import TopicPartition
from penstock.workers.group.topic_names import TopicNames
from penstock.workers.tasks.offset_reset import OffsetReset
from penstock.workers.tasks.partition_offsets import OFFSET_BEGINNING, OFFSET_END, PartitionOffsets
from tests.topics import create_topics
from tests.waiting import PATIENCE_SECONDS

NOW_MS = 1_000_000
LOG = PrefixedLogger("penstock.test", "")


class Brokers:
    """Answer for each partition: the beginning is 3, the end is 9, and the first record of the last 2 s has
    offset 7.
    """

    def __init__(self) -> None:
        self.asked: list[list[TopicPartition]] = []
        self.silent: TopicPartition | None = None

    def offsets_at(self, timestamps: Mapping[TopicPartition, int], timeout_seconds: float) -> dict[TopicPartition, int]:
        self.asked.append(sorted(timestamps))
        if self.silent in timestamps:
            raise BrokerUnavailableError("away.")
        named = {OFFSET_BEGINNING: 3, OFFSET_END: 9}
        return {p: named.get(at, 7 if at <= NOW_MS - 2_000 else OFFSET_END) for p, at in timestamps.items()}


def reset_of(original: str = "earliest", brokers: Brokers | None = None, **policies: Any) -> OffsetReset:
    """Return the policies of an application that reads these topics."""
    builder = StreamsBuilder()
    for topic, policy in policies.items():
        builder.stream(topic, offset_reset=policy).to("out")
    topologies = builder.build().internal_builder.build_subtopologies()
    ask = (brokers or Brokers()).offsets_at
    return OffsetReset(topologies, TopicNames("app", topologies), original, ask, lambda: NOW_MS, LOG)


def test_each_source_has_its_own_policy() -> None:
    old, young = (AutoOffsetReset.by_duration(seconds) for seconds in (timedelta(seconds=3), 1_000))
    reset = reset_of(by_config=None, latest="latest", old=old, young=young)
    starts = {topic: reset.start_offset(TopicPartition(topic, 0)) for topic in ("by_config", "latest", "old", "young")}
    assert starts == {"by_config": 3, "latest": 9, "old": 7, "young": OFFSET_END}


def test_partitions_that_start_together_need_one_request() -> None:
    brokers = Brokers()
    reset = reset_of(brokers=brokers, a="earliest", b="latest", strict="none")
    a, b, strict, other = (
        TopicPartition(topic, number) for topic, number in [("a", 0), ("b", 1), ("strict", 0), ("a", 5)]
    )
    with reset.together([b, a, strict]):
        assert brokers.asked == []
        assert [reset.start_offset(partition) for partition in (a, b, a, other)] == [3, 9, 3, 3]
        assert brokers.asked == [[a, b], [other]]
        with pytest.raises(StreamsError, match="No valid committed offset found for input"):
            reset.start_offset(strict)
    assert reset.start_offset(a) == 3
    assert brokers.asked == [[a, b], [other], [a]]


def test_only_resets_are_logged_and_each_topic_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    reset = reset_of(mine="latest", committed="earliest")
    mine, also, committed = (
        TopicPartition(topic, number) for topic, number in [("mine", 0), ("mine", 1), ("committed", 0)]
    )
    with reset.together([mine, also, committed]):
        assert reset.start_offset(mine) == reset.start_offset(also) == 9
    assert caplog.messages == ["Setting topic 'mine' to consume from latest offset"]
    with reset.together([mine]):
        assert reset.start_offset(mine) == 9
    assert caplog.messages == 2 * ["Setting topic 'mine' to consume from latest offset"]


def test_a_partition_without_a_response_does_not_delay_others() -> None:
    brokers = Brokers()
    reset = reset_of(brokers=brokers, topic="earliest")
    first, second, third = partitions = [TopicPartition("topic", number) for number in range(3)]
    brokers.silent = second
    with reset.together(partitions):
        assert reset.start_offset(first) == 3
        with pytest.raises(BrokerUnavailableError, match="away"):
            reset.start_offset(second)
        assert reset.start_offset(third) == 3
    assert brokers.asked == [partitions, [first], [second], [third]]
    with reset.together([second]), pytest.raises(BrokerUnavailableError, match="away"):
        reset.start_offset(second)
    assert brokers.asked[4:] == [[second]], "nothing else to ask for"
    brokers.silent = None
    with reset.together([second]):
        assert reset.start_offset(second) == 3


@pytest.mark.parametrize(
    ("duration", "start"), [("PT3S", 7), ("PT1S", OFFSET_END), ("P1DT2H3M4.5S", 7), ("PT0.999S", OFFSET_END)]
)
def test_the_configuration_may_name_a_duration(duration: str, start: int) -> None:
    config = StreamsConfig(
        {"application.id": "a", "bootstrap.servers": "b:1", "auto.offset.reset": f"by_duration:{duration}"}
    )
    reset = reset_of(config["auto.offset.reset"], topic=None)
    assert reset.start_offset(TopicPartition("topic", 0)) == start


@pytest.mark.parametrize(
    "text", ["by_duration:", "by_duration:P", "by_duration:PT", "by_duration:-PT1S", "by_duration:1h"]
)
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="by_duration:P1DT12H"):
        StreamsConfig({"application.id": "a", "bootstrap.servers": "b:1", "auto.offset.reset": text})


def test_with_policy_none_a_missing_offset_is_an_error() -> None:
    with pytest.raises(StreamsError, match=re.escape("No valid committed offset found for input [strict]")):
        reset_of(strict="none").start_offset(TopicPartition("strict", 0))


def test_a_negative_duration_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"by_duration.* must not be negative"):
        AutoOffsetReset.by_duration(-1)


def test_one_topic_cannot_have_two_policies() -> None:
    builder = StreamsBuilder()
    builder.stream("in", offset_reset=AutoOffsetReset.by_duration(5))
    builder.stream("in", offset_reset=AutoOffsetReset.by_duration(6))
    with pytest.raises(TopologyError, match="different offset reset"):
        builder.build()


@pytest.fixture
def offsets(bootstrap_servers: str) -> Iterator[PartitionOffsets]:
    admin = KafkaAdmin(network_settings({"bootstrap.servers": bootstrap_servers}))
    yield PartitionOffsets(admin, committed_only=True)
    admin.close()


@pytest.mark.broker
def test_the_broker_finds_the_offset_of_a_timestamp(
    bootstrap_servers: str, admin: AdminClient, offsets: PartitionOffsets
) -> None:
    topic = f"by-time-{uuid.uuid4().hex[:8]}"
    create_topics(admin, NewTopic(topic, 2))
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for timestamp in (1_000, 2_000, 3_000):
        producer.produce(topic, b"x", partition=0, timestamp=timestamp)
    assert producer.flush(PATIENCE_SECONDS) == 0
    first, second = (TopicPartition(topic, number) for number in range(2))
    found = [offsets.offsets_at({first: at}) for at in (0, 1_500, 3_000, 3_001, OFFSET_BEGINNING, OFFSET_END)]
    assert found == [{first: 0}, {first: 1}, {first: 2}, {first: OFFSET_END}, {first: 0}, {first: 3}]
    assert offsets.offsets_at({first: 1_500, second: OFFSET_END}) == {first: 1, second: 0}
    assert offsets.end_offsets([first, second]) == {first: 3, second: 0}
    assert offsets.offsets_at({}) == {}
    with pytest.raises(BrokerUnavailableError, match=rf"The offsets of .*{topic}-7.* within 0.5 s: UNKNOWN_TOPIC"):
        offsets.offsets_at({first: 0, TopicPartition(topic, 7): 0}, 0.5)
