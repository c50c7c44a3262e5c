"""Positions that no longer exist on the brokers: deleted records, truncated logs, recreated topics.

The thread continues where auto.offset.reset says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, PartitionMetadata
from confluent_kafka.cimpl import NewTopic

from penstock import StreamsBuilder, StreamsConfig
from penstock.topology.records import TopicPartition
from penstock.topology.serdes.serdes import Serdes
from penstock.workers.control.messages import ThreadSpec
from tests.brokers import SECOND, THIRD, ThreeBrokers
from tests.topics import create_topics, delete_topics
from tests.waiting import PATIENCE_SECONDS, delete_records, eventually
from tests.workers.test_stream_thread_broker import Runner

pytestmark = [pytest.mark.broker, pytest.mark.slow]


class Brokers:
    """Operations on the brokers of a test."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    @property
    def admin(self) -> AdminClient:
        """A new client that knows the first broker only: one that knows all may send its request to a killed broker."""
        return AdminClient({"bootstrap.servers": self.bootstrap_servers})

    def create(self, topic: str, replicas: list[int] | None = None, **config: str) -> None:
        placed: dict[str, Any] = {"replica_assignment": [replicas]} if replicas else {}
        create_topics(self.admin, NewTopic(topic, 1, **placed, config=config))

    def create_again(self, topic: str) -> None:
        delete_topics(self.admin, topic)
        self.create(topic)

    def leader(self, topic: str) -> int:
        found: int = self._partition(topic).leader
        return found

    def in_sync(self, topic: str) -> list[int]:
        return sorted(self._partition(topic).isrs)

    def _partition(self, topic: str) -> PartitionMetadata:
        return self.admin.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions[0]

    def write(self, topic: str, values: list[str]) -> None:
        # Idempotent: a leader that does not know yet that it leads refuses a batch, which the next ones would overtake.
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "enable.idempotence": True})
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(PATIENCE_SECONDS) == 0


class Three(Brokers):
    """One broker that stays up, and two that have the input."""

    def __init__(self, brokers: ThreeBrokers) -> None:
        super().__init__(brokers.bootstrap_servers)
        self.second, self.third = brokers.second, brokers.third


@pytest.fixture
def brokers(bootstrap_servers: str) -> Brokers:
    return Brokers(bootstrap_servers)


@pytest.fixture
def three(three_brokers: ThreeBrokers) -> Three:
    return Three(three_brokers)


class Reading:
    """A stream thread that keeps the records it reads. gate: until it is set, processing blocks."""

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
            **config,
        }
        self.runner = Runner(builder.build(), ThreadSpec(1, "test", str(uuid4()), 1, StreamsConfig(settings)))

    def _take(self, key: Any, value: str) -> None:
        self.gate.wait(PATIENCE_SECONDS)
        self.seen.append(value)

    def until_seen(self, values: list[str]) -> None:
        """Wait until these are the last values that were read; raises the error that has ended the thread."""

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


def test_records_below_the_position_are_deleted_while_the_leader_changes(
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
    delete_records(three.admin, topic, {0: 151})
    found.gate.set()
    found.until_seen(values("b", 100)[50:])
    assert "stuck" in found.seen
    assert "; reset" in caplog.text


def test_an_unclean_election_truncates_the_log(
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
    three.third.start()
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
    """With a shorter log, and with a longer one in which the old position exists."""
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
    """Brokers delete the committed offsets of a topic that they delete."""
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
