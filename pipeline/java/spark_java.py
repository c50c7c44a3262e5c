"""Spark's Java: its start, what it writes to the standard error, why it has ended, and its end with this process."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil

from penstock.supervisor.service.signals import STOP_SIGNALS, handled
from penstock.topology.errors import StreamsError

#: In Spark 4.2 a Python process reads each stateful query's state when it starts, and prints every step, each with an
#: empty line after it (pyspark.sql.streaming.transform_with_state_driver_worker). No log level stops it.
CHATTER = re.compile(rb"(Starting )?Streaming TransformWithStateInPandas Python worker\b")
#: Lines of Java, Spark and Hadoop at every start, before setLogLevel, that say nothing about the application.
GREETINGS = re.compile(
    rb"WARNING: Using incubator modules: |Using Spark's default log4j profile: |Setting (?:default|Spark) log level to "
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


def java_runs() -> bool:
    """Return whether Spark's Java runs for this process: a session of before, or spark-submit has started it."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def start_java(settings: Mapping[str, str]) -> None:
    """Start Java for the sessions of this process, unless java_runs().

    Raises JavaStartError if it ends at once, as for settings that Spark refuses.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if java_runs():
        return
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs its errors with a traceback, too
    logging.getLogger().addFilter(_is_not_of_py4j)
    conf = SparkConf()
    for key, value in settings.items():
        conf.set(key, value)
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
