"""processing.guarantee=exactly_once_v2, over a Kafka cluster in memory that knows transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.clients.errors import ErrorCode, TransactionError, UnusableClientError, broker_error
from penstock.clients.writing.writer import Lost
from penstock.topology.context.exception_handlers import FailedProcessingError
from penstock.topology.errors import BrokerUnavailableError, StreamsError, TaskMigratedError
from penstock.topology.records import RawRecord, TaskId, TopicPartition
from tests.workers.counting import CHANGELOG, IN, OUT, committed, counting, counts, feed
from tests.workers.memory_clients import MemoryMember
from tests.workers.memory_kafka import Cluster, MemoryAdmin
from tests.workers.thread_stage import Application

MakeApplication = Callable[..., Application]


@pytest.fixture
def counter(cluster: Cluster, application: MakeApplication) -> Application:
    cluster.create_topic(IN, 2)
    cluster.create_topic(OUT, 1)
    return application(counting(), processing_guarantee="exactly_once_v2")


def test_records_and_offsets_are_committed_together(cluster: Cluster, counter: Application) -> None:
    feed(cluster, "aab")
    thread = counter.thread().until_idle()
    thread.commit()
    assert counts(cluster) == {"a": 2, "b": 1}
    offset = committed(cluster)
    assert offset is not None
    assert offset.offset == 3
    assert thread.member.commits == []  # the transaction took them along
    assert all(log.open_since is None for log in cluster.logs.values())


def test_a_crash_before_the_commit_leaves_nothing_behind(cluster: Cluster, counter: Application) -> None:
    feed(cluster, "aa")
    thread = counter.thread().until_idle()
    thread.commit()
    feed(cluster, "ab")
    thread.step(2)
    for task in thread.task_manager.active.running.values():
        task.prepare_commit()  # the cache was evicted: records are with the broker, in the open transaction
    thread.producer.flush()
    thread.crash()
    cluster.group.members.clear()
    thread.producer.abort_transaction(1)  # as the coordinator does for the next producer with this transactional id
    counter.thread().until_idle().commit()
    assert counts(cluster) == {"a": 3, "b": 1}


def test_a_restore_waits_for_open_transactions_and_leaves_out_aborted_ones(
    cluster: Cluster, counter: Application
) -> None:
    feed(cluster, "aab")
    first = counter.thread().until_idle()
    first.close()
    partition = TopicPartition(CHANGELOG, 0)
    log = cluster.logs[partition]
    log.open_since = log.end
    cluster.append(CHANGELOG, 0, b"a", b"\0\0\0\0\0\0\0\x63", 1)  # someone's open transaction
    delete = counter.stage.state_dir / "app"
    delete.rename(counter.stage.state_dir / "gone")
    # It may be one that is committed, with its markers on their way: its input will not be read again (KAFKA-10167).
    thread = counter.thread(slot=2).step(20)
    assert TaskId(0, 0) not in thread.task_manager.active.running
    log.records[-1] = None  # no: it is aborted
    log.open_since = None
    thread.until_idle()
    assert thread.changelog_reader.total_restored == 2
    feed(cluster, "a")
    thread.step(2)
    store = thread.task_manager.active.running[TaskId(0, 0)].state_manager.stores["counts"]
    assert store.get("a").value == 3


def test_a_fenced_producer_gives_its_tasks_up(
    cluster: Cluster, counter: Application, caplog: pytest.LogCaptureFixture
) -> None:
    thread = counter.thread().until_idle()
    feed(cluster, "aab")
    cluster.group.generation += 1  # the group has continued without this member
    counter.stage.clock.advance(200)
    thread.step()
    assert "dropped out of the consumer group" in caplog.text
    assert not thread.task_manager.active.running
    assert committed(cluster) is None
    assert counts(cluster) == {}
    thread.until(lambda: len(thread.task_manager.active.running) == 2).step(3).commit()
    assert counts(cluster) == {"a": 2, "b": 1}
    assert len(cluster.records(OUT)) == 2  # what the aborted transaction held never comes


def test_a_transaction_that_fails_for_a_deleted_changelog_is_no_migration(
    cluster: Cluster, counter: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started again, the tasks would find the changelog recreated, and count from nothing."""
    thread = counter.thread().until_idle()
    feed(cluster, "aab")
    thread.step(2)

    def send_offsets(*_: object) -> None:
        for partition in cluster.partitions(CHANGELOG):
            del cluster.logs[partition]
        raise TransactionError(broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "add partitions"), can_abort=True)

    monkeypatch.setattr(thread.producer, "send_offsets_to_transaction", send_offsets)
    gone = f"topic {CHANGELOG} partition 0 .* The changelog was deleted. A restart"
    with pytest.raises(FailedProcessingError, match=gone):  # no processing handler is asked about it
        thread.commit()


def test_a_record_refused_after_its_changelog_was_deleted_is_no_migration(
    cluster: Cluster, counter: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, when the transaction has failed already while records are still being sent."""
    thread = counter.thread()

    def produce(*_: object) -> None:
        for partition in cluster.partitions(CHANGELOG):
            del cluster.logs[partition]
        raise UnusableClientError("the transaction has to be aborted")

    monkeypatch.setattr(thread.producer, "produce", produce)
    thread.until_idle()
    feed(cluster, "aab")
    with pytest.raises(StreamsError, match=f"topic {CHANGELOG} partition 0 .* The changelog was deleted. A restart"):
        thread.step(2).commit()


def test_a_fence_that_is_learned_of_later_gives_the_tasks_up_too(cluster: Cluster, counter: Application) -> None:
    thread = counter.thread().until_idle()
    fenced = broker_error(ErrorCode.INVALID_PRODUCER_EPOCH)
    thread.producer.lost.append(Lost(fenced, RawRecord(OUT, 0, -1, 1, b"k", b"v")))
    thread.step()
    assert not thread.task_manager.active.running
    feed(cluster, "aab")
    thread.until(lambda: len(thread.task_manager.active.running) == 2).step(3).commit()
    assert counts(cluster) == {"a": 2, "b": 1}


def test_all_tasks_of_a_thread_share_the_transaction(cluster: Cluster, counter: Application) -> None:
    feed(cluster, "a", partition=0)
    feed(cluster, "b", partition=1)
    thread = counter.thread().until_idle()
    task = next(iter(thread.task_manager.active.running.values()))
    task.request_commit()
    thread.step()
    assert [committed(cluster, partition) is not None for partition in (0, 1)] == [True, True]


def test_what_leaves_uncommitted_is_not_committed_with_the_others(
    cluster: Cluster, counter: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output is in the transaction of all tasks, which would continue without its offsets."""
    feed(cluster, "a", partition=0)
    feed(cluster, "b", partition=1)
    first = counter.thread().until_idle()
    feed(cluster, "a", partition=0)
    feed(cluster, "b", partition=1)
    first.step(2)
    manager = first.task_manager
    first.member.in_doubt = True  # the process was suspended before it took in what it is assigned
    with pytest.raises(TaskMigratedError, match=r"\[0_1\] could not be committed before they leave, and their"):
        manager.suspend_tasks_and_state([TaskId(0, 1)], [])
    manager.handle_lost_all()
    cluster.group.members.clear()
    second = counter.thread(slot=2).until_idle()
    second.commit()
    assert counts(cluster) == {"a": 2, "b": 2}
    assert all(log.open_since is None for log in cluster.logs.values())


def test_a_clean_close_leaves_no_transaction_open(cluster: Cluster, counter: Application) -> None:
    feed(cluster, "aab")
    counter.thread().until_idle().close()
    assert counts(cluster) == {"a": 2, "b": 1}
    assert all(log.open_since is None for log in cluster.logs.values())


def test_a_task_asks_for_its_changelogs_ends_only_when_its_offsets_are_decided(
    cluster: Cluster, counter: Application, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A former owner may be about to commit: its changelog records must be there when the ends are asked for."""
    asked: list[str] = []
    committed_offsets, offsets = MemoryMember.committed, MemoryAdmin.offsets

    def committed(self: MemoryMember, partitions: Any) -> Any:
        asked.append("offsets")
        if len(asked) <= 2:  # of all tasks, and of the first one
            raise BrokerUnavailableError("a transaction is open")
        return committed_offsets(self, partitions)

    def ends(self: MemoryAdmin, timestamps: Any, timeout_ms: int, committed_only: bool = False) -> Any:
        asked.extend("end" for p in timestamps if p.topic == CHANGELOG)
        return offsets(self, timestamps, timeout_ms, committed_only)

    monkeypatch.setattr(MemoryMember, "committed", committed)
    thread = counter.thread()
    monkeypatch.setattr(MemoryAdmin, "offsets", ends)
    thread.until_running()
    assert asked[:2] == ["offsets"] * 2
    assert "Opening the stores of tasks [0_0] failed and is tried again" in caplog.text
    assert asked[: asked.index("end")].count("offsets") >= 3


def test_an_input_that_an_open_transaction_holds_up_is_told(
    cluster: Cluster, counter: Application, caplog: pytest.LogCaptureFixture
) -> None:
    feed(cluster, "aab")
    thread = counter.thread().until_idle()
    log = cluster.logs[TopicPartition(IN, 0)]
    log.open_since = log.end
    feed(cluster, "a")  # a producer that died before its commit
    feed(cluster, "a", partition=1)
    for _ in range(3):
        counter.stage.clock.advance(11_000)
        thread.step(3)
    told = [record.getMessage() for record in caplog.records if "is held at offset" in record.getMessage()]
    assert len(told) == 1, "once, and not of the partition that continues"
    assert "in-0 is held at offset 3, although there are records up to 4" in told[0]
    log.open_since = None  # the broker has aborted it
    thread.step(3).commit()
    assert counts(cluster) == {"a": 3, "b": 1}  # of partition 0; the one of partition 1 was written before


def test_a_quiet_input_is_no_open_transaction(
    cluster: Cluster, counter: Application, caplog: pytest.LogCaptureFixture
) -> None:
    feed(cluster, "aab")
    thread = counter.thread().until_idle()
    for _ in range(3):
        counter.stage.clock.advance(11_000)
        thread.step(3)
    assert "is held at offset" not in caplog.text


def test_a_consumer_that_stands_still_is_no_open_transaction(
    cluster: Cluster, counter: Application, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = counter.thread().until_idle()
    monkeypatch.setattr(thread.consumer, "_read", lambda partition, count: ([], None))
    feed(cluster, "aab")
    for _ in range(3):
        counter.stage.clock.advance(11_000)
        thread.step(3)
    assert "is held at offset" not in caplog.text, "its records are committed: see stall_watchdog.py"
