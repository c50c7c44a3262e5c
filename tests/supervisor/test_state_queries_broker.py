"""Interactive queries v2 of a running application on a real broker: results, failures and positions by partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_stage import produce, read_now
from held_commits import COMMIT, COMMITTED, Held, rows, shows

from penstock import (
    FailureReason,
    InvalidStateStoreError,
    IsolationLevel,
    KafkaStreams,
    KeyQuery,
    Materialized,
    Position,
    PositionBound,
    QueryResult,
    RangeQuery,
    Serdes,
    StateQueryRequest,
    StateQueryResult,
    StreamsBuilder,
    StreamsError,
    TimestampedKeyQuery,
    UnknownStateStoreError,
    ValueAndTimestamp,
    Windowed,
    WindowRangeQuery,
)
from tests.waiting import eventually

pytestmark = pytest.mark.broker
A = KeyQuery[str, int].with_key("a")


@pytest.fixture
def held(bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path) -> Held:
    return Held(bootstrap_servers, application_id, make_topic("in"), make_topic("names"), tmp_path / "state")


def request(store: str, query: Any = A) -> StateQueryRequest[Any]:
    return StateQueryRequest.in_store(store).with_query(query)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_queries_positions_bounds_and_isolation(held: Held, guarantee: str) -> None:
    held.config["processing.guarantee"] = guarantee
    with held.running() as streams:
        ask, committed = streams.state_query, IsolationLevel.READ_COMMITTED
        first = held.produce(("a", "x"), ("b", "x"))
        for store in ("cached", "windows", "sessions"):
            eventually(shows(streams, store, ({"a": 1, "b": 1}, first)), f"{store} has the rows")
        one = ask(request("cached")).only_partition_result
        assert one is not None
        assert (one.result, one.position, one.execution_info) == (1, first, ())
        assert ask(request("cached")).position == first
        (info,) = ask(request("cached").enable_execution_info()).partition_results[0].execution_info
        assert info.startswith("Handled in CachingKeyValueStore of task ")
        stamped = ask(request("cached", TimestampedKeyQuery.with_key("a"))).partition_results[0]
        assert stamped.result == ValueAndTimestamp(1, 5_000)
        windows = ask(request("windows", WindowRangeQuery.with_window_start_range(0, 9_000))).partition_results[0]
        assert windows.result[0] == (Windowed("a", 5_000, 6_000), ValueAndTimestamp(1, 5_000))
        sessions = ask(request("sessions", WindowRangeQuery.with_key("b"))).partition_results[0]
        assert sessions.result == [(Windowed("b", 5_000, 5_000), 1)]

        before = ask(request("cached").with_isolation_level(committed)).partition_results[0]
        assert (before.value, before.position, before.is_success) == (None, Position(), True)
        bound = request("cached").with_position_bound(PositionBound.at(first))
        assert ask(bound).partition_results[0].result == 1
        behind = ask(bound.with_isolation_level(committed)).partition_results[0]
        assert (behind.failure_reason, behind.position) == (FailureReason.NOT_UP_TO_BOUND, Position())
        at_once = ask(bound.with_isolation_level(committed).require_active()).partition_results[0]
        assert at_once.is_success, "as in Kafka Streams, active tasks need no bound"
        second = held.produce(("a", COMMIT))
        eventually(shows(streams, "cached", ({"a": 2, "b": 1}, second), **COMMITTED), "the commit is visible")
        held.produce(("a", "x"))
        after = ask(bound.with_isolation_level(committed)).partition_results[0]
        assert (after.result, after.position) == (2, second)


def test_failures_of_partitions_and_of_requests(held: Held) -> None:
    with held.running() as streams:
        ask = streams.state_query
        held.produce(("a", "x"))
        eventually(lambda: rows(streams, "cached") is not None, "it can be read")
        found = ask(request("cached").with_partitions({0, 7}))
        assert found.partition_results[0].is_success
        assert found.partition_results[7].failure_reason is FailureReason.DOES_NOT_EXIST
        assert ask(request("cached").with_partitions({0}).with_all_partitions()).partition_results.keys() == {0}
        unknown = ask(request("cached", WindowRangeQuery.with_key("a"))).partition_results[0]
        assert unknown.failure_reason is FailureReason.UNKNOWN_QUERY_TYPE
        refused = ask(request("cached", KeyQuery.with_key(7))).partition_results[0]
        assert refused.failure_reason is FailureReason.STORE_EXCEPTION
        held.produce(("k", "one"), topic=held.table)
        eventually(shows(streams, "names", ({"k": "one"}, Position.from_map({held.table: {0: 0}}))), "a global row")
        names = ask(request("names", RangeQuery.with_no_bounds()))
        assert names.global_result is not None
        assert names.global_result.result == [("k", "one")]
        assert names.position == Position.from_map({held.table: {0: 0}})
        with pytest.raises(UnknownStateStoreError, match="no state store 'other'"):
            ask(request("other"))
    with pytest.raises(InvalidStateStoreError, match="Cannot query cached: the application is"):
        streams.state_query(request("cached"))


@pytest.fixture
def two_threads(
    bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path
) -> Iterator[KafkaStreams]:
    """Two stream threads, each with an active task and the standby task of the other one."""
    source = make_topic("in", partitions=2)
    builder = StreamsBuilder()
    stream = builder.stream(source, key_serde=Serdes.string(), value_serde=Serdes.string())
    stream.group_by_key().count(store=Materialized("counts"))
    produce(bootstrap_servers, source, "a", "b")
    config = {
        "application.id": application_id,
        "bootstrap.servers": bootstrap_servers,
        "state.dir": str(tmp_path / "state"),
        "num.stream.threads": 2,
        "num.standby.replicas": 1,
        "commit.interval.ms": 100,
    }
    with KafkaStreams(builder.build(), config) as streams:
        streams.start()
        yield streams


def test_partitions_of_several_threads_are_answered_by_their_active_tasks(two_threads: KafkaStreams) -> None:
    everything = request("counts", RangeQuery[str, int].with_no_bounds())

    def answers(asked: StateQueryRequest[Any]) -> StateQueryResult[Any]:
        return read_now(lambda: two_threads.state_query(asked)) or StateQueryResult()

    def all_rows(asked: StateQueryRequest[Any]) -> list[Any]:
        found = answers(asked).partition_results
        return sorted(row for one in found.values() if one.is_success for row in one.result)

    for asked in (everything, everything.require_active()):
        eventually(lambda: all_rows(asked) == [("k0", 1), ("k1", 1)], "both tasks have counted")  # noqa: B023
    eventually(lambda: len(answers(everything.require_active()).partition_results) == 2, "both answer")
    eventually(lambda: answers(everything).position is not None, "the active tasks are preferred")


def test_results_of_several_partitions_are_taken_as_one_only_for_one_key() -> None:
    some, none = QueryResult.for_result(1), QueryResult[Any].for_result(None)
    failed = QueryResult[Any].for_failure(FailureReason.NOT_PRESENT, "away")
    assert StateQueryResult({0: none, 1: some}).only_partition_result is some
    assert StateQueryResult({0: none, 1: failed}).only_partition_result is failed
    assert StateQueryResult({0: none}).only_partition_result is None
    with pytest.raises(StreamsError, match="2 partitions have a result or a failure"):
        _ = StateQueryResult({0: some, 1: failed}).only_partition_result
