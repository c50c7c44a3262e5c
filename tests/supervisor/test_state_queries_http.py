"""Interactive queries v2 over HTTP: every type of query, failures by partition, bounds, and requests that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from held_commits import COMMIT, rows, shows
from held_rows import HeldRows
from http_client import HttpClient

from penstock.supervisor.application_state import ApplicationState
from penstock.supervisor.http.state_query import path_of, query_parameters
from penstock.supervisor.queries.queries import Answers, Question
from penstock.supervisor.queries.state_query import HostedQueries, QueriedHosts
from penstock.supervisor.queries.store_routing import QueryError, StoreQueries
from penstock.topology.query import state_queries
from penstock.topology.query.isolation_level import IsolationLevel
from penstock.topology.query.position import Position, PositionBound
from penstock.topology.query.state_query_request import StateQueryRequest
from penstock.topology.query.state_query_result import FailureReason, QueryResult
from penstock.workers.control.messages import CommandResult
from penstock.workers.group.streams_metadata import HostInfo
from penstock.workers.queries.store_answers import PartitionResults, ShownResult, absent
from tests.manual_clock import ManualClock
from tests.topics import create_topics
from tests.waiting import eventually


@pytest.fixture
def held_rows(bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path) -> HeldRows:
    return HeldRows(bootstrap_servers, application_id, make_topic("in"), make_topic("names"), tmp_path / "state")


@pytest.mark.broker
def test_a_bound_waits_for_its_records_and_for_their_commit(held_rows: HeldRows) -> None:
    with held_rows.running() as streams, ThreadPoolExecutor() as pool:
        http = HttpClient.of(streams)
        held_rows.produce(("a", "x"))
        eventually(lambda: rows(streams, "cached") is not None, "it can be read")
        path = f"/stores/cached?query=KeyQuery&key=a&at_least={held_rows.source}-0:1&timeout_ms=30000"
        waiting = [pool.submit(http.get, path + more) for more in ("", "&isolation=read_committed")]
        held_rows.produce(("a", COMMIT))
        for one in waiting:
            assert one.result()["partitions"]["0"]["result"] == {"key": "a", "value": 2}


@pytest.fixture(scope="module")
def asked(bootstrap_servers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HeldRows, HttpClient]]:
    """An application with two records of "a" and one of "b", none of them committed; requests change nothing."""
    name = tmp_path_factory.getbasetemp().name + "-queries"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    create_topics(admin, NewTopic(f"{name}-in", 1, 1), NewTopic(f"{name}-names", 1, 1))
    held = HeldRows(bootstrap_servers, name, f"{name}-in", f"{name}-names", tmp_path_factory.mktemp("state"))
    with held.running() as streams:
        held.produce(("k", "one"), topic=held.table)
        held.produce(("a", "x"), ("a", "x"), ("b", "x"))
        eventually(lambda: rows(streams, "cached") == ({"a": 2, "b": 1}, held.at(2)), "the records are counted")
        eventually(shows(streams, "names", ({"k": "one"}, Position.from_map({held.table: {0: 0}}))), "a global row")
        yield held, HttpClient.of(streams)


def window(start: int, end: int) -> dict[str, int]:
    return {"start": start, "end": end}


A = {"key": "a", "value": 2}
B = {"key": "b", "value": 1}
NOW = {"timestamp": 5_000}
STAYS, BRIEF = {"window": window(5_000, 6_000)}, {"window": window(5_000, 5_000)}
HEADERS_A, HEADERS_B = {"headers": [["n", "2"]]}, {"headers": [["n", "1"]]}
FIRST, SECOND = ({"key": "a", "value": n, "timestamp": 5_000 + n, "valid_to": to} for n, to in ((1, 5_002), (2, None)))


@pytest.mark.broker
@pytest.mark.parametrize(
    ("store", "query", "result"),
    [
        ("plain", "KeyQuery&key=a", A),
        ("cached", "KeyQuery&key=a", A),
        ("cached", "KeyQuery&key=a&skip_cache=true", None),
        ("cached", "KeyQuery&key=nothing", None),
        ("cached", "TimestampedKeyQuery&key=a", A | NOW),
        ("headers", "TimestampedKeyWithHeadersQuery&key=a", A | NOW | HEADERS_A),
        ("plain", "RangeQuery", [A, B]),
        ("cached", "RangeQuery&order=descending", [B, A]),
        ("cached", "RangeQuery&from=b", [B]),
        ("cached", "RangeQuery&to=a&order=any", [A]),
        ("cached", "RangeQuery&from=c&to=d", []),
        ("cached", "TimestampedRangeQuery&from=a&to=b", [A | NOW, B | NOW]),
        ("headers", "TimestampedRangeWithHeadersQuery", [A | NOW | HEADERS_A, B | NOW | HEADERS_B]),
        ("windows", "WindowKeyQuery&key=a&time_from=0&time_to=9000", [A | NOW | STAYS]),
        ("windows", "WindowKeyQuery&key=a&time_from=0&time_to=9", []),
        ("headers-windows", "TimestampedWindowKeyWithHeadersQuery&key=a&time_from=0&time_to=9000",
            [A | NOW | STAYS | HEADERS_A]),
        ("windows", "WindowRangeQuery&time_from=0&time_to=9000", [A | NOW | STAYS, B | NOW | STAYS]),
        ("headers-windows", "TimestampedWindowRangeWithHeadersQuery&time_from=0&time_to=9000",
            [A | NOW | STAYS | HEADERS_A, B | NOW | STAYS | HEADERS_B]),
        ("sessions", "WindowRangeQuery&key=b", [B | BRIEF]),
        ("headers-sessions", "WindowRangeQuery&key=b", [B | BRIEF]),
        ("versioned", "VersionedKeyQuery&key=a", SECOND),
        ("versioned", "VersionedKeyQuery&key=a&as_of=5001", FIRST),
        ("versioned", "VersionedKeyQuery&key=a&as_of=5000", None),
        ("versioned", "MultiVersionedKeyQuery&key=a", [SECOND, FIRST]),
        ("versioned", "MultiVersionedKeyQuery&key=a&order=ascending", [FIRST, SECOND]),
        ("versioned", "MultiVersionedKeyQuery&key=a&time_to=5001", [FIRST]),
        ("versioned", "MultiVersionedKeyQuery&key=a&time_from=5002", [SECOND]),
    ],
)  # fmt: skip
def test_each_type_of_query(asked: tuple[HeldRows, HttpClient], store: str, query: str, result: object) -> None:
    held, http = asked
    position = {held.source: {"0": 2}}
    answer = http.get(f"/stores/{store}?query={query}")
    assert answer == {
        "position": position,
        "partitions": {"0": {"result": result, "truncated": False, "position": position}},
    }


@pytest.mark.broker
def test_options_of_a_request(asked: tuple[HeldRows, HttpClient]) -> None:
    held, http = asked

    def one(more: str, store: str = "cached", query: str = "RangeQuery") -> Any:
        return http.get(f"/stores/{store}?query={query}{more}")["partitions"]["0"]

    assert [one("&limit=1")[name] for name in ("result", "truncated")] == [[A], True]
    assert one("&limit=2")["truncated"] is False
    assert one("&isolation=read_committed") == {"result": [], "truncated": False, "position": {}}
    (info,) = one("&execution_info=true")["execution_info"]
    assert info.startswith("Handled in CachingKeyValueStore of task ")
    assert http.get("/stores/cached?query=RangeQuery&partitions=0,7&local=true")["partitions"]["7"]["failure"] == {
        "reason": "DOES_NOT_EXIST",
        "message": "cached has the partitions 0 to 0",
    }
    behind = one(f"&at_least={held.source}-0:3&timeout_ms=200")
    assert (behind["failure"]["reason"], behind["position"]) == ("NOT_UP_TO_BOUND", {held.source: {"0": 2}})
    assert one(f"&at_least={held.source}-0:3&require_active=true")["result"] == [A, B], "as in Kafka Streams"
    assert one(f"&at_least={held.source}-0:2")["result"] == [A, B]
    unknown = one("&key=a", query="VersionedKeyQuery")["failure"]
    assert unknown["reason"] == "UNKNOWN_QUERY_TYPE"
    assert unknown["message"].startswith("cached, a timestamped_key_value store")
    names = http.get("/stores/names?query=RangeQuery")
    assert names["global"]["result"] == [{"key": "k", "value": "one"}]
    assert names["position"] == {held.table: {"0": 0}}


@pytest.mark.broker
@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("nothing?query=RangeQuery", 404, "The topology has no state store 'nothing'"),
        ("cached?query=Range", 400, "There is no query 'Range'; there are KeyQuery, "),
        ("cached?query=KeyQuery", 400, "A KeyQuery needs key=."),
        ("cached?query=KeyQuery&key=a&query=KeyQuery", 400, "A parameter is given twice."),
        ("cached?query=RangeQuery&key=a", 400, "There is no parameter 'key' here"),
        ("cached?query=RangeQuery&order=up", 400, "order='up' must be one of any, ascending, descending."),
        ("cached?query=RangeQuery&partitions=", 400, "partitions='' must be a whole number"),
        ("cached?query=RangeQuery&partitions=0,x", 400, "partitions='x' must be a whole number"),
        ("cached?query=RangeQuery&limit=10001", 400, "limit='10001' must be a whole number"),
        ("cached?query=RangeQuery&at_least=other-0:1", 400, "at_least= names other, which is no input of cached"),
        ("names?query=RangeQuery&at_least=other-0:1", 400, "at_least= is for stores of tasks"),
        ("windows?query=WindowKeyQuery&key=a&time_from=0", 400, "A WindowKeyQuery needs time_to=."),
        ("windows?query=WindowKeyQuery&key=a&time_from=2&time_to=1", 400, "time_from=2 is after time_to=1."),
        ("windows?query=WindowRangeQuery&key=a&time_from=2", 400, "has key=, for session stores, or time_from="),
    ],
)
def test_bad_requests_are_refused(asked: tuple[HeldRows, HttpClient], path: str, status: int, message: str) -> None:
    answer = asked[1].ask(f"/stores/{path}")
    assert (answer.status, message in answer.error["message"]) == (status, True), answer


REQUEST = StateQueryRequest.in_store("a b").with_query(state_queries.RangeQuery("ü&", None).with_descending_keys())


@pytest.mark.parametrize(
    "request_",
    [
        REQUEST,
        REQUEST.with_partitions({2, 11}).require_active().enable_execution_info(),
        REQUEST.with_position_bound(PositionBound.at(Position.from_map({"in-put": {0: 7, 1: 8}, "other": {0: 0}}))),
        REQUEST.with_isolation_level(IsolationLevel.READ_COMMITTED),
        StateQueryRequest("s", state_queries.KeyQuery.with_key("changes").skip_cache()),
        StateQueryRequest("s", state_queries.WindowKeyQuery("", 0, 9)),
        StateQueryRequest("s", state_queries.MultiVersionedKeyQuery("k", 1, 2).with_ascending_timestamps()),
        StateQueryRequest("s", state_queries.VersionedKeyQuery("k").as_of(0)),
    ],
)
def test_another_host_reads_the_request_that_was_forwarded(request_: StateQueryRequest[Any]) -> None:
    url = urlsplit(path_of(request_, 7))
    read = query_parameters(unquote(url.path.removeprefix("/stores/")), parse_qsl(url.query, keep_blank_values=True))
    assert (read.request, read.rows_max) == (request_, 7)


def result(position: int | None) -> QueryResult[Any]:
    known = None if position is None else Position.from_map({"in": {0: position}})
    return QueryResult(ShownResult(b"1"), position=known)


class Threads:
    """The part of a supervisor that HostedQueries uses; the answers of its stream threads, one after the other."""

    def __init__(self, *answers: PartitionResults) -> None:
        self._answers = list(answers)
        self.states = SimpleNamespace(state=ApplicationState.RUNNING)

    def ask(self, question: Question, answers: Answers, timeout: float) -> list[CommandResult]:
        return [CommandResult(1, self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])]


class Hosts(QueriedHosts):
    """Other hosts by name: their answers, or errors."""

    def __init__(self, **answers: PartitionResults | QueryError) -> None:
        self.answers = answers
        self.asked: list[tuple[str, frozenset[int] | None]] = []

    def query(self, host: HostInfo, request: StateQueryRequest[Any], rows_max: int, timeout: float) -> PartitionResults:
        self.asked.append((host.host, request.partitions))
        answer = self.answers[host.host]
        if isinstance(answer, QueryError):
            raise answer
        return answer


def answers(here: PartitionResults, hosts: Hosts, local: bool = False) -> PartitionResults:
    """Return the merged answers of this host and the others."""
    supervisor: Any = Threads(here)

    class Others(StoreQueries):
        def hosts_with(self, store: str) -> list[HostInfo]:
            return [HostInfo(name, 80) for name in hosts.answers]

    return HostedQueries(supervisor, Others(supervisor), hosts).answer(REQUEST, 9, 1, local)


def test_other_hosts_answer_for_partitions_without_a_running_active_task_here() -> None:
    failed: QueryResult[Any] = QueryResult.for_failure(FailureReason.NOT_ACTIVE, "restoring")
    hosts = Hosts(two={1: result(5), 2: absent("s")}, three={2: result(6), 3: result(None)}, four={})
    here: PartitionResults = {0: result(4), 1: result(None), 2: absent("s"), 3: failed}
    assert answers(here, hosts) == {0: result(4), 1: result(5), 2: result(6), 3: result(None)}
    assert hosts.asked == [("two", frozenset({1, 2, 3})), ("three", frozenset({2, 3})), ("four", frozenset({3}))]
    assert answers(here, Hosts(two={1: result(5)}), local=True) == here


def test_a_host_that_cannot_be_reached_fails_its_partitions_only() -> None:
    gone = QueryError(503, "HOST_UNREACHABLE", "two:80 cannot be reached")
    here: PartitionResults = {0: result(4), 1: result(None), 2: absent("s")}
    found = answers(here, Hosts(two=gone, three={}))
    assert (found[0], found[1]) == (result(4), result(None))
    assert found[2].failure_reason is FailureReason.NOT_PRESENT
    assert found[2].failure_message == "The partition of s is not on this host now; two:80 cannot be reached"


def test_unknown_queries_and_partitions_are_not_forwarded() -> None:
    unknown: QueryResult[Any] = QueryResult.for_failure(FailureReason.UNKNOWN_QUERY_TYPE, "cannot")
    beyond: QueryResult[Any] = QueryResult.for_failure(FailureReason.DOES_NOT_EXIST, "0 to 1")
    hosts = Hosts(two={})
    here: PartitionResults = {0: unknown, 7: beyond}
    assert answers(here, hosts) == here
    assert hosts.asked == []


def test_rows_that_have_not_reached_a_bound_are_asked_for_again_until_the_time_is_over() -> None:
    clock = ManualClock()
    behind: PartitionResults = {0: QueryResult.for_failure(FailureReason.NOT_UP_TO_BOUND, "not yet")}

    def answer(wait: float, *answers: PartitionResults) -> PartitionResults:
        supervisor: Any = Threads(*answers)
        queries = StoreQueries(supervisor)
        hosted = HostedQueries(supervisor, queries, None, lambda: clock.now_ms / 1000, clock.sleep)
        return hosted.answer(REQUEST, 9, 1, local=True, wait=wait)

    assert answer(1, behind, behind, {0: result(1)}) == {0: result(1)}
    assert answer(1, behind) == answer(0, behind, {0: result(1)}) == behind
