"""Starts Spark's Java, and passes on what it writes to its standard error but for one worker's chatter."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import IO

#: Spark 4.2 has a Python look at each stateful query's state when it starts, and that prints every step it takes, each
#: with an empty line after it (pyspark.sql.streaming.transform_with_state_driver_worker). No log level stops it.
CHATTER = re.compile(rb"(Starting )?Streaming TransformWithStateInPandas Python worker\b")
STDERR = 2
#: How long Java may take to end with this process, in seconds.
END_SECONDS = 10.0


def start_java(settings: Mapping[str, object]) -> None:
    """Start Java for the sessions of this process, unless it runs or spark-submit has started it."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    conf = SparkConf()
    for key, value in settings.items():
        conf.set(key, str(value))
    gateway = launch_gateway(conf, {"stderr": subprocess.PIPE})  # type: ignore[no-untyped-call]
    thread = threading.Thread(target=pass_on, args=(gateway.proc.stderr,), name="spark-stderr", daemon=True)
    thread.start()
    atexit.register(_end, gateway.proc, thread)
    SparkContext._ensure_initialized(gateway=gateway)


def _end(java: subprocess.Popen[bytes], thread: threading.Thread) -> None:
    """Let Java end, and what it says last be read."""
    assert java.stdin is not None
    with contextlib.suppress(OSError):
        java.stdin.close()  # it waits for that
    thread.join(END_SECONDS)


def pass_on(source: IO[bytes], target: int = STDERR) -> None:
    """Write the lines of a pipe to a file descriptor, until the pipe's other end is closed."""
    for line in without_chatter(source):
        with contextlib.suppress(OSError):  # nobody reads it: Java must not wait for that
            os.write(target, line)


def without_chatter(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield all lines but those that CHATTER knows, and the empty line after each."""
    dropped = False
    for line in lines:
        if CHATTER.match(line):
            dropped = True
            continue
        if not (dropped and line == b"\n"):
            yield line
        dropped = False
