"""Partitions that stall although the broker has records: detected, reported, reopened, and moved to another process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clients.errors import UnreachableError
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.reading.reader import ReaderEvent
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.records import TaskId, TopicPartition
from penstock.topology.serdes.serdes import Serdes
from penstock.workers.control.messages import PartitionStalled
from penstock.workers.control.stream_thread_state import StreamThreadState
from penstock.workers.stalls.stall_watchdog import LOOKS_PER_TIMEOUT, Stall, StallAction, StallWatchdog
from tests.direct_kafka import DirectKafka
from tests.futures import done, failed
from tests.manual_clock import ManualClock
from tests.workers.counting import CHANGELOG, IN, OUT, committed, counting, counts, feed
from tests.workers.direct_io import DirectReader
from tests.workers.thread_stage import Application, Thread

P0, P1 = TopicPartition(IN, 0), TopicPartition(IN, 1)
TIMEOUT_MS = 60_000
LOOK_MS = TIMEOUT_MS // LOOKS_PER_TIMEOUT
#: Checks until a stall is reported: one to see it, one for the request, one for the response, the rest for the timeout.
ONE_STALL = LOOKS_PER_TIMEOUT + 3
REOPEN, REPLACE = StallAction.REOPEN_TASK, StallAction.REPLACE_PROCESS


class Watch:
    """A watchdog with its clock and the broker's responses."""

    def __init__(self, timeout_ms: int = TIMEOUT_MS, reopen_max: int = 1) -> None:
        self.now_ms = 1_000_000
        self.ends: dict[TopicPartition, int] = {}
        self.asked: list[TopicPartition] = []
        self.answers = True
        self.throttled_until: dict[TopicPartition, int] = {}
        log = PrefixedLogger("penstock.test", "")
        self.watchdog = StallWatchdog(timeout_ms, reopen_max, self.ask, self.throttled_ago_ms, log)

    def throttled_ago_ms(self, partition: TopicPartition) -> float | None:
        until_ms = self.throttled_until.get(partition)
        return None if until_ms is None else self.now_ms - until_ms

    def ask(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Future[Any]]:
        self.asked += partitions
        silent = UnreachableError("no answer")
        return {p: done(self.ends.get(p, 0)) if self.answers else failed(silent) for p in partitions}

    def look(self, positions: dict[TopicPartition, int], times: int = 1) -> list[Stall]:
        """Check this many times, at the usual intervals; return all findings."""
        found = []
        for _ in range(times):
            assert self.watchdog.is_due(self.now_ms)
            found += self.watchdog.check({P0, P1}, positions, self.now_ms)
            assert not self.watchdog.is_due(self.now_ms)
            self.now_ms += LOOK_MS
        return found


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_the_broker_is_not_asked_about_a_partition_that_advances(watch: Watch) -> None:
    watch.ends = {P0: 1_000}
    assert not [stall for position in range(20) for stall in watch.look({P0: position})]
    assert not watch.asked


def test_a_partition_without_records_is_idle_and_not_stalled(watch: Watch) -> None:
    watch.ends = {P0: 5}
    assert not watch.look({P0: 5}, times=20)
    assert watch.asked


def test_a_stall_is_reported_after_the_timeout_with_records_waiting(watch: Watch) -> None:
    watch.look({P0: 5}, times=10)
    watch.ends = {P0: 9}
    # Idle for long: the timeout starts when the broker was seen to have records, not at the last read record.
    assert not watch.look({P0: 5}, times=LOOKS_PER_TIMEOUT)
    (stall,) = watch.look({P0: 5}, times=2)
    assert stall == Stall(P0, 5, 9, TIMEOUT_MS, REOPEN)
    assert stall.lag == 4
    assert watch.watchdog.stalled == 1


def test_the_process_is_replaced_if_reopening_the_task_did_not_help(watch: Watch) -> None:
    watch.ends = {P0: 9, P1: 0}
    found = watch.look({P0: 5, P1: 0}, times=4 * LOOKS_PER_TIMEOUT)
    assert [(stall.partition, stall.action) for stall in found[:2]] == [(P0, REOPEN), (P0, REPLACE)]


def test_a_partition_that_is_read_again_restarts_the_timeout(watch: Watch) -> None:
    watch.ends = {P0: 9}
    assert [stall.action for stall in watch.look({P0: 5}, times=ONE_STALL)] == [REOPEN]
    assert not watch.look({P0: 6})
    assert watch.watchdog.stalled == 0
    assert [stall.action for stall in watch.look({P0: 6}, times=ONE_STALL)] == [REOPEN]


def test_a_position_of_a_task_that_opens_or_goes_back_is_no_progress(watch: Watch) -> None:
    watch.ends = {P0: 9}
    watch.look({P0: 5}, times=ONE_STALL)
    watch.look({}, times=2)  # not running yet
    assert watch.watchdog.stalled == 1
    assert [stall.action for stall in watch.look({P0: 3}, times=ONE_STALL)] == [REPLACE]


def test_neither_a_throttle_nor_the_time_after_it_is_a_stall(watch: Watch) -> None:
    watch.ends = {P0: 9}
    for _ in range(5 * LOOKS_PER_TIMEOUT):
        watch.throttled_until[P0] = watch.now_ms - LOOK_MS  # between two checks
        assert not watch.look({P0: 5})
    assert not watch.look({P0: 5}, times=LOOKS_PER_TIMEOUT)
    assert watch.look({P0: 5}, times=2 * LOOKS_PER_TIMEOUT), "in the end it is one"


def test_a_partition_that_has_moved_away_is_forgotten(watch: Watch) -> None:
    watch.ends = {P0: 9}
    watch.look({P0: 5}, times=ONE_STALL)
    watch.watchdog.check({P1}, {}, watch.now_ms)
    assert watch.watchdog.stalled == 0


def test_a_broker_that_does_not_respond_is_no_stall(watch: Watch) -> None:
    watch.ends, watch.answers = {P0: 9}, False
    assert not watch.look({P0: 5}, times=20)


def test_without_a_timeout_nothing_is_checked() -> None:
    assert not Watch(timeout_ms=0).watchdog.is_due(10**12)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=60))
def test_a_partition_that_advanced_or_was_empty_within_the_timeout_is_not_stalled(steps: list[tuple[int, int]]) -> None:
    watch = Watch()
    position = end = 0
    fine_at = watch.now_ms  # the last check at which it had advanced, or had no records
    for read, written in steps:
        end += written
        before, position = position, min(position + read, end)
        watch.ends = {P0: end}
        now_ms = watch.now_ms
        for stall in watch.look({P0: position}):
            assert now_ms - fine_at >= TIMEOUT_MS
            assert position < stall.end <= end
        if position > before or position == end:
            fine_at = now_ms


# -- in a stream thread


class Deaf(DirectReader):
    """Silently fetches nothing from some partitions. deaf: these partitions. heal: whether re-assigning fixes it."""

    deaf: set[TopicPartition]
    heal: bool

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        super().assign(offsets)
        if self.heal and hasattr(self, "deaf"):
            self.deaf -= offsets.keys()

    def _read(self, partition: TopicPartition, count: int) -> tuple[list[Any], ReaderEvent | None]:
        return ([], None) if partition in getattr(self, "deaf", ()) else super()._read(partition, count)


@pytest.fixture
def thread(cluster: DirectKafka, application: Callable[..., Application]) -> Thread:
    cluster.create_topic(IN, 2)
    cluster.create_topic(OUT, 1)
    feed(cluster, "ab", 0)
    feed(cluster, "b", 1)
    return application(counting(), **{"penstock.partition.stall.timeout.ms": TIMEOUT_MS}).thread().until_idle()


def deafen(thread: Thread, heal: bool) -> None:
    consumer = thread.consumer
    consumer.__class__ = Deaf
    consumer.deaf, consumer.heal = {P1}, heal  # type: ignore[attr-defined]


def stalls(thread: Thread) -> list[PartitionStalled]:
    return [report for report in thread.control.reports if isinstance(report, PartitionStalled)]


def run_for(thread: Thread, clock: ManualClock, ms: int) -> None:
    deadline = clock.now_ms + ms
    while clock.now_ms < deadline and thread.is_running:
        thread.step()
        clock.advance(LOOK_MS // 4)


def test_the_task_of_a_stalled_partition_is_reopened(cluster: DirectKafka, clock: ManualClock, thread: Thread) -> None:
    kept, reopened = (thread.task_manager.active.running[TaskId(0, number)] for number in (0, 1))
    deafen(thread, heal=True)
    feed(cluster, "aaa", 1)
    run_for(thread, clock, 2 * TIMEOUT_MS)
    (stall,) = stalls(thread)
    assert stall == PartitionStalled("0_1", "in-1", 1, 4, stall.for_ms, "REOPEN_TASK")
    assert "3 records behind" in str(stall)
    thread.until_running().step(3)
    assert thread.task_manager.active.running[TaskId(0, 0)] is kept
    assert thread.task_manager.active.running[TaskId(0, 1)] is not reopened
    thread.commit()
    assert counts(cluster)["a"] == 3
    offset = committed(cluster, 1)
    assert offset is not None
    assert offset.offset == 4
    run_for(thread, clock, 4 * TIMEOUT_MS)
    assert len(stalls(thread)) == 1
    assert thread.is_running
    metrics = thread.metrics.snapshot(clock.now_ms)
    assert metrics["partition-stall-total"] == 1
    assert metrics["stalled-partitions"] == 0


def test_a_persistent_stall_ends_the_process_cleanly(cluster: DirectKafka, clock: ManualClock, thread: Thread) -> None:
    deafen(thread, heal=False)
    feed(cluster, "aaa", 1)
    feed(cluster, "a", 0)
    run_for(thread, clock, 4 * TIMEOUT_MS)
    assert [stall.action for stall in stalls(thread)] == ["REOPEN_TASK", "REPLACE_PROCESS"]
    assert thread.state is StreamThreadState.PENDING_SHUTDOWN
    thread.thread.complete_shutdown(clean_run=True)
    offset = committed(cluster, 0)
    assert offset is not None
    assert offset.offset == 3, "what could be read is committed"
    assert thread.metrics.snapshot(clock.now_ms)["stalled-partitions"] == 1


def test_a_stalled_changelog_is_read_again(
    cluster: DirectKafka, clock: ManualClock, application: Callable[..., Application], caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    feed(cluster, "aab", 0)
    app = application(counting(), **{"penstock.partition.stall.timeout.ms": TIMEOUT_MS})
    app.thread().until_idle().close()
    (app.stage.state_dir / "app").rename(app.stage.state_dir / "gone")
    thread = app.thread(slot=2)
    restore_consumer = thread.restore_consumer
    restore_consumer.__class__ = Deaf
    restore_consumer.deaf, restore_consumer.heal = {TopicPartition(CHANGELOG, 0)}, False  # type: ignore[attr-defined]
    run_for(thread, clock, TIMEOUT_MS // 2)
    assert "is stalled" not in caplog.text
    restore_consumer.heal = True  # type: ignore[attr-defined]
    run_for(thread, clock, 2 * TIMEOUT_MS)
    assert f"The changelog {CHANGELOG}-0 is stalled" in caplog.text
    assert "records from offset 0 to 2. It is read again" in caplog.text
    assert thread.changelog_reader.total_restored == 2
    assert TaskId(0, 0) in thread.task_manager.active.running


def test_records_that_wait_for_another_partition_are_no_stall(
    cluster: DirectKafka, clock: ManualClock, application: Callable[..., Application]
) -> None:
    for topic in ("left", "right"):
        cluster.create_topic(topic, 1)
    builder = StreamsBuilder()
    text: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
    builder.stream("left", **text).merge(builder.stream("right", **text)).foreach(lambda key, value: None)
    config = {
        "max.task.idle.ms": 100 * TIMEOUT_MS,
        "penstock.partition.stall.timeout.ms": TIMEOUT_MS,
        "max.poll.records": 2,
        "buffered.records.per.partition": 2,
    }
    thread = application(builder.build(), **config).thread().until_running()
    for _ in range(20):
        cluster.append("left", 0, b"k", b"v", 1)
    run_for(thread, clock, 4 * TIMEOUT_MS)
    assert not stalls(thread)
    assert 2 < thread.task_manager.active.running[TaskId(0, 0)].num_buffered() < 20, "more is not even fetched"
