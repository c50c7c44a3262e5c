"""A topology as Spark streaming queries: one for each sub-topology, with Kafka topics between them as locally."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import orjson
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock.topology.errors import StreamsError
from penstock.topology.processor_topology import ProcessorTopology
from penstock.topology.streams_config import StreamsConfig
from penstock.topology.topology import Topology

from .capabilities import is_stateless, report_capabilities
from .checkpoint import IDENTITY_FILE, check, full_source_topics, identity
from .kafka_settings import producer_settings, source_options
from .kafka_sink import WRITTEN_DDL, write_to_kafka
from .record_batches import PACKED_DDL, RECORD_DDL, pack_by_task, unpack_all
from .spark_task import TaskPlan
from .task_processor import OUTPUT_DDL, TaskProcessor, run_stateless

log = logging.getLogger(__name__)

ROCKSDB_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
#: How often await_termination looks whether another query has failed, in seconds.
POLL_SECONDS = 1
#: Of the Java and Python text of a query's failure, the line in which Penstock says what happened.
_OUR_ERROR = re.compile(r"^penstock\.(?:\w+\.)*\w+Error: (.*)$", re.MULTILINE)

#: Makes the internal topics of sub-topologies; returns the partition counts of all their topics.
MakeReady = Callable[[Sequence[ProcessorTopology]], Mapping[str, int]]
#: foreach_batch(frame of records as RECORD_DDL has them, id of the micro-batch, number of the sub-topology).
ForeachBatch = Callable[[DataFrame, int, int], None]


class SparkStreams:
    """Runs a topology on Spark.

    spark: the session to run in. checkpoint: a directory that driver and executors reach, which keeps state and
    offsets. make_ready: see MakeReady. foreach_batch: gets what the topology writes to topics of the user's instead of
    Kafka; internal topics are written to Kafka all the same.
    Raises TopologyError for what the capability report refuses, CheckpointError for a checkpoint of another topology.
    """

    def __init__(
        self,
        topology: Topology,
        config: StreamsConfig,
        spark: SparkSession,
        checkpoint: str,
        make_ready: MakeReady,
        foreach_batch: ForeachBatch | None = None,
    ) -> None:
        config.require("application.id", "bootstrap.servers")
        self.report = report_capabilities(topology, config)
        self.report.check()
        self._topology = topology
        self._config = config
        self._spark = spark
        self._checkpoint = checkpoint.rstrip("/")
        self._make_ready = make_ready
        self._foreach_batch = foreach_batch
        self._application_id: str = config["application.id"]
        self._built = topology.internal_builder.build_subtopologies(config, frozenset())
        self._counts: Mapping[str, int] = {}
        self._queries: list[StreamingQuery] = []
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
        """Process what is in the topics now, and end: returns how many records were read, internal topics included.

        Sub-topologies run one after the other; if they write to each other in a circle, as those of a foreign-key join
        do, again and again until no topic has anything new.
        """
        self._prepare()
        order, circular = self._ordered()
        total = 0
        while True:
            read = sum(self._run_available(topology) for topology in order)
            total += read
            if read == 0 or not circular or self._stopping.is_set():
                return total

    def await_termination(self) -> None:
        """Wait until stop() is called. Raises StreamsError when a query fails: the others are stopped then."""
        while not self._stopping.is_set():
            for query in self._queries:
                self._guarded(query, partial(query.awaitTermination, POLL_SECONDS))
                if not query.isActive and not self._stopping.is_set():
                    self.stop()
                    raise StreamsError(f"The Spark query {query.name} was stopped by somebody else")

    def request_stop(self) -> None:
        """Have await_termination and process_available return soon; may be called by a signal handler."""
        self._stopping.set()

    def stop(self) -> None:
        """Stop all queries. What they have not committed is processed again by the next start."""
        self._stopping.set()
        for query in self._queries:
            query.stop()

    @property
    def queries(self) -> Sequence[StreamingQuery]:
        """The queries that were started, one for each sub-topology."""
        return tuple(self._queries)

    @property
    def stateful(self) -> list[int]:
        """The numbers of the sub-topologies that have state."""
        return [each.subtopology for each in self._built if not is_stateless(each, self._config)]

    def _guarded(self, query: StreamingQuery, wait: Callable[[], Any]) -> None:
        try:
            wait()
        except StreamingQueryException as error:
            self.stop()
            raise query_failure(query.name, error) from error

    # -- queries

    def _prepare(self) -> None:
        self._stopping.clear()
        self._queries.clear()
        self._counts = self._make_ready(self._built)
        for key, value in (("stateStore.providerClass", ROCKSDB_PROVIDER), ("metricsEnabled", "true")):
            self._spark.conf.set(f"spark.sql.streaming.{key}", value)
        self._check_checkpoint()

    def _check_checkpoint(self) -> None:
        wanted = identity(self._topology, self._built, self._application_id, self._counts)
        files = HadoopFiles(self._spark)
        path = f"{self._checkpoint}/{IDENTITY_FILE}"
        found = files.read(path)
        if found is None:
            files.write(path, orjson.dumps(wanted, option=orjson.OPT_INDENT_2))
        else:
            check(found, wanted, self._checkpoint)

    def _ordered(self) -> tuple[list[ProcessorTopology], bool]:
        """Return the sub-topologies, writers of internal topics before their readers; and whether there is a circle."""
        left = {each.subtopology: each for each in self._built}
        written_by = {each.subtopology: {sink.topic for sink in each.sinks} for each in self._built}
        ordered: list[ProcessorTopology] = []
        circular = False
        while left:
            ready = [each for each in left.values() if not self._waits(each, left, written_by)]
            circular = circular or not ready
            following = ready or [next(iter(left.values()))]
            ordered += following
            for each in following:
                del left[each.subtopology]
        return ordered, circular

    @staticmethod
    def _waits(
        topology: ProcessorTopology, left: Mapping[int, ProcessorTopology], written_by: Mapping[int, set[Any]]
    ) -> bool:
        others = (number for number in left if number != topology.subtopology)
        return any(topic in written_by[number] for number in others for topic in topology.source_topics)

    def _run_available(self, topology: ProcessorTopology) -> int:
        query = self._start(topology, available_now=True)
        self._queries.append(query)
        self._guarded(query, query.awaitTermination)
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    def _start(self, topology: ProcessorTopology, available_now: bool) -> StreamingQuery:
        config, number = self._config, topology.subtopology
        topics = full_source_topics(topology, self._application_id)
        tasks = max(self._counts[topic] for topic in topics)
        self._spark.conf.set("spark.sql.shuffle.partitions", str(tasks))  # fixed by the checkpoint's first start
        options = source_options(topology, config, self._counts, topics)
        source = self._spark.readStream.format("kafka").options(**options).load()
        records = source.selectExpr(
            "topic", "partition", "offset", "unix_millis(timestamp) AS timestamp", "key", "value", "headers"
        )
        plan = TaskPlan(topology, config, dict(self._counts))
        stateless = is_stateless(topology, config)
        if stateless:
            sent = records.mapInArrow(run_stateless(plan), RECORD_DDL)
        else:
            sent = (
                records.mapInArrow(pack_by_task, PACKED_DDL)
                .groupBy("task")
                .transformWithState(TaskProcessor(plan), OUTPUT_DDL, "Update", "None")
            )
        writer = (
            sent.writeStream.queryName(f"{self._application_id}-{number}")
            .outputMode("append" if stateless else "update")
            .option("checkpointLocation", f"{self._checkpoint}/subtopology-{number}")
            .foreachBatch(self._write(number, packed=not stateless))
        )
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def _write(self, number: int, packed: bool) -> Callable[[DataFrame, int], None]:
        """Return what writes a micro-batch's records; it runs in the driver, and again if a micro-batch is repeated."""
        settings, foreach_batch = producer_settings(self._config), self._foreach_batch
        internal = f"{self._application_id}-"

        def to_kafka(frame: DataFrame, packed: bool) -> None:
            frame.mapInArrow(write_to_kafka(settings, packed), WRITTEN_DDL).collect()

        def write(frame: DataFrame, batch_id: int) -> None:
            if foreach_batch is None:
                to_kafka(frame, packed)
                return
            records = (frame.mapInArrow(unpack_all, RECORD_DDL) if packed else frame).persist()
            try:
                to_kafka(records.where(records.topic.startswith(internal)), False)
                foreach_batch(records.where(~records.topic.startswith(internal)), batch_id, number)
            finally:
                records.unpersist()

        return write


class HadoopFiles:
    """Small files wherever Spark keeps a checkpoint: on a disk, HDFS, S3 …"""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._conf = spark.sparkContext._jsc.hadoopConfiguration()

    def _at(self, path: str) -> tuple[Any, Any]:
        hadoop = self._jvm.org.apache.hadoop.fs.Path(path)
        return hadoop.getFileSystem(self._conf), hadoop

    def read(self, path: str) -> bytes | None:
        """Return a file's content, None if there is none."""
        system, hadoop = self._at(path)
        if not system.exists(hadoop):
            return None
        stream = system.open(hadoop)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, path: str, data: bytes) -> None:
        """Write a file, and the folders it is in."""
        system, hadoop = self._at(path)
        stream = system.create(hadoop, True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()


def query_failure(name: str, error: StreamingQueryException) -> StreamsError:
    """Return what to raise for a failed query: Penstock's own words if it was an operator, else Spark's first line."""
    text = str(error)
    ours = _OUR_ERROR.findall(text)
    return StreamsError(f"The Spark query {name} failed: {ours[-1] if ours else text.strip().splitlines()[0]}")
