"""When stores record the end offsets of their changelogs: as often as Kafka Streams writes checkpoints, not at each
commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from penstock import Materialized, Serdes, StreamsBuilder
from penstock.clients.errors import UnreachableError
from penstock.statestore.rows import rocksdb_store
from penstock.statestore.rows.rocksdb_resources import RocksDBConfig
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.tasks.processor_state_manager import CHECKPOINT_INTERVAL_MS
from tests.direct_kafka import DirectKafka
from tests.futures import failed
from tests.manual_clock import ManualClock
from tests.workers.counting import CHANGELOG, IN, OUT, counting, counts, feed
from tests.workers.direct_io import DirectAdmin
from tests.workers.thread_stage import Application, Thread

TASK = TaskId(0, 0)
NEVER = 10**9


class Asked:
    """Counts the requests for end offsets of changelogs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        original = DirectAdmin.offsets

        def offsets(admin: DirectAdmin, timestamps: Mapping[TopicPartition, int], timeout_ms: int) -> object:
            self.times += 1
            return original(admin, timestamps, timeout_ms)

        monkeypatch.setattr(DirectAdmin, "offsets", offsets)


@pytest.fixture(params=["at_least_once", "exactly_once_v2"])
def counter(
    cluster: DirectKafka, application: Callable[..., Application], request: pytest.FixtureRequest
) -> Application:
    for topic in (IN, OUT, CHANGELOG):
        cluster.create_topic(topic, 1)
    times = {"commit_interval_ms": NEVER, "transaction_timeout_ms": NEVER}
    return application(counting(), **times, processing_guarantee=request.param)


@pytest.fixture
def thread(counter: Application, cluster: DirectKafka) -> Thread:
    """A thread that has counted two records and committed: a first commit stores the changelog's offset."""
    feed(cluster, "ab")
    counted = counter.thread().until_idle()
    counted.commit()
    assert stored_offset(counted) == end(cluster)
    return counted


@pytest.fixture
def asked(thread: Thread, monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def end(cluster: DirectKafka) -> int:
    """Return the offset after the changelog's last record; a transaction marker follows it."""
    return 1 + max(record.offset() for record in cluster.records(CHANGELOG))


def store(thread: Thread) -> Any:
    return thread.task_manager.active.running[TASK].state_manager.stores["counts"]


def stored_offset(thread: Thread) -> int:
    offset: int = store(thread).committed_offset()
    return offset


def restored(thread: Thread) -> int:
    records: int = thread.thread.changelog_reader.total_restored
    return records


def count_more(thread: Thread, cluster: DirectKafka, keys: str) -> None:
    feed(cluster, keys)
    thread.step(3)


def test_a_commit_soon_after_another_requests_no_end_offsets_and_keeps_rows_in_memory(
    thread: Thread, cluster: DirectKafka, asked: Asked, clock: ManualClock
) -> None:
    before = stored_offset(thread)
    count_more(thread, cluster, "aa")
    assert thread.commit() == 1
    assert asked.times == 0
    assert stored_offset(thread) == before
    rows = store(thread).rows
    assert rows.has_uncommitted()
    assert store(thread).get("a").value == counts(cluster, CHANGELOG)["a"] == 3
    clock.advance(CHECKPOINT_INTERVAL_MS)
    count_more(thread, cluster, "a")
    assert thread.commit() == 1
    assert not rows.has_uncommitted()
    assert store(thread).get("a").value == 4
    assert stored_offset(thread) >= end(cluster)


def test_many_rows_are_written_at_once(thread: Thread, cluster: DirectKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 189 bytes: a key of one letter, a timestamp, an eight-byte number, and Python's overhead."""
    monkeypatch.setattr(rocksdb_store, "WAITING_PART", RocksDBConfig().uncommitted_max_bytes // 500)
    for keys, wait in ("cd", True), ("e", False):
        count_more(thread, cluster, keys)
        assert thread.commit() == 1
        assert store(thread).rows.has_uncommitted() == wait


def test_rows_without_a_changelog_are_written_at_once(
    cluster: DirectKafka, application: Callable[..., Application]
) -> None:
    cluster.create_topic(IN, 1)
    builder = StreamsBuilder()
    not_logged = Materialized("counts").with_logging_disabled().with_caching_disabled()
    builder.stream(IN, key_serde=Serdes.string(), value_serde=Serdes.string()).group_by_key().count(store=not_logged)
    counted = application(builder.build(), commit_interval_ms=NEVER).thread().until_idle()
    for keys in "a", "b":
        count_more(counted, cluster, keys)
        assert store(counted).rows.has_uncommitted()
        assert counted.commit() == 1
        assert not store(counted).rows.has_uncommitted()


def test_rows_kept_in_memory_are_restored_after_a_crash(
    thread: Thread, counter: Application, cluster: DirectKafka
) -> None:
    count_more(thread, cluster, "aab")
    assert thread.commit() == 1
    thread.crash()
    again = counter.thread().until_idle()
    assert {key: store(again).get(key).value for key in "ab"} == counts(cluster, CHANGELOG) == {"a": 3, "b": 2}


def test_a_later_commit_stores_the_offset_even_without_new_records(
    thread: Thread, cluster: DirectKafka, clock: ManualClock, asked: Asked
) -> None:
    count_more(thread, cluster, "aa")
    assert thread.commit() == 1
    assert thread.commit() == 0
    clock.advance(CHECKPOINT_INTERVAL_MS)
    thread.step()
    assert thread.commit() == 1
    assert stored_offset(thread) >= end(cluster)
    assert thread.commit() == 0
    assert asked.times == 1


def test_a_task_that_moves_stores_its_offset(thread: Thread, cluster: DirectKafka, asked: Asked) -> None:
    """Its next owner has nothing to restore, although no record was processed since the last commit."""
    count_more(thread, cluster, "aa")
    thread.commit()
    manager = thread.task_manager
    manager.suspend_tasks_and_state({TASK}, set())
    store = manager.active.suspended[TASK].state_manager.stores["counts"]
    assert store.committed_offset() >= end(cluster)
    assert asked.times == 1


@pytest.fixture
def no_ends(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The leader of the changelog is unavailable for a moment."""
    away = failed(UnreachableError("the broker went away"))
    monkeypatch.setattr(DirectAdmin, "offsets", lambda admin, asked, timeout_ms: dict.fromkeys(asked, away))
    return monkeypatch


def test_a_commit_succeeds_without_end_offsets(
    thread: Thread, cluster: DirectKafka, clock: ManualClock, request: pytest.FixtureRequest, caplog: Any
) -> None:
    before = stored_offset(thread)
    count_more(thread, cluster, "aa")
    clock.advance(CHECKPOINT_INTERVAL_MS)
    thread.step()
    no_ends: pytest.MonkeyPatch = request.getfixturevalue("no_ends")
    assert thread.commit() == 1
    assert cluster.committed_offset(TopicPartition(IN, 0)) == 4
    assert "Committing tasks [0_0] without the ends of their changelogs" in caplog.text
    assert stored_offset(thread) == before
    no_ends.undo()
    assert thread.commit() == 1, "it is still time"
    assert stored_offset(thread) >= end(cluster)


def test_a_moving_task_is_committed_even_without_end_offsets(
    thread: Thread, cluster: DirectKafka, no_ends: pytest.MonkeyPatch
) -> None:
    """Otherwise the next owner would process its last records again; with exactly-once, those of all the thread's
    tasks.
    """
    count_more(thread, cluster, "aa")
    thread.task_manager.suspend_tasks_and_state({TASK}, set())
    assert cluster.committed_offset(TopicPartition(IN, 0)) == 4


def test_after_a_clean_stop_nothing_is_restored(thread: Thread, cluster: DirectKafka, counter: Application) -> None:
    count_more(thread, cluster, "aa")
    thread.commit()
    thread.close()
    again = counter.thread().until_running()
    assert restored(again) == 0


def test_after_a_crash_records_behind_the_stored_offset_are_restored(
    thread: Thread, cluster: DirectKafka, counter: Application
) -> None:
    count_more(thread, cluster, "aa")
    thread.commit()
    thread.crash()
    again = counter.thread().until_running()
    assert restored(again) == 1
    count_more(again, cluster, "a")
    again.commit()
    assert counts(cluster, CHANGELOG) == {"a": 4, "b": 1}
