"""Failures around a stream thread: changelogs, topics, state directories and clocks that have changed."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from penstock.clients.cluster.admin import KafkaAdmin
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.network_settings import network_settings
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.errors import HandedOverError, LostOffsetsError, MissingSourceTopicError, StreamsError
from penstock.topology.processor_api import Processor, ProcessorContext, Punctuation
from penstock.topology.records import Record, TopicPartition
from penstock.topology.serdes.serdes import Serdes
from penstock.workers.group.internal_topic_manager import InternalTopicSettings
from penstock.workers.tasks.topic_partition_metadata import SPARK_MARK, TopicPartitionMetadata
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.waiting import wait_for_partitions
from tests.workers.counting import CHANGELOG, IN, OUT, committed, counting, counting_topics, counts, feed
from tests.workers.direct_io import DirectAdmin
from tests.workers.thread_stage import Application

MakeApplication = Callable[..., Application]
TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
HOUR_MS = 3_600_000


@pytest.fixture
def counter(cluster: DirectKafka, application: MakeApplication) -> Application:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    return application(counting())


# -- changelogs


def test_the_error_for_a_changelog_with_another_partition_count_says_what_to_do(
    cluster: DirectKafka, counter: Application
) -> None:
    cluster.create_topic(CHANGELOG, 3)
    with pytest.raises(StreamsError, match=rf"{CHANGELOG} has invalid.*expected: 1; actual: 3.*`penstock reset"):
        counter.thread()


def test_the_error_for_input_that_got_more_partitions_says_what_to_do(
    cluster: DirectKafka, clock: ManualClock, counter: Application
) -> None:
    thread = counter.thread().until_running()
    cluster.add_partitions(cluster.topic(IN), 2)
    clock.advance(300_001)
    with pytest.raises(StreamsError, match=rf"{CHANGELOG} has invalid partitions.*have got more partitions"):
        thread.step(3)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("same_host", [False, True])
def test_a_changelog_deleted_while_nothing_ran_is_refused(
    cluster: DirectKafka, counter: Application, same_host: bool, again: bool
) -> None:
    """As is one that someone has created again; what is on disk is kept."""
    feed(cluster, "aab")
    thread = counter.thread().until_idle()
    thread.commit()
    thread.close()
    directory = thread.thread.task_manager.state_directory.path / "0_0"
    cluster.delete(CHANGELOG)
    if again:
        cluster.create_topic(CHANGELOG, config={"cleanup.policy": "compact"})
    if not same_host:
        shutil.rmtree(directory)
    with pytest.raises(LostOffsetsError, match=f"its changelog {CHANGELOG} was deleted, and with it the state"):
        counter.thread().until_idle()
    assert any(directory.rglob("*.sst")) or not same_host


def test_an_input_without_its_offset_beside_others_is_refused(
    cluster: DirectKafka, application: MakeApplication
) -> None:
    for topic in ("a", "b", OUT):
        cluster.create_topic(topic)
    app = application(counting_topics(["a", "b"], OUT))
    for topic in ("a", "b"):
        cluster.append(topic, 0, b"k", b"v", 1000)
    thread = app.thread().until_idle()
    thread.commit()
    thread.close()
    cluster.forget_commit(TopicPartition("a", 0))
    with pytest.raises(LostOffsetsError, match=r"the committed offset of its input a-0 is gone"):
        app.thread().until_idle()


def test_an_offset_of_a_topic_that_was_created_again_is_refused(cluster: DirectKafka, counter: Application) -> None:
    """The application has committed it after the topic was deleted, so the broker did not delete the offset."""
    feed(cluster, "aab")
    thread = counter.thread().until_idle()
    thread.commit()
    thread.close()
    at = committed(cluster)
    assert at is not None
    cluster.delete(IN)
    cluster.create_topic(IN)
    cluster.commit(TopicPartition(IN, 0), at.offset, at.metadata)
    feed(cluster, "aabb")
    with pytest.raises(LostOffsetsError, match="its input in was deleted and created again"):
        counter.thread().until_idle()


def test_a_changelog_deleted_while_nothing_ran_is_recreated_if_the_user_accepts_this(
    cluster: DirectKafka, counter: Application, caplog: pytest.LogCaptureFixture
) -> None:
    feed(cluster, "aab")
    thread = counter.thread().until_idle()
    thread.commit()
    thread.close()
    cluster.delete(CHANGELOG)
    feed(cluster, "a")
    counter.config["penstock.lost.offsets"] = "accept"
    counter.thread().until_idle().commit()
    assert f"{CHANGELOG}-0 cannot be used" in caplog.text
    assert "but the changelog holds offsets 0 to 0" in caplog.text
    assert counts(cluster)["a"] == 1, "what was counted is lost with the changelog, and the log has said so"


def test_an_application_that_spark_runs_is_refused_on_any_host(cluster: DirectKafka, counter: Application) -> None:
    feed(cluster, "aab")
    counter.thread().until_idle().close()
    at = committed(cluster)
    assert at is not None
    marked = TopicPartitionMetadata(5, {SPARK_MARK: 7}).encode()
    cluster.commit(TopicPartition(IN, 0), at.offset, marked)
    with pytest.raises(HandedOverError, match=r"handed over to Spark, says the group app:.*handover --to local"):
        counter.thread().until_running()


def test_the_error_names_a_source_topic_that_is_deleted_while_it_is_read(
    cluster: DirectKafka, counter: Application
) -> None:
    thread = counter.thread().until_running()
    cluster.delete(IN)
    with pytest.raises(MissingSourceTopicError, match="The topic in does not exist"):
        thread.step(3)


@pytest.mark.parametrize(
    ("actual", "needed", "told"),
    [
        ("compact", "compact", None),
        ("delete", "compact", "older than the topic's retention is lost"),
        ("compact,delete", "compact", "not changed within the topic's retention is lost"),
        ("delete", "compact,delete", "older than the topic's retention is lost"),
        ("compact", "compact,delete", None),
        ("delete", "delete", None),
        ("compact", "delete", "records are lost before they are read"),
    ],
)
def test_the_warning_about_a_cleanup_policy_that_loses_data_has_the_command_that_fixes_it(
    cluster: DirectKafka, caplog: pytest.LogCaptureFixture, actual: str, needed: str, told: str | None
) -> None:
    cluster.create_topic("app-x", config={"cleanup.policy": actual})
    policies = InternalTopicSettings(DirectAdmin(cluster), "broker:9092", PrefixedLogger("penstock.test", ""))
    policies.check({"app-x": needed})
    policies.check({"app-x": needed})
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == (told is not None), "told once"
    for line in lines:
        assert told is not None
        assert told in line
        command = "kafka-configs --bootstrap-server broker:9092 --alter --entity-type topics --entity-name app-x"
        assert line.endswith(f"{command} --add-config cleanup.policy=[{needed}]")


def test_a_cleanup_policy_that_could_not_be_read_is_requested_again(
    cluster: DirectKafka, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic("app-x", config={"cleanup.policy": "delete"})
    cluster.refuse("DescribeConfigs", "UNKNOWN_TOPIC_OR_PARTITION", times=1)  # this broker does not have it yet
    policies = InternalTopicSettings(DirectAdmin(cluster), "broker:9092", PrefixedLogger("penstock.test", ""))
    for told in (0, 1, 1):
        policies.check({"app-x": "compact"})
        assert caplog.text.count("Internal topic app-x has cleanup.policy=delete") == told


def test_internal_topics_have_the_right_cleanup_policy(
    cluster: DirectKafka, counter: Application, caplog: pytest.LogCaptureFixture
) -> None:
    counter.thread().until_running().close()
    assert "cleanup.policy" not in caplog.text
    cluster.topic(CHANGELOG).config["cleanup.policy"] = "delete"
    counter.thread().until_running()
    assert f"Internal topic {CHANGELOG} has cleanup.policy=delete instead of compact" in caplog.text


@pytest.mark.broker
def test_a_broker_returns_the_cleanup_policy(
    admin: AdminClient, bootstrap_servers: str, make_topic: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    good = make_topic("good", config={"cleanup.policy": "compact"})
    bad = make_topic("bad", config={"cleanup.policy": "delete"})
    for topic in (good, bad):
        wait_for_partitions(admin, topic, 1)
    with closing(KafkaAdmin(network_settings({"bootstrap.servers": bootstrap_servers}))) as asking:
        policies = InternalTopicSettings(asking, "broker:9092", PrefixedLogger("penstock.test", ""))
        policies.check({good: "compact", bad: "compact", "no-such-topic": "compact"})
    (record,) = (record for record in caplog.records if record.levelno >= logging.WARNING)
    assert bad in record.getMessage()


# -- state directories


def other_topology() -> Any:
    """The same input with another store, of another kind."""
    builder = StreamsBuilder()
    stream = builder.stream(IN, **TEXT)
    stream.group_by_key().reduce(lambda old, new: new, store="newest").to_stream().to(OUT, **TEXT)
    return builder.build()


def test_the_state_directory_of_another_topology_is_not_used(
    cluster: DirectKafka, counter: Application, application: MakeApplication
) -> None:
    feed(cluster, "ab")
    thread = counter.thread().until_idle()
    thread.commit()
    thread.close()
    cluster.forget_commits()
    other = application(other_topology()).thread().until_idle()
    other.commit()
    assert cluster.table(OUT)[b"a"] == b"value"
    other.close()
    back = counter.thread().until_idle()  # its own store is in its old place
    feed(cluster, "a")
    back.step(3).commit()
    assert counts(cluster, CHANGELOG)["a"] == 2


def test_a_state_directory_that_was_deleted_is_restored(
    cluster: DirectKafka, counter: Application, tmp_path: Path
) -> None:
    feed(cluster, "aa")
    thread = counter.thread().until_idle()
    thread.commit()
    thread.close()
    shutil.rmtree(tmp_path / "app")
    feed(cluster, "a")
    counter.thread().until_idle().commit()
    assert counts(cluster)["a"] == 3


# -- clocks that jump


class Ticks(Processor[Any, Any, Any, Any]):
    """Records the wall-clock punctuations."""

    seen: list[int]

    def init(self, context: ProcessorContext) -> None:
        context.schedule(60_000, Punctuation.WALL_CLOCK_TIME, self.seen.append)

    def process(self, record: Record[Any, Any]) -> None:
        pass


@pytest.mark.parametrize("jump_ms", [10 * HOUR_MS, -10 * HOUR_MS])
def test_commits_and_membership_do_not_depend_on_the_wall_clock(
    cluster: DirectKafka, clock: ManualClock, counter: Application, jump_ms: int
) -> None:
    thread = counter.thread().until_idle()
    feed(cluster, "a")
    thread.step(3)
    clock.epoch_ms += jump_ms
    thread.step(3)
    assert committed(cluster) is None, "a jump is no commit interval"
    clock.advance(30_001)
    thread.step(3)
    offset = committed(cluster)
    assert offset is not None
    assert offset.offset == 1
    assert thread.is_running
    assert not thread.member.poll()


def ticking(application: MakeApplication, cluster: DirectKafka) -> tuple[Any, list[int]]:
    cluster.create_topic(IN, 1)
    seen: list[int] = []
    builder = StreamsBuilder()
    builder.stream(IN, **TEXT).process(type("Ticking", (Ticks,), {"seen": seen}))
    return application(builder.build()).thread().until_running(), seen


def test_a_wall_clock_that_jumps_forward_punctuates_once_and_continues(
    cluster: DirectKafka, clock: ManualClock, application: MakeApplication
) -> None:
    thread, seen = ticking(application, cluster)
    clock.epoch_ms += 10 * HOUR_MS
    thread.step(3)
    assert len(seen) == 1, "not once for each minute that never was"
    clock.advance(60_000)
    thread.step(2)
    assert len(seen) == 2


def test_a_wall_clock_that_is_set_back_punctuates_again_once_it_has_caught_up(
    cluster: DirectKafka, clock: ManualClock, application: MakeApplication
) -> None:
    thread, seen = ticking(application, cluster)
    clock.epoch_ms -= HOUR_MS
    clock.advance(60_001)
    thread.step(2)
    assert not seen  # as in Kafka Streams: the schedule follows the wall clock
    clock.epoch_ms += HOUR_MS
    thread.step(2)
    assert len(seen) == 1


# -- return values of users' functions


class Marking(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record.with_headers([("source", "thread"), ("raw", b"\x00")]))


def test_headers_are_converted_as_by_the_test_driver(cluster: DirectKafka, application: MakeApplication) -> None:
    """tests/operators/test_headers.py has the test driver's part."""
    for topic in (IN, OUT):
        cluster.create_topic(topic, 1)
    builder = StreamsBuilder()
    builder.stream(IN, **TEXT).process(Marking).to(OUT, **TEXT)
    feed(cluster, "a")
    application(builder.build()).thread().until_idle().close()
    (record,) = cluster.records(OUT)
    assert record.headers() == [("source", b"thread"), ("raw", b"\x00")]


@pytest.mark.parametrize("found", [(1, 1000), None, 1.5])
def test_the_error_names_an_extractor_that_returns_no_timestamp(
    cluster: DirectKafka, application: MakeApplication, found: Any
) -> None:
    for topic in (IN, OUT):
        cluster.create_topic(topic, 1)
    builder = StreamsBuilder()
    builder.stream(IN, timestamp_extractor=lambda *_: found, **TEXT).to(OUT, **TEXT)
    feed(cluster, "a")
    where = r"TimestampExtractor callback of source KSTREAM-SOURCE-\d+ for the record of in-0 at offset 0: "
    with pytest.raises(StreamsError, match=where + ".*a timestamp is an int"):
        application(builder.build()).thread().until_idle()
