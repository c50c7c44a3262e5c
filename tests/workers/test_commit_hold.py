"""A stream thread that holds at a commit: what it commits, that it processes nothing, and what ends the hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.records import TopicPartition
from penstock.topology.serdes.serdes import Serdes
from penstock.workers.control.messages import CommandResult, EndHold, HeldTasks, HoldAtCommit
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.counting import CHANGELOG, IN, OUT, committed, counting, counts, feed
from tests.workers.thread_stage import Application, Thread

HOLD = 7
LIMIT_MS = 2_000
MakeApplication = Callable[..., Application]


@pytest.fixture(params=["at_least_once", "exactly_once_v2"])
def counter(cluster: DirectKafka, application: MakeApplication, request: pytest.FixtureRequest) -> Application:
    for topic in (IN, OUT, CHANGELOG):
        cluster.create_topic(topic, 2)
    return application(counting(), processing_guarantee=request.param, commit_interval_ms=100)


@pytest.fixture
def thread(counter: Application, cluster: DirectKafka) -> Thread:
    counted = counter.thread()
    feed(cluster, "aab")
    return counted.until_idle()


def answer(thread: Thread, command: Any) -> CommandResult:
    """Send a command, and return the answer to it."""
    thread.control.commands.append(command)
    thread.step()
    found = [each for each in thread.control.reports if isinstance(each, CommandResult) and each.id == command.id]
    assert len(found) == 1
    return found[0]


def hold(thread: Thread) -> HeldTasks:
    result = answer(thread, HoldAtCommit(1, HOLD, LIMIT_MS))
    assert result.error is None
    held: HeldTasks = result.value
    return held


def test_a_hold_begins_with_a_commit_of_all_tasks(thread: Thread, cluster: DirectKafka) -> None:
    held = hold(thread)
    assert held.tasks == ("0_0", "0_1")
    positions = [at.offset for partition in (0, 1) if (at := committed(cluster, partition)) is not None]
    assert positions == [3, 0]  # of the partition without records, too
    (topics,) = held.topics.values()
    assert (topics.sources, topics.repartition, topics.changelogs) == ((IN,), (), (CHANGELOG,))
    assert (topics.sinks, topics.outside) == ((OUT,), ())


def test_nothing_is_processed_or_committed_until_the_hold_ends(
    thread: Thread, cluster: DirectKafka, clock: ManualClock
) -> None:
    hold(thread)
    feed(cluster, "cc")
    clock.advance(LIMIT_MS - 500)
    thread.step(3)
    before = committed(cluster)
    assert before is not None
    assert (counts(cluster), before.offset) == ({"a": 2, "b": 1}, 3)
    assert answer(thread, EndHold(2, HOLD)).value is None
    thread.step(3).commit()
    after = committed(cluster)
    assert after is not None
    assert (counts(cluster), after.offset) == ({"a": 2, "b": 1, "c": 2}, 5)


def test_a_thread_continues_by_itself_when_the_time_is_over(
    thread: Thread, cluster: DirectKafka, clock: ManualClock
) -> None:
    hold(thread)
    feed(cluster, "c")
    clock.advance(LIMIT_MS + 1)
    thread.step(3).commit()
    assert counts(cluster) == {"a": 2, "b": 1, "c": 1}
    assert "the time limit was over" in answer(thread, EndHold(2, HOLD)).value


def test_a_rebalance_ends_a_hold(thread: Thread, counter: Application, cluster: DirectKafka) -> None:
    hold(thread)
    other = counter.thread(slot=2)
    other.step()
    for _ in range(10):
        thread.step()
        other.step()
    assert "the group has rebalanced" in answer(thread, EndHold(2, HOLD)).value


def test_only_one_hold_at_a_time(thread: Thread) -> None:
    hold(thread)
    assert "hold already" in (answer(thread, HoldAtCommit(2, 8, LIMIT_MS)).error or "")
    assert "replaced" in answer(thread, EndHold(3, 8)).value
    assert answer(thread, EndHold(4, HOLD)).value is None


def test_a_thread_whose_tasks_are_not_there_yet_refuses(counter: Application) -> None:
    thread = counter.thread()
    result = answer(thread, HoldAtCommit(1, HOLD, LIMIT_MS))
    assert "being assigned or restored" in (result.error or "")
    thread.until_running()
    assert "replaced" in answer(thread, EndHold(2, HOLD)).value


def test_a_commit_that_fails_is_the_answer(thread: Thread, cluster: DirectKafka) -> None:
    feed(cluster, "c")
    cluster.delete(OUT)
    thread.step(2)
    thread.control.commands.append(HoldAtCommit(1, HOLD, LIMIT_MS))
    with pytest.raises(Exception, match=OUT):
        thread.step(3)
    (result,) = [each for each in thread.control.reports if isinstance(each, CommandResult)]
    assert OUT in (result.error or "")
    assert cluster.committed(TopicPartition(IN, 0)) is None or not thread.hold.is_active


def test_a_hold_does_not_wait_for_all_fetched_records(cluster: DirectKafka, application: MakeApplication) -> None:
    """They may take long: another thread that holds already waits meanwhile."""
    for topic in (IN, OUT):
        cluster.create_topic(topic, 1)
    seen: list[str] = []

    def slow(value: str) -> str:
        seen.append(value)
        if len(seen) == 3:
            running.control.commands.append(HoldAtCommit(1, HOLD, LIMIT_MS))
        return value

    builder = StreamsBuilder()
    text: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
    builder.stream(IN, **text).map_values(slow).to(OUT, **text)
    running = application(builder.build()).thread().until_running()
    feed(cluster, "a" * 500)
    running.until(lambda: running.hold.is_active)
    at = committed(cluster)
    assert at is not None
    assert at.offset == len(seen) < 50
