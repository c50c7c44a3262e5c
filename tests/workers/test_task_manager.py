"""TaskManager: how it applies an assignment, its log lines, and the order of a commit."""

from __future__ import annotations

import pytest

from penstock.clients.log_context import TRACE
from penstock.topology.errors import StreamsError, TopologyError
from penstock.topology.records import TaskId, TopicPartition
from tests.direct_kafka import DirectKafka
from tests.workers.counting import CHANGELOG, IN, OUT, committed, counting, counts, feed
from tests.workers.thread_stage import Stage, Thread

TASK, OTHER = TaskId(0, 0), TaskId(0, 1)
PARTITIONS = {TASK: {TopicPartition(IN, 0)}, OTHER: {TopicPartition(IN, 1)}}
ALL = {TopicPartition(IN, 0), TopicPartition(IN, 1)}
#: Long enough that no step commits by itself.
NEVER = 10**9


@pytest.fixture
def thread(stage: Stage, cluster: DirectKafka, caplog: pytest.LogCaptureFixture) -> Thread:
    cluster.create_topic(IN, 2)
    cluster.create_topic(OUT, 1)
    cluster.create_topic(CHANGELOG, 2)
    caplog.set_level(TRACE)
    return stage.thread(counting(), {"commit.interval.ms": NEVER})


def restored(thread: Thread) -> None:
    """Open and restore new tasks."""
    for _ in range(10):
        if thread.task_manager.update_new_and_restoring_tasks():
            return
        thread.thread.changelog_reader.restore(0, 10, 1000)
    raise AssertionError("not restored")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message.removeprefix("stream-thread [client-StreamThread-1] ") for message in caplog.messages]


def test_assigned_tasks_are_created_paused_and_later_resumed(thread: Thread, caplog: pytest.LogCaptureFixture) -> None:
    manager = thread.task_manager
    manager.set_assignment_metadata(PARTITIONS, {})
    manager.create_tasks(ALL)
    assert manager.active.all_assigned_task_ids() == {TASK, OTHER}
    assert not manager.active.running
    assert not thread.consumer.positions  # not read before its state is restored
    assert not manager.update_new_and_restoring_tasks()
    restored(thread)
    assert manager.active.running
    assert thread.consumer.positions == {TopicPartition(IN, 0): 0, TopicPartition(IN, 1): 0}
    assert manager.active.running_task_for(TopicPartition(IN, 1)).task_id == OTHER
    for line in (
        "Adding assigned tasks as active: {0_0=[in-0], 0_1=[in-1]}",
        "New active tasks to be created: {0_0=[in-0], 0_1=[in-1]}",
        "Pausing partitions: [in-0, in-1]",
        "Resuming partitions [in-0, in-1]",
    ):
        assert line in lines(caplog)


def test_a_task_without_its_partitions_is_not_created(thread: Thread, caplog: pytest.LogCaptureFixture) -> None:
    thread.task_manager.set_assignment_metadata(PARTITIONS, {})
    thread.task_manager.create_tasks(PARTITIONS[TASK])
    assert thread.task_manager.active.all_assigned_task_ids() == {TASK}
    assert "Task 0_1 owned partitions [in-1] are not contained in the assignment [in-0]" in lines(caplog)


def test_tasks_that_stay_are_not_touched(thread: Thread) -> None:
    manager = thread.task_manager
    manager.set_assignment_metadata(PARTITIONS, {})
    manager.create_tasks(ALL)
    restored(thread)
    before = dict(manager.active.running)
    active, standby = manager.set_assignment_metadata({TASK: PARTITIONS[TASK]}, {})
    assert (active, standby) == ({OTHER}, set())
    manager.suspend_tasks_and_state(active, standby)
    manager.create_tasks(PARTITIONS[TASK])
    assert manager.active.all_tasks() == {TASK: before[TASK]}
    assert thread.consumer.positions.keys() == PARTITIONS[TASK]


def test_a_suspended_task_that_is_assigned_again_resumes(thread: Thread, cluster: DirectKafka) -> None:
    manager = thread.task_manager
    manager.set_assignment_metadata(PARTITIONS, {})
    manager.create_tasks(ALL)
    restored(thread)
    task = manager.active.running[TASK]
    manager.suspend_tasks_and_state({TASK, OTHER}, set())
    manager.create_tasks(ALL)
    assert manager.active.running[TASK] is task
    assert thread.consumer.positions.keys() == ALL


def test_a_standby_task_that_a_failed_rebalance_left_suspended_resumes(thread: Thread) -> None:
    manager = thread.task_manager
    manager.set_assignment_metadata({TASK: PARTITIONS[TASK]}, {OTHER: PARTITIONS[OTHER]})
    manager.create_tasks(PARTITIONS[TASK])
    restored(thread)
    standby = manager.standby.running[OTHER]
    manager.suspend_tasks_and_state({TASK}, {OTHER})
    manager.handle_lost_all()  # as if the group had refused the commit
    manager.set_assignment_metadata({}, {OTHER: PARTITIONS[OTHER]})
    manager.create_tasks(())
    assert manager.standby.running == {OTHER: standby}
    assert not manager.active.all_tasks()


def test_standby_tasks_are_created_too(thread: Thread, caplog: pytest.LogCaptureFixture) -> None:
    manager = thread.task_manager
    manager.set_assignment_metadata({}, PARTITIONS)
    manager.create_tasks(())
    restored(thread)
    assert manager.standby.all_assigned_task_ids() == {TASK, OTHER}
    assert manager.standby.running
    assert manager.standby.running_task_for(TopicPartition(CHANGELOG, 0)).task_id == TASK
    assert "Adding assigned standby tasks {0_0=[in-0], 0_1=[in-1]}" in lines(caplog)
    assert "New standby tasks to be created: {0_0=[in-0], 0_1=[in-1]}" in lines(caplog)


def test_a_task_of_another_topology_is_refused(thread: Thread) -> None:
    foreign = {TaskId(5, 0): PARTITIONS[TASK]}
    thread.task_manager.set_assignment_metadata(foreign, {})
    with pytest.raises(TopologyError, match="no sub-topology 5"):
        thread.task_manager.create_tasks(ALL)


@pytest.fixture
def counted(thread: Thread, cluster: DirectKafka) -> Thread:
    """A thread that has counted and not committed."""
    feed(cluster, "aab")
    return thread.start().until_idle()


def stored_offset(thread: Thread) -> int | None:
    offset: int | None = thread.task_manager.active.running[TASK].state_manager.stores["counts"].committed_offset()
    return offset


def test_a_commit_keeps_records_store_and_offsets_consistent(counted: Thread, cluster: DirectKafka) -> None:
    counted.commit()
    assert counts(cluster, CHANGELOG) == {"a": 2, "b": 1}
    assert stored_offset(counted) == 2
    assert committed(cluster) is not None


def test_nothing_is_stored_before_all_records_are_acknowledged(counted: Thread, cluster: DirectKafka) -> None:
    cluster.refuse_records(OUT)
    with pytest.raises(StreamsError):
        counted.commit()
    assert stored_offset(counted) is None
    assert committed(cluster) is None


def test_stores_are_the_last_step_of_a_commit(counted: Thread, cluster: DirectKafka) -> None:
    """A process that was suspended too long must not store another owner's changelog end; the group refuses its offsets
    first.
    """
    before = stored_offset(counted)
    cluster.refuse("OffsetCommit", "REBALANCE_IN_PROGRESS", times=1)
    assert counted.commit() == -1
    assert stored_offset(counted) == before != 2
    assert committed(cluster) is None
    assert counted.commit() == 1
    assert stored_offset(counted) == 2


def test_nothing_is_committed_while_an_assignment_is_pending(counted: Thread, cluster: DirectKafka) -> None:
    counted.thread.group.enforce_rebalance("test")
    counted.member.join_pending = True
    assert counted.commit() == -1
    assert counts(cluster) == {}
    counted.member.join_pending = False


def test_a_task_that_leaves_uncommitted_is_closed_anyway(
    counted: Thread, cluster: DirectKafka, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.refuse("OffsetCommit", "REBALANCE_IN_PROGRESS", times=1)
    counted.task_manager.suspend_tasks_and_state({TASK}, set())
    assert "their last records will be processed again" in caplog.text
    assert counted.task_manager.active.suspended.keys() == {TASK}


def test_a_shutdown_that_cannot_commit_closes_dirty(counted: Thread, cluster: DirectKafka) -> None:
    cluster.refuse_records(OUT)
    with pytest.raises(StreamsError, match="out"):
        counted.task_manager.shutdown(clean=True)
    assert not counted.task_manager.active.all_tasks()
    assert committed(cluster) is None


def test_offset_sums_show_the_progress_of_state(counted: Thread, cluster: DirectKafka) -> None:
    latest, unknown = -2, -3
    assert counted.task_manager.task_offset_sums() == {TASK: latest, OTHER: latest}
    counted.commit()
    counted.task_manager.shutdown(clean=True)
    sums = counted.task_manager.task_offset_sums()
    assert sums[TASK] == 2
    (counted.task_manager.state_directory.directory_for_task(TASK) / ".checkpoint").unlink()
    assert counted.task_manager.task_offset_sums()[TASK] == unknown
