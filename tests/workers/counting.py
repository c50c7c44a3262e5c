"""The application that most tests of stream threads run: it counts records by key."""

from __future__ import annotations

import struct
from typing import Any

from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.records import TopicPartition
from penstock.topology.serdes.serdes import Serdes
from tests.direct_kafka import DirectKafka

IN, OUT, CHANGELOG = "in", "out", "app-counts-changelog"


def counting() -> Any:
    """in -> count by key -> out."""
    return counting_topics(IN, OUT)


def counting_topics(source: str | list[str], sink: str) -> Any:
    """Return a topology that counts the records of topics by key."""
    builder = StreamsBuilder()
    stream = builder.stream(source, key_serde=Serdes.string(), value_serde=Serdes.string())
    counted = stream.group_by_key().count(store="counts")
    counted.to_stream().to(sink, key_serde=Serdes.string(), value_serde=Serdes.int64())
    return builder.build()


def feed(cluster: DirectKafka, keys: str, partition: int = 0, timestamp: int = 1000) -> None:
    """Write one record for each letter."""
    for number, key in enumerate(keys):
        cluster.append(IN, partition, key.encode(), b"value", timestamp + number)


def counts(cluster: DirectKafka, topic: str = OUT) -> dict[str, int]:
    """Return the newest count of each key."""
    return {
        (key or b"").decode(): struct.unpack(">q", value)[0]
        for key, value in cluster.table(topic).items()
        if value is not None
    }


def committed(cluster: DirectKafka, partition: int = 0) -> OffsetAndMetadata | None:
    """Return the committed offset of an input partition."""
    return cluster.committed(TopicPartition(IN, partition))
