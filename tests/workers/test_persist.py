"""Stores are persisted on a background thread, to survive a SIGKILL, while the stream thread continues."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from penstock.statestore.rows.rocksdb_errors import failed_call
from penstock.statestore.rows.rocksdb_store import RocksDBStore
from penstock.topology.errors import ProcessorStateError, TaskCorruptedError
from penstock.topology.records import TaskId
from penstock.workers.tasks import processor_state_manager
from penstock.workers.tasks.processor_state_manager import PERSIST_INTERVAL_MS
from penstock.workers.thread.stream_thread import PERSIST_CHECK_MS
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.counting import IN, OUT, counting, counts, feed
from tests.workers.thread_stage import Application, Thread

TASK = TaskId(0, 0)


class Later(Executor):
    """An executor that runs its work when a test says so, or when the result is awaited."""

    def __init__(self) -> None:
        self.given: list[Waited] = []

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        self.given.append(Waited(lambda: function(*arguments)))
        return self.given[-1]


class Waited(Future[Any]):
    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work

    def work(self) -> None:
        try:
            self.set_result(self._work())
        except Exception as error:  # noqa: BLE001  the future's
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self.work()
        return super().result(0)


@pytest.fixture
def later() -> Later:
    return Later()


@pytest.fixture
def thread(
    cluster: DirectKafka, application: Callable[..., Application], later: Later, monkeypatch: pytest.MonkeyPatch
) -> Thread:
    """A thread whose stores are persisted after two records."""
    monkeypatch.setattr(processor_state_manager, "PERSIST_RECORDS", 2)
    for topic in (IN, OUT):
        cluster.create_topic(topic, 1)
    return application(counting(), commit_interval_ms=10**9).thread(background=later).until_idle()


def count(thread: Thread, cluster: DirectKafka, clock: ManualClock, keys: str) -> None:
    """Count, commit with the changelog's end offset, and check whether stores must be persisted."""
    feed(cluster, keys)
    thread.step(3)
    clock.advance(PERSIST_INTERVAL_MS)
    thread.step()
    thread.commit()
    clock.advance(PERSIST_CHECK_MS)
    thread.step()


def store(thread: Thread) -> Any:
    return thread.task_manager.active.running[TASK].state_manager.stores["counts"]


def in_memtables(rows: RocksDBStore) -> float:
    return rows.properties(["num-entries-active-mem-table"])["num-entries-active-mem-table"]


def test_records_are_processed_while_stores_are_persisted(
    thread: Thread, cluster: DirectKafka, clock: ManualClock, later: Later
) -> None:
    count(thread, cluster, clock, "a")
    count(thread, cluster, clock, "bcd")
    (first,) = later.given
    count(thread, cluster, clock, "efgh")
    assert counts(cluster) == dict.fromkeys("abcdefgh", 1)
    assert later.given == [first], "it was begun a second time"
    assert in_memtables(store(thread).rows) == 8
    first.work()
    assert in_memtables(store(thread).rows) == 0
    count(thread, cluster, clock, "i")
    _, second = later.given
    second.work()
    count(thread, cluster, clock, "")
    assert len(later.given) == 2, "there was nothing to persist"


def test_an_error_is_raised_at_the_next_check(
    thread: Thread, cluster: DirectKafka, clock: ManualClock, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    count(thread, cluster, clock, "a")
    count(thread, cluster, clock, "bcd")
    monkeypatch.setattr(store(thread).rows, "persist", raising(ProcessorStateError("the disk is full")))
    later.given[0].work()
    monkeypatch.undo()
    clock.advance(PERSIST_CHECK_MS)
    with pytest.raises(ProcessorStateError, match="the disk is full"):
        thread.thread.run_once()


def test_a_damaged_file_found_while_persisting_restores_the_task(
    thread: Thread, cluster: DirectKafka, clock: ManualClock, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    count(thread, cluster, clock, "a")
    count(thread, cluster, clock, "bcd")
    damaged = failed_call(Path("counts"), "flush", Exception("Corruption: block checksum mismatch"))
    monkeypatch.setattr(store(thread).rows, "persist", raising(damaged))
    later.given[0].work()
    monkeypatch.undo()
    clock.advance(PERSIST_CHECK_MS)
    with pytest.raises(TaskCorruptedError, match="0_0"):
        thread.thread.run_once()


def raising(error: Exception) -> Callable[..., None]:
    def persist(beside_writes: bool = False) -> None:
        raise error

    return persist


@pytest.mark.parametrize("end", ["closed", "closed dirty", "recycled"])
def test_stores_are_closed_only_after_they_are_persisted(
    thread: Thread, cluster: DirectKafka, clock: ManualClock, later: Later, end: str
) -> None:
    count(thread, cluster, clock, "a")
    count(thread, cluster, clock, "bcd")
    manager = thread.task_manager
    if end == "recycled":
        manager.suspend_tasks_and_state({TASK}, set())
        recycled = manager.active.suspended.pop(TASK).recycle()
        assert later.given[0].done()
        recycled.stores["counts"].close()
    else:
        manager.active.close(clean=end == "closed")
    assert later.given[0].done()
    assert later.given[0].exception() is None, "the store was closed while it was persisted"
