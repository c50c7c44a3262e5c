"""Positions that are not on the brokers any more: deleted records, truncated logs, topics that are others.

The thread continues where auto.offset.reset says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock import StreamsBuilder, StreamsConfig
from penstock.dev.dev_broker import DevBroker
from penstock.topology.records import TopicPartition
from penstock.topology.serdes.serdes import Serdes
from penstock.workers.control.messages import ThreadSpec
from tests import waiting
from tests.brokers import SECOND, THIRD, LedBroker
from tests.workers.test_stream_thread_broker import Runner

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PATIENCE_SECONDS = 120.0
CONFIG = {"broker.session.timeout.ms": "6000", "broker.heartbeat.interval.ms": "500"}
eventually = partial(waiting.eventually, patience_seconds=PATIENCE_SECONDS)


class Brokers:
    """What a test does with brokers."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.admin = AdminClient({"bootstrap.servers": bootstrap_servers})

    def create(self, topic: str, replicas: list[int] | None = None, **config: str) -> None:
        placed: dict[str, Any] = {"replica_assignment": [replicas]} if replicas else {}
        new = NewTopic(topic, 1, **placed, config=config)
        self.admin.create_topics([new])[topic].result(PATIENCE_SECONDS)
        waiting.wait_for_partitions(self.admin, topic, 1)

    def create_again(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)
        eventually(lambda: topic not in self.admin.list_topics(timeout=PATIENCE_SECONDS).topics, f"{topic} is gone")
        self.create(topic)

    def leader(self, topic: str) -> int:
        found: int = self.admin.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions[0].leader
        return found

    def in_sync(self, topic: str) -> list[int]:
        return sorted(self.admin.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions[0].isrs)

    def write(self, topic: str, values: list[str]) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap_servers})
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(PATIENCE_SECONDS) == 0


class Three(Brokers):
    """A broker that stays, and two that keep the input."""

    def __init__(self, first: DevBroker, second: LedBroker, third: LedBroker) -> None:
        super().__init__(first.bootstrap_servers)
        self.second, self.third = second, third


@pytest.fixture
def brokers(bootstrap_servers: str) -> Brokers:
    return Brokers(bootstrap_servers)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    """The topic of the group's offsets is made while the first broker is alone, and stays there."""
    directory = tmp_path / "three"
    with ExitStack() as running:

        def started(broker: DevBroker) -> None:
            running.callback(broker.stop)
            broker.start(PATIENCE_SECONDS, detached=False)

        first = DevBroker("first", directory / "first", config=CONFIG)
        started(first)
        consumer = Consumer({"bootstrap.servers": first.bootstrap_servers, "group.id": "first"})
        eventually(lambda: knows_a_group(consumer), "the broker knows what is committed")
        consumer.close()
        second = LedBroker(first, "second", directory / "second", CONFIG)
        third = LedBroker(first, "third", directory / "third", CONFIG, node_id=THIRD)
        started(second)
        started(third)
        yield Three(first, second, third)


def knows_a_group(consumer: Consumer) -> bool:
    try:
        consumer.committed([Place("none", 0)], timeout=PATIENCE_SECONDS)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.NOT_COORDINATOR:  # it has just made the topic of groups
            raise
        return False
    return True


class Reading:
    """A stream thread that keeps what it reads. gate: while it is not set, the thread is stuck in a record."""

    def __init__(self, brokers: Brokers, topic: str, state_dir: Path, **config: Any) -> None:
        self.seen: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        builder = StreamsBuilder()
        builder.stream(topic, value_serde=Serdes.string()).foreach(self._take)
        settings = {
            "application.id": f"app-{uuid4()}",
            "bootstrap.servers": brokers.bootstrap_servers,
            "state.dir": str(state_dir),
            "commit.interval.ms": 200,
            "penstock.worker.beat.interval.ms": 50,
            "session.timeout.ms": 45_000,
            **config,
        }
        self.runner = Runner(builder.build(), ThreadSpec(1, "test", str(uuid4()), 1, StreamsConfig(settings)))

    def _take(self, key: Any, value: str) -> None:
        self.gate.wait(PATIENCE_SECONDS)
        self.seen.append(value)

    def until_seen(self, values: list[str]) -> None:
        """Wait until these are the last that were read; raises what has ended the thread."""

        def is_there() -> bool:
            assert self.runner._runs.is_alive(), self.runner.until(lambda: False)
            return self.seen[-len(values) :] == values

        eventually(is_there, lambda: (len(self.seen), self.seen[-3:], values[-3:]))


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[Callable[..., Reading]]:
    made: list[Reading] = []

    def start(brokers: Brokers, topic: str, **config: Any) -> Reading:
        made.append(Reading(brokers, topic, tmp_path / "state", **config))
        return made[-1]

    yield start
    for one in made:
        one.gate.set()
        one.runner.stop()


def values(name: str, count: int) -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


def test_records_are_deleted_below_the_position_while_the_leader_changes(
    three: Three, reading: Callable[..., Reading], unique_name: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    topic = unique_name("in")
    three.create(topic, [SECOND, THIRD])
    three.write(topic, values("a", 100))
    found = reading(three, topic)
    found.until_seen(values("a", 100))
    found.gate.clear()
    three.write(topic, ["stuck"])
    eventually(
        lambda: found.runner.thread._consumer.position(TopicPartition(topic, 0)) == 101,
        "it has the record that holds it up",
    )
    three.second.kill()
    eventually(lambda: three.leader(topic) == THIRD, "the other broker leads")
    three.write(topic, values("b", 100))
    three.admin.delete_records([Place(topic, 0, 151)])[Place(topic, 0)].result(PATIENCE_SECONDS)
    found.gate.set()
    found.until_seen(values("b", 100)[50:])
    assert "stuck" in found.seen
    assert "; reset" in caplog.text


def test_a_log_is_truncated_by_an_unclean_election(
    three: Three, reading: Callable[..., Reading], unique_name: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    topic = unique_name("in")
    three.create(topic, [SECOND, THIRD], **{"unclean.leader.election.enable": "true"})
    three.write(topic, values("kept", 100))
    found = reading(three, topic)
    found.until_seen(values("kept", 100))
    three.third.kill()
    eventually(lambda: three.in_sync(topic) == [SECOND], "one broker has it alone")
    three.write(topic, values("lost", 100))
    found.until_seen(values("lost", 100))
    three.second.kill()
    three.third.start(PATIENCE_SECONDS, detached=False)
    eventually(lambda: three.leader(topic) == THIRD, "the broker that was behind leads")
    three.write(topic, values("new", 150))
    found.until_seen(values("kept", 100) + values("new", 150))
    assert "truncated to 100" in caplog.text


@pytest.mark.parametrize("count", [50, 300])
def test_a_topic_is_deleted_and_created_again(
    brokers: Brokers,
    reading: Callable[..., Reading],
    unique_name: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
    count: int,
) -> None:
    """With a shorter log, and with a longer one, in which the old position exists."""
    topic = unique_name("in")
    brokers.create(topic)
    brokers.write(topic, values("old", 100))
    found = reading(brokers, topic)
    found.until_seen(values("old", 100))
    brokers.create_again(topic)
    brokers.write(topic, values("new", count))
    found.until_seen(values("new", count))
    assert found.seen == values("old", 100) + values("new", count)
    assert "was deleted and created again" in caplog.text


def test_a_topic_is_deleted_and_created_again_while_nothing_runs(
    brokers: Brokers, reading: Callable[..., Reading], unique_name: Callable[[str], str]
) -> None:
    """The brokers forget what is committed for a topic that they delete."""
    topic, application_id = unique_name("in"), unique_name("app")
    brokers.create(topic)
    brokers.write(topic, values("old", 100))
    first = reading(brokers, topic, **{"application.id": application_id})
    first.until_seen(values("old", 100))
    first.runner.stop()
    brokers.create_again(topic)
    brokers.write(topic, values("new", 300))
    second = reading(brokers, topic, **{"application.id": application_id})
    second.until_seen(values("new", 300))
    assert second.seen == values("new", 300)
