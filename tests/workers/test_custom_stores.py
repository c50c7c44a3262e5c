"""Custom stores in stream threads over an in-memory Kafka cluster: restore, crash, standby tasks, queries."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from typing_extensions import override

from penstock import (
    FailureReason,
    IsolationLevel,
    KeyQuery,
    Position,
    Query,
    QueryResult,
    StateQueryRequest,
    StateStoreTypeError,
    TopicPartition,
)
from penstock.statestore.directory.snapshot import checkpoint_closed
from penstock.statestore.directory.state_directory import StateDirectory
from penstock.statestore.rows.rocksdb_resources import process_resources
from penstock.supervisor.source.topology_gate import delete_stores
from penstock.topology.errors import LostOffsetsError
from penstock.topology.records import TaskId
from penstock.workers.control.messages import LIST_LAGS, AnswerRequest, LagInfo
from penstock.workers.control.messages import Query as Call
from penstock.workers.group.assignment.streams_partition_assignor import Assignment
from penstock.workers.thread.thread_commands import answer, answer_query
from tests.custom_stores import LastingTally, Tally, tally_builder, tallying
from tests.direct_kafka import DirectKafka
from tests.workers.counting import IN, OUT
from tests.workers.test_standby_tasks import Pair
from tests.workers.thread_stage import Application, Thread

R = TypeVar("R")
MakeApplication = Callable[..., Application]
TASK = TaskId(0, 0)
CHANGELOG = "app-tally-changelog"
BOTH = pytest.mark.parametrize("kind", [Tally, LastingTally])
EXACTLY_ONCE = {"processing_guarantee": "exactly_once_v2"}


@pytest.fixture(autouse=True)
def topics(cluster: DirectKafka) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)


def topology(kind: type[Tally]) -> Any:
    return tallying(IN, OUT, tally_builder(kind))


def write(cluster: DirectKafka, words: str) -> None:
    for word in words.split():
        cluster.append(IN, 0, word.encode(), word.encode(), 1000)


def tally(thread: Thread) -> Any:
    return thread.task_manager.active.running[TASK].state_manager.stores["tally"].exposed


@BOTH
def test_a_clean_restart_reads_only_what_the_store_does_not_have(
    cluster: DirectKafka, application: MakeApplication, kind: type[Tally]
) -> None:
    app = application(topology(kind))
    write(cluster, "a b a -b")
    app.thread().until_idle().close()
    thread = app.thread(slot=2).until_idle()
    assert tally(thread).counts == {"a": 2}
    assert thread.changelog_reader.total_restored == (0 if kind.persistent else 4)


@BOTH
@pytest.mark.parametrize("config", [{}, EXACTLY_ONCE])
def test_nothing_is_lost_or_counted_twice_in_a_crash(
    cluster: DirectKafka, application: MakeApplication, kind: type[Tally], config: dict[str, Any]
) -> None:
    app = application(topology(kind), **config)
    write(cluster, "a b")
    thread = app.thread().until_idle()
    thread.commit()  # with the end of the changelog, as the first commit
    write(cluster, "a")
    thread.step(2).commit()  # without
    write(cluster, "a b c")
    thread.step(2)
    assert tally(thread).counts == {"a": 3, "b": 2, "c": 1}
    if config:
        thread.producer.flush()  # the changelog has the records of a transaction that will be aborted
    thread.crash()
    again = app.thread(slot=2).until_idle()
    again.commit()
    counts = tally(again).counts
    assert counts == {"a": 3, "b": 2, "c": 1} or (not config and counts["a"] >= 3)
    if config:
        assert cluster.table(OUT) == {b"a": b"3", b"b": b"2", b"c": b"1"}


@BOTH
def test_a_standby_task_hands_over_its_open_store(
    cluster: DirectKafka, application: MakeApplication, kind: type[Tally]
) -> None:
    pair = Pair(application(topology(kind), num_standby_replicas=1))
    write(cluster, "a b a")
    pair.active.step(2).commit()
    pair.standby.step(3)
    followed = pair.standby.task_manager.standby.running[TASK].state_manager.stores["tally"].exposed
    assert followed.counts == {"a": 2, "b": 1}
    pair.active.close()
    pair.standby.until(lambda: TASK in pair.standby.task_manager.active.running)
    assert tally(pair.standby) is followed
    assert pair.standby.changelog_reader.total_restored == 0
    write(cluster, "a")
    pair.standby.step(3).commit()
    assert cluster.table(OUT) == {b"a": b"3", b"b": b"1"}
    assert len(cluster.table(CHANGELOG)) == 2


@BOTH
def test_an_active_task_that_becomes_standby_keeps_its_store_open(
    cluster: DirectKafka, application: MakeApplication, kind: type[Tally]
) -> None:
    pair = Pair(application(topology(kind), num_standby_replicas=1))
    write(cluster, "a b a")
    pair.active.step(2).commit()
    kept, manager = tally(pair.active), pair.active.task_manager
    pair.active.group.apply(Assignment(manager.assigned_standby_tasks, manager.assigned_active_tasks))
    pair.active.step(2)
    assert manager.standby.running[TASK].state_manager.stores["tally"].exposed is kept
    assert pair.active.changelog_reader.total_updated == 0
    cluster.append(CHANGELOG, 0, b"a", b"7", 1)
    pair.active.step(2)
    assert kept.counts["a"] == 7


def test_a_store_whose_offset_is_not_in_its_changelog_is_deleted_and_restored(
    cluster: DirectKafka, application: MakeApplication
) -> None:
    app = application(topology(LastingTally))
    write(cluster, "a b a")
    app.thread().until_idle().close()
    file = app.stage.state_dir / "app" / "0_0" / "custom" / "tally" / "tally.json"
    assert json.loads(file.read_text()) == [3, {"a": 2, "b": 1}]
    file.write_text(json.dumps([1000, {"x": 5}]))
    thread = app.thread(slot=2).until_idle()
    assert thread.changelog_reader.total_restored == 3
    assert tally(thread).counts == {"a": 2, "b": 1}


@BOTH
def test_state_without_committed_offsets_is_refused(
    cluster: DirectKafka, application: MakeApplication, kind: type[Tally]
) -> None:
    app = application(topology(kind), **EXACTLY_ONCE)
    write(cluster, "a")
    app.thread().until_idle().close()
    cluster.forget_commits()
    with pytest.raises(LostOffsetsError, match=r"has state in \[tally\], but the group app has no committed offset"):
        app.thread(slot=2).until_idle()


def test_the_positions_of_stores_in_their_changelogs(cluster: DirectKafka, application: MakeApplication) -> None:
    pair = Pair(application(topology(LastingTally), num_standby_replicas=1))
    write(cluster, "a b a")
    pair.active.step(2).commit()

    def lags(thread: Thread) -> Any:
        return answer(Call(1, "", LIST_LAGS), thread.thread.commands._answers.reader).value

    assert lags(pair.active) == {"0_0": {"tally": LagInfo(3, 3)}}
    write(cluster, "c d")
    pair.standby.step(3)
    assert lags(pair.standby) == {"0_0": {"tally": LagInfo(3, 3)}}
    pair.active.step(2).commit()
    (status,) = pair.active.thread.status.status(0).tasks
    assert status.end_offsets == {TopicPartition(IN, 0): 5}
    assert LagInfo(2, 5).offset_lag == 3
    assert LagInfo(5, 2).offset_lag == 0


def test_queries_call_the_methods_that_the_store_names(cluster: DirectKafka, application: MakeApplication) -> None:
    thread = application(topology(Tally)).thread()
    write(cluster, "a b a")
    thread.until_idle()

    def ask(method: str, *arguments: object) -> Any:
        found = answer(Call(1, "tally", method, arguments), thread.thread.commands._answers.reader)
        return (found.kind, found.error) if found.error else found.value

    assert ask("count", "a") == {"0_0": 2}
    assert ask("words") == {"0_0": ["a", "b"]}
    kind, error = ask("add", "a")
    assert kind is StateStoreTypeError
    assert error == "tally is a custom store, which has no method add; it has count, words"
    assert tally(thread).counts["a"] == 2
    assert ask("count")[0] is StateStoreTypeError


class Failing(LastingTally):
    @override
    def commit(self, changelog_offsets: Mapping[TopicPartition, int]) -> None:
        raise OSError("no space")


def test_a_commit_that_fails_names_the_store_and_its_task(cluster: DirectKafka, application: MakeApplication) -> None:
    thread = application(topology(Failing)).thread()
    write(cluster, "a")
    thread.until_idle()
    with pytest.raises(Exception, match=r"The store tally of task 0_0: commit\(\) failed with OSError: no space"):
        thread.commit()


def test_files_of_custom_stores_count_as_state_and_not_as_databases(
    cluster: DirectKafka, application: MakeApplication, tmp_path: Path
) -> None:
    app = application(topology(LastingTally))
    write(cluster, "a b a")
    app.thread().until_idle().close()
    directory = StateDirectory(app.stage.state_dir, "app")
    assert directory.tasks_on_disk() == [TASK], "its position is reported to the leader"
    assert checkpoint_closed(directory, tmp_path / "snapshot") == {"0_0": {}}
    delete_stores(directory.path, ["tally"])
    assert directory.tasks_on_disk() == []
    directory.close()
    thread = app.thread(slot=2).until_idle()
    assert thread.changelog_reader.total_restored == 3
    assert tally(thread).counts == {"a": 2, "b": 1}


class Measured(Tally):
    """Says that its changes take as much memory as the test wants."""

    size = 0

    @override
    def approximate_num_uncommitted_bytes(self) -> int:
        return self.size


def test_a_task_commits_early_if_the_uncommitted_changes_take_too_much_memory(
    cluster: DirectKafka, application: MakeApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = process_resources().config.uncommitted_max_bytes
    thread = application(topology(Measured), commit_interval_ms=3_600_000).thread().until_running()
    for size, commits in ((limit, 0), (limit + 1, 1), (0, 1)):
        monkeypatch.setattr(Measured, "size", size)
        write(cluster, "a")
        thread.step(3)
        assert tally(thread).commits == commits, size


class Asking(Query[int]):
    """How often a word occurred."""

    def __init__(self, word: str) -> None:
        self.word = word


class Answering(Tally):
    """Answers its own query."""

    @override
    def query(self, query: Query[R]) -> QueryResult[R]:
        if not isinstance(query, Asking):
            return super().query(query)
        return cast("QueryResult[R]", QueryResult.for_result(self.counts[query.word]))


def test_a_custom_store_answers_its_own_queries(cluster: DirectKafka, application: MakeApplication) -> None:
    thread = application(topology(Answering)).thread().until_running()
    write(cluster, "a b a")
    thread.step(3)
    reader = thread.thread.commands._answers.reader
    asked = StateQueryRequest.in_store("tally")
    found = answer_query(AnswerRequest(1, asked.with_query(Asking("a"))), reader).value[0]
    assert (found.result, found.position) == (2, Position.from_map({IN: {0: 2}}))
    other = answer_query(AnswerRequest(1, asked.with_query(KeyQuery[str, int].with_key("a"))), reader).value[0]
    assert other.failure_reason is FailureReason.UNKNOWN_QUERY_TYPE
    committed = asked.with_query(Asking("a")).with_isolation_level(IsolationLevel.READ_COMMITTED)
    refused = answer_query(AnswerRequest(1, committed), reader).value[0]
    assert refused.failure_reason is FailureReason.STORE_EXCEPTION
    assert refused.failure_message == "tally is kept in your own store, which cannot be read as committed"
