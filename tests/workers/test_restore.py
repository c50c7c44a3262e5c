"""Restores over an in-memory Kafka cluster: their order, the work of one call, the reports, and the effect of a
rebalance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from penstock.clients.errors import ErrorCode, broker_error
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.errors import BrokerUnavailableError, StreamsError, TaskCorruptedError
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.control.messages import Status, TaskStatus
from penstock.workers.restore.listeners import StateRestoreListener
from penstock.workers.restore.restore_progress import RATE_WINDOW_MS, Rate
from penstock.workers.tasks.changelog_bounds import RETRY_BACKOFF_MS, Bounds, ChangelogBounds
from penstock.workers.tasks.processor_state_manager import ProcessorStateManager
from penstock.workers.thread.stream_thread import RestoreBudget
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.counting import IN, OUT, counting, counts, feed
from tests.workers.thread_stage import Application, Thread

MakeApplication = Callable[..., Application]
PARTITIONS = 8
CHANGELOG = "app-counts-changelog"
COUNT = b"\0\0\0\0\0\0\0\1"


@pytest.fixture
def app(cluster: DirectKafka, application: MakeApplication) -> Application:
    for topic in (IN, CHANGELOG):
        cluster.create_topic(topic, PARTITIONS)
    cluster.create_topic(OUT, 1)
    return application(counting())


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch of ten records in each iteration of the loop."""
    monkeypatch.setattr("penstock.workers.thread.stream_thread.RESTORE_BUDGET", RestoreBudget(0, 10))
    monkeypatch.setattr("penstock.workers.thread.stream_thread.RESTORE_ALONE_BUDGET", RestoreBudget(0, 10))


def fill(cluster: DirectKafka, partition: int, records: int) -> None:
    for number in range(records):
        cluster.append(CHANGELOG, partition, b"k%d" % number, COUNT, 1)


class Order(StateRestoreListener):
    def __init__(self) -> None:
        self.started: list[int] = []
        self.ended: list[int] = []
        self.batches: list[int] = []
        self.sizes: list[int] = []
        self.suspended: list[tuple[int, int]] = []

    def on_restore_start(self, partition: TopicPartition, store: str, starting_offset: int, ending_offset: int) -> None:
        self.started.append(partition.partition)

    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end_offset: int, restored: int) -> None:
        self.batches.append(partition.partition)
        self.sizes.append(restored)

    def on_restore_end(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        self.ended.append(partition.partition)

    def on_restore_suspended(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        self.suspended.append((partition.partition, total_restored))


@pytest.mark.usefixtures("small_batches")
def test_tasks_with_the_fewest_remaining_records_restore_first(
    cluster: DirectKafka, app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.workers.restore.store_changelog_reader.RECORDS_AT_ONCE", 0)
    sizes = [80, 70, 60, 50, 40, 30, 20, 10]
    for partition, size in enumerate(sizes):
        fill(cluster, partition, size)
    order = Order()
    thread = app.thread(state_restore_listener=order)
    thread.until(lambda: order.batches)
    assert {partition.partition for partition in thread.restore_consumer.positions} == {4, 5, 6, 7}
    thread.until(lambda: order.ended)
    being_read = {partition.partition for partition in thread.restore_consumer.positions}
    assert being_read == {4, 5, 6, 7, 3} - set(order.ended), "the next one takes the place of one that has ended"
    thread.until_running()
    assert sorted(order.started) == sorted(order.ended) == list(range(PARTITIONS))
    assert thread.changelog_reader.total_restored == sum(sizes)


@pytest.mark.usefixtures("small_batches")
def test_small_changelogs_are_read_together(
    cluster: DirectKafka, app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.workers.restore.store_changelog_reader.RECORDS_AT_ONCE", 60)
    for partition in range(PARTITIONS):
        fill(cluster, partition, 10)
    order = Order()
    thread = app.thread(state_restore_listener=order)
    thread.until(lambda: order.batches)
    being_read = {partition.partition for partition in thread.restore_consumer.positions}
    assert order.ended
    assert len(being_read) == 6, "as many as have 60 records"


@pytest.mark.usefixtures("small_batches")
def test_stores_are_opened_between_polls_and_then_restored(cluster: DirectKafka, app: Application) -> None:
    for partition in range(PARTITIONS):
        fill(cluster, partition, 1)
    thread = app.thread()
    thread.until(lambda: thread.task_manager.active.created)
    opened = []
    while thread.task_manager.active.created:
        thread.step()
        opened.append(len(thread.task_manager.active.restoring))
        assert thread.changelog_reader.total_restored == 0
    assert opened == list(range(opened[0], PARTITIONS + 1)), "one in each iteration, whose time is over then"
    thread.until_running()
    assert thread.changelog_reader.total_restored == PARTITIONS


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_committed_offsets_are_requested_together(
    cluster: DirectKafka, application: MakeApplication, guarantee: str
) -> None:
    for topic in (IN, CHANGELOG):
        cluster.create_topic(topic, PARTITIONS)
    cluster.create_topic(OUT, 1)
    thread = application(counting(), processing_guarantee=guarantee).thread()
    asked: list[int] = []
    committed = thread.member.read_committed

    def ask(partitions: Collection[TopicPartition]) -> Any:
        asked.append(len(partitions))
        return committed(partitions)

    thread.member.read_committed = ask  # type: ignore[method-assign]
    thread.until_running()
    assert asked == [PARTITIONS] * 2, "before the stores are opened, and to begin"


@pytest.mark.usefixtures("small_batches")
def test_a_running_task_continues_while_others_restore(cluster: DirectKafka, app: Application) -> None:
    fill(cluster, 0, 500)
    thread = app.thread()
    thread.until(lambda: TaskId(0, 1) in thread.task_manager.active.running)
    assert TaskId(0, 0) in thread.task_manager.active.restoring
    feed(cluster, "aab", partition=1)
    thread.step(3).commit()
    assert counts(cluster) == {"a": 2, "b": 1}
    assert TaskId(0, 0) in thread.task_manager.active.restoring
    thread.until_running()
    assert thread.changelog_reader.total_restored == 500


@pytest.mark.usefixtures("small_batches")
def test_a_thread_with_nothing_else_to_do_restores_in_larger_batches(
    cluster: DirectKafka, app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.workers.thread.stream_thread.RESTORE_ALONE_BUDGET", RestoreBudget(0, 40))
    for partition in range(PARTITIONS):
        fill(cluster, partition, 50)
    fill(cluster, PARTITIONS - 1, 450)
    order = Order()
    thread = app.thread(state_restore_listener=order)
    thread.until(lambda: order.ended)
    assert max(order.sizes) > 10, "of a batch of 40, over some partitions"
    order.sizes.clear()
    thread.until_running()
    assert order.sizes
    assert max(order.sizes) == 10, "tasks run meanwhile"


def test_a_changelog_that_cannot_be_applied_does_not_affect_the_others_of_its_batch(
    cluster: DirectKafka, app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer's position is already behind the records of all of them; they are read again."""
    keys = "abcdefgh"[:PARTITIONS]
    for partition, key in enumerate(keys):
        cluster.append(CHANGELOG, partition, key.encode(), COUNT, 1)
    restore, damaged = ProcessorStateManager.restore, [TaskId(0, 2)]

    def restore_unless_damaged(manager: ProcessorStateManager, *arguments: Any) -> None:
        if manager._task_id in damaged:
            damaged.remove(manager._task_id)
            raise TaskCorruptedError("a file is damaged", [manager._task_id])
        restore(manager, *arguments)

    monkeypatch.setattr(ProcessorStateManager, "restore", restore_unless_damaged)
    app.thread().until_idle().close()
    assert not damaged
    for partition, key in enumerate(keys):
        feed(cluster, key, partition)
    app.thread().until_idle().commit()
    assert counts(cluster) == dict.fromkeys(keys, 2)


@pytest.mark.usefixtures("small_batches")
def test_a_rebalance_in_the_middle_of_a_restore_loses_no_progress(cluster: DirectKafka, app: Application) -> None:
    for partition in range(2):
        fill(cluster, partition, 300)
    order = Order()
    first = app.thread(state_restore_listener=order)
    first.until(lambda: first.changelog_reader.total_restored >= 200)
    second = app.thread(slot=2)
    for _ in range(400):
        first.step()
        second.step()
        if len(first.task_manager.active.running) + len(second.task_manager.active.running) == PARTITIONS:
            break
    assert order.suspended, "none moved while it was being restored: the test shows nothing"
    assert first.changelog_reader.total_restored + second.changelog_reader.total_restored == 600
    assert second.changelog_reader.total_restored > 0


@pytest.mark.usefixtures("small_batches")
def test_a_task_revoked_during_its_restore_stores_its_progress(cluster: DirectKafka, app: Application) -> None:
    """The leader receives its offset, and uses it for the assignment."""
    fill(cluster, 0, 300)
    thread = app.thread()
    thread.until(lambda: thread.changelog_reader.total_restored >= 100)
    manager, task = thread.task_manager, TaskId(0, 0)
    assert task in manager.active.restoring
    manager.suspend_tasks_and_state(*manager.set_assignment_metadata({}, {}))
    assert manager.task_offset_sums()[task] == thread.changelog_reader.total_restored


class LateAnswers:
    """Delays the leaders' responses about changelog offsets until the test releases them."""

    def __init__(self, admin: Any) -> None:
        self.on_their_way: list[tuple[Future[int], int]] = []
        self._offsets = admin.offsets
        admin.offsets = self._ask
        admin.wait = lambda *_: None

    def _ask(self, *arguments: Any) -> dict[TopicPartition, Future[int]]:
        answers: dict[TopicPartition, Future[int]] = self._offsets(*arguments)
        for partition in [partition for partition in answers if partition.topic == CHANGELOG]:
            late: Future[int] = Future()
            self.on_their_way.append((late, answers[partition].result()))
            answers[partition] = late
        return answers

    def arrive(self) -> None:
        for future, offset in self.on_their_way:
            future.set_result(offset)
        self.on_their_way = []


def test_an_end_offset_from_before_a_task_moved_away_is_discarded(cluster: DirectKafka, app: Application) -> None:
    """Found by chaos tests: the records of the owner in between were not restored, and its updates were lost."""
    fill(cluster, 0, 100)
    thread = app.thread()
    late = LateAnswers(thread.supplier.made[f"{thread.name}-admin"])
    thread.until(lambda: late.on_their_way)
    thread.member.evict()
    thread.until(lambda: not thread.task_manager.active.all_tasks())
    late.arrive()
    fill(cluster, 0, 150)  # by the owner in between
    thread.until(lambda: late.on_their_way)
    late.arrive()
    thread.until_running()
    assert thread.changelog_reader.total_restored == 250


def status_of(thread: Thread, task_id: str) -> TaskStatus:
    status = [report for report in thread.control.reports if isinstance(report, Status)][-1]
    return next(task for task in status.tasks if task.task_id == task_id)


@pytest.mark.usefixtures("small_batches")
def test_the_status_has_restore_rate_remaining_records_and_time_left(
    cluster: DirectKafka, app: Application, clock: ManualClock
) -> None:
    fill(cluster, 0, 500)
    thread = app.thread()
    thread.until(lambda: thread.changelog_reader.total_restored >= 100)
    for _ in range(20):
        clock.advance(100)
        thread.step()
    task = status_of(thread, "0_0")
    assert task.state == "RESTORING"
    assert task.restore_total == 500
    assert task.restore_remaining == 500 - thread.changelog_reader.total_restored
    assert 80 < task.restore_rate < 400, "10 records in 100 ms, and the 100 before"
    assert task.restore_eta_seconds == pytest.approx(task.restore_remaining / task.restore_rate)
    assert thread.metrics.snapshot(clock.now_ms)["restore-remaining-records-total"] == task.restore_remaining
    thread.until_running()
    clock.advance(20_000)
    thread.step()
    task = status_of(thread, "0_0")
    assert (task.restore_remaining, task.restore_rate, task.restore_eta_seconds) == (0, 0.0, None)
    assert thread.metrics.snapshot(clock.now_ms)["restore-total"] == 500


def test_a_rate_covers_two_windows() -> None:
    rate = Rate(0)
    rate.record(1000, 1000)
    assert rate.per_second(1000) == 1000
    rate.record(1000, RATE_WINDOW_MS)
    assert rate.per_second(2 * RATE_WINDOW_MS - 1) == pytest.approx(200, rel=0.01)
    assert rate.per_second(5 * RATE_WINDOW_MS) == 0


class Admin:
    """An Admin for offsets; a test gives the responses."""

    def __init__(self) -> None:
        self.asked: list[dict[TopicPartition, Future[int]]] = []

    def offsets(self, timestamps: Mapping[TopicPartition, int], timeout_ms: int) -> dict[TopicPartition, Future[int]]:
        self.asked.append({partition: Future() for partition in timestamps})
        return self.asked[-1]

    def answer(self, *offsets: int) -> None:
        for futures, offset in zip(self.asked[-2:], offsets, strict=True):
            for future in futures.values():
                future.set_result(offset)

    def fail(self, code: ErrorCode) -> None:
        for futures in self.asked[-2:]:
            for future in futures.values():
                future.set_exception(broker_error(code))


PARTITION = TopicPartition(CHANGELOG, 0)


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
def bounds(admin: Admin, clock: ManualClock) -> ChangelogBounds:
    return ChangelogBounds(admin, clock, 1_000, PrefixedLogger("test", ""))  # type: ignore[arg-type]


def test_requesting_bounds_does_not_block(admin: Admin, bounds: ChangelogBounds) -> None:
    assert bounds.poll([PARTITION]) == {}
    assert bounds.poll([PARTITION]) == {}
    assert len(admin.asked) == 2, "one question, of two requests"
    admin.answer(3, 7)
    assert bounds.poll([PARTITION]) == {PARTITION: Bounds(3, 7)}


def test_an_unavailable_leader_is_retried_until_the_task_times_out(
    admin: Admin, bounds: ChangelogBounds, clock: ManualClock
) -> None:
    bounds.poll([PARTITION])
    for _ in range(9):
        admin.fail(ErrorCode.LEADER_NOT_AVAILABLE)
        assert bounds.poll([PARTITION]) == {}
        clock.advance(RETRY_BACKOFF_MS)
        bounds.poll([PARTITION])
    admin.answer(0, 5)
    assert bounds.poll([PARTITION]) == {PARTITION: Bounds(0, 5)}

    bounds.poll([PARTITION])
    clock.advance(1_000)
    admin.fail(ErrorCode.LEADER_NOT_AVAILABLE)
    with pytest.raises(BrokerUnavailableError, match=r"app-counts-changelog-0 .* within 1000 ms \(task.timeout.ms\)"):
        bounds.poll([PARTITION])


def test_a_changelog_without_read_permission_fails_at_once(admin: Admin, bounds: ChangelogBounds) -> None:
    bounds.poll([PARTITION])
    admin.fail(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(StreamsError, match=r"app-counts-changelog-0 .*TOPIC_AUTHORIZATION_FAILED") as raised:
        bounds.poll([PARTITION])
    assert not isinstance(raised.value, BrokerUnavailableError)


def test_a_deleted_changelog_is_reported(admin: Admin, bounds: ChangelogBounds, clock: ManualClock) -> None:
    bounds.poll([PARTITION])
    clock.advance(1_000)
    admin.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    with pytest.raises(StreamsError, match="The changelog topic app-counts-changelog was deleted"):
        bounds.poll([PARTITION])


def test_a_response_for_a_task_that_has_left_is_not_kept(admin: Admin, bounds: ChangelogBounds) -> None:
    bounds.poll([PARTITION])
    admin.answer(0, 5)
    bounds.poll([])
    assert bounds.poll([PARTITION]) == {}
