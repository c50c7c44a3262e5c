"""Transactions of the in-memory broker between their decision and their markers, and replaced producers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.clients.errors import ErrorCode
from penstock.clients.protocol.messages import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    OFFSET_FETCH,
    TXN_OFFSET_COMMIT,
)
from penstock.clients.protocol.schema import Request
from penstock.testing.broker import Cluster
from penstock.testing.broker.partition_log import PartitionLog
from penstock.testing.broker.record_batches import NewRecord, Origin, batch_of
from penstock.testing.broker.transaction_coordinator import LAST_EPOCH

TIMEOUT_MS = 60_000
PARTITIONS = [{"name": "out", "partitions": [0, 1]}]


class Markers:
    """The markers that were sent but not written yet."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def write(self) -> None:
        """Write the next one."""
        self.waiting.pop(0)()


@pytest.fixture
def markers() -> Markers:
    return Markers()


@pytest.fixture
def cluster(markers: Markers) -> Cluster:
    made = Cluster(send_marker=markers.waiting.append)
    made.create_topic("out", 2)
    return made


def ask(cluster: Cluster, request: Request, version: int, now_ms: int = 0) -> Any:
    connection = cluster.connect(1)
    cluster.receive(connection, request.encode(version, 0, "test"), now_ms)
    return request.api.decode(connection.outbox.popleft(), version)


def begun(cluster: Cluster, **former: int) -> dict[str, Any]:
    request = INIT_PRODUCER_ID(transactional_id="t", transaction_timeout_ms=TIMEOUT_MS, **former)
    said = ask(cluster, request, 4)
    return {"error_code": said.error_code, "producer_id": said.producer_id, "producer_epoch": said.producer_epoch}


def identity(producer: dict[str, Any]) -> dict[str, Any]:
    return {
        "transactional_id": "t",
        "producer_id": producer["producer_id"],
        "producer_epoch": producer["producer_epoch"],
    }


def written(cluster: Cluster, producer: dict[str, Any]) -> list[PartitionLog]:
    """Write a record to each partition in a transaction of the old protocol, and return the partitions."""
    ask(cluster, ADD_PARTITIONS_TO_TXN(**identity(producer), topics=PARTITIONS), 3)
    origin = Origin(producer["producer_id"], producer["producer_epoch"], 0, transactional=True)
    logs = [partition.log for partition in cluster.topic("out").partitions]
    for log in logs:
        log.append(batch_of([NewRecord(0, b"k", b"v", [("h", b"1"), ("none", None)])], origin), 0)
    return logs


def seen(log: PartitionLog) -> list[bytes | None]:
    return [record.value for record in log.visible(0, committed_only=True)]


def position(cluster: Cluster) -> Any:
    asked = [{"group_id": "g", "topics": [{"name": "out", "partition_indexes": [0]}]}]
    return ask(cluster, OFFSET_FETCH(groups=asked, require_stable=True), 8).groups[0].topics[0].partitions[0]


def test_a_transaction_is_decided_before_its_markers_are_written(cluster: Cluster, markers: Markers) -> None:
    me = begun(cluster)
    first, second = written(cluster, me)
    at = {"partition_index": 0, "committed_offset": 7}
    offsets = TXN_OFFSET_COMMIT(**identity(me), group_id="g", topics=[{"name": "out", "partitions": [at]}])
    ask(cluster, offsets, 5)
    end = END_TXN(**identity(me), committed=True)
    assert ask(cluster, end, 4).error_code == ErrorCode.NONE

    add = ADD_PARTITIONS_TO_TXN(**identity(me), topics=PARTITIONS)
    for is_seen in ((), (first,), (first, second)):
        assert [seen(log) for log in (first, second)] == [[b"v"] if log in is_seen else [] for log in (first, second)]
        assert position(cluster).error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        results = ask(cluster, add, 3).results_by_topic[0].results_by_partition
        assert {one.partition_error_code for one in results} == {ErrorCode.CONCURRENT_TRANSACTIONS}
        assert ask(cluster, offsets, 5).topics[0].partitions[0].error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        assert ask(cluster, end, 4).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        assert ask(cluster, END_TXN(**identity(me)), 4).error_code == ErrorCode.INVALID_TXN_STATE
        assert begun(cluster)["error_code"] == ErrorCode.CONCURRENT_TRANSACTIONS
        markers.write()
    assert markers.waiting == []
    assert position(cluster).committed_offset == 7
    assert ask(cluster, end, 4).error_code == ErrorCode.NONE, "the repeated request"
    assert begun(cluster)["error_code"] == ErrorCode.NONE


def test_the_epoch_of_the_next_transaction_is_known_before_the_markers_are_written(
    cluster: Cluster, markers: Markers
) -> None:
    me = begun(cluster)
    written(cluster, me)
    ended = ask(cluster, END_TXN(**identity(me), committed=True), 5)
    assert (ended.error_code, ended.producer_epoch) == (ErrorCode.NONE, me["producer_epoch"] + 1)
    assert ask(cluster, END_TXN(**identity(me), committed=True), 5).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    for _ in range(3):
        markers.write()
    repeated = ask(cluster, END_TXN(**identity(me), committed=True), 5)
    assert (repeated.error_code, repeated.producer_epoch) == (ErrorCode.NONE, ended.producer_epoch)


def test_a_replaced_producer_does_not_get_the_epoch_of_the_next_one(cluster: Cluster) -> None:
    former, latest = begun(cluster), begun(cluster)
    ids = {name: former[name] for name in ("producer_id", "producer_epoch")}
    assert begun(cluster, **ids)["error_code"] == ErrorCode.PRODUCER_FENCED
    ids = {name: latest[name] for name in ("producer_id", "producer_epoch")}
    bumped = begun(cluster, **ids)
    assert bumped["producer_epoch"] == latest["producer_epoch"] + 1
    assert begun(cluster, **ids) == bumped, "the same request again"


def test_a_transaction_that_times_out_in_the_last_epoch_has_its_producers_markers(
    cluster: Cluster, markers: Markers
) -> None:
    me = begun(cluster)
    cluster.transactions.transactions["t"].epoch = me["producer_epoch"] = LAST_EPOCH
    first, second = written(cluster, me)
    cluster.advance(TIMEOUT_MS)
    for _ in range(3):
        markers.write()
    assert [log.last_stable for log in (first, second)] == [2, 2]
    assert seen(first) == []
    assert begun(cluster)["producer_id"] != me["producer_id"]


def test_records_have_their_headers(cluster: Cluster) -> None:
    log = written(cluster, begun(cluster))[0]
    (record,) = log.visible(0, committed_only=False)
    assert record.headers == [("h", b"1"), ("none", None)]


@pytest.mark.parametrize("level", [1, 2])
def test_the_transaction_version_is_a_finalized_feature(level: int) -> None:
    cluster = Cluster(features={"transaction.version": level})
    found = {one["name"]: one["max_version_level"] for one in cluster.versions()["finalized_features"]}
    assert found == {"transaction.version": level}
