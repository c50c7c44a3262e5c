"""The bug of Kafka that chaos runs excuse exists: shown with a plain client, without Penstock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.dev.kafka_distribution import VERSION_VARIABLE
from tests.brokers import LedBroker, SmallBroker
from tests.chaos.checkers.dropped_markers import DroppedMarkers
from tests.chaos.checkers.log_reader import LogReader
from tests.chaos.checkers.transactions import History
from tests.chaos.dropped_markers import Found, reproduce

#: A broker's death is detected soon; both brokers have the coordinators' topics.
CONFIG = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "transaction.state.log.replication.factor": "2",
    "offsets.topic.replication.factor": "2",
}


#: The last version that keeps markers for partitions without a leader.
RIGHT_KAFKA = "4.0.1"
pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]


@contextmanager
def two_brokers(directory: Path) -> Iterator[tuple[SmallBroker, LedBroker]]:
    with SmallBroker("first", directory / "first", config=CONFIG) as first:
        second = LedBroker(first, "second", directory / "second", CONFIG)
        second.start(detached=False)
        try:
            yield first, second
        finally:
            second.stop()


def test_kafka_treats_a_partition_without_a_leader_as_deleted(tmp_path: Path) -> None:
    """If this fails, Kafka is fixed in the tested version: the excuse can be removed once no older one is tested."""
    begin = time.time()
    with two_brokers(tmp_path) as (first, second):
        found = reproduce(first.bootstrap_servers, second.kill, lambda: second.start(detached=False))
        lines = first.log_file.read_text().splitlines()
        dropped = [markers for line in lines if (markers := DroppedMarkers.parse(line, "first"))]
        topics = {topic for markers in dropped for topic, _ in markers.partitions}
        with LogReader(first.bootstrap_servers) as reader:
            excused, judged = (History.read(reader, topics, excuse) for excuse in (dropped, ()))
    assert sorted(number for markers in dropped for _, number in markers.partitions) == [0, 1], lines
    assert all(begin < markers.at / 1000 < time.time() for markers in dropped)
    # The checkers find the same in the log: the producer of each record, and the end of its transaction.
    assert excused.faults == []
    assert ["has no marker in" in fault for fault in judged.faults] == [True, True]
    values = [[[record.value for record in part] for part in t.parts.values()] for t in excused.transactions]
    assert sorted(values) == [[[b"first"]], [[b"first"]], [[b"next"]], [[b"next"]]]
    # Both are blocked at their first record; then the abort becomes visible with the commit, and the commit ends as
    # aborted.
    assert found == [Found(False, 0, 1, ["first", "next"]), Found(True, 0, 1, [])]


def test_an_older_kafka_keeps_the_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VERSION_VARIABLE, RIGHT_KAFKA)
    with two_brokers(tmp_path) as (first, second):
        found = reproduce(first.bootstrap_servers, second.kill, lambda: second.start(detached=False))
    assert [partition.read for partition in found] == [["next"], ["first"]]
