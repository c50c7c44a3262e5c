"""Writes the rows of Spark's state into the changelogs, on Spark's executors; the local engine restores from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import pyarrow as pa

from penstock.topology.config.streams_config import StreamsConfig

from ..session.kafka_settings import producer_settings
from ..tasks.changelog_reader import live_keys
from ..tasks.kafka_sink import KafkaSink
from ..tasks.paged_rows import DIRECTORY, unpack_rows
from ..tasks.record_batches import PACK_RECORDS_MAX, SentRecord, sent_batch, to_batch
from .store_changelogs import StoreChangelog, changelog_records, tombstones

#: The written records of one store of one task.
MOVED_DDL = "store string, rows bigint, deleted bigint"


@dataclass(frozen=True)
class WritePlan:
    """The input for writing one sub-topology's changelogs. stream_times: of its tasks, in ms."""

    config: StreamsConfig
    changelogs: Mapping[str, StoreChangelog]
    stream_times: Mapping[int, int]


def write_changelogs(plan: WritePlan) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for mapInArrow: from blobs, sorted by task and store, to rows of MOVED_DDL.

    A changelog then represents exactly these rows: other keys are deleted.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        moved = [
            (store, *_write(plan, plan.changelogs[store], task, (blob[3] for blob in blobs if blob[2] != DIRECTORY)))
            for (task, store), blobs in groupby(_blobs(batches), key=itemgetter(0, 1))
            if store in plan.changelogs and not plan.changelogs[store].is_source
        ]
        yield to_batch(moved, MOVED_DDL)

    return run


def _blobs(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, str, int, bytes]]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("task", "store", "number", "data"))
        yield from zip(*columns, strict=True)


def _write(plan: WritePlan, changelog: StoreChangelog, task: int, pages: Iterable[bytes]) -> tuple[int, int]:
    """Write one store of one task; return how many records with a value, and how many that delete."""
    stale = live_keys(plan.config, changelog.topic, task)
    sink = KafkaSink(producer_settings(plan.config))
    rows = (row for data in pages for row in unpack_rows(data))
    written = 0
    for batch in _batches(changelog_records(changelog, task, rows, plan.stream_times.get(task, -1))):
        stale.difference_update(record.key for record in batch)
        written += sink.write(sent_batch(batch))
    for batch in _batches(tombstones(changelog, task, stale)):
        sink.write(sent_batch(batch))
    sink.finish()
    return written, len(stale)


def _batches(records: Iterable[SentRecord]) -> Iterator[list[Any]]:
    waiting = iter(records)
    while batch := list(islice(waiting, PACK_RECORDS_MAX)):
        yield batch
