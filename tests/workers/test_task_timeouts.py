"""task.timeout.ms: operations that brokers do not answer in time are retried; only after the timeout it is an error."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any

import pytest

from penstock.clients.errors import UnreachableError
from penstock.clients.group.membership import CommitTimeoutError
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.errors import BrokerUnavailableError, StreamsError, TaskTimeoutError
from penstock.topology.processor_api import Processor, ProcessorContext
from penstock.topology.records import Record, TaskId, TopicPartition
from penstock.topology.serdes.serdes import Serdes
from penstock.workers.tasks.sink_topics import PARTITION_COUNT_MS
from penstock.workers.tasks.task_timeouts import TaskTimeouts
from tests.direct_kafka import DirectKafka
from tests.futures import failed
from tests.manual_clock import ManualClock
from tests.workers.counting import IN, OUT, committed, counting, counts, feed
from tests.workers.thread_stage import Application, Thread

TIMEOUT_MS = 300_000
LONG_AGO = BrokerUnavailableError("No answer from anybody.")
ZERO, ONE = TaskId(0, 0), TaskId(0, 1)
TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


# -- the deadlines


@pytest.fixture
def timeouts(clock: ManualClock) -> TaskTimeouts:
    return TaskTimeouts(TIMEOUT_MS, clock, PrefixedLogger("penstock.test", ""))


def test_an_operation_may_fail_until_the_timeout_has_passed(timeouts: TaskTimeouts, clock: ManualClock) -> None:
    timeouts.failed([ZERO], "committing", LONG_AGO)
    clock.advance(TIMEOUT_MS - 1)
    timeouts.failed([ZERO], "committing", LONG_AGO)
    clock.advance(1)
    with pytest.raises(TaskTimeoutError) as raised:
        timeouts.failed([ZERO], "committing", LONG_AGO)
    assert raised.value.task_id == ZERO
    assert raised.value.__cause__ is LONG_AGO
    assert str(raised.value) == (
        "Task 0_0 did not make progress within 300000 ms (task.timeout.ms=300000): committing fails: No answer from "
        "anybody. Check the brokers and the network between; if brokers may be away for longer, raise task.timeout.ms."
    )


def test_success_restarts_the_timeout(timeouts: TaskTimeouts, clock: ManualClock) -> None:
    ways: list[Callable[[], None]] = [
        lambda: timeouts.succeeded([ZERO], "committing"),
        lambda: timeouts.succeeded([ZERO]),
    ]
    for succeeded in ways:
        timeouts.failed([ZERO], "committing", LONG_AGO)
        clock.advance(TIMEOUT_MS - 1)
        succeeded()
        clock.advance(TIMEOUT_MS)
        timeouts.failed([ZERO], "committing", LONG_AGO)
        timeouts.succeeded([ZERO])


def test_each_task_and_operation_has_its_own_timeout(timeouts: TaskTimeouts, clock: ManualClock) -> None:
    timeouts.failed([ZERO], "committing", LONG_AGO)
    clock.advance(TIMEOUT_MS)
    timeouts.succeeded([ZERO], "reading")
    timeouts.failed([ONE], "committing", LONG_AGO)
    timeouts.failed([ZERO], "reading", LONG_AGO)
    with pytest.raises(TaskTimeoutError, match="Task 0_0"):
        timeouts.failed([ONE, ZERO], "committing", LONG_AGO)


def test_only_the_first_failure_is_logged(
    timeouts: TaskTimeouts, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        timeouts.failed([ZERO, ONE], "committing", LONG_AGO)
        clock.advance(1)
    assert [r.getMessage() for r in caplog.records] == [
        "Committing of tasks [0_0, 0_1] failed and is tried again, for 300000 ms at most (task.timeout.ms): No answer "
        "from anybody."
    ]


def test_without_a_timeout_the_first_failure_is_an_error(clock: ManualClock) -> None:
    with pytest.raises(TaskTimeoutError):
        TaskTimeouts(0, clock, PrefixedLogger("penstock.test", "")).failed([ZERO], "committing", LONG_AGO)


# -- in a stream thread


@pytest.fixture
def thread(cluster: DirectKafka, application: Callable[..., Application]) -> Thread:
    """A counter that has joined its group, and has not opened a task yet."""
    cluster.create_topic(IN, 2)
    cluster.create_topic(OUT, 1)
    feed(cluster, "ab", 0)
    feed(cluster, "c", 1)
    return application(counting(), task_timeout_ms=TIMEOUT_MS).thread()


class Outage:
    """Makes a method of an object raise, or do something else, while it lasts; bad: the affected arguments."""

    def __init__(
        self,
        target: Any,
        method: str,
        error: Exception | Callable[..., Any],
        bad: Callable[..., bool] = lambda *_, **__: True,
    ) -> None:
        self.lasts = True
        self.calls = 0
        good = getattr(target, method)

        def call(*arguments: Any, **options: Any) -> Any:
            if self.lasts and bad(*arguments, **options):
                self.calls += 1
                if not isinstance(error, Exception):
                    return error(*arguments, **options)
                raise error
            return good(*arguments, **options)

        setattr(target, method, call)


def silence() -> UnreachableError:
    return UnreachableError("no answer")


def unanswered(timestamps: Collection[TopicPartition], *_: Any) -> dict[TopicPartition, Future[Any]]:
    """Behave as Admin.offsets when no leader responds in time."""
    return {partition: failed(silence()) for partition in timestamps}


def admin_of(thread: Thread) -> Any:
    return thread.supplier.made[f"{thread.name}-admin"]


def until_error(thread: Thread, clock: ManualClock) -> TaskTimeoutError:
    """Run for the timeout, and no longer."""
    deadline = clock.now_ms + TIMEOUT_MS + 60_000
    while clock.now_ms < deadline:
        try:
            thread.step()
        except TaskTimeoutError as error:
            return error
        clock.advance(5_000)
    raise AssertionError("no error, although the timeout has passed")


def reading_partition_1(partitions: Collection[TopicPartition]) -> bool:
    return TopicPartition(IN, 1) in partitions


def test_a_task_without_committed_offsets_waits_while_others_run(
    cluster: DirectKafka, clock: ManualClock, thread: Thread
) -> None:
    outage = Outage(thread.member, "read_committed", LONG_AGO, reading_partition_1)
    thread.step(20)
    assert outage.calls > 1
    assert thread.task_manager.active.running.keys() == {ZERO}
    thread.commit()
    assert counts(cluster) == {"a": 1, "b": 1}
    outage.lasts = False
    thread.until_idle().commit()
    assert counts(cluster) == {"a": 1, "b": 1, "c": 1}


def test_the_error_names_a_task_whose_committed_offsets_time_out(clock: ManualClock, thread: Thread) -> None:
    Outage(thread.member, "read_committed", LONG_AGO, reading_partition_1)
    error = until_error(thread, clock)
    assert error.task_id == ONE
    assert "opening the stores fails: No answer from anybody." in str(error)


def test_failures_from_before_a_task_moved_away_do_not_count(clock: ManualClock, thread: Thread) -> None:
    outage = Outage(thread.member, "read_committed", LONG_AGO, reading_partition_1)
    thread.until(lambda: outage.calls)
    thread.member.evict()
    thread.until(lambda: not thread.task_manager.active.all_tasks())
    clock.advance(TIMEOUT_MS)
    calls = outage.calls
    thread.until(lambda: outage.calls > calls)  # without TaskTimeoutError
    outage.lasts = False
    thread.until_running()


def test_a_position_that_cannot_be_determined_is_requested_again(
    cluster: DirectKafka, clock: ManualClock, thread: Thread
) -> None:
    def bad(asked: Collection[TopicPartition], *_: Any) -> bool:
        return TopicPartition(IN, 1) in asked

    outage = Outage(admin_of(thread), "offsets", unanswered, bad)
    thread.step(20)
    assert thread.task_manager.active.running.keys() == {ZERO}
    assert "in-1" in str(until_error(thread, clock))
    outage.lasts = False
    thread.until_idle().commit()
    assert counts(cluster) == {"a": 1, "b": 1, "c": 1}


def test_a_resumed_task_waits_for_its_offsets_too(cluster: DirectKafka, thread: Thread) -> None:
    thread.until_idle().commit()
    manager = thread.task_manager
    manager.active.suspend([ONE])
    outage = Outage(thread.member, "read_committed", LONG_AGO)
    manager.active.maybe_resume_suspended_task(ONE, {TopicPartition(IN, 1)})
    assert ONE not in manager.active.running
    outage.lasts = False
    feed(cluster, "c", 1)
    thread.until(lambda: ONE in manager.active.running).until_idle().commit()
    assert counts(cluster)["c"] == 2


def test_a_task_that_cannot_be_opened_is_retried_until_the_timeout_error_names_it(
    cluster: DirectKafka, clock: ManualClock, application: Callable[..., Application]
) -> None:
    """With exactly-once: a transaction may block the offsets of its input, which are requested before it is opened."""
    cluster.create_topic(IN, 2)
    cluster.create_topic(OUT, 1)
    feed(cluster, "ab", 0)
    feed(cluster, "c", 1)
    thread = application(counting(), task_timeout_ms=TIMEOUT_MS, processing_guarantee="exactly_once_v2").thread()
    outage = Outage(thread.member, "read_committed", LONG_AGO, reading_partition_1)
    thread.step(20)
    assert thread.task_manager.active.running.keys() == {ZERO}
    assert thread.task_manager.active.created.keys() == {ONE}
    assert "opening the stores fails: No answer from anybody." in str(until_error(thread, clock))
    outage.lasts = False
    thread.until_idle().commit()
    assert counts(cluster) == {"a": 1, "b": 1, "c": 1}


def test_a_source_topic_as_changelog_is_restored_once_its_offsets_are_known(
    cluster: DirectKafka, clock: ManualClock, application: Callable[..., Application]
) -> None:
    cluster.create_topic(IN, 1)
    feed(cluster, "abc")
    builder = StreamsBuilder()
    builder.table(IN, **TEXT, store="rows")
    topology = builder.build({"topology.optimization": "all"})
    made = application(topology, task_timeout_ms=TIMEOUT_MS, topology_optimization="all")
    thread = made.thread()
    outage = Outage(thread.thread.changelog_reader, "committed", LONG_AGO)
    thread.step(20)
    assert thread.is_running
    assert thread.task_manager.active.restoring.keys() == {ZERO}
    assert "serves as changelog fails: No answer from anybody." in str(until_error(thread, clock))
    outage.lasts = False
    thread.until_running()


def test_a_rebalance_without_topic_metadata_leaves_the_tasks_running(
    cluster: DirectKafka, clock: ManualClock, thread: Thread
) -> None:
    thread.until_idle().commit()
    outage = Outage(admin_of(thread), "describe", silence())
    thread.thread.group.enforce_rebalance("test")
    thread.step(3)
    feed(cluster, "ab", 0)
    for _ in range(10):
        clock.advance(1_000)
        thread.step()
    assert outage.calls > 1
    thread.commit()
    assert counts(cluster) == {"a": 2, "b": 2, "c": 1}  # while it waits for the brokers
    assert "making topics ready for a rebalance fails" in str(until_error(thread, clock))
    outage.lasts = False
    clock.advance(1_000)
    thread.step(3).until_running()
    assert not thread.task_manager.commits.rebalance_in_progress


def test_a_failed_commit_is_retried_and_duplicates_nothing(
    cluster: DirectKafka, clock: ManualClock, thread: Thread
) -> None:
    thread.until_idle()
    outage = Outage(thread.member, "commit", CommitTimeoutError("Not accepted in time."))
    for _ in range(5):
        clock.advance(40_000)
        thread.step()
    assert committed(cluster) is None
    outage.lasts = False
    feed(cluster, "a")
    thread.step(3).commit()
    offset = committed(cluster)
    assert offset is not None
    assert offset.offset == 3
    assert counts(cluster) == {"a": 2, "b": 1, "c": 1}


def test_commits_that_fail_for_too_long_are_an_error(clock: ManualClock, thread: Thread) -> None:
    thread.until_idle()
    Outage(thread.member, "commit", CommitTimeoutError("Not accepted in time."))
    clock.advance(40_000)
    assert "committing fails: Not accepted in time." in str(until_error(thread, clock))


def test_a_rebalance_during_a_commit_is_no_timeout(cluster: DirectKafka, clock: ManualClock, thread: Thread) -> None:
    thread.until_idle()
    cluster.refuse("OffsetCommit", "REBALANCE_IN_PROGRESS")
    for _ in range(20):
        clock.advance(40_000)
        thread.step()
    assert thread.is_running
    cluster.set_rules()
    thread.step().commit()
    assert committed(cluster) is not None


class CommitEach(Processor[Any, Any, Any, Any]):
    """Requests a commit with every record."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context

    def process(self, record: Record[Any, Any]) -> None:
        self.context.commit()


@pytest.mark.parametrize("refused_for", ["a rebalance", "a timeout"])
def test_a_requested_commit_that_is_refused_is_retried(
    cluster: DirectKafka, application: Callable[..., Application], refused_for: str
) -> None:
    cluster.create_topic(IN, 1)
    builder = StreamsBuilder()
    builder.stream(IN, **TEXT).process(CommitEach)
    thread = application(builder.build()).thread().until_running()
    timeout = Outage(thread.member, "commit", CommitTimeoutError("Not accepted in time."))
    timeout.lasts = refused_for == "a timeout"
    cluster.refuse("OffsetCommit", "REBALANCE_IN_PROGRESS", times=3)
    feed(cluster, "a")
    thread.step(2)
    assert committed(cluster) is None
    timeout.lasts = False
    thread.step(5)
    offset = committed(cluster)
    assert offset is not None
    assert offset.offset == 1


def test_unreadable_topic_metadata_ends_nothing(
    clock: ManualClock,
    cluster: DirectKafka,
    application: Callable[..., Application],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster.create_topic(IN, 1)
    seen: list[str] = []
    builder = StreamsBuilder()
    builder.stream(IN, **TEXT).foreach(lambda key, value: seen.append(key))
    thread = application(builder.build()).thread().until_idle()

    def fails(*_: Any, **__: Any) -> None:
        raise silence()

    monkeypatch.setattr("tests.workers.direct_io.DirectAdmin.describe", fails)
    clock.advance(TIMEOUT_MS + 1)
    thread.step(3)
    assert "will check again later" in caplog.text
    monkeypatch.undo()
    cluster.add_partitions(cluster.topic(IN), 2)
    feed(cluster, "d", 1)
    clock.advance(TIMEOUT_MS + 1)
    thread.until(lambda: seen)
    assert seen == ["d"]


def counting_to_partitioned() -> Any:
    """Count, and write with a partitioner, which makes the producer request the topic's partitions."""
    builder = StreamsBuilder()
    counted = builder.stream(IN, **TEXT).group_by_key().count(store="counts").to_stream()
    counted.to(OUT, key_serde=Serdes.string(), value_serde=Serdes.int64(), partitioner=lambda *_: 0)
    return builder.build()


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_a_record_that_stopped_half_way_is_processed_again(
    cluster: DirectKafka, clock: ManualClock, application: Callable[..., Application], guarantee: str
) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    config = {"processing.guarantee": guarantee, "statestore.cache.max.bytes": 0, "task.timeout.ms": TIMEOUT_MS}
    thread = application(counting_to_partitioned(), **config).thread().until_running()
    outage = Outage(admin_of(thread), "describe", silence(), lambda topics, _: topics == [OUT])
    feed(cluster, "aa")
    thread.step(10)
    assert outage.calls > 1
    outage.lasts = False
    thread.step(10).commit()
    if guarantee == "exactly_once_v2":
        assert counts(cluster) == {"a": 2}
    else:  # the changelog also has the counts of the failed attempts, as after a crash
        assert counts(cluster)["a"] >= 2
    outage.lasts, calls = True, outage.calls
    clock.advance(PARTITION_COUNT_MS)
    feed(cluster, "a")
    thread.step(10)
    assert outage.calls == calls + 1, "what was known before is good enough"


def test_a_partition_count_that_never_arrives_ends_the_thread(
    cluster: DirectKafka, clock: ManualClock, application: Callable[..., Application]
) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    config = {"statestore.cache.max.bytes": 0, "task.timeout.ms": TIMEOUT_MS}
    thread = application(counting_to_partitioned(), **config).thread().until_running()
    Outage(admin_of(thread), "describe", silence())
    feed(cluster, "a")
    assert "The partitions of topic out could not be read" in str(until_error(thread, clock))


def test_a_permanent_error_is_raised_at_once(cluster: DirectKafka, application: Callable[..., Application]) -> None:
    cluster.create_topic(IN, 1)
    builder = StreamsBuilder()
    builder.stream(IN, **TEXT).foreach(lambda key, value: 1 // 0)
    thread = application(builder.build()).thread().until_running()
    feed(cluster, "a")
    with pytest.raises(StreamsError, match="ZeroDivisionError"):
        thread.step(3)
