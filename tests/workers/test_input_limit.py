"""A stream thread that reads its source topics only up to given offsets: what it processes, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.records import TopicPartition
from penstock.topology.serdes.serdes import Serdes
from penstock.workers.control.messages import CommandResult, LimitInput
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.counting import CHANGELOG, IN, OUT, committed, counting, counts, feed
from tests.workers.thread_stage import Application, Thread

LIMIT_MS = 2_000
IN_0 = TopicPartition(IN, 0)
MakeApplication = Callable[..., Application]


@pytest.fixture(params=["at_least_once", "exactly_once_v2"])
def counter(cluster: DirectKafka, application: MakeApplication, request: pytest.FixtureRequest) -> Application:
    for topic in (IN, OUT, CHANGELOG):
        cluster.create_topic(topic, 1)
    return application(counting(), processing_guarantee=request.param, commit_interval_ms=100)


def limit(thread: Thread, offset: int) -> None:
    thread.control.commands.append(LimitInput(1, {IN_0: offset}, LIMIT_MS))
    thread.step()
    assert CommandResult(1) in thread.control.reports


def test_records_before_the_limit_are_processed_and_committed(counter: Application, cluster: DirectKafka) -> None:
    thread = counter.thread().until_running()
    limit(thread, 3)
    feed(cluster, "aabbb")
    thread.step(3).commit()
    at = committed(cluster)
    assert at is not None
    assert (counts(cluster), at.offset) == ({"a": 2, "b": 1}, 3)


def test_a_limit_is_raised_and_ends_with_its_time(
    counter: Application, cluster: DirectKafka, clock: ManualClock
) -> None:
    thread = counter.thread().until_running()
    limit(thread, 1)
    feed(cluster, "abc")
    thread.step(3)
    thread.commit()
    assert counts(cluster) == {"a": 1}
    clock.advance(LIMIT_MS - 500)
    limit(thread, 2)
    clock.advance(LIMIT_MS - 500)
    thread.step(3).commit()
    assert counts(cluster) == {"a": 1, "b": 1}
    clock.advance(500)
    thread.step(3).commit()
    assert counts(cluster) == {"a": 1, "b": 1, "c": 1}


def test_a_task_does_not_wait_for_records_behind_a_limit(cluster: DirectKafka, application: MakeApplication) -> None:
    """With max.task.idle.ms a task waits for inputs that have records on the broker; those behind a limit are none."""
    for topic in (IN, "more", OUT):
        cluster.create_topic(topic, 1)
    builder = StreamsBuilder()
    text: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
    builder.stream(IN, **text).merge(builder.stream("more", **text)).to(OUT, **text)
    thread = application(builder.build(), max_task_idle_ms=0).thread().until_running()
    thread.control.commands.append(LimitInput(1, {IN_0: 1, TopicPartition("more", 0): 3}, LIMIT_MS))
    thread.step()
    feed(cluster, "abc")
    for number in range(3):
        cluster.append("more", 0, b"m", str(number).encode(), 5_000 + number)
    thread.step(4).commit()
    positions = {topic: cluster.committed(TopicPartition(topic, 0)) for topic in (IN, "more")}
    assert {topic: at.offset for topic, at in positions.items() if at is not None} == {IN: 1, "more": 3}
