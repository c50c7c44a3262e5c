"""Spark's side of a handover: moves stores and offsets into a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.topology.config.config_keys import AT_LEAST_ONCE
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.graph.topology import Topology
from penstock.topology.records import SentRecord

from ..checkpoint.checkpoint import IDENTITY_FILE, CheckpointError, Topics, check, full_source_topics, identity
from ..checkpoint.hadoop_files import HadoopFiles
from ..checkpoint.ownership import LOCAL, OWNERSHIP_FILE, SPARK, Offsets, Ownership, unpack_ownership
from ..queries.capabilities import is_stateless
from ..session.query_settings import set_for_queries
from ..tasks.changelog_reader import SEED_DDL, SeedPlan, live_keys, make_seeds
from ..tasks.kafka_sink import Sinks
from ..tasks.record_batches import PACK_RECORDS_MAX, MapInArrow, sent_batch, to_batch
from ..tasks.sorted_runs import DIRECTORY, stored_rows
from ..tasks.spark_state import STATE_VARIABLE
from ..tasks.spark_task import OWN_STORE
from .store_changelogs import StoreChangelog, changelog_records, changelogs_of, tombstones

_BLOB_DDL = "task int, store string, number bigint, data binary"
#: A key in the offset of a source that reads files.
FILES_OFFSET = "logOffset"
#: Called with the number of each finished sub-topology.
Progress = Callable[[int], None]


#: The written records of one store of one task.
MOVED_DDL = "store string, rows bigint, deleted bigint"


@dataclass(frozen=True, slots=True)
class Moved:
    """The moved rows of one store, and the keys deleted from its changelog."""

    rows: int
    deleted: int = 0


@dataclass(eq=False)
class SparkSide:
    """A topology's checkpoint. topics: those of its tasks. Nothing may run while it is used."""

    built: Sequence[ProcessorTopology]
    config: StreamsConfig
    spark: SparkSession
    checkpoint: str
    topics: Topics

    def __post_init__(self) -> None:
        self.checkpoint = self.checkpoint.rstrip("/")
        self._counts = counts = self.topics.counts
        self._application_id: str = self.config["application.id"]
        self._files = HadoopFiles(self.spark)
        set_for_queries(self.spark)
        self.spark.conf.set("spark.sql.shuffle.partitions", str(max(counts.values())))
        self._file = f"{self.checkpoint}/{OWNERSHIP_FILE}"
        found = self._files.read(self._file)
        #: The owner of the state; None if the checkpoint is empty.
        self.owner: Ownership | None = None
        if found is not None or self._files.read(f"{self.checkpoint}/{IDENTITY_FILE}") is not None:
            self.owner = unpack_ownership(found, self.checkpoint)

    def source_topics(self, topology: ProcessorTopology) -> list[str]:
        """Return the full names of the topics that a sub-topology reads."""
        return full_source_topics(topology, self._application_id)

    def tasks(self, topology: ProcessorTopology) -> int:
        """Return how many tasks a sub-topology has."""
        return max(self._counts[topic] for topic in self.source_topics(topology))

    @property
    def stateful(self) -> list[ProcessorTopology]:
        """The sub-topologies whose tasks have state."""
        return [topology for topology in self.built if not is_stateless(topology, self.config)]

    # -- from the local engine

    def take_over(
        self, offsets: Offsets, own: Mapping[int, Mapping[int, bytes]], mark: int, progress: Progress
    ) -> dict[str, Moved]:
        """Create a new generation from the changelogs' rows and these offsets; return the rows by store.

        own: the tasks' state outside their stores, by sub-topology and task. mark: see Ownership; until the group has
        it, Spark does not run with this generation.
        """
        number = 1 if self.owner is None else self.owner.generation + 1
        seeded = tuple(topology.subtopology for topology in self.stateful)
        following = Ownership(SPARK, number, offsets, seeded, mark=mark)
        self._files.delete(following.directory(self.checkpoint))  # leftovers of an earlier attempt
        moved: dict[str, Moved] = {}
        for topology in self.stateful:
            moved |= self._seed(topology, following, own[topology.subtopology])
            progress(topology.subtopology)
        self._files.delete(f"{self.checkpoint}/{IDENTITY_FILE}")  # the topology may have changed; Spark rewrites it
        self._files.replace(self._file, following.packed())
        previous, self.owner = self.owner, following
        if previous is not None:
            self._forget(previous)
        return moved

    def _seed(self, topology: ProcessorTopology, owner: Ownership, own: Mapping[int, bytes]) -> dict[str, Moved]:
        changelogs = changelogs_of(topology, self._application_id)
        plan = SeedPlan(topology.subtopology, self.config, changelogs, owner.offsets, own)
        tasks = self.tasks(topology)
        directory = owner.seed_directory(self.checkpoint, topology.subtopology)
        numbers = self.spark.range(0, tasks, numPartitions=tasks).selectExpr("int(id) AS task")
        numbers.mapInArrow(make_seeds(plan), SEED_DDL).write.parquet(directory)
        seeds = self.spark.read.schema(SEED_DDL).parquet(directory).where(f"store != '{OWN_STORE}'")
        rows = {
            row.store: Moved(row.rows) for row in seeds.groupBy("store").sum("rows").toDF("store", "rows").collect()
        }
        return {store: rows.get(store, Moved(0)) for store in changelogs}

    def _forget(self, generation: Ownership) -> None:
        """Delete the queries and state of an outdated generation."""
        if generation.generation:
            self._files.delete(generation.directory(self.checkpoint))
        else:
            for topology in self.built:
                self._files.delete(generation.query_directory(self.checkpoint, topology.subtopology))

    def keep(self, owner: Ownership) -> None:
        """Save the owner of the checkpoint's state."""
        self._files.replace(self._file, owner.packed())
        self.owner = owner

    # -- to the local engine

    def check_identity(self, topology: Topology) -> None:
        """Raise CheckpointError if the checkpoint belongs to another topology."""
        found = self._files.read(f"{self.checkpoint}/{IDENTITY_FILE}")
        if found is not None:
            check(found, identity(topology, self.built, self.config, self.topics), self.checkpoint)

    def last_batches(self) -> dict[int, int | None]:
        """Return the last finished micro-batch of each sub-topology's query, None where there is none."""
        return {topology.subtopology: self._last_batch(topology.subtopology) for topology in self.built}

    def _last_batch(self, number: int) -> int | None:
        commits = self._files.names(f"{self._query(number)}/commits")
        return max((int(name) for name in commits if name.isdigit()), default=None)

    def _query(self, number: int) -> str:
        assert self.owner is not None
        return self.owner.query_directory(self.checkpoint, number)

    def offsets(self) -> dict[str, dict[int, int]]:
        """Return the positions of the queries after their last finished micro-batches: the next offsets to read."""
        assert self.owner is not None
        found = {topic: dict(partitions) for topic, partitions in self.owner.offsets.items()}
        for topic in self.owner.in_files:
            found[topic] = dict(self.owner.ends[topic])
        for number, batch in self.last_batches().items():
            if batch is not None:
                for topic, partitions in self._batch_offsets(number, batch).items():
                    ends = self.owner.ends.get(topic, {})
                    stands = {int(each): min(at, ends.get(int(each), at)) for each, at in partitions.items()}
                    found.setdefault(topic, {}).update(stands)
        return found

    def _batch_offsets(self, number: int, batch: int) -> dict[str, dict[str, int]]:
        path = f"{self._query(number)}/offsets/{batch}"
        lines = (self._files.read(path) or b"").decode().splitlines()
        if len(lines) < 3 or lines[0] != "v1":  # version, the query's metadata, the offsets of each of its sources
            raise CheckpointError(f"{path} is not in the format of Spark 4.2: its offsets cannot be handed over.")
        sources: list[dict[str, dict[str, int]]] = [orjson.loads(line) for line in lines[2:]]
        return {topic: at for source in sources if FILES_OFFSET not in source for topic, at in source.items()}

    def _state(self, number: int) -> DataFrame | None:
        assert self.owner is not None
        if self._last_batch(number) is not None:
            state: DataFrame = blobs(self.spark, self._query(number))
            return state
        if number in self.owner.seeded:
            seeds = self.spark.read.schema(SEED_DDL).parquet(self.owner.seed_directory(self.checkpoint, number))
            return seeds.select("task", "store", "number", "data")
        return None

    def own(self) -> dict[int, dict[int, dict[str, object]]]:
        """Return the tasks' state outside their stores, by sub-topology and task."""
        found: dict[int, dict[int, dict[str, object]]] = {}
        for topology in self.stateful:
            state = self._state(topology.subtopology)
            rows = [] if state is None else state.where(f"store = '{OWN_STORE}'").collect()
            found[topology.subtopology] = {row.task: orjson.loads(bytes(row.data)) for row in rows}
        return found

    def write_changelogs(
        self, own: Mapping[int, Mapping[int, Mapping[str, Any]]], progress: Progress
    ) -> dict[str, Moved]:
        """Write Spark's state into the changelogs; return the written records by store."""
        moved: dict[str, Moved] = {}
        for topology in self.stateful:
            moved |= self._write(
                topology, {task: each["stream_time"] for task, each in own[topology.subtopology].items()}
            )
            progress(topology.subtopology)
        return moved

    def _write(self, topology: ProcessorTopology, stream_times: Mapping[int, int]) -> dict[str, Moved]:
        changelogs = changelogs_of(topology, self._application_id)
        tasks = self.tasks(topology)
        # Each store of each task, even those without rows in Spark: their changelogs may have some.
        all_of_them = [(task, store, DIRECTORY, b"") for task in range(tasks) for store in changelogs]
        if not all_of_them:
            return {}
        frame = self.spark.createDataFrame(all_of_them, _BLOB_DDL)
        state = self._state(topology.subtopology)
        if state is not None:
            frame = frame.unionByName(state.where(f"store != '{OWN_STORE}'"))
        # Without transactions, whose default is to wait for brokers without a limit.
        config = self.config.with_overrides({"processing.guarantee": AT_LEAST_ONCE})
        plan = WritePlan(config, changelogs, stream_times)
        ordered = frame.repartition(tasks, "task").sortWithinPartitions("task", "store", "number")
        written = (
            ordered.mapInArrow(write_changelogs(plan), MOVED_DDL).groupBy("store").sum("rows", "deleted").collect()
        )
        return {row[0]: Moved(row[1], row[2]) for row in written}

    def give_up(self) -> None:
        """Assign the checkpoint's state to the local engine; Spark refuses to continue from it."""
        assert self.owner is not None
        self.keep(replace(self.owner, engine=LOCAL))


@dataclass(frozen=True)
class WritePlan:
    """The input for writing one sub-topology's changelogs. stream_times: of its tasks, in ms."""

    config: StreamsConfig
    changelogs: Mapping[str, StoreChangelog]
    stream_times: Mapping[int, int]


def write_changelogs(plan: WritePlan) -> MapInArrow:
    """Return a function for mapInArrow: from blobs, sorted by task and store, to rows of MOVED_DDL.

    A changelog then represents exactly these rows: other keys are deleted.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        moved = [
            (store, *_write(plan, plan.changelogs[store], task, (blob[2:] for blob in group if blob[2] != DIRECTORY)))
            for (task, store), group in groupby(_blobs(batches), key=itemgetter(0, 1))
            if store in plan.changelogs and not plan.changelogs[store].is_source
        ]
        yield to_batch(moved, MOVED_DDL)

    return run


def _blobs(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, str, int, bytes]]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("task", "store", "number", "data"))
        yield from zip(*columns, strict=True)


def _write(
    plan: WritePlan, changelog: StoreChangelog, task: int, blobs: Iterable[tuple[int, bytes]]
) -> tuple[int, int]:
    """Write one store of one task; return the numbers of records with a value and of tombstones.

    blobs: numbers and data.
    """
    stale = live_keys(plan.config, changelog.topic, task)
    sinks = Sinks(plan.config)
    sink = sinks.of_tasks()
    rows = stored_rows(blobs)
    written = 0
    for batch in _batches(changelog_records(changelog, task, rows, plan.stream_times.get(task, -1))):
        stale.difference_update(record.key for record in batch)
        written += sink.write(sent_batch(batch))
    for batch in _batches(tombstones(changelog, task, stale)):
        sink.write(sent_batch(batch))
    sinks.finish(sink)
    return written, len(stale)


def _batches(records: Iterable[SentRecord]) -> Iterator[list[Any]]:
    waiting = iter(records)
    while batch := list(islice(waiting, PACK_RECORDS_MAX)):
        yield batch


def blobs(spark: SparkSession, query_checkpoint: str) -> Any:
    """Return a frame of task, store, number and data: the state after the last finished micro-batch of a query."""
    # Reading a snapshot reports to the coordinator of state stores, which Spark makes with its manager of queries. A
    # session that has started no query has none: "Cannot find endpoint".
    _ = spark.streams
    state = spark.read.format("statestore").option("path", query_checkpoint).option("stateVarName", STATE_VARIABLE)
    return state.load().selectExpr(
        "key.task AS task",
        "user_map_key.store AS store",
        "user_map_key.number AS number",
        "user_map_value.data AS data",
    )
