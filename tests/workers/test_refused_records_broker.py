"""Records that a real broker refuses individually (KIP-467): above all those with a
timestamp in the future, since 4.0.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from penstock import KafkaStreams, Serdes, StreamsBuilder
from penstock.cli.dead_letters import DeadLetters
from penstock.topology.config.streams_config import StreamsConfig
from penstock.workers.group.internal_topic_manager import TIMESTAMP_LIMITS
from tests.conftest import MakeTopic
from tests.read_to_end import read_to_end
from tests.topics import create_topics
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker

HOUR_MS = 3_600_000
TEXT = Serdes.string()
#: The offset of the record that is two hours in the future.
FUTURE = 5
GUARANTEES = pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])


class Application:
    """Copies its input to a topic with limits, and counts it by value behind a repartition topic."""

    def __init__(self, bootstrap: str, application_id: str, make_topic: MakeTopic, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.input = make_topic("in", config=TIMESTAMP_LIMITS)
        self.copy, self.letters = make_topic("copy"), make_topic("letters")
        self.config: dict[str, Any] = {
            "application.id": application_id,
            "bootstrap.servers": bootstrap,
            "state.dir": str(folder / "state"),
            "commit.interval.ms": 100,
            "production.exception.handler": "log_and_continue",
            "errors.dead.letter.queue.topic.name": self.letters,
        }
        self.now_ms = int(time.time() * 1000)

    @property
    def future_ms(self) -> int:
        return self.now_ms + 2 * HOUR_MS

    def topology(self) -> Any:
        builder = StreamsBuilder()
        stream = builder.stream(self.input, key_serde=TEXT, value_serde=TEXT)
        stream.to(self.copy, key_serde=TEXT, value_serde=TEXT)
        stream.group_by(lambda key, value: value, key_serde=TEXT, value_serde=TEXT).count(store="counts")
        return builder.build()

    def feed(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in range(16):
            at = self.future_ms if number == FUTURE else self.now_ms
            producer.produce(self.input, f"v{number}", f"k{number}", 0, timestamp=at, headers=[("n", b"%d" % number)])
        assert producer.flush(PATIENCE_SECONDS) == 0

    def changelog(self) -> dict[str, tuple[int, int]]:
        """Return count and timestamp of each value."""
        return {
            (message.key() or b"").decode(): (struct.unpack(">q", message.value() or b"")[0], message.timestamp()[1])
            for message in read_to_end(self.bootstrap, f"{self.config['application.id']}-counts-changelog")
        }

    def is_counted(self) -> bool:
        return len(self.changelog()) == 16

    def run_until(self, condition: Callable[[], bool], what: str) -> None:
        with KafkaStreams(self.topology(), self.config) as streams:
            streams.start()
            eventually(lambda: streams.state.name == "ERROR" or condition(), what)
            assert streams.state.name != "ERROR"


@pytest.fixture
def application(bootstrap_servers: str, application_id: str, make_topic: MakeTopic, tmp_path: Path) -> Application:
    return Application(bootstrap_servers, application_id, make_topic, tmp_path)


def headers_of(message: Message) -> Mapping[str, bytes | None]:
    return dict(message.headers() or ())  # type: ignore[arg-type]


@GUARANTEES
@pytest.mark.parametrize(("protocol", "cache_bytes"), [("classic", 0), ("streams", 0), ("classic", 1_000_000)])
def test_a_record_with_a_future_timestamp_causes_no_other_loss(
    application: Application, guarantee: str, protocol: str, cache_bytes: int
) -> None:
    application.config |= {
        "processing.guarantee": guarantee,
        "statestore.cache.max.bytes": cache_bytes,
        "group.protocol": protocol,
    }
    check_no_other_loss(application)


def test_librdkafka_writes_the_other_records_of_a_batch_again(application: Application) -> None:
    """With exactly-once it cannot, because its transaction must be aborted."""
    application.config |= {"penstock.sender": "librdkafka", "processing.guarantee": "at_least_once"}
    check_no_other_loss(application)


def check_no_other_loss(application: Application) -> None:
    application.feed()
    application.run_until(
        lambda: application.is_counted() and len(list(read_to_end(application.bootstrap, application.copy))) == 15,
        "all records are counted, and all but one copied",
    )
    copied = [message.key() for message in read_to_end(application.bootstrap, application.copy)]
    assert copied == [b"k%d" % number for number in range(16) if number != FUTURE]
    times = {f"v{number}": application.now_ms for number in range(16)} | {f"v{FUTURE}": application.future_ms}
    assert application.changelog() == {value: (1, at) for value, at in times.items()}
    (letter,) = read_to_end(application.bootstrap, application.letters)
    assert (letter.key(), letter.value()) == (b"k%d" % FUTURE, b"v%d" % FUTURE)
    headers = headers_of(letter)
    assert headers["n"] == b"%d" % FUTURE
    names = ("topic", "partition", "offset", "timestamp")
    assert [headers[f"__streams.errors.{name}"] for name in names] == [
        application.input.encode(),
        b"0",
        b"%d" % FUTURE,
        b"%d" % application.future_ms,
    ]
    assert b"INVALID_TIMESTAMP" in (headers["__streams.errors.message"] or b"")
    (found,) = DeadLetters(StreamsConfig(application.config)).letters()
    assert found.timestamp == application.future_ms


def test_default_limits_are_removed_from_internal_topics(application: Application, admin: AdminClient) -> None:
    """A Java application created them on a 4.x broker, and has moved to Penstock since."""
    name = application.config["application.id"]
    topics = {f"{name}-counts-repartition": "delete", f"{name}-counts-changelog": "compact"}
    create_topics(admin, *(NewTopic(t, 1, 1, config={"cleanup.policy": policy}) for t, policy in topics.items()))
    application.feed()
    application.run_until(application.is_counted, "all records are counted")
    for topic in topics:
        (described,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        values = described.result(PATIENCE_SECONDS)
        assert {key: values[key].value for key in TIMESTAMP_LIMITS} == TIMESTAMP_LIMITS


def test_a_changelog_record_is_not_skipped(
    application: Application, admin: AdminClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The store has its row already, and would differ from its changelog."""
    name = f"{application.config['application.id']}-counts-changelog"
    chosen = {"cleanup.policy": "compact", "message.timestamp.after.max.ms": str(HOUR_MS)}
    create_topics(admin, NewTopic(name, 1, 1, config=chosen))
    application.feed()
    with KafkaStreams(application.topology(), application.config) as streams:
        streams.start()
        eventually(lambda: streams.state.name == "ERROR", "the application has stopped")
    text = caplog.text
    assert f"topic {name} partition 0" in text
    assert "It cannot be skipped: the store has it already" in text
    assert f"message.timestamp.before.max.ms of topic {name}" in text
