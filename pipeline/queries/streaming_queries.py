"""A topology as Spark streaming queries: one for each sub-topology, with Kafka topics between them as locally."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pickle import PicklingError
from typing import Any

import orjson
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock.topology.config.config_keys import EXACTLY_ONCE_V2
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError, LockError, PenstockError, StreamsError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.graph.topology import Topology

from ..checkpoint.checkpoint import (
    IDENTITY_FILE,
    PARTITIONS,
    CheckpointError,
    Topics,
    added_partitions,
    check,
    full_source_topics,
    identity,
    with_known_ids,
)
from ..checkpoint.checkpoint_lease import CheckpointLease
from ..checkpoint.hadoop_files import HadoopFiles
from ..checkpoint.ownership import BACKFILL, OWNERSHIP_FILE, SPARK, Ownership, require_engine, unpack_ownership
from ..session.connector import require_connector
from ..session.kafka_settings import source_options
from ..session.query_settings import set_for_queries
from ..tasks.changelog_reader import SEED_DDL
from ..tasks.kafka_sink import WRITTEN_DDL, Sinks, write_to_kafka
from ..tasks.python_worker import worker_function
from ..tasks.record_batches import PACKED_DDL, RECORD_DDL, TO_PYTHON, pack_by_task, unpack_all
from ..tasks.spark_task import TaskPlan
from ..tasks.task_processor import OUTPUT_DDL, TaskProcessor, run_stateless, run_stateless_to_kafka
from ..tasks.transactional_sink import TransactionalSinks, transaction_config
from .capabilities import buckets_of, is_stateless, may_punctuate, report_capabilities
from .failures import JAVA_ENDED, JAVA_ERRORS, Passing, passing, query_failure, unless_java_has_ended
from .history_files import HistoryFiles, source_serdes

log = logging.getLogger(__name__)

#: Interval in which await_termination checks other queries for failure, in seconds.
POLL_SECONDS = 1
ADMIT_SECONDS = 600.0
#: How often Spark checks its timers if the user's processors may punctuate by the wall clock: each check is a
#: micro-batch, with or without records.
ALARM_INTERVAL = "1 second"

#: Creates the internal topics of sub-topologies; returns all their topics.
MakeReady = Callable[[Sequence[ProcessorTopology]], Topics]
#: Raises CheckpointError if the group's mark is not this state's. Called at each start and every ADMIT_SECONDS.
Admit = Callable[[Ownership], None]
#: foreach_batch(frame of records as RECORD_DDL has them, id of the micro-batch, number of the sub-topology).
ForeachBatch = Callable[[DataFrame, int, int], None]


@dataclass(eq=False)
class StreamingQueries:
    """Runs a topology on Spark.

    spark: the session to run in. lease: of the checkpoint, a directory that driver and executors reach, which keeps
    state and offsets; the caller acquires it before start. make_ready: see MakeReady. foreach_batch: gets the records
    for the user's topics instead of Kafka; internal topics are still written to Kafka. backfill: the checkpoint is one
    of `penstock backfill`. admit: see Admit. Raises TopologyError for operators that the capability report refuses,
    CheckpointError for a checkpoint of another topology.
    """

    topology: Topology
    config: StreamsConfig
    spark: SparkSession
    lease: CheckpointLease
    make_ready: MakeReady
    foreach_batch: ForeachBatch | None = None
    backfill: bool = False
    admit: Admit = lambda _: None

    def __post_init__(self) -> None:
        self.config.require("application.id", "bootstrap.servers")
        self.report = report_capabilities(self.topology, self.config)
        self.report.check()
        if self._once and self.foreach_batch is not None:
            raise ConfigError(
                f"processing.guarantee={EXACTLY_ONCE_V2} is for records that Penstock writes to Kafka. With "
                "foreach_batch set processing.guarantee=at_least_once, and write each batch id once"
            )
        self._checkpoint = self.lease.directory
        self._application_id: str = self.config["application.id"]
        self._built = self.topology.internal_builder.build_subtopologies(self.config, frozenset())
        self._topics = Topics({}, {})
        self._identity: Mapping[str, Any] = {}
        self._owner = Ownership()
        self._queries: list[StreamingQuery] = []
        self._starts: Counter[Passing] = Counter()  # in a row, by their reason
        self._stopping = threading.Event()

    # -- life cycle

    def start(self) -> None:
        """Make the topics ready, check the checkpoint, start all queries."""
        self._prepare()
        try:
            for topology in self._built:
                self._queries.append(self._start(topology, available_now=False))
        except BaseException:
            self.stop()
            raise

    def process_available(self) -> int:
        """Process the topics up to their current ends; return the number of records read, internal topics included.

        Sub-topologies run one after the other. If they write to each other in a cycle, or one to itself, as those of a
        foreign-key join do, they repeat until no topic has new records.
        """
        self._prepare()
        order, circular = processing_order(self._built)
        total = 0
        while True:
            read = sum(self._run_available(topology) for topology in order)
            total += read
            if read == 0 or not circular or self._stopping.is_set():
                return total

    def await_termination(self) -> None:
        """Wait until stop() is called.

        Raises StreamsError when a query fails, CheckpointError if another engine has taken over the group: then all are
        stopped.
        """
        due = time.monotonic() + ADMIT_SECONDS
        while not self._stopping.is_set():
            if time.monotonic() > due:
                self._admit_again()
                due = time.monotonic() + ADMIT_SECONDS
            for place, topology in enumerate(self._built):
                query = self._queries[place] = self._wait(self._queries[place], topology, available_now=False)
                if not self._stopping.is_set() and not query.isActive:
                    self.stop()
                    raise StreamsError(f"The Spark query {query.name} was stopped from outside")

    def _admit_again(self) -> None:
        try:
            self.admit(self._owner)
            self._check_topics()
        except CheckpointError:
            self.stop()
            raise
        except PenstockError as error:  # broker failures affect the queries, too
            log.warning("The application's group and topics were not checked, Spark continues: %s", error)

    def _check_topics(self) -> None:
        """Raise CheckpointError if a topic was recreated, which Spark does not notice; warn of added partitions."""
        self._topics = self.make_ready(self._built)
        found = identity(self.topology, self._built, self.config, self._topics)
        check(orjson.dumps(self._identity), found, self._checkpoint, accept=True)
        added = added_partitions(self._identity[PARTITIONS], found[PARTITIONS])
        if added:
            log.warning(
                "Partitions were added: %s. Spark reads them, with tasks that begin without state. The next start is "
                "refused without --accept-changes",
                "; ".join(added),
            )
        self._identity = with_known_ids(found, self._identity)

    def request_stop(self) -> None:
        """Make await_termination and process_available return soon; may be called by a signal handler."""
        self._stopping.set()

    def stop(self) -> None:
        """Stop all queries. The next start processes uncommitted records again."""
        self._stopping.set()
        for query in self._queries:
            with unless_java_has_ended("A Spark query"):
                query.stop()

    @property
    def queries(self) -> Sequence[StreamingQuery]:
        """The queries that were started, one for each sub-topology."""
        return tuple(self._queries)

    @property
    def stateful(self) -> list[int]:
        """The numbers of the sub-topologies that have state."""
        return [each.subtopology for each in self._built if not is_stateless(each, self.config)]

    def _wait(self, query: StreamingQuery, topology: ProcessorTopology, available_now: bool) -> StreamingQuery:
        """Wait a while for a query's end; return it, or the one started in its place after a failure that passes."""
        try:
            self.lease.check()
            query.awaitTermination(POLL_SECONDS)
        except (LockError, CheckpointError):
            self.stop()
            raise
        except JAVA_ERRORS as error:
            if not self._stopping.is_set():
                self.stop()
                raise StreamsError(JAVA_ENDED) from error
        except StreamingQueryException as error:
            if self._stopping.is_set():
                return query
            if not self._may_restart(passing(error)):
                self.stop()
                raise query_failure(query.name, error, self._checkpoint) from error
            return query if self._stopping.is_set() else self._start(topology, available_now)
        if not self._stopping.is_set() and query.lastProgress is not None:
            self._starts.clear()
        return query

    def _may_restart(self, kind: Passing | None) -> bool:
        """Return whether to restart a query now that has failed so, after a pause."""
        if kind is None or (kind.starts_max is not None and self._starts[kind] >= kind.starts_max):
            return False
        self._starts[kind] += 1
        log.warning("A Spark query is restarted in %.0f s: %s", kind.pause_seconds, kind.reason)
        self._stopping.wait(kind.pause_seconds)
        return True

    @property
    def _once(self) -> bool:
        return bool(self.config["processing.guarantee"] == EXACTLY_ONCE_V2)

    # -- queries

    def _prepare(self) -> None:
        self._stopping.clear()
        self._queries.clear()
        require_connector(self.spark)
        if self._once and self.spark.sparkContext.getConf().get("spark.speculation", "false") == "true":
            raise ConfigError(
                f"spark.speculation=true does not fit processing.guarantee={EXACTLY_ONCE_V2}: of two attempts of a "
                "task the later one ends the transaction of the other one. Set spark.speculation=false"
            )
        self._topics = self.make_ready(self._built)
        set_for_queries(self.spark)
        self._check_checkpoint()

    def _check_checkpoint(self) -> None:
        wanted = identity(self.topology, self._built, self.config, self._topics)
        files = HadoopFiles(self.spark)
        self._owner = unpack_ownership(files.read(f"{self._checkpoint}/{OWNERSHIP_FILE}"), self._checkpoint)
        require_engine(self._owner, BACKFILL if self.backfill else SPARK, self._checkpoint)
        self.admit(self._owner)
        path = f"{self._checkpoint}/{IDENTITY_FILE}"
        found = files.read(path)
        if found is None:
            files.write(path, orjson.dumps(wanted, option=orjson.OPT_INDENT_2))
            self._identity = wanted
            return
        check(found, wanted, self._checkpoint, self.config["penstock.topology.changes"] == "accept")
        earlier = orjson.loads(found)
        self._identity = with_known_ids(wanted, earlier)
        if self._identity != earlier:
            files.replace(path, orjson.dumps(self._identity, option=orjson.OPT_INDENT_2))

    def _run_available(self, topology: ProcessorTopology) -> int:
        """Return how many records were read; those of a micro-batch that was repeated count once."""
        read: dict[int, int] = {}
        query = self._start(topology, available_now=True)
        self._queries.append(query)
        ended = False
        while not ended:  # checks periodically: Spark keeps the last hundred micro-batches
            following = self._wait(query, topology, available_now=True)
            ended = following is query and not query.isActive
            read |= {progress["batchId"]: progress["numInputRows"] for progress in query.recentProgress}
            query = self._queries[-1] = following
        return sum(read.values())

    def _start(self, topology: ProcessorTopology, available_now: bool) -> StreamingQuery:
        try:
            return self._query(topology, available_now)
        except PicklingError as error:
            raise StreamsError(
                f"Sub-topology {topology.subtopology} cannot be sent to Spark's executors: {error}. Objects that "
                "your functions refer to must be picklable: create locks, clients and files in a processor's init()."
            ) from error

    def _query(self, topology: ProcessorTopology, available_now: bool) -> StreamingQuery:
        config, number = self.config, topology.subtopology
        topics = full_source_topics(topology, self._application_id)
        buckets = buckets_of(topology, config)
        tasks = max(self._topics.counts[topic] for topic in topics) * buckets
        self.spark.conf.set("spark.sql.shuffle.partitions", str(tasks))  # fixed by the checkpoint's first start
        directory = self._owner.query_directory(self._checkpoint, number)
        from_files = self._owner.from_files(topics)
        records = self._records(topology, topics, from_files)
        plan = TaskPlan(topology, config, dict(self._topics.counts))
        # Records of files can only be ordered with all records of a partition.
        stateless, has_alarm = is_stateless(topology, config) and not from_files, may_punctuate(topology)
        # If checking the timers alone made a micro-batch, the available records would never count as processed.
        self.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(not available_now).lower())
        by_clock = has_alarm or (self._once and not stateless)  # the time of a micro-batch is kept in its checkpoint
        sinks = self._sinks(number, topics) if self.foreach_batch is None else None
        if stateless and sinks is not None:
            sent = records.mapInArrow(worker_function(run_stateless_to_kafka(plan, sinks)), WRITTEN_DDL)
        elif stateless:
            sent = records.mapInArrow(worker_function(run_stateless(plan)), RECORD_DDL)
        else:
            sent = (
                records.mapInArrow(worker_function(lambda batches: pack_by_task(batches, buckets)), PACKED_DDL)
                .groupBy("task")
                .transformWithState(
                    TaskProcessor(plan, sinks, buckets, has_alarm, mixed=bool(from_files), at_batch_time=self._once),
                    OUTPUT_DDL,
                    "Update",
                    "ProcessingTime" if by_clock else "None",
                    self._seed(number, directory),
                )
            )
        if sinks is not None:  # the tasks write, and leave nothing for Spark to write
            writer = sent.writeStream.format("noop")
        else:
            unpacked = sent if stateless else sent.mapInArrow(worker_function(unpack_all), RECORD_DDL)
            writer = unpacked.writeStream.foreachBatch(self._divide(number))
        writer = writer.queryName(f"{self._application_id}-{number}").option("checkpointLocation", directory)
        writer = writer.outputMode("append" if stateless else "update")
        if available_now:
            writer = writer.trigger(availableNow=True)
        elif by_clock:
            writer = writer.trigger(processingTime=ALARM_INTERVAL)
        return writer.start()

    def _sinks(self, number: int, topics: Sequence[str]) -> Sinks:
        """Return what opens the sinks of a query."""
        if not self._once:
            return Sinks(self.config)
        counts = self._topics.counts
        widest = max(topics, key=lambda topic: (counts[topic], topic))
        name = f"{self._application_id}-spark-{number}"
        return TransactionalSinks(transaction_config(self.config), name, widest, counts[widest])

    def _records(self, topology: ProcessorTopology, topics: list[str], from_files: list[str]) -> DataFrame:
        """Return the records of topics as a stream, in the columns of TO_PYTHON."""
        frames = []
        if from_files:
            files = HistoryFiles(self._owner.files, source_serdes([topology]))
            frames.append(files.stream(self.spark, from_files))
        from_kafka = [topic for topic in topics if topic not in from_files]
        if from_kafka:
            options = source_options(topology, self.config, self._topics.counts, from_kafka)
            options["startingOffsets"] = self._owner.starting_offsets(options["startingOffsets"])
            found = self.spark.readStream.format("kafka").options(**options).load()
            frames.append(
                found.selectExpr(
                    "topic", "partition", "offset", "unix_millis(timestamp) AS timestamp", "key", "value", "headers"
                )
            )
        return reduce(DataFrame.unionByName, frames).where(self._owner.wanted()).selectExpr(*TO_PYTHON)

    def _seed(self, number: int, query_directory: str) -> GroupedData | None:
        """Return a query's initial state after a handover; None once its first micro-batch is finished."""
        if number not in self._owner.seeded or HadoopFiles(self.spark).names(f"{query_directory}/commits"):
            return None
        seeds = self._owner.seed_directory(self._checkpoint, number)
        return self.spark.read.schema(SEED_DDL).parquet(seeds).groupBy("task")

    def _divide(self, number: int) -> Callable[[DataFrame, int], None]:
        """Return a function that writes a micro-batch's records for internal topics, and passes the others to
        foreach_batch.

        It runs in the driver, and again if a micro-batch is repeated.
        """
        to_kafka, foreach_batch = write_to_kafka(Sinks(self.config)), self.foreach_batch
        internal = sorted(f"{self._application_id}-{name}" for each in self._built for name in each.repartition_topics)
        assert foreach_batch is not None

        def divide(frame: DataFrame, batch_id: int) -> None:
            records = frame.persist()
            try:
                own = records.where(records.topic.isin(internal)).selectExpr(*TO_PYTHON)
                own.mapInArrow(worker_function(to_kafka), WRITTEN_DDL).collect()
                foreach_batch(records.where(~records.topic.isin(internal)), batch_id, number)
            finally:
                records.unpersist()

        return divide


def processing_order(built: Sequence[ProcessorTopology]) -> tuple[list[ProcessorTopology], bool]:
    """Return the sub-topologies, writers of topics before their readers; and whether one round may be insufficient.

    It may be if sub-topologies write to each other in a cycle, or one to itself, as in a foreign-key join.
    """
    left = {each.subtopology: each for each in built}
    written_by = {each.subtopology: {sink.topic for sink in each.sinks} for each in built}
    circular = any(written_by[number].intersection(each.source_topics) for number, each in left.items())
    ordered: list[ProcessorTopology] = []
    while left:
        ready = [each for each in left.values() if not _waits(each, left, written_by)]
        circular = circular or not ready
        following = ready or [next(iter(left.values()))]
        ordered += following
        for each in following:
            del left[each.subtopology]
    return ordered, circular


def _waits(
    topology: ProcessorTopology, left: Mapping[int, ProcessorTopology], written_by: Mapping[int, set[Any]]
) -> bool:
    others = (number for number in left if number != topology.subtopology)
    return any(topic in written_by[number] for number in others for topic in topology.source_topics)
