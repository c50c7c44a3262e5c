"""Partitioners that multicast, drop and see headers (KIP-837, KIP-1321), on a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock import KafkaStreams, Serdes, StreamPartitioner, StreamsBuilder
from tests.conftest import MakeTopic
from tests.read_to_end import read_to_end
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker

TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
PARTITIONS = 3
#: The values, the partitions that their header names, and where they are written.
RECORDS = [("one", "1", {1}), ("two", "0,2", {0, 2}), ("nowhere", "", set()), ("all", "0,1,2", {0, 1, 2})]


class ByHeader(StreamPartitioner[str, str]):
    """The partitions that a header names."""

    def partitions(self, topic: str, key: str, value: str, headers: Any, partition_count: int) -> set[int]:
        assert partition_count == PARTITIONS
        return {int(number) for number in dict(headers)["to"].decode().split(",") if number}


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_each_chosen_partition_gets_the_record(
    bootstrap_servers: str, application_id: str, make_topic: MakeTopic, tmp_path: Path, guarantee: str
) -> None:
    source, sink, counts = make_topic("in"), make_topic("out", PARTITIONS), make_topic("counts")
    builder = StreamsBuilder()
    stream = builder.stream(source, **TEXT)
    stream.to(sink, partitioner=ByHeader(), **TEXT)
    again = stream.repartition(name="again", number_of_partitions=PARTITIONS, partitioner=ByHeader(), **TEXT)
    again.to(counts, **TEXT)
    config = {
        "application.id": application_id,
        "bootstrap.servers": bootstrap_servers,
        "state.dir": str(tmp_path),
        "processing.guarantee": guarantee,
        "commit.interval.ms": 100,
    }
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for value, to, _ in RECORDS:
        producer.produce(source, value, "k", headers=[("to", to.encode())])
    assert producer.flush(PATIENCE_SECONDS) == 0
    expected = sorted((value, partition) for value, _, partitions in RECORDS for partition in partitions)
    with KafkaStreams(builder.build(), config) as streams:
        streams.start()
        eventually(lambda: len(list(read_to_end(bootstrap_servers, counts))) == len(expected), "all are written")
    for topic in (sink, f"{application_id}-again-repartition"):
        found = [((one.value() or b"").decode(), one.partition()) for one in read_to_end(bootstrap_servers, topic)]
        assert sorted(found) == expected
