"""A group whose committed offsets are gone, although its application still has state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from broker_stage import Counting
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.topics import create_topics, delete_topics
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker

ROUNDS = 3
GUARANTEES = pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])


@pytest.fixture
def counting(bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path) -> Counting:
    topics = make_topic("in", partitions=8), make_topic("out", partitions=8)
    return Counting(bootstrap_servers, application_id, *topics, tmp_path / "state")


def count_then_delete_group(counting: Counting, admin: AdminClient) -> None:
    counting.produce(ROUNDS)
    with counting.streams(1) as streams:
        streams.start()
        counting.wait_for_all_counts()
        streams.close(leave_group=True)
    group = str(counting.config["application.id"])
    eventually(
        lambda: admin.delete_consumer_groups([group])[group].exception(PATIENCE_SECONDS) is None,
        "the group is empty and deleted",
    )


@GUARANTEES
def test_an_application_with_state_does_not_count_its_input_again(
    counting: Counting, admin: AdminClient, guarantee: str, caplog: pytest.LogCaptureFixture
) -> None:
    counting.config["processing.guarantee"] = guarantee
    count_then_delete_group(counting, admin)
    with counting.streams(1) as streams:
        streams.start()
        eventually(lambda: streams.state.name == "ERROR", "the application is refused")
    assert "has no committed offset of its input" in caplog.text
    assert "penstock reset MODULE:TOPOLOGY --execute" in caplog.text
    assert counting.counted() == counting.expected


def test_it_counts_again_if_the_user_accepts_this(counting: Counting, admin: AdminClient) -> None:
    counting.config["penstock.lost.offsets"] = "accept"
    count_then_delete_group(counting, admin)
    counting.expected.update(counting.expected)
    with counting.streams(1) as streams:
        streams.start()
        counting.wait_for_all_counts()


@GUARANTEES
@pytest.mark.parametrize("protocol", ["classic", pytest.param("streams", marks=pytest.mark.slow)])
def test_a_changelog_that_is_gone_does_not_end_the_state_on_disk(
    counting: Counting, admin: AdminClient, guarantee: str, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    counting.config |= {"processing.guarantee": guarantee, "group.protocol": protocol}
    counting.produce(ROUNDS)
    with counting.streams(1) as streams:
        streams.start()
        counting.wait_for_all_counts()
    delete_topics(admin, f"{counting.config['application.id']}-counts-changelog")
    counting.produce(1)
    with counting.streams(1) as streams:
        streams.start()
        eventually(lambda: streams.state.name == "ERROR", "the application is refused")
    assert "was deleted, and with it the state" in caplog.text
    assert counting.counted() == dict.fromkeys(counting.expected, ROUNDS)


def test_an_offset_of_an_input_that_was_created_again_is_refused(
    counting: Counting, admin: AdminClient, caplog: pytest.LogCaptureFixture
) -> None:
    counting.produce(ROUNDS)
    with counting.streams(1) as streams:
        streams.start()
        counting.wait_for_all_counts()
        streams.close(leave_group=True)
    group = str(counting.config["application.id"])

    def committed() -> list[TopicPartition]:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
        return [at for at in asked.result(PATIENCE_SECONDS).topic_partitions if at.offset >= 0]

    offsets = committed()
    delete_topics(admin, counting.source)
    eventually(lambda: not committed(), "the broker has deleted the offsets, too")
    create_topics(admin, NewTopic(counting.source, 8, 1))
    given = [ConsumerGroupTopicPartitions(group, offsets)]

    def is_altered() -> bool:
        done = admin.alter_consumer_group_offsets(given)[group].result(PATIENCE_SECONDS)
        return all(at.error is None for at in done.topic_partitions)  # not while its members are known

    eventually(is_altered, "the old offsets are those of the new topic")
    counting.produce(2 * ROUNDS)
    with counting.streams(1) as streams:
        streams.start()
        eventually(lambda: streams.state.name == "ERROR", "the application is refused")
    assert f"its input {counting.source} was deleted and created again" in caplog.text


@pytest.mark.slow
@GUARANTEES
def test_state_that_exists_only_in_changelogs_is_detected(
    counting: Counting, admin: AdminClient, tmp_path: Path, guarantee: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With at-least-once, a crash before the first commit looks the same, and must not end an application."""
    counting.config["processing.guarantee"] = guarantee
    count_then_delete_group(counting, admin)
    counting.config["state.dir"] = str(tmp_path / "another host")
    with counting.streams(1) as streams:
        streams.start()
        eventually(lambda: "has no committed offset of its input" in caplog.text, "a line says it")
        if guarantee == "exactly_once_v2":
            eventually(lambda: streams.state.name == "ERROR", "the application is refused")
            return
        counting.expected.update(counting.expected)
        counting.wait_for_all_counts()
    assert "records that the state contains are processed again" in caplog.text
