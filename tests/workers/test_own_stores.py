"""Operators over users' own stores in stream threads: restore, crash, standby tasks (KIP-954)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock import DslStoreSuppliers, Serdes, SessionWindows, StreamsBuilder, TimeWindows
from penstock.topology.records import TaskId
from penstock.workers.control.messages import Query
from penstock.workers.thread.thread_commands import answer
from tests.direct_kafka import DirectKafka
from tests.own_stores import LastingRows, LastingSuppliers, OwnSuppliers
from tests.workers.counting import IN, OUT
from tests.workers.test_standby_tasks import Pair
from tests.workers.thread_stage import Application, Thread

MakeApplication = Callable[..., Application]
TASK = TaskId(0, 0)
BOTH = pytest.mark.parametrize("suppliers", [OwnSuppliers, LastingSuppliers])
EXACTLY_ONCE = {"processing_guarantee": "exactly_once_v2"}
TEXT = Serdes.string()


@pytest.fixture(autouse=True)
def topics(cluster: DirectKafka) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)


def topology() -> Any:
    """Count words, and per minute, and per session."""
    builder = StreamsBuilder()
    grouped = builder.stream(IN, key_serde=TEXT, value_serde=TEXT).group_by_key(key_serde=TEXT, value_serde=TEXT)
    grouped.count(store="counts").to_stream().map_values(str).to(OUT, key_serde=TEXT, value_serde=TEXT)
    grouped.windowed_by(TimeWindows.of_size_and_grace(60_000, 0)).count(store="windows")
    grouped.windowed_by(SessionWindows.of_inactivity_gap_and_grace(60_000, 0)).count(store="sessions")
    return builder.build()


def config(suppliers: type[DslStoreSuppliers]) -> dict[str, Any]:
    return {"dsl_store_suppliers_class": suppliers}


def write(cluster: DirectKafka, words: str, timestamp: int = 1000) -> None:
    for word in words.split():
        cluster.append(IN, 0, word.encode(), word.encode(), timestamp)


def store(thread: Thread, name: str) -> Any:
    return thread.task_manager.active.running[TASK].state_manager.stores[name]


def counts(thread: Thread) -> dict[str, int]:
    return {key: row.value for key, row in store(thread, "counts").all()}


def everything(thread: Thread) -> list[list[Any]]:
    return [list(store(thread, name).all()) for name in ("counts", "windows", "sessions")]


@BOTH
def test_a_restart_restores_the_stores(
    cluster: DirectKafka, application: MakeApplication, suppliers: type[DslStoreSuppliers]
) -> None:
    app = application(topology(), **config(suppliers), statestore_cache_max_bytes=0)
    write(cluster, "a b a c")
    write(cluster, "a b", 90_000)
    thread = app.thread().until_idle()
    before = everything(thread)
    assert list(map(len, before)) == [3, 2, 2]  # the others have expired
    thread.close()
    again = app.thread(slot=2).until_idle()
    assert everything(again) == before
    in_memory = ("windows", "sessions") if suppliers is LastingSuppliers else ("counts", "windows", "sessions")
    written = sum(len(cluster.records(f"app-{name}-changelog")) for name in in_memory)
    assert again.changelog_reader.total_restored == written


@BOTH
@pytest.mark.parametrize("guarantee", [{}, EXACTLY_ONCE])
@pytest.mark.parametrize("cache_bytes", [0, 1_000_000])
def test_nothing_is_lost_or_counted_twice_in_a_crash(
    cluster: DirectKafka,
    application: MakeApplication,
    suppliers: type[DslStoreSuppliers],
    guarantee: dict[str, Any],
    cache_bytes: int,
) -> None:
    app = application(topology(), **config(suppliers), **guarantee, statestore_cache_max_bytes=cache_bytes)
    write(cluster, "a b")
    thread = app.thread().until_idle()
    thread.commit()
    write(cluster, "a")
    thread.step(2).commit()
    write(cluster, "a b c")
    thread.step(2)
    assert counts(thread).get("a") == 3
    if guarantee:
        thread.producer.flush()  # the changelog has the records of a transaction that will be aborted
    thread.crash()
    again = app.thread(slot=2).until_idle()
    again.commit()
    expected = {"a": 3, "b": 2, "c": 1}
    assert counts(again) == expected or (not guarantee and counts(again)["a"] >= 3)
    if guarantee:
        assert cluster.table(OUT) == {word.encode(): b"%d" % count for word, count in expected.items()}


@BOTH
def test_a_standby_task_hands_over_its_open_stores(
    cluster: DirectKafka, application: MakeApplication, suppliers: type[DslStoreSuppliers]
) -> None:
    pair = Pair(application(topology(), num_standby_replicas=1, **config(suppliers)))
    write(cluster, "a b a")
    pair.active.step(2).commit()
    pair.standby.step(3)
    followed = pair.standby.task_manager.standby.running[TASK].state_manager.stores["counts"].rows
    pair.active.close()
    pair.standby.until(lambda: TASK in pair.standby.task_manager.active.running)
    assert store(pair.standby, "counts").rows is followed
    assert pair.standby.changelog_reader.total_restored == 0
    write(cluster, "a")
    pair.standby.step(3).commit()
    assert counts(pair.standby) == {"a": 3, "b": 1}
    assert cluster.table(OUT) == {b"a": b"3", b"b": b"1"}


def test_the_offset_of_a_store_on_disk_is_that_of_its_commit(
    cluster: DirectKafka, application: MakeApplication
) -> None:
    app = application(topology(), **config(LastingSuppliers))
    write(cluster, "a b a")
    app.thread().until_idle().close()
    file = app.stage.state_dir / "app" / "0_0" / "custom" / "counts" / "rows.json"
    offset, rows = json.loads(file.read_text())
    assert (offset, len(rows)) == (len(cluster.table("app-counts-changelog")), 2) or offset == 3
    write(cluster, "b")
    thread = app.thread(slot=2).until_idle()
    assert counts(thread) == {"a": 2, "b": 2}
    assert store(thread, "counts").persistent
    assert not store(thread, "windows").persistent


def test_queries_read_them_as_other_stores(cluster: DirectKafka, application: MakeApplication) -> None:
    thread = application(topology(), **config(OwnSuppliers)).thread()
    write(cluster, "a b a")
    thread.until_idle()

    def ask(name: str, method: str, *arguments: object) -> Any:
        found = answer(Query(1, name, method, arguments), thread.thread.commands._answers.reader)
        return (found.kind, found.error) if found.error else found.value["0_0"]

    assert ask("counts", "get", "a").value == 2
    assert [key for key, _ in ask("counts", "reverse_all")] == ["b", "a"]
    assert [row.value for _, row in ask("windows", "fetch_range", "a", 0, 100)] == [2]
    assert [count for _, count in ask("sessions", "fetch", "a")] == [2]


class Logging(LastingRows):
    """Logs a change, which the operator does itself."""

    def put(self, key: bytes, value: bytes | None) -> None:
        self.context.log_change(key, value)


class LoggingSuppliers(OwnSuppliers):
    rows = Logging


def test_a_store_of_an_operator_must_not_log(cluster: DirectKafka, application: MakeApplication) -> None:
    thread = application(topology(), **config(LoggingSuppliers), statestore_cache_max_bytes=0).thread()
    write(cluster, "a")
    with pytest.raises(Exception, match="is an operator's, which logs the changes itself"):
        thread.until_idle()
