"""The progress of queries: Spark's reports of their last micro-batches, in the local engine's terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from pyspark.sql.streaming import StreamingQuery


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """One sub-topology's query. The numbers are of its last micro-batch; batch is -1 before the first.

    records: number of its records. records_per_second: during the micro-batch. behind: records on the brokers that it
    did not include. batch_ms: its duration. running: False once the query has ended.
    """

    subtopology: int
    name: str
    running: bool
    batch: int = -1
    records: int = 0
    records_per_second: float = 0.0
    behind: int = 0
    batch_ms: int = 0


def progress_of(query: StreamingQuery) -> QueryProgress:
    """Return the progress of a query of SparkStreams."""
    name: str = query.name
    number = int(name.rpartition("-")[2])
    last: Any = query.lastProgress
    if last is None:
        return QueryProgress(number, name, query.isActive)
    return QueryProgress(
        number,
        name,
        query.isActive,
        last["batchId"],
        last["numInputRows"],
        round(last["processedRowsPerSecond"] or 0.0, 1),
        sum(_behind(source) for source in last["sources"]),
        last["batchDuration"],
    )


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """One partition that a query reads. read: the next offset; behind: see QueryProgress."""

    topic: str
    partition: int
    read: int
    behind: int


def partitions_of(query: StreamingQuery) -> list[PartitionProgress]:
    """Return a query's position in each partition; none before its first micro-batch."""
    last: Any = query.lastProgress
    return [] if last is None else [found for source in last["sources"] for found in _partitions(source)]


def _behind(source: object) -> int:
    """Return how many records of a source the micro-batch has left: Kafka's end offsets minus its own."""
    return sum(found.behind for found in _partitions(source))


def _partitions(source: Any) -> Iterator[PartitionProgress]:
    latest = _offsets(source["latestOffset"])
    for (topic, number), read in _offsets(source["endOffset"]).items():
        yield PartitionProgress(topic, int(number), read, max(latest.get((topic, number), read) - read, 0))


def _offsets(value: Any) -> Mapping[tuple[str, str], int]:
    found = (orjson.loads(value) if isinstance(value, str) else value) or {}  # also "null", before the first poll
    return {(topic, partition): at for topic, partitions in found.items() for partition, at in partitions.items()}
