"""Reads changelogs on Spark's executors: into runs for Spark's state, or their keys, to find those to delete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from penstock.clients.clock import SystemClock
from penstock.clients.librdkafka import as_reader
from penstock.clients.log_context import PrefixedLogger
from penstock.statestore.rows.dated_rows import INDEX
from penstock.statestore.stores.state_store import plain_rows
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.store_interfaces import StoreKind
from penstock.topology.context.task_context import TaskContext
from penstock.topology.records import Message, TaskId, TopicPartition
from penstock.workers.tasks.partition_consumer import PartitionConsumer
from penstock.workers.tasks.partition_offsets import OFFSET_BEGINNING, OFFSET_END, PartitionOffsets
from penstock.workers.tasks.partition_range import read_range
from penstock.workers.thread.client_supplier import configured_supplier

from ..handover.store_changelogs import StoreChangelog
from .record_batches import MapInArrow, to_batch
from .sorted_runs import stored_rows
from .spark_stores import SparkOutput, SparkStores
from .spark_task import OWN_BLOB, OWN_STORE

#: Rows of a query's initial state; rows: with one of a store's blobs the number of its rows, 0 with the others.
SEED_DDL = "task int, store string, number bigint, data binary, rows bigint"
#: Seconds without a response from the brokers before the reader fails.
PATIENCE_SECONDS = 120.0
#: Blobs go to Spark in Arrow batches of this many bytes.
SEED_BATCH_BYTES = 8 << 20


@dataclass(frozen=True)
class SeedPlan:
    """The input for one sub-topology's seeds; sent to the executors.

    ends: for a source topic that serves as changelog, the offset up to which it was processed, by partition. own: by
    task, the state beside its stores, as saved by spark_task.SparkTask.
    """

    subtopology: int
    config: StreamsConfig
    changelogs: Mapping[str, StoreChangelog]
    ends: Mapping[str, Mapping[int, int]]
    own: Mapping[int, bytes]


class MemoryState:
    """A TaskState in memory. directory: see blob_files.Blobs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.blobs: dict[tuple[str, int], bytes] = {}

    def read(self, store: str, numbers: Sequence[int]) -> list[bytes | None]:
        """Return blobs, None for one that does not exist."""
        return [self.blobs.get((store, number)) for number in numbers]

    def write(self, store: str, number: int, data: bytes) -> None:
        """Keep a blob."""
        self.blobs[store, number] = data

    def remove(self, store: str, number: int) -> None:
        """Remove an existing blob."""
        del self.blobs[store, number]


def make_seeds(plan: SeedPlan) -> MapInArrow:
    """Return a function for mapInArrow: from rows with the number of a task to the rows of its seed."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column("task").to_pylist():
                yield from _seed(plan, task)

    return run


def _seed(plan: SeedPlan, task: int) -> Iterator[pa.RecordBatch]:
    for name, changelog in plan.changelogs.items():
        with TemporaryDirectory() as directory:
            state = _restored(plan, task, changelog, Path(directory))
        found = [(number, data) for (store, number), data in state.blobs.items() if store == name]
        count = _row_count(found, changelog.builder.is_dated)
        for group in _by_size(found):
            yield _seed_rows(task, name, group, count)
            count = 0
    if task in plan.own:
        yield _seed_rows(task, OWN_STORE, [(OWN_BLOB, plan.own[task])], 0)


def _by_size(blobs: Iterable[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Yield blobs in groups of SEED_BATCH_BYTES."""
    group: list[tuple[int, bytes]] = []
    size = 0
    for number, data in blobs:
        group.append((number, data))
        size += len(data)
        if size >= SEED_BATCH_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _row_count(blobs: Iterable[tuple[int, bytes]], is_dated: bool) -> int:
    """Return how many rows a store has.

    is_dated: the store has an index by time, too, whose entries do not count.
    """
    return sum(not (is_dated and key.startswith(INDEX)) for key, _ in stored_rows(blobs))


def _seed_rows(task: int, store: str, blobs: list[tuple[int, bytes]], count: int) -> pa.RecordBatch:
    """Return blobs of a store as rows of the seed. count: the rows of the store, which the first one counts for all."""
    counts = [count] + [0] * (len(blobs) - 1)
    return to_batch([(task, store, *blob, each) for blob, each in zip(blobs, counts, strict=True)], SEED_DDL)


def _restored(plan: SeedPlan, task: int, changelog: StoreChangelog, directory: Path) -> MemoryState:
    """Return the state of one store of one task, as restored from its changelog by the local engine's code."""
    builder, state = changelog.builder, MemoryState(directory)
    output = SparkOutput()
    context = TaskContext(TaskId(plan.subtopology, task), plan.config, output)
    stores = SparkStores({builder.name: builder}, context, output.images, state, None)
    store = stores.by_name[builder.name]
    end = plan.ends.get(changelog.topic, {}).get(task, 0) if changelog.is_source else None
    for messages in read_changelog(plan.config, changelog.topic, task, end):
        store.restore(messages, None)
        if builder.kind is StoreKind.SUPPRESS_BUFFER:
            for key, value in plain_rows(messages):
                output.log_change(builder.name, key, value, None)
    stores.commit()
    stores.close()
    return state


def live_keys(config: StreamsConfig, topic: str, partition: int) -> set[bytes]:
    """Return the keys that a changelog has a value for."""
    live: set[bytes] = set()
    for messages in read_changelog(config, topic, partition, None):
        for key, value in plain_rows(messages):
            if value is None:
                live.discard(key)
            else:
                live.add(key)
    return live


def read_changelog(config: StreamsConfig, topic: str, partition: int, end: int | None) -> Iterator[list[Message]]:
    """Yield the committed records of a partition in batches, from the first to end (None: the current end).

    A local engine with exactly-once has left aborted records. A transaction whose end is under way is waited for, so
    the current end is the high watermark. Raises BrokerUnavailableError if the brokers return nothing for
    PATIENCE_SECONDS, StreamsError if they refuse.
    """
    committed = config.with_overrides({"restore.consumer.isolation.level": "read_committed"})
    supplier, client_id = configured_supplier(committed, SystemClock()), f"{config['application.id']}-handover"
    source = TopicPartition(topic, partition)
    with closing(supplier.get_admin(client_id)) as admin:
        offsets = PartitionOffsets(admin, committed_only=False)
        first = offsets.offsets_at({source: OFFSET_BEGINNING}, PATIENCE_SECONDS)[source]
        last = offsets.offsets_at({source: OFFSET_END}, PATIENCE_SECONDS)[source]
    log = PrefixedLogger(__name__, f"[{client_id}] ")
    consumer = PartitionConsumer(as_reader(supplier.get_restore_consumer(client_id)), log)
    yield from read_range(consumer, source, first, last if end is None else min(end, last), PATIENCE_SECONDS)
