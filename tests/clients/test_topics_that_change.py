"""Topics that are deleted and recreated while an application runs."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.clients.application import Application, Topics, wait_for_values
from tests.clients.conftest import MakeApplication, MakeTopic
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_a_sink_that_is_recreated_with_fewer_partitions_is_written_to(
    topics: Topics, run: MakeApplication, make_topic: MakeTopic
) -> None:
    source, sink = make_topic("in"), make_topic("out", partitions=4)
    application = run("copy", source, sink, topics.bootstrap_servers)
    before, after = ([f"{when} {number}" for number in range(40)] for when in ("before", "after"))
    topics.write(source, before)
    wait_for_values(application, topics, sink, before)
    topics.delete(sink)
    topics.create(sink, partitions=2)
    topics.write(source, after)
    wait_for_values(application, topics, sink, after, repeated=[*before, *after])


def test_a_source_that_is_recreated_with_a_longer_log_is_read_from_its_beginning(
    topics: Topics, run: MakeApplication, make_topic: MakeTopic
) -> None:
    """The position in the old log is a valid offset of the new one, but of another record."""
    source, sink = make_topic("in"), make_topic("out")
    old = [*(f"0 old {number}" for number in range(99)), "6 slow"]
    application = run("slow", source, sink, topics.bootstrap_servers, auto_offset_reset="earliest")
    topics.write(source, old)
    application.wait_until_begun("6 slow")
    topics.delete(source)
    topics.create(source)
    new = [f"0 new {number}" for number in range(300)]
    topics.write(source, new)
    wait_for_values(application, topics, sink, [*old, *new])


def test_a_topic_in_a_fetch_session_with_a_recreated_one_continues_to_be_read(
    topics: Topics, run: MakeApplication, make_topic: MakeTopic
) -> None:
    """Both have the same leader, hence one session, in which the recreated topic has another id now."""
    changed, other, sink = make_topic("changed"), make_topic("other"), make_topic("out")
    application = run("copy", f"{changed},{other}", sink, topics.bootstrap_servers, auto_offset_reset="earliest")
    first = [*(f"old {number}" for number in range(100)), *(f"other {number}" for number in range(10))]
    topics.write(changed, first[:100])
    topics.write(other, first[100:])
    wait_for_values(application, topics, sink, first)
    topics.delete(changed)
    while_deleted = [f"deleted {number}" for number in range(10)]
    topics.write(other, while_deleted)
    wait_for_values(application, topics, sink, [*first, *while_deleted])
    topics.create(changed)
    new, beside = [f"new {number}" for number in range(300)], [f"beside {number}" for number in range(10)]
    topics.write(changed, new)
    topics.write(other, beside)
    wait_for_values(application, topics, sink, [*first, *while_deleted, *new, *beside])
    eventually(lambda: committed(topics, application, changed) == len(new), "the offset is one of the new topic's")


def committed(topics: Topics, application: Application, topic: str) -> int:
    """Return the committed offset of a topic's only partition."""
    consumer = Consumer({"bootstrap.servers": topics.bootstrap_servers, "group.id": application.application_id})
    try:
        return int(consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_SECONDS)[0].offset)
    finally:
        consumer.close()
