"""Standby tasks over an in-memory Kafka cluster: they follow, and pass their open stores to the active task."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    FixedKeyProcessor,
    Materialized,
    Record,
    Serdes,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    ValueTimestampHeaders,
)
from penstock.statestore.rows.rocksdb_store import RocksDBStore
from penstock.topology.errors import TopologyError
from penstock.topology.query.isolation_level import IsolationLevel
from penstock.topology.query.position import Position, PositionBound
from penstock.topology.query.state_queries import KeyQuery
from penstock.topology.query.state_query_request import StateQueryRequest
from penstock.topology.query.state_query_result import FailureReason, QueryResult
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.control.messages import AnswerRequest, Query, ReadStore, TaskResults
from penstock.workers.control.stream_thread_state import StreamThreadState
from penstock.workers.group.assignment.streams_partition_assignor import Assignment
from penstock.workers.queries.store_answers import Reply
from penstock.workers.restore.listeners import StandbyUpdateListener, SuspendReason
from penstock.workers.thread.thread_commands import answer, answer_query
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.counting import IN, OUT, counting, counts, feed
from tests.workers.thread_stage import Application, Thread

MakeApplication = Callable[..., Application]
TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
TASK = TaskId(0, 0)
CHANGELOG = TopicPartition("app-counts-changelog", 0)


def step_until(condition: Callable[[], Any], *threads: Thread) -> None:
    """Step the running threads in turn."""
    for _ in range(100):
        if condition():
            return
        for thread in threads:
            if thread.is_running:
                thread.step()
    raise AssertionError("not reached in 100 rounds")


class Pair:
    """Two instances of an application with one partition: one has the active task, the other the standby task."""

    def __init__(self, app: Application, **overrides: Any) -> None:
        self.app = app
        self.active = app.thread().until_running()
        config = {**app.config, "state.dir": str(app.stage.state_dir / "other")}
        self._other = Application(app.stage, app.topology, config)
        self.standby = self._other.thread(slot=2, process_id="7fffffff-0000-0000-0000-000000000002", **overrides)
        step_until(lambda: TASK in self.standby.task_manager.standby.running, self.active, self.standby)

    def feed(self, text: str) -> None:
        """Let the active task count and commit, and the standby task catch up."""
        feed(self.app.stage.cluster, text)
        self.active.step(2).commit()
        self.standby.step(3)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stores whose RocksDB was opened, in order."""
    names: list[str] = []
    open_store = RocksDBStore._open

    def spy(store: RocksDBStore, *arguments: Any) -> Any:
        names.append(store.path.name)
        return open_store(store, *arguments)

    monkeypatch.setattr(RocksDBStore, "_open", spy)
    return names


@pytest.fixture
def topics(cluster: DirectKafka) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)


def running_store(thread: Thread) -> Any:
    return thread.task_manager.active.running[TASK].state_manager.stores["counts"]


@pytest.mark.usefixtures("topics")
def test_a_standby_task_becomes_active_with_its_stores_open(
    cluster: DirectKafka, application: MakeApplication, opened: list[str]
) -> None:
    pair = Pair(application(counting(), num_standby_replicas=1))
    pair.feed("aab")
    followed = pair.standby.task_manager.standby.running[TASK].state_manager.stores["counts"].rows
    opened.clear()
    pair.active.close()
    pair.standby.until(lambda: TASK in pair.standby.task_manager.active.running)
    assert opened == []
    assert running_store(pair.standby).rows is followed
    assert pair.standby.changelog_reader.total_restored == 0
    assert pair.standby.changelog_reader.total_updated == 2
    feed(cluster, "a")
    pair.standby.step(3).commit()
    assert counts(cluster) == {"a": 3, "b": 1}


@pytest.mark.usefixtures("topics")
def test_only_the_tail_is_replayed_if_a_standby_task_was_behind(
    cluster: DirectKafka, application: MakeApplication
) -> None:
    pair = Pair(application(counting(), num_standby_replicas=1))
    pair.feed("aab")
    feed(cluster, "ac")
    pair.active.step(2).commit()
    pair.active.close()
    pair.standby.until(lambda: TASK in pair.standby.task_manager.active.running)
    reader = pair.standby.changelog_reader
    assert (reader.total_updated, reader.total_restored) in ((2, 2), (4, 0))
    feed(cluster, "a")
    pair.standby.step(3).commit()
    assert counts(cluster) == {"a": 4, "b": 1, "c": 1}


@pytest.mark.usefixtures("topics")
def test_an_active_task_becomes_standby_with_its_stores_open(
    cluster: DirectKafka, application: MakeApplication, opened: list[str]
) -> None:
    pair = Pair(application(counting(), num_standby_replicas=1))
    pair.feed("aab")
    manager = pair.active.task_manager
    rows = running_store(pair.active).rows
    opened.clear()
    pair.active.group.apply(Assignment(manager.assigned_standby_tasks, manager.assigned_active_tasks))
    pair.active.step(2)
    assert opened == []
    assert manager.standby.running[TASK].state_manager.stores["counts"].rows is rows
    assert not manager.active.all_tasks()
    assert pair.active.changelog_reader.total_updated == 0
    cluster.append(CHANGELOG.topic, 0, b"a", b"\0\0\0\0\0\0\0\7", 1)
    pair.active.step(2)
    assert manager.standby.running[TASK].state_manager.stores["counts"].get("a").value == 7


def in_memory_and_suppressed() -> Any:
    builder = StreamsBuilder()
    windows = TimeWindows.of_size_with_no_grace(timedelta(seconds=10))
    counted = builder.stream(IN, **TEXT).group_by_key().windowed_by(windows)
    table = counted.count(store=Materialized("counts", store_type="in_memory"))
    table.suppress(Suppressed.until_window_closes(name="held")).to_stream().map(
        lambda key, value: (key.key, str(value))
    ).to(OUT, **TEXT)
    return builder.build()


@pytest.mark.usefixtures("topics")
def test_stores_in_memory_pass_from_the_standby_to_the_active_task_too(
    cluster: DirectKafka, application: MakeApplication
) -> None:
    pair = Pair(application(in_memory_and_suppressed(), num_standby_replicas=1))
    pair.feed("aab")
    state = pair.standby.task_manager.standby.running[TASK].state_manager
    assert state.changelog_offsets() == {p: cluster.log(p).end for p in state.changelogs}, "what the leader plans with"
    pair.active.close()
    pair.standby.until(lambda: TASK in pair.standby.task_manager.active.running)
    assert pair.standby.changelog_reader.total_restored == 0
    cluster.append(IN, 0, b"z", b"", 60_000)  # closes the window
    pair.standby.step(3).commit()
    assert cluster.table(OUT) == {b"a": b"2", b"b": b"1"}


class Updates(StandbyUpdateListener):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_update_start(self, partition: TopicPartition, store: str, starting_offset: int) -> None:
        self.calls.append(("start", partition, store, starting_offset))

    def on_batch_loaded(
        self,
        partition: TopicPartition,
        store: str,
        task_id: TaskId,
        batch_end_offset: int,
        batch_size: int,
        end_offset: int | None,
    ) -> None:
        self.calls.append(("batch", partition, store, task_id, batch_end_offset, batch_size, end_offset))

    def on_update_suspended(
        self, partition: TopicPartition, store: str, store_offset: int, end_offset: int | None, reason: SuspendReason
    ) -> None:
        self.calls.append(("suspended", partition, store, store_offset, end_offset, reason))


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize("reason", SuspendReason)
def test_the_listener_is_called_for_standby_tasks(application: MakeApplication, reason: SuspendReason) -> None:
    updates = Updates()
    pair = Pair(application(counting(), num_standby_replicas=1), standby_update_listener=updates)
    pair.feed("aab")
    if reason is SuspendReason.PROMOTED:
        pair.active.close()
        pair.standby.until(lambda: TASK in pair.standby.task_manager.active.running)
    else:
        pair.standby.close()
    assert updates.calls == [
        ("start", CHANGELOG, "counts", 0),
        ("batch", CHANGELOG, "counts", TASK, 2, 2, 2),
        ("suspended", CHANGELOG, "counts", 2, 2, reason),
    ]


@pytest.mark.usefixtures("topics")
def test_a_recycled_task_that_is_never_opened_releases_its_files(application: MakeApplication) -> None:
    pair = Pair(application(counting(), num_standby_replicas=1))
    pair.feed("aab")
    manager = pair.standby.task_manager
    pair.standby.group.apply(Assignment(manager.assigned_standby_tasks, {}))
    assert manager.active.created.keys() == {TASK}
    assert manager.task_offset_sums() == {TASK: 2}, "a leader that does not know of the copy sends the task elsewhere"
    assert manager.state_directory.locked_tasks() == {TASK}
    manager.active.close(clean=False)
    assert manager.state_directory.locked_tasks() == frozenset()
    RocksDBStore(manager.state_directory.directory_for_task(TASK) / "stores" / "counts").close()  # no one holds it


@pytest.mark.usefixtures("topics")
def test_an_assignment_that_fails_leaves_no_store_open(application: MakeApplication) -> None:
    pair = Pair(application(counting(), num_standby_replicas=1))
    pair.feed("aab")
    manager = pair.standby.task_manager
    inputs = frozenset({TopicPartition(IN, 0)})
    with pytest.raises(TopologyError, match="no sub-topology 5"):
        pair.standby.group.apply(Assignment({TASK: inputs, TaskId(5, 0): inputs}, {}))
    manager.shutdown(clean=False)
    assert manager.state_directory.locked_tasks() == frozenset()
    RocksDBStore(manager.state_directory.directory_for_task(TASK) / "stores" / "counts").close()  # no one holds it


def test_a_warmup_follows_and_takes_over_at_the_probing_rebalance(
    cluster: DirectKafka, application: MakeApplication, clock: ManualClock, opened: list[str]
) -> None:
    cluster.create_topic(IN, 2)
    cluster.create_topic(OUT, 1)
    config = {"max_warmup_replicas": 1, "acceptable_recovery_lag": 0, "probing_rebalance_interval_ms": 60_000}
    app = application(counting(), **config)
    active = app.thread().until_running()
    for partition in range(2):
        feed(cluster, "aab", partition)
    active.step(2).commit()
    other = Application(app.stage, app.topology, {**app.config, "state.dir": str(app.stage.state_dir / "other")})
    new = other.thread(slot=2, process_id="7fffffff-0000-0000-0000-000000000002")
    step_until(lambda: bool(new.task_manager.standby.running) and new.state is StreamThreadState.RUNNING, active, new)
    (warm_up,) = new.task_manager.standby.running
    new.step(3)
    assert set(active.task_manager.active.running) == {TaskId(0, 0), TaskId(0, 1)}
    assert new.changelog_reader.total_updated == 2
    opened.clear()
    clock.advance(60_001)
    step_until(lambda: warm_up in new.task_manager.active.running, active, new)
    assert opened == []
    assert new.changelog_reader.total_restored == 0
    feed(cluster, "a", warm_up.partition)
    new.step(3).commit()
    assert counts(cluster)["a"] == 3


@pytest.mark.usefixtures("topics")
def test_a_standby_task_answers_queries_for_stale_rows(application: MakeApplication, cluster: DirectKafka) -> None:
    """Kafka: StoreQueryParameters.enableStaleStores and withPartition (KIP-535, KIP-562)."""
    pair = Pair(application(counting(), num_standby_replicas=1))
    pair.feed("aba")

    def asked(thread: Thread, **how: Any) -> dict[str, int]:
        found = answer(Query(1, "counts", "get", ("a",), **how), thread.thread.commands._answers.reader)
        return {task: row.value for task, row in found.value.items()}

    assert asked(pair.active) == {"0_0": 2}
    assert asked(pair.active, partition=0, stale=True) == {"0_0": 2}
    assert asked(pair.standby) == {}, "it has the row, but is not the active task"
    assert asked(pair.standby, stale=True) == {"0_0": 2}
    feed(cluster, "a")
    pair.active.step(2)
    assert asked(pair.active) == {"0_0": 3}
    assert asked(pair.standby, stale=True) == {"0_0": 2}, "not committed, not followed"
    committed = {"isolation": IsolationLevel.READ_COMMITTED}
    assert asked(pair.active, **committed) == {"0_0": 2}
    assert asked(pair.standby, stale=True, **committed) == {"0_0": 2}


@pytest.mark.usefixtures("topics")
def test_only_an_active_task_knows_its_position(application: MakeApplication, cluster: DirectKafka) -> None:
    """Kafka Streams' standby tasks know it from headers of the changelog, which Penstock does not write (KIP-796)."""
    pair = Pair(application(counting(), num_standby_replicas=1))
    pair.feed("aba")

    def positions(thread: Thread, **how: Any) -> dict[str, Position | None]:
        query = Query(1, "counts", "get", ("a",), **how)
        found: TaskResults = answer(query, thread.thread.commands._answers.reader).value
        return found.positions

    def read(thread: Thread, offset: int, **how: Any) -> tuple[Reply, Position | None]:
        request = ReadStore(1, "counts", key="a", at_least=at(offset), **how)
        found = thread.thread.commands._answers.reader.read(request)
        return found.reply, found.position

    def at(offset: int) -> Position:
        return Position.from_map({IN: {0: offset}})

    assert positions(pair.active) == {"0_0": at(2)}
    assert positions(pair.standby, stale=True) == {"0_0": None}
    feed(cluster, "a")
    pair.active.step(2)
    committed = {"isolation": IsolationLevel.READ_COMMITTED}
    assert positions(pair.active) == {"0_0": at(3)}
    assert positions(pair.active, **committed) == {"0_0": at(2)}
    assert read(pair.active, 3) == (Reply.OK, at(3))
    assert read(pair.active, 3, **committed) == (Reply.BEHIND, at(2))
    assert read(pair.standby, 2, max_lag=10) == (Reply.ELSEWHERE, None), "only the active task can promise it"
    pair.active.commit()
    assert read(pair.active, 3, **committed) == (Reply.OK, at(3))


@pytest.mark.usefixtures("topics")
def test_a_standby_task_answers_a_request_that_neither_requires_an_active_one_nor_has_a_bound(
    application: MakeApplication,
) -> None:
    """Kafka Streams: KafkaStreams.query (KIP-796)."""
    pair = Pair(application(counting(), num_standby_replicas=1))
    pair.feed("aba")

    def asked(thread: Thread, request: StateQueryRequest[int | None]) -> QueryResult[int | None]:
        reader = thread.thread.commands._answers.reader
        found: dict[int, QueryResult[int | None]] = answer_query(AnswerRequest(1, request), reader).value
        return found[0]

    request = StateQueryRequest.in_store("counts").with_query(KeyQuery[str, int].with_key("a"))
    bound = request.with_position_bound(PositionBound.at(Position.from_map({IN: {0: 2}})))
    assert (asked(pair.standby, request).value, asked(pair.standby, request).position) == (2, None)
    assert asked(pair.standby, bound).failure_reason is FailureReason.NOT_UP_TO_BOUND
    refused = asked(pair.standby, request.require_active())
    assert refused.failure_reason is FailureReason.NOT_ACTIVE
    assert refused.failure_message == "Task 0_0 is a standby task in state RUNNING"
    assert asked(pair.active, bound).result == asked(pair.active, request.require_active()).result == 2
    far = request.with_position_bound(PositionBound.at(Position.from_map({IN: {0: 3, 1: 9}})))
    assert asked(pair.active, far).failure_message.endswith("are as of in-0:2, not yet as of in-0:3, in-1:9")
    others = request.with_position_bound(PositionBound.at(Position.from_map({IN: {1: 9}})))
    assert asked(pair.active, others).result == 2, "only the bound's offsets of this partition count"


class KeepHeaders(FixedKeyProcessor[str, str, str]):
    """Keeps each record with its headers."""

    def process(self, record: Record[str, str]) -> None:
        value = ValueTimestampHeaders(record.value, record.timestamp, record.headers)
        self.context.get_state_store("kept").put(record.key, value)


@pytest.mark.usefixtures("topics")
def test_a_standby_task_has_the_headers_of_values(cluster: DirectKafka, application: MakeApplication) -> None:
    supplier = Stores.persistent_timestamped_key_value_store_with_headers("kept")
    builder = StreamsBuilder()
    builder.add_state_store(Stores.timestamped_key_value_store_with_headers_builder(supplier, **TEXT))
    builder.stream(IN, **TEXT).process_values(KeepHeaders, "kept")
    pair = Pair(application(builder.build(), num_standby_replicas=1))
    cluster.append(IN, 0, b"a", b"v", 5, [("h", b"1"), ("n", None)])
    pair.active.step(2).commit()
    pair.standby.step(3)
    wanted = ValueTimestampHeaders("v", 5, [("h", b"1"), ("n", None)])
    assert pair.standby.task_manager.standby.running[TASK].state_manager.stores["kept"].get("a") == wanted
    pair.active.close()
    pair.standby.until(lambda: TASK in pair.standby.task_manager.active.running)
    reader = pair.standby.thread.commands._answers.reader
    assert answer(Query(1, "kept", "get", ("a",)), reader).value == {"0_0": wanted}
    (row,) = reader.read(ReadStore(2, "kept", key="a")).rows
    assert json.loads(row.json)["headers"] == [["h", "1"], ["n", None]]
