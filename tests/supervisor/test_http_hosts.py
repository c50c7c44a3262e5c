"""Store reads that another host, a standby task, or no host can answer yet."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from broker_stage import KEYS, PARTITIONS, Counting, shared_by
from http_client import HttpClient, host_config

from penstock import KafkaStreams
from tests.waiting import eventually

pytestmark = pytest.mark.broker


@pytest.fixture
def hosts(counting: Counting, tmp_path: Path) -> Callable[[str], KafkaStreams]:
    """Create the application as run by a host of that name, with a standby of each task on another host."""

    def make(name: str) -> KafkaStreams:
        return KafkaStreams(counting.topology(), counting.config | host_config(tmp_path / name))

    return make


@pytest.mark.slow
def test_each_host_answers_for_all_hosts_and_a_standby_within_its_lag(
    counting: Counting, hosts: Callable[[str], KafkaStreams]
) -> None:
    counting.produce(2)
    with hosts("one") as one, hosts("two") as two:
        one.start()
        two.start()
        eventually(lambda: shared_by(one, 1, PARTITIONS // 2), "each host has half of the tasks")
        eventually(lambda: shared_by(two, 1, PARTITIONS // 2), "each host has half of the tasks")
        counting.wait_for_all_counts()
        for http in (HttpClient.of(one), HttpClient.of(two)):
            rows = http.get("/stores/counts?limit=1000")
            assert (len(rows["rows"]), rows["complete"], len(rows["tasks"])) == (KEYS, True, PARTITIONS)
            values = [http.get(f"/stores/counts/key-{number}")["rows"][0]["value"] for number in range(KEYS)]
            assert values == [2] * KEYS
            part = http.get("/stores/counts?limit=1000&local=true")
            assert (part["complete"], len(part["tasks"])) == (False, PARTITIONS // 2)
            positions_of_all_hosts(http, counting)
            queries_of_all_hosts(http, counting)
        a_standby_answers(HttpClient.of(one), counting.source)
        two._http.stop()
        gone = HttpClient.of(one).ask("/stores/counts")
        assert (gone.status, gone.error["code"]) == (503, "HOST_UNREACHABLE")
        assert gone.error["retry_after_seconds"] >= 1
        partitions = HttpClient.of(one).get("/stores/counts?query=RangeQuery&limit=1000")["partitions"]
        left = {number for number, one in partitions.items() if one["position"] is None}
        assert len(left) == PARTITIONS // 2, "those of the other host, from standby tasks or not at all"
        active = HttpClient.of(one).get("/stores/counts?query=RangeQuery&require_active=true")["partitions"]
        assert {active[number]["failure"]["reason"] for number in left} == {"NOT_ACTIVE"}


def positions_of_all_hosts(http: HttpClient, counting: Counting) -> None:
    """The rows of both hosts as of the last commit have one position, and a bound holds on the other host, too."""

    def positions(how: str) -> dict[str, int]:
        offsets: dict[str, int] = http.get(f"/stores/counts?limit=1000{how}")["position"].get(counting.source, {})
        return offsets

    def records(how: str) -> int:
        return sum(offset + 1 for offset in positions(how).values())

    assert records("") == 2 * KEYS
    eventually(lambda: records("&isolation=read_committed") == 2 * KEYS, "all records are committed")
    reached = ",".join(f"{counting.source}-{number}:{offset}" for number, offset in positions("").items())
    assert len(http.get(f"/stores/counts?limit=1000&isolation=read_committed&at_least={reached}")["rows"]) == KEYS
    here = next(task["task_id"][-1] for task in http.get("/tasks") if task["kind"] == "active")
    there = next(task["task_id"][-1] for task in http.get("/tasks") if task["kind"] == "standby")
    for number in (here, there):
        offset = positions("")[number]
        beyond = f"/stores/counts?partition={number}&at_least={counting.source}-{number}:{offset + 1}&timeout_ms=2000"
        refused = http.ask(beyond).error
        assert (refused["code"], refused["position"]) == ("NOT_UP_TO_BOUND", {counting.source: {number: offset}})


def queries_of_all_hosts(http: HttpClient, counting: Counting) -> None:
    """Interactive queries v2 are answered by the active tasks of both hosts, each with its position."""
    found = http.get("/stores/counts?query=RangeQuery&limit=1000&require_active=true")
    assert sorted(found["partitions"], key=int) == [str(number) for number in range(PARTITIONS)]
    assert sum(len(one["result"]) for one in found["partitions"].values()) == KEYS
    assert sum(offset + 1 for offset in found["position"][counting.source].values()) == 2 * KEYS
    one = http.get("/stores/counts?query=TimestampedKeyQuery&key=key-1")["partitions"]
    assert [part["result"]["value"] for part in one.values() if part["result"] is not None] == [2]
    local = http.get("/stores/counts?query=RangeQuery&local=true&require_active=true")["partitions"]
    assert [part["failure"]["reason"] for part in local.values() if "failure" in part] == ["NOT_ACTIVE"] * (
        PARTITIONS // 2
    )


def a_standby_answers(http: HttpClient, source: str) -> None:
    """Request the state of a task that is on the other host."""
    active = {task["task_id"] for task in http.get("/tasks") if task["kind"] == "active"}
    theirs = next(number for number in range(PARTITIONS) if f"0_{number}" not in active)
    here = f"/stores/counts?partition={theirs}&local=true"
    assert http.ask(here).error["code"] == "NOT_HERE"
    eventually(lambda: http.ask(f"{here}&max_lag=0").status == 200, "the standby task has caught up")
    assert http.get(f"{here}&max_lag=0&isolation=read_committed")["position"] is None, "it does not know its position"
    refused = http.ask(f"{here}&max_lag=0&at_least={source}-{theirs}:0")
    assert refused.error["code"] == "NOT_HERE", "only the active task can promise it"
    copy = http.get(f"{here}&max_lag=0")
    assert copy["lag"] == 0
    original = http.get(f"/stores/counts?partition={theirs}")
    assert original["lag"] is None
    assert copy["rows"] == original["rows"] != []
    forwarded = http.ask(f"/stores/counts?partition={theirs}", X_Penstock_Forwarded="1")
    assert (forwarded.status, forwarded.error["code"]) == (503, "NOT_HERE")  # not forwarded endlessly


def test_a_restoring_store_is_reported(counting: Counting, tmp_path: Path) -> None:
    counting.config["penstock.http.port"] = 0
    counting.produce(2)
    with counting.streams(1) as streams:
        streams.start()
        counting.wait_for_all_counts()
        streams.close(leave_group=True)
    counting.config["state.dir"] = str(tmp_path / "empty")
    with counting.streams(1) as again:
        again.pause()  # restoring blocks too
        again.start()
        http = HttpClient.of(again)
        eventually(lambda: len(http.get("/tasks")) == PARTITIONS, "the tasks are here")
        # More than the keys, if a commit fell between the two rounds.
        eventually(lambda: sum(one.restore_remaining for one in again.status()) >= KEYS, "it says how much is left")
        for path in ("/stores/counts/key-1", "/stores/counts"):
            answer = http.ask(path)
            assert (answer.status, answer.error["code"]) == (503, "RESTORING")
            assert re.search(r"[1-9]\d* records are still to be restored", answer.error["message"])
            assert int(answer.headers["retry-after"]) == answer.error["retry_after_seconds"] >= 1
        ready = http.ask("/health/ready")
        assert (ready.status, ready.json["ready"]) == (503, False)
        again.resume()
        eventually(lambda: http.ask("/health/ready").status == 200, "it is restored")
        assert len(http.get("/stores/counts?limit=1000")["rows"]) == KEYS
