"""Tasks that move between two stream threads of one machine, over an in-memory Kafka cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from penstock.topology.errors import MissingSourceTopicError
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.control.messages import ApplicationShutdownRequested
from penstock.workers.control.stream_thread_state import StreamThreadState
from tests.direct_kafka import DirectKafka
from tests.workers.counting import IN, OUT, committed, counting, counts, feed
from tests.workers.thread_stage import Application, Thread

MakeApplication = Callable[..., Application]
PARTITIONS = 4
COMMIT_INTERVAL_MS = 30_001


@pytest.fixture
def counter(cluster: DirectKafka, application: MakeApplication) -> Application:
    cluster.create_topic(IN, PARTITIONS)
    cluster.create_topic(OUT, 1)
    return application(counting())


def running(thread: Thread) -> set[TaskId]:
    return set(thread.task_manager.active.running)


def step_until(condition: Callable[[], bool], *threads: Thread) -> None:
    """Step the threads in turn."""
    for _ in range(100):
        if condition():
            return
        for thread in threads:
            thread.step()
    raise AssertionError("not reached in 100 rounds")


def all_run(*threads: Thread) -> bool:
    tasks = [task for thread in threads for task in running(thread)]
    in_use = all(running(thread) for thread in threads)
    return in_use and len(tasks) == len(set(tasks)) == PARTITIONS


def test_a_second_thread_gets_half_of_the_tasks_and_their_state(cluster: DirectKafka, counter: Application) -> None:
    for partition in range(PARTITIONS):
        feed(cluster, "aab", partition)
    first = counter.thread().until_idle()
    kept = {task_id: first.task_manager.active.running[task_id] for task_id in running(first)}
    second = counter.thread(slot=2)
    step_until(lambda: all_run(first, second), first, second)
    assert len(running(first)) == len(running(second)) == 2
    # Tasks that stay are not touched; a task that moves keeps its RocksDB files, so that nothing is restored.
    assert all(first.task_manager.active.running[task_id] is kept[task_id] for task_id in running(first))
    assert second.changelog_reader.total_restored == 0
    assert first.consumer.positions.keys() == {TopicPartition(IN, task.partition) for task in running(first)}
    for partition in range(PARTITIONS):
        feed(cluster, "a", partition)
    for thread in (first, second):
        thread.until_idle().commit()
    assert counts(cluster) == {"a": 3, "b": 1}


def test_a_task_never_runs_in_two_threads(cluster: DirectKafka, counter: Application) -> None:
    first = counter.thread().until_running()
    second = counter.thread(slot=2)
    for _ in range(60):
        first.step()
        second.step()
        assert not running(first) & running(second)
    assert all_run(first, second)


def test_a_task_that_moves_is_committed_first(cluster: DirectKafka, counter: Application) -> None:
    first = counter.thread().until_running()
    second = counter.thread(slot=2)
    for partition in range(PARTITIONS):
        feed(cluster, "ab", partition)
    step_until(lambda: all_run(first, second), first, second)
    for task in running(second):
        offset = committed(cluster, task.partition)
        assert offset is not None
        assert offset.offset == 2


def test_everything_is_committed_before_a_thread_joins_again(cluster: DirectKafka, counter: Application) -> None:
    for partition in range(PARTITIONS):
        feed(cluster, "ab", partition)
    first = counter.thread().until_idle()
    assert committed(cluster) is None
    counter.thread(slot=2)
    first.step()
    assert all(committed(cluster, partition) is not None for partition in range(PARTITIONS))


def test_a_thread_that_leaves_releases_its_tasks(cluster: DirectKafka, counter: Application) -> None:
    first, second = counter.thread().until_running(), counter.thread(slot=2)
    step_until(lambda: all_run(first, second), first, second)
    second.close()
    step_until(lambda: all_run(first), first)


def test_a_locked_task_waits_until_its_owner_has_closed_it(
    cluster: DirectKafka, counter: Application, caplog: pytest.LogCaptureFixture
) -> None:
    first = counter.thread().until_running()
    lock = first.task_manager.state_directory
    first.task_manager.active.suspend()
    first.task_manager.active.close_non_assigned_suspended_tasks({})
    lock.lock(TaskId(0, 1))
    cluster.evict()
    with caplog.at_level(5):
        second = counter.thread(slot=2).step(10)
        assert running(second) == {TaskId(0, 0), TaskId(0, 2), TaskId(0, 3)}
        assert second.state is StreamThreadState.PARTITIONS_ASSIGNED
    assert "Could not create stream task 0_1 due to Failed to lock the state directory for task 0_1" in caplog.text
    lock.unlock(TaskId(0, 1))
    second.until_running()
    assert len(running(second)) == PARTITIONS


def test_running_tasks_process_while_others_wait_for_their_lock(cluster: DirectKafka, counter: Application) -> None:
    first = counter.thread().until_running()
    first.task_manager.active.suspend()
    first.task_manager.active.close_non_assigned_suspended_tasks({})
    first.task_manager.state_directory.lock(TaskId(0, 1))
    cluster.evict()
    feed(cluster, "ab", 0)
    second = counter.thread(slot=2).step(10)
    second.commit()
    assert counts(cluster) == {"a": 1, "b": 1}


def test_a_lost_membership_closes_dirty_and_rejoins(
    cluster: DirectKafka, counter: Application, caplog: pytest.LogCaptureFixture
) -> None:
    feed(cluster, "aab")
    thread = counter.thread().until_idle()
    before = set(thread.task_manager.active.running.values())
    with caplog.at_level(logging.INFO):
        thread.member.evict()
        thread.until(lambda: not running(thread)).until(lambda: all_run(thread))
    assert "lost due to missed rebalance" in caplog.text
    assert not before & set(thread.task_manager.active.running.values())
    thread.step(3).commit()
    assert counts(cluster) == {"a": 2, "b": 1}  # read again, because it was not committed


def test_a_refused_commit_is_a_missed_rebalance(
    cluster: DirectKafka, counter: Application, caplog: pytest.LogCaptureFixture
) -> None:
    feed(cluster, "a")
    thread = counter.thread().until_idle()
    cluster.refuse("OffsetCommit", "ILLEGAL_GENERATION", times=1)
    counter.stage.clock.advance(COMMIT_INTERVAL_MS)
    with caplog.at_level(logging.WARNING):
        thread.step(3)
    assert "This implies that this thread missed a rebalance and dropped out of the consumer group" in caplog.text
    thread.until(lambda: all_run(thread)).step(3).commit()
    assert counts(cluster) == {
        "a": 2
    }  # at least once: the changelog had the record already, but its offset was refused


def test_a_commit_with_a_retriable_error_is_retried(cluster: DirectKafka, counter: Application) -> None:
    feed(cluster, "a")
    thread = counter.thread().until_idle()
    cluster.refuse("OffsetCommit", "REBALANCE_IN_PROGRESS", times=1)
    assert thread.commit() == -1
    assert committed(cluster) is None
    assert thread.commit() == 1
    assert committed(cluster) is not None


def test_missing_source_topics_end_the_thread(cluster: DirectKafka, application: MakeApplication) -> None:
    with pytest.raises(MissingSourceTopicError, match=r"in"):
        application(counting()).thread()


def test_one_thread_can_shut_the_whole_application_down(cluster: DirectKafka, counter: Application) -> None:
    first, second = counter.thread().until_running(), counter.thread(slot=2)
    step_until(lambda: all_run(first, second), first, second)
    first.group.request_application_shutdown()
    step_until(lambda: not first.is_running and not second.is_running, first, second)
    for thread in (first, second):
        assert ApplicationShutdownRequested() in thread.control.reports
