"""SparkStreams: a topology on Spark, in the user's session or its own. Needs penstock-streams[spark]."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.statestore.directory.state_directory import StateDirectory
from penstock.supervisor.source.state_places import refuse_checkpoint_left_behind
from penstock.supervisor.source.topology_source import TopologySource, build
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.graph.topology import Topology

from .session.spark_session import require_pyspark, session_for, silence, stop_session
from .session.spark_topics import make_topics_ready

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from .checkpoint.checkpoint import Topics
    from .checkpoint.checkpoint_lease import CheckpointLease
    from .checkpoint.ownership import Ownership
    from .queries.query_progress import QueryProgress
    from .queries.streaming_queries import ForeachBatch, StreamingQueries

#: The folder of the default checkpoint in the application's state directory.
CHECKPOINT_FOLDER = "spark"
#: The characters of a checkpoint's path: those without a meaning in URIs and in patterns of file names.
PLAIN_PATH = re.compile(r"[A-Za-z0-9/:@._~+=,-]")


class SparkStreams:
    """Runs a topology on Spark; see docs/spark.md.

    topology: a Topology or StreamsBuilder, or ``module:attribute``. spark: a session that has Spark's Kafka connector;
    by default one is made, with master. checkpoint: a directory that driver and executors reach, by default
    ``<state.dir>/<application.id>/spark``. foreach_batch(frame, batch id, sub-topology): gets the records for the
    user's topics instead of Kafka.
    """

    def __init__(
        self,
        topology: object,
        config: StreamsConfig | Mapping[str, object],
        spark: SparkSession | None = None,
        *,
        master: str | None = None,
        checkpoint: str | None = None,
        packages: str | None = None,
        foreach_batch: ForeachBatch | None = None,
    ) -> None:
        require_pyspark()
        from .queries.capabilities import report_capabilities
        from .queries.streaming_queries import StreamingQueries

        self.config = StreamsConfig.of(config)
        self.config.require("application.id", "bootstrap.servers")
        loaded = load_topology(topology, self.config)
        self.report = report_capabilities(loaded, self.config)
        self.report.check()  # before a Java VM is started
        self._directory: StateDirectory | None = None
        self.checkpoint = checkpoint_directory(self.config, checkpoint)
        session = session_for(self.config, spark, master, packages)
        self._own_session = session if spark is None else None
        self._built: Sequence[ProcessorTopology] = ()
        self._counts: Mapping[str, int] = {}
        self._lease = checkpoint_lease(session, self.checkpoint)
        self._queries: StreamingQueries = StreamingQueries(
            loaded, self.config, session, self._lease, self._make_ready, foreach_batch, admit=self._admit
        )

    def start(self) -> None:
        """Start a query for each sub-topology and return.

        Raises LockError if the application runs on this host, or another driver has the checkpoint.
        """
        self._lock()
        self._queries.start()

    def process_available(self) -> int:
        """Process the topics up to their current ends, and return the number of records read, internal topics included.

        Raises LockError if the application runs on this host, on either engine, or is being handed over; or if another
        driver has the checkpoint.
        """
        self._lock()
        try:
            return self._queries.process_available()
        finally:
            self._unlock()

    def _lock(self) -> None:
        if self._directory is None:
            self._directory = StateDirectory(self.config["state.dir"], self.config["application.id"])
        try:
            self._directory.lock_application()
            self._lease.acquire(str(self._directory.initialize_process_id()))
        except BaseException:
            self._unlock()
            raise

    def _unlock(self) -> None:
        self._lease.release()
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def await_termination(self) -> None:
        """Wait until stop() is called from elsewhere. Raises StreamsError when a query fails."""
        self._queries.await_termination()

    def status(self) -> list[QueryProgress]:
        """Return the progress of each query that was started, by sub-topology; see pipeline.query_progress."""
        from .queries.query_progress import progress_of

        newest = {progress.subtopology: progress for progress in map(progress_of, self._queries.queries)}
        return [newest[number] for number in sorted(newest)]

    @property
    def ui(self) -> str | None:
        """Return the address of Spark's UI, None if it is off."""
        return self._queries.spark.sparkContext.uiWebUrl

    @property
    def queries(self) -> Sequence[StreamingQuery]:
        """Spark's queries, one for each sub-topology, once they were started."""
        return self._queries.queries

    @property
    def directory(self) -> Path:
        """The application's state directory on this host: which has its lock and its control socket."""
        return Path(self.config["state.dir"], self.config["application.id"])

    @property
    def stateful(self) -> list[int]:
        """The numbers of the sub-topologies that have state."""
        return self._queries.stateful

    def request_stop(self) -> None:
        """Make await_termination return; may be called by a signal handler."""
        self._queries.request_stop()

    def stop(self) -> None:
        """Stop the queries, and the Spark session if it was made here."""
        if self._own_session is not None:
            silence(self._own_session)  # the micro-batches that stop() ends are errors to Spark
        self._queries.stop()
        self._unlock()
        if self._own_session is not None:
            stop_session(self._own_session)
            self._own_session = None

    def __enter__(self) -> SparkStreams:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _make_ready(self, built: Sequence[ProcessorTopology]) -> Topics:
        """Create the internal topics between the queries, without changelogs: Spark's checkpoint has the state."""
        topics = make_topics_ready(self.config, built, changelogs=False)
        self._built, self._counts = built, topics.counts
        return topics

    def _admit(self, owner: Ownership) -> None:
        """Raise CheckpointError if the state does not match the group's mark."""
        from .handover.engine_mark import require_spark, source_partitions

        require_spark(self.config, source_partitions(self._built, self.config, self._counts), owner)


def checkpoint_directory(config: StreamsConfig, given: str | None) -> str:
    """Return the checkpoint: the given one, otherwise ``<state.dir>/<application.id>/spark``.

    Raises ConfigError if the checkpoint is in the former default of state.dir, and for characters that are escaped in
    URIs: Spark's queries work there, but its state data source, which a handover reads, takes the escaped form for the
    name (Spark 4.2: StateSourceOptions).
    """
    if not given:
        refuse_checkpoint_left_behind(config, CHECKPOINT_FOLDER)
    directory = given or str(Path(config["state.dir"], config["application.id"], CHECKPOINT_FOLDER).absolute())
    strange = "".join(sorted(set(PLAIN_PATH.sub("", directory))))
    if strange:
        raise ConfigError(
            f"The checkpoint {directory} cannot have the characters {strange!r} in its path: Spark would not find its "
            "state there when it is handed over. Use another --checkpoint; a directory that is in use may be renamed "
            "while the application is stopped."
        )
    return directory


def checkpoint_lease(session: SparkSession, checkpoint: str) -> CheckpointLease:
    """Return the lease of a checkpoint, not acquired."""
    from .checkpoint.checkpoint_lease import CheckpointLease
    from .checkpoint.hadoop_files import HadoopFiles

    return CheckpointLease(HadoopFiles(session), checkpoint)


def load_topology(topology: object, config: StreamsConfig) -> Topology:
    """Return a Topology or StreamsBuilder, or what ``module:attribute`` names, as a Topology."""
    if isinstance(topology, str):
        return TopologySource.of(topology).load_for_command(config)
    return build(topology, config)
