"""At-least-once does not stall while an offset commit is in flight: what that commit
contains, and what it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Processor, Punctuation, Serdes, Stores, StreamsBuilder
from penstock.statestore.rows import rocksdb_store
from penstock.topology.errors import StreamsError, TaskTimeoutError
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.tasks.processor_state_manager import CHECKPOINT_INTERVAL_MS
from penstock.workers.tasks.task_commits import NOT_COMMITTED
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.counting import CHANGELOG, IN, OUT, committed, counting, counts, feed
from tests.workers.thread_stage import Application, Thread

TASK = TaskId(0, 0)
#: Three of these are less than the time between two commits that request the changelogs' end offsets.
INTERVAL_MS = 3_000
MakeApplication = Callable[..., Application]


@pytest.fixture
def counter(cluster: DirectKafka, application: MakeApplication) -> Application:
    for topic in (IN, OUT, CHANGELOG):
        cluster.create_topic(topic, 1)
    return application(counting(), commit_interval_ms=INTERVAL_MS)


@pytest.fixture
def thread(counter: Application, cluster: DirectKafka) -> Thread:
    """A thread that has counted a record, with a store that knows its changelog's end; commits then get no response."""
    feed(cluster, "a")
    counted = counter.thread().until_idle()
    counted.commit()
    counted.member.holds_commits = True
    return counted


def count(thread: Thread, cluster: DirectKafka, keys: str) -> None:
    feed(cluster, keys)
    thread.step(2)


def begin_commit(thread: Thread, clock: ManualClock) -> None:
    clock.advance(INTERVAL_MS + 1)
    thread.step()
    assert len(thread.member.asked) == 1, "the thread has not asked for a commit, or waited for it"


@pytest.fixture
def sent(thread: Thread, cluster: DirectKafka, clock: ManualClock) -> Thread:
    """The same, with a second record counted and its offset commit in flight."""
    count(thread, cluster, "b")
    begin_commit(thread, clock)
    return thread


def answer(thread: Thread) -> None:
    """Let the group respond to the commit, and the thread handle the response."""
    thread.member.answer_commits()
    thread.step()


def offset(cluster: DirectKafka) -> int:
    at = committed(cluster)
    assert at is not None
    return at.offset


def task(thread: Thread) -> Any:
    return thread.task_manager.active.running[TASK]


def test_records_processed_during_an_offset_commit_are_not_part_of_it(
    sent: Thread, cluster: DirectKafka, clock: ManualClock
) -> None:
    assert counts(cluster) == {"a": 1, "b": 1}
    count(sent, cluster, "c")
    assert task(sent).num_buffered() == 0
    assert offset(cluster) == 1
    answer(sent)
    assert offset(cluster) == 2
    assert task(sent).commit_needed
    begin_commit(sent, clock)
    answer(sent)
    assert offset(cluster) == 3
    assert not task(sent).commit_needed
    assert counts(cluster) == counts(cluster, CHANGELOG) == {"a": 1, "b": 1, "c": 1}


def test_stores_that_flush_at_once_hold_the_acknowledged_rows_when_the_offsets_are_sent(
    thread: Thread, cluster: DirectKafka, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdb_store, "WAITING_PART", 1 << 40)
    store = task(thread).state_manager.stores["counts"]
    end = store.committed_offset()
    count(thread, cluster, "b")
    assert counts(cluster, CHANGELOG) == {"a": 1}
    begin_commit(thread, clock)
    assert counts(cluster, CHANGELOG) == {"a": 1, "b": 1}
    assert not store.rows.has_uncommitted()
    assert store.get("b").value == 1
    assert store.committed_offset() == end


def test_a_record_that_cannot_be_written_blocks_the_offset_commit(
    thread: Thread, cluster: DirectKafka, clock: ManualClock
) -> None:
    count(thread, cluster, "b")
    cluster.refuse_records(OUT)
    clock.advance(INTERVAL_MS + 1)
    with pytest.raises(StreamsError, match="out"):
        thread.step()
    assert not thread.member.asked
    assert task(thread).state_manager.stores["counts"].rows.has_uncommitted()


def test_the_next_commit_waits_for_the_previous_one(sent: Thread, cluster: DirectKafka, clock: ManualClock) -> None:
    count(sent, cluster, "c")
    begin_commit(sent, clock)
    assert offset(cluster) == 2
    sent.member.answer_commits()
    assert offset(cluster) == 3


def test_offsets_refused_with_a_retriable_error_are_part_of_the_next_commit(
    sent: Thread, cluster: DirectKafka, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.refuse("OffsetCommit", "REBALANCE_IN_PROGRESS", times=1)
    answer(sent)
    assert "Commit failed, will try again: Offsets of group app were not committed" in caplog.text
    assert offset(cluster) == 1
    begin_commit(sent, clock)
    sent.member.answer_commits()
    assert offset(cluster) == 2


def test_a_commit_that_no_broker_accepts_ends_the_thread_after_the_task_timeout(
    cluster: DirectKafka, application: MakeApplication, clock: ManualClock
) -> None:
    for topic in (IN, OUT):
        cluster.create_topic(topic, 1)
    feed(cluster, "a")
    settings = {"commit_interval_ms": INTERVAL_MS, "task_timeout_ms": 2 * INTERVAL_MS}
    thread = application(counting(), **settings).thread().until_idle()
    thread.commit()
    cluster.refuse("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS")
    count(thread, cluster, "b")

    def go_on() -> None:
        for _ in range(50):  # an attempt ends after a minute
            clock.advance(INTERVAL_MS)
            thread.step()

    with pytest.raises(TaskTimeoutError, match=r"0_0.*committing fails: .* not accepted within 60000 ms"):
        go_on()
    assert offset(cluster) == 1


def test_a_member_that_the_group_removed_closes_its_tasks_when_it_learns_so(
    sent: Thread, cluster: DirectKafka, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.group.generation += 1
    sent.member.answer_commits()
    before = task(sent)
    sent.step()
    assert "This thread is no longer a member of its group" in caplog.text
    assert before.state.name == "CLOSED"
    sent.member.holds_commits = False
    sent.step(3).until_idle().commit()
    assert offset(cluster) == 2


def test_a_commit_that_stores_changelog_end_offsets_is_waited_for(
    thread: Thread, cluster: DirectKafka, clock: ManualClock
) -> None:
    store = task(thread).state_manager.stores["counts"]
    end = store.committed_offset()
    count(thread, cluster, "b")
    clock.advance(CHECKPOINT_INTERVAL_MS)
    thread.step()
    assert offset(cluster) == 2
    assert store.committed_offset() == end + 1


def test_a_join_waits_for_the_commit_in_flight(sent: Thread, cluster: DirectKafka, clock: ManualClock) -> None:
    sent.thread.group.enforce_rebalance("test")
    generation = cluster.group.generation
    sent.step()
    assert cluster.group.generation == generation + 1
    assert offset(cluster) == 2


def test_a_shutdown_commits_records_processed_since_the_last_commit(
    sent: Thread, cluster: DirectKafka, clock: ManualClock
) -> None:
    count(sent, cluster, "c")
    sent.close()
    assert offset(cluster) == 3
    assert counts(cluster) == {"a": 1, "b": 1, "c": 1}


def test_lost_tasks_do_not_wait_for_the_commit_in_flight(
    sent: Thread, cluster: DirectKafka, clock: ManualClock
) -> None:
    sent.member.evict()
    sent.step()
    assert sent.member.asked, "it was waited for"
    assert not sent.task_manager.commits.is_pending


def test_a_requested_commit_follows_the_one_in_flight(sent: Thread, cluster: DirectKafka, clock: ManualClock) -> None:
    count(sent, cluster, "c")
    task(sent).request_commit()
    sent.step()
    assert len(sent.member.asked) == 1, "it did not wait for the answer"
    answer(sent)
    assert offset(cluster) == 3
    assert not task(sent).commit_requested


def test_a_task_reopened_without_a_commit_waits_for_the_one_in_flight(
    sent: Thread, cluster: DirectKafka, clock: ManualClock
) -> None:
    """It would start at older offsets, and its next commit would move the committed offsets back."""
    sent.task_manager.active.interrupted.add(TASK)
    sent.step()
    assert offset(cluster) == 2
    sent.until_idle()
    assert task(sent).fetch_positions() == {TopicPartition(IN, 0): 2}


def test_a_store_with_its_source_topic_as_changelog_has_the_committed_records(
    cluster: DirectKafka, application: MakeApplication, clock: ManualClock
) -> None:
    cluster.create_topic(IN, 1)
    builder = StreamsBuilder()
    builder.table(IN, key_serde=Serdes.string(), value_serde=Serdes.string(), store="rows")
    topology = builder.build({"topology.optimization": "all"})
    feed(cluster, "a")
    made = application(topology, commit_interval_ms=INTERVAL_MS, topology_optimization="all")
    thread = made.thread().until_idle()
    thread.commit()
    thread.member.holds_commits = True
    store = task(thread).state_manager.stores["rows"]
    assert store.committed_offset() == 1
    for key, before in ("b", 1), ("c", 2):
        count(thread, cluster, key)
        begin_commit(thread, clock)
        assert not store.rows.has_uncommitted()
        assert store.committed_offset() == before
        answer(thread)


class Ticking(Processor[str, str, str, str]):
    """Writes to its store by the wall clock, without input."""

    def init(self, context: Any) -> None:
        self.store = context.get_state_store("ticks")
        context.schedule(INTERVAL_MS // 2, Punctuation.WALL_CLOCK_TIME, lambda now: self.store.put("tick", now))

    def process(self, record: Any) -> None:
        self.store.put(record.key, 0)


def test_a_punctuation_during_an_offset_commit_still_needs_a_commit(
    cluster: DirectKafka, application: MakeApplication, clock: ManualClock
) -> None:
    cluster.create_topic(IN, 1)
    builder = StreamsBuilder()
    store = Stores.key_value_store_builder(Stores.persistent_key_value_store("ticks"), Serdes.string(), Serdes.int64())
    builder.add_state_store(store)
    builder.stream(IN, key_serde=Serdes.string(), value_serde=Serdes.string()).process(Ticking, "ticks")
    feed(cluster, "a")
    thread = application(builder.build(), commit_interval_ms=INTERVAL_MS).thread().until_idle()
    thread.commit()
    thread.member.holds_commits = True
    feed(cluster, "b")
    thread.step(2)
    begin_commit(thread, clock)
    clock.advance(INTERVAL_MS // 2)
    thread.step()
    answer(thread)
    assert task(thread).commit_needed
    assert thread.task_manager.commits.commit_all() == 1
    assert not task(thread).commit_needed
    assert thread.task_manager.commits.commit_all() != NOT_COMMITTED
