"""Spark's side of a handover: moves stores and offsets into a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from pyspark.sql import DataFrame, SparkSession

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.graph.topology import Topology

from ..checkpoint.checkpoint import IDENTITY_FILE, CheckpointError, Topics, check, full_source_topics, identity
from ..checkpoint.hadoop_files import HadoopFiles
from ..checkpoint.ownership import LOCAL, OWNERSHIP_FILE, SPARK, Offsets, Ownership, unpack_ownership
from ..queries.capabilities import is_stateless
from ..queries.streaming_queries import ROCKSDB_PROVIDER
from ..tasks.changelog_reader import SEED_DDL, SeedPlan, make_seeds
from ..tasks.paged_rows import DIRECTORY
from ..tasks.spark_task import OWN_STORE
from .changelog_writer import MOVED_DDL, WritePlan, write_changelogs
from .state_reader import blobs
from .store_changelogs import changelogs_of

_BLOB_DDL = "task int, store string, number bigint, data binary"
#: A key in the offset of a source that reads files.
FILES_OFFSET = "logOffset"
#: Called with the number of each finished sub-topology.
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Moved:
    """The moved rows of one store, and the keys deleted from its changelog."""

    rows: int
    deleted: int = 0


class SparkSide:
    """A topology's checkpoint. topics: those of its tasks. Nothing may run while it is used."""

    def __init__(
        self,
        built: Sequence[ProcessorTopology],
        config: StreamsConfig,
        spark: SparkSession,
        checkpoint: str,
        topics: Topics,
    ) -> None:
        self._built = built
        self._config = config
        self._spark = spark
        self.checkpoint = checkpoint.rstrip("/")
        self._topics = topics
        self._counts = counts = topics.counts
        self._application_id: str = config["application.id"]
        self._files = HadoopFiles(spark)
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB_PROVIDER)
        spark.conf.set("spark.sql.shuffle.partitions", str(max(counts.values())))
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
        return [topology for topology in self._built if not is_stateless(topology, self._config)]

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
        plan = SeedPlan(topology.subtopology, self._config, changelogs, owner.offsets, own)
        tasks = self.tasks(topology)
        directory = owner.seed_directory(self.checkpoint, topology.subtopology)
        numbers = self._spark.range(0, tasks, numPartitions=tasks).selectExpr("int(id) AS task")
        numbers.mapInArrow(make_seeds(plan), SEED_DDL).write.parquet(directory)
        seeds = self._spark.read.schema(SEED_DDL).parquet(directory).where(f"store != '{OWN_STORE}'")
        rows = {
            row.store: Moved(row.rows) for row in seeds.groupBy("store").sum("rows").toDF("store", "rows").collect()
        }
        return {store: rows.get(store, Moved(0)) for store in changelogs}

    def _forget(self, generation: Ownership) -> None:
        """Delete the queries and state of an outdated generation."""
        if generation.generation:
            self._files.delete(generation.directory(self.checkpoint))
        else:
            for topology in self._built:
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
            check(found, identity(topology, self._built, self._config, self._topics), self.checkpoint)

    def last_batches(self) -> dict[int, int | None]:
        """Return the last finished micro-batch of each sub-topology's query, None where there is none."""
        return {topology.subtopology: self._last_batch(topology.subtopology) for topology in self._built}

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
            state: DataFrame = blobs(self._spark, self._query(number))
            return state
        if number in self.owner.seeded:
            seeds = self._spark.read.schema(SEED_DDL).parquet(self.owner.seed_directory(self.checkpoint, number))
            return seeds.select("task", "store", "number", "data")
        return None

    def own(self) -> dict[int, dict[int, dict[str, Any]]]:
        """Return the tasks' state outside their stores, by sub-topology and task."""
        found: dict[int, dict[int, dict[str, Any]]] = {}
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
        frame = self._spark.createDataFrame(all_of_them, _BLOB_DDL)
        state = self._state(topology.subtopology)
        if state is not None:
            frame = frame.unionByName(state.where(f"store != '{OWN_STORE}'"))
        plan = WritePlan(self._config, changelogs, stream_times)
        ordered = frame.repartition(tasks, "task").sortWithinPartitions("task", "store", "number")
        written = (
            ordered.mapInArrow(write_changelogs(plan), MOVED_DDL).groupBy("store").sum("rows", "deleted").collect()
        )
        return {row[0]: Moved(row[1], row[2]) for row in written}

    def give_up(self) -> None:
        """Assign the checkpoint's state to the local engine; Spark refuses to continue from it."""
        assert self.owner is not None
        self.keep(replace(self.owner, engine=LOCAL))
