"""A whole stream thread, stepped by hand, over an in-memory Kafka cluster and RocksDB on disk."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from penstock.topology.errors import InvalidStateStoreError, UnknownStateStoreError
from penstock.topology.records import TopicPartition
from penstock.workers.control.messages import CommandResult, Pause, Query, Resume, Shutdown, StateChanged, Status
from penstock.workers.control.stream_thread_state import StreamThreadState
from penstock.workers.tasks.topic_partition_metadata import TopicPartitionMetadata
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.counting import CHANGELOG, IN, OUT, committed, counting, counts, feed
from tests.workers.thread_stage import Application

MakeApplication = Callable[..., Application]


@pytest.fixture
def counter(cluster: DirectKafka, application: MakeApplication) -> Application:
    cluster.create_topic(IN, 2)
    cluster.create_topic(OUT, 1)
    return application(counting())


def test_counts_are_written_when_the_thread_commits(cluster: DirectKafka, counter: Application) -> None:
    feed(cluster, "abca")
    feed(cluster, "dd", partition=1)
    thread = counter.thread().until_idle()
    assert counts(cluster) == {}  # they are in the cache
    assert thread.commit() == 2
    assert counts(cluster) == {"a": 2, "b": 1, "c": 1, "d": 2}
    assert counts(cluster, CHANGELOG) == counts(cluster)
    offset = committed(cluster)
    assert offset is not None
    assert offset.offset == 4
    assert TopicPartitionMetadata.decode(offset.metadata).partition_time == 1003


def test_a_thread_goes_through_its_states(cluster: DirectKafka, counter: Application) -> None:
    thread = counter.thread().until_running()
    thread.close()
    changes = [(report.old, report.new) for report in thread.control.reports if isinstance(report, StateChanged)]
    assert changes == [
        ("CREATED", "STARTING"),
        ("STARTING", "PARTITIONS_ASSIGNED"),
        ("PARTITIONS_ASSIGNED", "RUNNING"),
        ("RUNNING", "PENDING_SHUTDOWN"),
        ("PENDING_SHUTDOWN", "DEAD"),
    ]


def test_a_restarted_thread_reads_neither_input_nor_changelog_again(cluster: DirectKafka, counter: Application) -> None:
    feed(cluster, "aab")
    counter.thread().until_idle().close()
    feed(cluster, "a")
    thread = counter.thread().until_idle()
    assert thread.changelog_reader.total_restored == 0
    thread.commit()
    assert counts(cluster) == {"a": 3, "b": 1}
    assert [record.offset() for record in cluster.records(IN)] == [0, 1, 2, 3]


def test_stream_time_continues_after_a_restart(cluster: DirectKafka, counter: Application) -> None:
    feed(cluster, "a", timestamp=7_000)
    counter.thread().until_idle().close()
    times = {
        task_id.partition: task.stream_time_ms
        for task_id, task in counter.thread().until_running().task_manager.active.running.items()
    }
    assert times == {0: 7_000, 1: -1}


def test_a_deleted_state_directory_is_restored_from_the_changelog(cluster: DirectKafka, counter: Application) -> None:
    feed(cluster, "aab")
    counter.thread().until_idle().close()
    delete_state(counter)
    feed(cluster, "a")
    thread = counter.thread().until_idle()
    assert thread.changelog_reader.total_restored == 2
    thread.commit()
    assert counts(cluster) == {"a": 3, "b": 1}


def delete_state(application: Application) -> None:
    shutil.rmtree(application.stage.state_dir / "app")


def test_uncommitted_records_are_processed_again_after_a_crash(cluster: DirectKafka, counter: Application) -> None:
    feed(cluster, "aa")
    thread = counter.thread().until_idle()
    thread.commit()
    feed(cluster, "ab")
    thread.step(2).crash()
    second = counter.thread().until_idle()
    second.commit()
    assert counts(cluster) == {"a": 3, "b": 1}


def test_a_record_that_cannot_be_written_blocks_the_commit(cluster: DirectKafka, counter: Application) -> None:
    feed(cluster, "a")
    thread = counter.thread().until_idle()
    cluster.refuse_records(OUT)
    with pytest.raises(Exception, match=r"Error encountered sending record to topic out partition 0"):
        thread.commit()
    with pytest.raises(Exception, match=r"topic out"):  # also at the next attempt, even if the first error was caught
        thread.commit()
    assert committed(cluster) is None


def test_commits_follow_the_commit_interval(
    cluster: DirectKafka, application: MakeApplication, clock: ManualClock
) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    feed(cluster, "a")
    thread = application(counting(), commit_interval_ms=5_000).thread().until_idle()
    assert committed(cluster) is None
    clock.advance(5_000)
    thread.step()
    at = committed(cluster)
    assert at is not None
    assert (at.offset, TopicPartitionMetadata.decode(at.metadata).partition_time) == (1, 1000)


def test_the_committed_offset_is_past_a_transaction_marker(cluster: DirectKafka, counter: Application) -> None:
    feed(cluster, "a")
    cluster.append_marker(IN, 0)
    thread = counter.thread().until_idle()
    thread.commit()
    offset = committed(cluster)
    assert offset is not None
    assert offset.offset == 2


def test_a_paused_thread_processes_nothing_and_stays_in_the_group(cluster: DirectKafka, counter: Application) -> None:
    thread = counter.thread().until_running()
    thread.control.commands.append(Pause())
    feed(cluster, "a")
    thread.step(3).commit()
    assert counts(cluster) == {}
    assert thread.state is StreamThreadState.RUNNING
    thread.control.commands.append(Resume())
    thread.step().commit()
    assert counts(cluster) == {"a": 1}


def test_a_paused_thread_with_state_to_restore_rests(cluster: DirectKafka, counter: Application) -> None:
    feed(cluster, "a")
    first = counter.thread().until_idle()
    first.close()
    shutil.rmtree(first.thread.task_manager.state_directory.path / "0_0")
    restoring = counter.thread()
    restoring.control.commands.append(Pause())
    restoring.until(lambda: restoring.state is StreamThreadState.PARTITIONS_ASSIGNED).step(5)
    assert restoring.state is StreamThreadState.PARTITIONS_ASSIGNED
    assert restoring.thread.poll_time_ms() == restoring.thread.poll_ms > 0
    restoring.control.commands.append(Resume())
    restoring.step()
    assert restoring.thread.poll_time_ms() == 0


def test_a_paused_thread_stops_reading_when_its_buffers_are_full(
    cluster: DirectKafka, application: MakeApplication
) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    app = application(counting(), max_poll_records=2, buffered_records_per_partition=3)
    thread = app.thread().until_running()
    thread.control.commands.append(Pause())
    feed(cluster, "abcdefgh")
    thread.step(6)
    assert thread.consumer.positions[TopicPartition(IN, 0)] == 4
    thread.control.commands.append(Resume())
    thread.step(8).commit()
    assert counts(cluster) == dict.fromkeys("abcdefgh", 1)


def test_shutdown_commits_closes_and_leaves(cluster: DirectKafka, counter: Application) -> None:
    feed(cluster, "a")
    thread = counter.thread().until_idle()
    thread.control.commands.append(Shutdown(leave_group=True))
    thread.step()
    assert thread.state.name == "PENDING_SHUTDOWN"
    thread.complete_shutdown(clean_run=True)
    assert thread.state.name == "DEAD"
    assert counts(cluster) == {"a": 1}
    assert thread.member.left is True
    assert thread.consumer.closed


def test_an_unclean_shutdown_commits_nothing(cluster: DirectKafka, counter: Application) -> None:
    feed(cluster, "a")
    thread = counter.thread().until_idle()
    thread.complete_shutdown(clean_run=False)
    assert committed(cluster) is None
    assert counts(cluster) == {}


def test_the_status_has_tasks_and_lag(cluster: DirectKafka, counter: Application, clock: ManualClock) -> None:
    feed(cluster, "ab")
    thread = counter.thread().until_idle()
    clock.advance(1_000)
    thread.step()
    status = [report for report in thread.control.reports if isinstance(report, Status)][-1]
    assert status.state == "RUNNING"
    assert [(task.task_id, task.kind, task.state) for task in status.tasks] == [
        ("0_0", "active", "RUNNING"),
        ("0_1", "active", "RUNNING"),
    ]
    assert status.records_processed == 2
    assert status.lag == 0
    assert status.metrics["process-total"] == 2.0


def test_a_query_is_answered_for_each_task(cluster: DirectKafka, counter: Application) -> None:
    feed(cluster, "aab")
    thread = counter.thread().until_idle()
    asked = [("counts", "get", ("a",)), ("counts", "put", ("a", 1)), ("x", "all", ())]
    thread.control.commands += [Query(number, *query) for number, query in enumerate(asked, start=1)]
    thread.step()
    results = {report.id: report for report in thread.control.reports if isinstance(report, CommandResult)}
    assert results[1].value["0_0"].value == 2
    assert results[1].value["0_1"] is None
    assert "put does not read a store" in (results[2].error or "")
    assert results[3].kind is UnknownStateStoreError


def test_a_store_that_is_being_restored_cannot_be_queried(cluster: DirectKafka, counter: Application) -> None:
    thread = counter.thread()
    thread.until(lambda: thread.task_manager.active.restoring)
    thread.control.commands.append(Query(1, "counts", "get", ("a",)))
    thread.thread.commands.poll()
    results = [report for report in thread.control.reports if isinstance(report, CommandResult)]
    assert "task 0_0 is still restoring; try again" in (results[0].error or "")


def test_a_thread_that_waits_for_its_assignment_answers_no_query(cluster: DirectKafka, counter: Application) -> None:
    thread = counter.thread()
    thread.control.commands.append(Query(1, "counts", "get", ("a",)))
    thread.thread.commands.poll()
    (result,) = [report for report in thread.control.reports if isinstance(report, CommandResult)]
    assert result.kind is InvalidStateStoreError
    assert "may be moving" in (result.error or "")


def test_positions_out_of_range_are_reset_by_policy(cluster: DirectKafka, counter: Application) -> None:
    feed(cluster, "aab")
    cluster.commit(TopicPartition(IN, 0), 99)
    counter.thread().until_idle().commit()
    assert counts(cluster) == {"a": 2, "b": 1}


def test_the_start_offsets_of_all_tasks_need_one_request(cluster: DirectKafka, application: MakeApplication) -> None:
    cluster.create_topic(IN, 5)
    cluster.create_topic(OUT, 1)
    thread = application(counting()).thread()
    asked = []
    admin = thread.supplier.made[f"{thread.name}-admin"]
    ask = admin.offsets

    def offsets(timestamps: Mapping[TopicPartition, int], *rest: Any) -> Any:
        asked.extend([sorted(number for _, number in timestamps)] * all(topic == IN for topic, _ in timestamps))
        return ask(timestamps, *rest)

    admin.offsets = offsets
    thread.until_running()
    assert asked == [[0, 1, 2, 3, 4]]
    manager = thread.task_manager
    assigned = thread.thread._consumer.assignment()
    manager.active.suspend()
    manager.create_tasks(assigned)
    assert len(manager.active.running) == 5
    assert asked == [[0, 1, 2, 3, 4]] * 2


def test_without_a_reset_policy_a_missing_offset_is_an_error(
    cluster: DirectKafka, application: MakeApplication
) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    thread = application(counting(), auto_offset_reset="none").thread()
    with pytest.raises(Exception, match=r"No valid committed offset found for input \[in\] and no valid reset policy"):
        thread.until_running()


def test_the_description_lists_tasks_by_state(cluster: DirectKafka, counter: Application) -> None:
    text = counter.thread().until_running().describe()
    assert text.startswith("\tStreamsThread threadId: client-StreamThread-1\nTaskManager\n")
    assert text.index("Active tasks:") < text.index("Running:") < text.index("TaskId: 0_0") < text.index("Suspended:")


def test_a_summary_is_logged_every_two_minutes(
    cluster: DirectKafka, counter: Application, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    feed(cluster, "abc")
    thread = counter.thread().until_idle()
    clock.advance(120_001)
    thread.step(2)
    summaries = [line for line in caplog.messages if "since the last update" in line]
    assert len(summaries) == 1
    assert "Processed 3 total records, ran 0 punctuators, and committed 1 total tasks since" in summaries[0]


def test_iterations_grow_and_a_commit_halves_them(
    cluster: DirectKafka, counter: Application, clock: ManualClock
) -> None:
    thread = counter.thread().until_running()
    feed(cluster, "a" * 500)
    thread.step(3)
    grown = thread.num_iterations
    assert grown > 2
    clock.advance(30_001)
    feed(cluster, "b")
    thread.step()
    assert thread.num_iterations == grown // 2
