"""processing.guarantee=exactly_once_v2, over an in-memory Kafka cluster with transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.clients.errors import ErrorCode, TransactionError, UnusableClientError, broker_error
from penstock.clients.writing.writer import Lost
from penstock.topology.context.exception_handlers import FailedProcessingError
from penstock.topology.errors import BrokerUnavailableError, StreamsError, TaskMigratedError
from penstock.topology.records import RawRecord, TaskId
from tests.direct_kafka import DirectKafka
from tests.workers.counting import CHANGELOG, IN, OUT, committed, counting, counts, feed
from tests.workers.direct_group import DirectMember
from tests.workers.direct_io import DirectAdmin, DirectWriter
from tests.workers.thread_stage import Application

MakeApplication = Callable[..., Application]


@pytest.fixture
def counter(cluster: DirectKafka, application: MakeApplication) -> Application:
    cluster.create_topic(IN, 2)
    cluster.create_topic(OUT, 1)
    return application(counting(), processing_guarantee="exactly_once_v2")


def open_transaction(cluster: DirectKafka, topic: str, key: bytes, value: bytes) -> DirectWriter:
    """Write a record as another producer, and leave its transaction open."""
    other = DirectWriter(cluster, "other", "other")
    other.init_transactions(1)
    other.begin_transaction()
    other.produce(topic, key, value, 0, 1)
    other.flush()
    return other


def test_records_and_offsets_are_committed_together(cluster: DirectKafka, counter: Application) -> None:
    feed(cluster, "aab")
    thread = counter.thread().until_idle()
    thread.commit()
    assert counts(cluster) == {"a": 2, "b": 1}
    offset = committed(cluster)
    assert offset is not None
    assert offset.offset == 3
    assert not cluster.requests["OffsetCommit"]  # they were part of the transaction
    assert not cluster.has_open_transactions


def test_a_crash_before_the_commit_leaves_no_visible_records(cluster: DirectKafka, counter: Application) -> None:
    feed(cluster, "aa")
    thread = counter.thread().until_idle()
    thread.commit()
    feed(cluster, "ab")
    thread.step(2)
    for task in thread.task_manager.active.running.values():
        task.prepare_commit()  # the cache was evicted: the broker has the records, in the open transaction
    thread.producer.flush()
    thread.crash()
    counter.thread().until_idle().commit()
    assert counts(cluster) == {"a": 3, "b": 1}


def test_a_restore_waits_for_open_transactions_and_skips_aborted_ones(
    cluster: DirectKafka, counter: Application
) -> None:
    feed(cluster, "aab")
    first = counter.thread().until_idle()
    first.close()
    other = open_transaction(cluster, CHANGELOG, b"a", b"\0\0\0\0\0\0\0\x63")
    delete = counter.stage.state_dir / "app"
    delete.rename(counter.stage.state_dir / "gone")
    # The transaction may be committed already, with its markers still to be written: its input will not be read again
    # (KAFKA-10167).
    thread = counter.thread(slot=2).step(20)
    assert TaskId(0, 0) not in thread.task_manager.active.running
    other.abort_transaction(1)  # no
    thread.until_idle()
    assert thread.changelog_reader.total_restored == 2
    feed(cluster, "a")
    thread.step(2)
    store = thread.task_manager.active.running[TaskId(0, 0)].state_manager.stores["counts"]
    assert store.get("a").value == 3


def test_a_fenced_producer_closes_its_tasks(
    cluster: DirectKafka, counter: Application, caplog: pytest.LogCaptureFixture
) -> None:
    thread = counter.thread().until_idle()
    feed(cluster, "aab")
    cluster.refuse("TxnOffsetCommit", "ILLEGAL_GENERATION", times=1)  # the group has continued without this member
    counter.stage.clock.advance(200)
    thread.step()
    assert "dropped out of the consumer group" in caplog.text
    assert not thread.task_manager.active.running
    assert committed(cluster) is None
    assert counts(cluster) == {}
    thread.until(lambda: len(thread.task_manager.active.running) == 2).step(3).commit()
    assert counts(cluster) == {"a": 2, "b": 1}
    assert len(cluster.records(OUT)) == 2  # the records of the aborted transaction are never visible


def test_a_transaction_that_fails_because_of_a_deleted_changelog_is_no_migration(
    cluster: DirectKafka, counter: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts would start from zero."""
    thread = counter.thread().until_idle()
    feed(cluster, "aab")
    thread.step(2)

    def send_offsets(*_: object) -> None:
        if CHANGELOG in cluster.topics:
            cluster.delete(CHANGELOG)
        raise TransactionError(broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "add partitions"), can_abort=True)

    monkeypatch.setattr(thread.producer, "send_offsets_to_transaction", send_offsets)
    gone = f"topic {CHANGELOG} partition 0 .* The changelog was deleted. The state"
    with pytest.raises(FailedProcessingError, match=gone):  # no processing handler is called for it
        thread.commit()


def test_a_record_refused_after_its_changelog_was_deleted_is_no_migration(
    cluster: DirectKafka, counter: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, if the transaction has already failed while records are still being sent."""
    thread = counter.thread()

    def produce(*_: object) -> None:
        if CHANGELOG in cluster.topics:
            cluster.delete(CHANGELOG)
        raise UnusableClientError("the transaction has to be aborted")

    monkeypatch.setattr(thread.producer, "produce", produce)
    thread.until_idle()
    feed(cluster, "aab")
    with pytest.raises(StreamsError, match=f"topic {CHANGELOG} partition 0 .* The changelog was deleted. The state"):
        thread.step(2).commit()


def test_a_fence_that_is_detected_later_closes_the_tasks_too(cluster: DirectKafka, counter: Application) -> None:
    thread = counter.thread().until_idle()
    fenced = broker_error(ErrorCode.INVALID_PRODUCER_EPOCH)
    thread.producer.lost.append(Lost(fenced, RawRecord(OUT, 0, -1, 1, b"k", b"v")))
    thread.step()
    assert not thread.task_manager.active.running
    feed(cluster, "aab")
    thread.until(lambda: len(thread.task_manager.active.running) == 2).step(3).commit()
    assert counts(cluster) == {"a": 2, "b": 1}


def test_all_tasks_of_a_thread_share_the_transaction(cluster: DirectKafka, counter: Application) -> None:
    feed(cluster, "a", partition=0)
    feed(cluster, "b", partition=1)
    thread = counter.thread().until_idle()
    task = next(iter(thread.task_manager.active.running.values()))
    task.request_commit()
    thread.step()
    assert [committed(cluster, partition) is not None for partition in (0, 1)] == [True, True]


def test_a_task_that_leaves_uncommitted_is_excluded_from_the_commit(
    cluster: DirectKafka, counter: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output is in the transaction of all tasks, which would be committed without its offsets."""
    feed(cluster, "a", partition=0)
    feed(cluster, "b", partition=1)
    first = counter.thread().until_idle()
    feed(cluster, "a", partition=0)
    feed(cluster, "b", partition=1)
    first.step(2)
    manager = first.task_manager
    first.member.in_doubt = True  # the process was suspended before it handled its assignment
    with pytest.raises(TaskMigratedError, match=r"\[0_1\] could not be committed before they leave, and their"):
        manager.suspend_tasks_and_state([TaskId(0, 1)], [])
    manager.handle_lost_all()
    cluster.evict()
    second = counter.thread(slot=2).until_idle()
    second.commit()
    assert counts(cluster) == {"a": 2, "b": 2}
    assert not cluster.has_open_transactions


def test_a_clean_close_leaves_no_transaction_open(cluster: DirectKafka, counter: Application) -> None:
    feed(cluster, "aab")
    counter.thread().until_idle().close()
    assert counts(cluster) == {"a": 2, "b": 1}
    assert not cluster.has_open_transactions


def test_a_task_requests_end_offsets_only_after_its_committed_offsets_are_stable(
    cluster: DirectKafka, counter: Application, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A former owner may be about to commit. Its changelog records must be visible when the end offsets are
    requested.
    """
    asked: list[str] = []
    committed_offsets, offsets = DirectMember.committed, DirectAdmin.offsets

    def committed(self: DirectMember, partitions: Any) -> Any:
        asked.append("offsets")
        if len(asked) <= 2:  # one for all tasks, one for the first
            raise BrokerUnavailableError("a transaction is open")
        return committed_offsets(self, partitions)

    def ends(self: DirectAdmin, timestamps: Any, timeout_ms: int, committed_only: bool = False) -> Any:
        asked.extend("end" for p in timestamps if p.topic == CHANGELOG)
        return offsets(self, timestamps, timeout_ms, committed_only)

    monkeypatch.setattr(DirectMember, "committed", committed)
    thread = counter.thread()
    monkeypatch.setattr(DirectAdmin, "offsets", ends)
    thread.until_running()
    assert asked[:2] == ["offsets"] * 2
    assert "Opening the stores of tasks [0_0] failed and is tried again" in caplog.text
    assert asked[: asked.index("end")].count("offsets") >= 3


def test_an_input_blocked_by_an_open_transaction_is_reported(
    cluster: DirectKafka, counter: Application, caplog: pytest.LogCaptureFixture
) -> None:
    feed(cluster, "aab")
    thread = counter.thread().until_idle()
    died = open_transaction(cluster, IN, b"a", b"value")
    feed(cluster, "a", partition=1)
    for _ in range(3):
        counter.stage.clock.advance(11_000)
        thread.step(3)
    told = [record.getMessage() for record in caplog.records if "is held at offset" in record.getMessage()]
    assert len(told) == 1, "once, and not of the partition that continues"
    assert "in-0 is held at offset 3, although there are records up to 4" in told[0]
    died.commit_transaction(1)  # the next producer completes it
    thread.step(3).commit()
    assert counts(cluster) == {"a": 3, "b": 1}  # of partition 0; the record of partition 1 was written before


def test_a_quiet_input_is_not_reported_as_an_open_transaction(
    cluster: DirectKafka, counter: Application, caplog: pytest.LogCaptureFixture
) -> None:
    feed(cluster, "aab")
    thread = counter.thread().until_idle()
    for _ in range(3):
        counter.stage.clock.advance(11_000)
        thread.step(3)
    assert "is held at offset" not in caplog.text


def test_a_stuck_consumer_is_not_reported_as_an_open_transaction(
    cluster: DirectKafka, counter: Application, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = counter.thread().until_idle()
    monkeypatch.setattr(thread.consumer, "_read", lambda partition, count: ([], None))
    feed(cluster, "aab")
    for _ in range(3):
        counter.stage.clock.advance(11_000)
        thread.step(3)
    assert "is held at offset" not in caplog.text, "its records are committed: see stall_watchdog.py"
