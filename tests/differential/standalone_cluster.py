"""A standalone Spark cluster on this machine: a master and two workers of one core each, by pyspark's own scripts."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

from penstock.pipeline.session.spark_session import require_jdk
from tests.free_port import free_port
from tests.waiting import PATIENCE_SECONDS, eventually

WORKERS = 2
#: The only address at which the cluster is reachable.
HOST = "127.0.0.1"
SCRIPTS = Path(pyspark.__file__).parent / "bin"


@dataclass(frozen=True)
class StandaloneCluster:
    """The master's address, and that of its web page."""

    master: str
    page: str

    def state(self) -> dict[str, Any]:
        """Return the master's view of workers and applications."""
        with urllib.request.urlopen(f"{self.page}/json/", timeout=PATIENCE_SECONDS) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def applications(self) -> list[str]:
        """Return the names of the running applications that have a core on each worker."""
        return [each["name"] for each in self.state()["activeapps"] if each["cores"] == WORKERS]


def environment() -> dict[str, str]:
    """Return the environment of the cluster's processes and drivers."""
    return {**os.environ, "JAVA_HOME": str(require_jdk().resolve().parent.parent), "SPARK_LOCAL_IP": HOST}


@contextmanager
def standalone_cluster(directory: Path) -> Iterator[StandaloneCluster]:
    """Run a cluster; directory: for logs and the workers' files."""
    port, page = free_port(), free_port()
    cluster = StandaloneCluster(f"spark://{HOST}:{port}", f"http://{HOST}:{page}")
    with ExitStack() as at_end:
        start = "org.apache.spark.deploy"
        at_end.enter_context(
            running(directory / "master.log", f"{start}.master.Master", "-h", HOST, "-p", port, "--webui-port", page)
        )
        for number in range(WORKERS):
            options = ("-c", 1, "-m", "1g", "--webui-port", 0, "-d", directory / f"worker-{number}", cluster.master)
            at_end.enter_context(running(directory / f"worker-{number}.log", f"{start}.worker.Worker", *options))
        eventually(lambda: is_complete(cluster), (directory / "master.log").read_text)
        yield cluster


@contextmanager
def running(log: Path, *command: object) -> Iterator[None]:
    """Run a class of Spark."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [SCRIPTS / "spark-class", *map(str, command)], env=environment(), stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def is_complete(cluster: StandaloneCluster) -> bool:
    """Return True if the master serves and knows all workers."""
    try:
        return bool(cluster.state()["aliveworkers"] == WORKERS)
    except (OSError, json.JSONDecodeError):  # it does not serve yet, or only its web page, which comes before its JSON
        return False
