"""SQL over the stores of a real application on a real broker: in process, over HTTP, by the command, of all hosts."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from broker_stage import KEYS, PARTITIONS, Counting, replaced, shared_by, tasks
from held_commits import COMMIT, COMMITTED, Held, shows
from http_client import HttpClient, host_config
from written import Written

from penstock import (
    InvalidStateStoreError,
    IsolationLevel,
    KafkaStreams,
    Position,
    StreamsError,
    UnknownStateStoreError,
)
from penstock.supervisor.sql.sql_result import SqlResult
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker
TOKEN = "let me in"
ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture
def counting(bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path) -> Counting:
    made = Counting(
        bootstrap_servers, application_id, make_topic("in", PARTITIONS), make_topic("out", PARTITIONS), tmp_path / "one"
    )
    made.config |= {"penstock.http.port": 0, "penstock.http.token": TOKEN}
    return made


@pytest.fixture
def running(counting: Counting) -> Iterator[KafkaStreams]:
    """Two stream threads that have counted three records of each key."""
    counting.produce(3)
    with counting.streams(2) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 2), "two threads share the tasks")
        counting.wait_for_all_counts()
        yield streams


def rows(result: SqlResult) -> list[list[Any]]:
    return result.rows()


def test_a_program_a_client_and_the_command_get_the_same_rows(running: KafkaStreams, counting: Counting) -> None:
    text = "select key, value from counts where key like 'key-1%' order by key"
    expected = [[key, 3] for key in sorted(counting.expected) if key.startswith("key-1")]
    result = running.sql(text)
    assert rows(result) == expected
    position = result.position
    assert position is not None
    assert sum(position.partition_positions(counting.source).values()) + PARTITIONS == 3 * KEYS
    over_http = post(running, {"query": text})
    assert over_http["rows"] == expected
    assert over_http["columns"] == ["key", "value"]
    assert over_http["positions"] == result.to_json()["positions"]
    table = pa.ipc.open_stream(posted(running, {"query": text}, ARROW)).read_all()
    assert table.to_pylist() == result.to_arrow().to_pylist()
    assert json.loads(table.schema.metadata[b"penstock"]) == over_http["positions"]
    the_rows_of_a_store_as_arrow(running, counting)
    given = {
        "query": "select * from counts order by key limit 1",
        "schemas": {"counts": {"value": "float", "no": "string"}},
    }
    assert post(running, given)["columns"] == ["key", "timestamp", "value", "no"]
    assert post(running, given)["rows"][0][2:] == [3.0, None]
    bad_requests(running)
    errors_of_a_program(running)
    a_reader_that_leaves_or_never_reads(running)


def posted(streams: KafkaStreams, query: object, accept: str = "application/json", token: str | None = TOKEN) -> Any:
    headers = {"Accept": accept} | ({} if token is None else {"Authorization": f"Bearer {token}"})
    body = query if isinstance(query, bytes) else json.dumps(query).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{streams.http_port}/sql", body, headers)
    return urllib.request.urlopen(request, timeout=PATIENCE_SECONDS)


def post(streams: KafkaStreams, query: object, **how: Any) -> Any:
    try:
        return json.load(posted(streams, query, **how))
    except urllib.error.HTTPError as error:
        return json.load(error)["error"]


def read_store(streams: KafkaStreams, query: str) -> pa.Table:
    headers = {"Accept": ARROW, "Authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(f"http://127.0.0.1:{streams.http_port}/stores/{query}", headers=headers)
    return pa.ipc.open_stream(urllib.request.urlopen(request, timeout=PATIENCE_SECONDS)).read_all()


def the_rows_of_a_store_as_arrow(streams: KafkaStreams, counting: Counting) -> None:
    table = read_store(streams, "counts")
    assert (
        dict(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True)) == counting.expected
    )
    assert [str(field.type) for field in table.schema] == ["string", "int64", "timestamp[ms, tz=UTC]"]
    read = json.loads(table.schema.metadata[b"penstock"])
    assert (len(read["tasks"]), read["complete"]) == (PARTITIONS, True)
    assert sum(offset + 1 for offset in read["position"][counting.source].values()) == 3 * KEYS
    some = read_store(streams, "counts?columns=value,key&from=key-1&to=key-12")
    assert some.column_names == ["value", "key"]
    assert set(some.column("key").to_pylist()) == {"key-1", "key-10", "key-11", "key-12"}
    assert read_store(streams, "counts?prefix=key-3").num_rows == 11
    one = read_store(streams, "counts?partition=1")
    assert json.loads(one.schema.metadata[b"penstock"])["tasks"] == ["0_1"]
    assert read_store(streams, "counts?limit=0").num_rows == 0
    http = HttpClient.of(streams, TOKEN)
    for query in (
        "limit=5",
        "reverse=true",
        "max_lag=1",
        "columns=nix",
        "schema=x",
        "time_from=1",
        "columns=&columns=",
    ):
        refused = http.ask(f"/stores/counts?{query}", Accept=ARROW)
        assert (refused.status, refused.error["code"]) == (400, "BAD_REQUEST"), query
    assert http.ask("/stores/nix", Accept=ARROW).error["code"] == "UNKNOWN_STORE"


def bad_requests(streams: KafkaStreams) -> None:
    assert post(streams, {"query": "select 1"}, token=None)["code"] == "UNAUTHORIZED"
    assert post(streams, {"query": "select 1"}, token="wrong")["code"] == "UNAUTHORIZED"
    for body in (
        b"",
        b"[]",
        b"{}",
        b'{"query": 1}',
        b'{"query": "select 1", "no": 1}',
        b'{"query": "x", "isolation": "y"}',
        b'{"query": "x", "schemas": []}',
        b'{"query": "x", "schemas": {"counts": "n:int64"}}',
    ):
        assert post(streams, body)["code"] == "BAD_REQUEST", body
    assert post(streams, {"query": "select * from nix"})["code"] == "UNKNOWN_STORE"
    assert post(streams, {"query": "select nix from counts"})["code"] == "BAD_QUERY"
    assert post(streams, {"query": "drop table counts"})["code"] == "BAD_QUERY"
    assert post(streams, {"query": "select * from counts", "timeout_ms": 1})["code"] in ("QUERY_TIMEOUT", "TIMEOUT")


def errors_of_a_program(streams: KafkaStreams) -> None:
    with pytest.raises(UnknownStateStoreError, match="no state store 'nix'; it has: counts"):
        streams.sql("select * from nix")
    with pytest.raises(StreamsError, match="Only SELECT"):
        streams.sql("drop table counts")
    with pytest.raises(TimeoutError, match=r"has not ended within 0.001 s"):
        streams.sql("select 1", timeout=1)
    position = streams.sql("select * from counts").position
    assert position is not None
    assert rows(streams.sql("select count(*) from counts", at_least=position)) == [[KEYS]]
    (topic,) = position.topics
    with pytest.raises(InvalidStateStoreError, match="not yet as of"):
        streams.sql("select * from counts", at_least=position.with_component(topic, 0, 1_000_000))
    with pytest.raises(StreamsError, match="is no input of counts"):
        streams.sql("select * from counts", at_least=Position.from_map({"nix": {0: 1}}))


def a_reader_that_leaves_or_never_reads(streams: KafkaStreams) -> None:
    """It holds nothing: its scan is closed, and other readers get their rows."""
    for _ in range(40):  # more than scans may be open
        with socket.create_connection(("127.0.0.1", streams.http_port or 0)) as connection:
            head = f"GET /stores/counts HTTP/1.1\r\nHost: x\r\nAccept: {ARROW}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            connection.sendall(head.encode())
            connection.recv(1)
    assert read_store(streams, "counts").num_rows == KEYS


@pytest.mark.slow
def test_every_kind_of_store_as_of_a_commit_and_as_of_now(
    bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    held = Held(bootstrap_servers, application_id, make_topic("in"), make_topic("names"), tmp_path / "state")
    stores = ("cached", "uncached", "in-memory", "windows", "memory-windows", "sessions")
    with held.running() as streams:
        committed = held.produce(("a", "x"), ("a", COMMIT))
        for store in stores:
            eventually(shows(streams, store, ({"a": 2}, committed), **COMMITTED), store)
        held.produce(("b", "x"))  # it is not committed
        for store in stores:
            eventually(shows(streams, store, ({"a": 2, "b": 1}, held.at(2))), store)
            eventually(shows(streams, store, ({"a": 2}, committed), **COMMITTED), store)
            text = f'select * from "{store}" order by key'
            now, then = (streams.sql(text, isolation=level) for level in IsolationLevel)
            assert [(row["key"], row["value"]) for row in now.to_arrow().to_pylist()] == [("a", 2), ("b", 1)], store
            assert [(row["key"], row["value"]) for row in then.to_arrow().to_pylist()] == [("a", 2)], store
            assert (now.position, then.position) == (held.at(2), committed)
        held.produce(("k", "one"), ("l", "two"), topic=held.table)
        eventually(lambda: len(rows(streams.sql("select * from names"))) == 2, "the global table is complete")
        joined = streams.sql(
            "select w.key, w.value, epoch_ms(w.window_start), epoch_ms(w.window_end), n.value "
            "from windows w, names n where w.window_start >= '1970-01-01 00:00:05' and n.key = 'k' order by w.key"
        )
        assert rows(joined) == [["a", 2, 5_000, 6_000, "one"], ["b", 1, 5_000, 6_000, "one"]]
        assert joined.positions == {"windows": held.at(2), "names": Position.from_map({held.table: {0: 1}})}
        assert rows(streams.sql("select key from windows where window_start > '1970-01-01 00:00:05'")) == []
        sessions = streams.sql("select key, epoch_ms(window_start), epoch_ms(window_end) from sessions order by key")
        assert rows(sessions) == [["a", 5_000, 5_000], ["b", 5_000, 5_000]]


@pytest.mark.slow
def test_one_query_reads_the_stores_of_all_hosts(counting: Counting, tmp_path: Path) -> None:
    counting.produce(2)

    def host(name: str) -> KafkaStreams:
        return KafkaStreams(counting.topology(), counting.config | host_config(tmp_path / name))

    with host("one") as one, host("two") as two:
        one.start()
        two.start()
        for streams in (one, two):
            eventually(partial(shared_by, streams, 1, PARTITIONS // 2), "each host has half of the tasks")
        counting.wait_for_all_counts()
        for streams in (one, two):
            result = streams.sql("select key, value from counts")
            assert dict(map(tuple, rows(result))) == counting.expected
            assert result.position is not None
            assert len(result.position.partition_positions(counting.source)) == PARTITIONS
            assert read_store(streams, "counts").num_rows == KEYS
            assert 0 < read_store(streams, "counts?local=true").num_rows < KEYS
        two._http.stop()
        with pytest.raises(InvalidStateStoreError, match="cannot be reached"):
            one.sql("select count(*) from counts")


@pytest.mark.slow
@pytest.mark.parametrize("isolation", list(IsolationLevel))
def test_results_equal_a_copy_that_stopped_at_their_position(counting: Counting, isolation: IsolationLevel) -> None:
    """While records arrive, a process is killed and tasks move: a result is whole and of its position, or an error."""
    counting.config |= {"processing.guarantee": "exactly_once_v2", "commit.interval.ms": 100}
    results = errors = 0

    def read_until(done: Callable[[], bool], least: int) -> None:
        nonlocal results, errors
        deadline, found = time.monotonic() + PATIENCE_SECONDS, 0
        while not (found >= least and done()):
            assert time.monotonic() < deadline
            try:
                result = streams.sql("select key, value from counts", isolation=isolation)
            except (InvalidStateStoreError, TimeoutError):
                errors += 1
                continue
            assert result.position is not None
            assert dict(map(tuple, rows(result))) == written.counted_at(result.position, counting.source)
            found += 1
        results += found

    with counting.streams(2) as streams, Written(counting) as written:
        streams.start()
        eventually(lambda: shared_by(streams, 2), "two threads share the tasks")
        read_until(lambda: True, 3)
        victim, before = streams.status()[0], tasks(streams.status())
        os.kill(victim.pid, signal.SIGKILL)
        read_until(lambda: replaced(streams.status(), victim, before), 3)
        streams.add_stream_thread()
        read_until(lambda: shared_by(streams, 3), 3)
        streams.remove_stream_thread()
        read_until(lambda: shared_by(streams, 2), 3)
    assert results >= 12
