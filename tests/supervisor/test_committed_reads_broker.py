"""Reads of the last commit, and their positions, on a real broker: in process and over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from held_commits import COMMIT, COMMITTED, Held, rows, shows
from http_client import HttpClient

from penstock import IsolationLevel, Position
from penstock.supervisor.queries.store_routing import Found, QueryError, Steps, StoreQueries
from tests.topics import create_topics
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker


@pytest.fixture
def held(bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path) -> Held:
    return Held(bootstrap_servers, application_id, make_topic("in"), make_topic("names"), tmp_path / "state")


STORES = ("cached", "uncached", "in-memory", "windows", "memory-windows", "sessions")


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_committed_reads_see_the_last_commit_of_every_kind_of_store(held: Held, guarantee: str) -> None:
    held.config["processing.guarantee"] = guarantee
    with held.running() as streams:
        first = held.produce(("a", "x"), ("b", "x"))
        for store in STORES:
            eventually(shows(streams, store, ({"a": 1, "b": 1}, first)), f"{store} has the rows")
            assert rows(streams, store, **COMMITTED) == ({}, Position()), f"nothing of {store} is committed"
        committed = held.produce(("a", COMMIT))
        for store in STORES:
            eventually(shows(streams, store, ({"a": 2, "b": 1}, committed), **COMMITTED), store)
        later = held.produce(("a", "x"), ("c", "x"))
        for store in STORES:
            eventually(shows(streams, store, ({"a": 3, "b": 1, "c": 1}, later)), f"{store} has the later rows")
            assert rows(streams, store, **COMMITTED) == ({"a": 2, "b": 1}, committed), f"{store} as of its last commit"
            assert streams.store(store).read_only(IsolationLevel.READ_COMMITTED).all().position == committed
        again = held.produce(("b", COMMIT))
        for store in STORES:
            eventually(shows(streams, store, ({"a": 3, "b": 2, "c": 1}, again), **COMMITTED), store)


def test_the_default_is_that_of_the_configuration(held: Held) -> None:
    held.config["default.interactive.query.isolation.level"] = "READ_COMMITTED"
    with held.running() as streams:
        first = held.produce(("a", "x"))
        uncommitted = {"isolation": IsolationLevel.READ_UNCOMMITTED}
        eventually(lambda: rows(streams, "cached", **uncommitted) == ({"a": 1}, first), "the row is there")
        assert rows(streams, "cached") == ({}, Position())
        http = HttpClient.of(streams)
        assert http.ask("/stores/cached/a").error["code"] == "NO_SUCH_KEY"
        assert http.get("/stores/cached/a?isolation=read_uncommitted")["rows"][0]["value"] == 1
        committed = held.produce(("a", COMMIT))
        eventually(lambda: rows(streams, "cached") == ({"a": 2}, committed), "the commit is visible")


def test_positions_over_http_and_of_single_values(held: Held) -> None:
    with held.running() as streams:
        http, last = HttpClient.of(streams), held.produce(("a", "x"), ("b", COMMIT))
        eventually(lambda: rows(streams, "uncached", **COMMITTED) == ({"a": 1, "b": 1}, last), "the commit is visible")
        held.produce(("a", "x"))
        eventually(lambda: (rows(streams, "uncached") or [{}])[0].get("a") == 2, "the later row is there")
        for path in ("/stores/uncached/a", "/stores/uncached", "/stores/uncached?partition=0"):
            now, then = (http.get(path + ("&" if "?" in path else "?") + f"isolation={level}") for level in LEVELS)
            assert (now["rows"][0]["value"], now["position"]) == (2, {held.source: {"0": 2}})
            assert (then["rows"][0]["value"], then["position"]) == (1, {held.source: {"0": 1}})
        found = streams.query("uncached", "get", "a", isolation=IsolationLevel.READ_COMMITTED)
        assert [row.value for row in found.values()] == [1]
        assert (found.position, found.positions) == (last, dict.fromkeys(found, last))


LEVELS = ("read_uncommitted", "read_committed")


def test_a_global_store_is_as_of_its_topic_whatever_the_level(held: Held) -> None:
    with held.running() as streams:
        held.produce(("k", "one"), ("l", "two"), topic=held.table)
        wanted = {"k": "one", "l": "two"}, Position.from_map({held.table: {0: 1}})
        eventually(shows(streams, "names", wanted), "the global table is complete")
        assert rows(streams, "names", **COMMITTED) == wanted
        assert HttpClient.of(streams).get("/stores/names/k")["position"] == {held.table: {"0": 1}}


def test_a_bound_waits_for_the_commit_or_is_refused(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    refused_once = threading.Event()
    read = StoreQueries._read_key_anywhere

    def noted(queries: StoreQueries, *request: Any) -> Steps[Found]:
        try:
            return (yield from read(queries, *request))
        except QueryError:
            refused_once.set()
            raise

    monkeypatch.setattr(StoreQueries, "_read_key_anywhere", noted)
    with held.running() as streams, ThreadPoolExecutor(1) as pool:
        http, last = HttpClient.of(streams), held.produce(("a", "x"))
        eventually(lambda: rows(streams, "cached") == ({"a": 1}, last), "the row is there")
        assert http.get(f"/stores/cached/a?at_least={held.source}-0:0")["rows"][0]["value"] == 1
        for path in ("/stores/cached/a", "/stores/cached"):
            refused = http.ask(f"{path}?at_least={held.source}-0:0&isolation=read_committed&timeout_ms=200")
            assert (refused.status, refused.error["code"]) == (503, "NOT_UP_TO_BOUND")
            assert (refused.error["position"], refused.error["retry_after_seconds"]) == ({}, 1)
        refused_once.clear()
        waiting = pool.submit(
            http.get, f"/stores/cached/a?at_least={held.source}-0:1&isolation=read_committed&timeout_ms=30000"
        )
        assert refused_once.wait(PATIENCE_SECONDS)
        held.produce(("a", COMMIT))
        assert waiting.result()["rows"][0]["value"] == 2
        assert waiting.result()["position"] == {held.source: {"0": 1}}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("at_least=other-0:1", "at_least= names other, which is no input of cached; these are: {0}."),
        ("at_least={0}-1:1", "at_least= names partition 1 of {0}, which does not exist."),
        ("at_least={0}:1", "at_least='{0}:1' must be topic-partition:offset, or several of them with commas."),
        ("at_least={0}-0:9999999999999999999", "must be topic-partition:offset, or several of them with commas."),
        ("isolation=serializable", "isolation='serializable' must be read_uncommitted or read_committed."),
    ],
)
def test_bad_bounds_and_levels_are_refused(shared: tuple[Held, HttpClient], query: str, message: str) -> None:
    held, http = shared
    refused = http.ask(f"/stores/cached/a?{query.format(held.source)}")
    assert (refused.status, refused.error["code"]) == (400, "BAD_REQUEST")
    assert message.format(held.source) in refused.error["message"]


@pytest.fixture(scope="module")
def shared(bootstrap_servers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Held, HttpClient]]:
    """An application for requests that change nothing."""
    name = tmp_path_factory.getbasetemp().name + "-bounds"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    create_topics(admin, NewTopic(f"{name}-in", 1, 1), NewTopic(f"{name}-names", 1, 1))
    held = Held(bootstrap_servers, name, f"{name}-in", f"{name}-names", tmp_path_factory.mktemp("state"))
    held.produce(("a", "x"))
    with held.running() as streams:
        eventually(lambda: rows(streams, "cached") is not None, "it can be read")
        yield held, HttpClient.of(streams)
