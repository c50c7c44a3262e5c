"""The ways to run on a cluster from docs/spark.md, each as written there, on a standalone cluster of two workers."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.pipeline.java.jar_lock import fetch_jars, read_lock
from penstock.pipeline.session.spark_session import JARS
from penstock.supervisor.exit_codes import ExitCode
from tests.differential.application import Application
from tests.differential.kills import count_more, finish
from tests.differential.standalone_cluster import SCRIPTS, StandaloneCluster, environment, standalone_cluster
from tests.first_steps import ROOT, copy_tree
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

#: A user's driver for spark-submit, without a master.
DRIVER = """
import sys
from pyspark.sql import SparkSession
from penstock.pipeline import SparkStreams

config = dict(word.split("=", 1) for word in sys.argv[2:])
with SparkStreams("counting_app:topology", config, checkpoint=sys.argv[1]) as streams:
    print("READ", streams.process_available(), flush=True)
    context = SparkSession.getActiveSession().sparkContext
    print("MASTER", context.master, context.getConf().get("spark.ui.port"), flush=True)
"""
#: Runs this Python; on executors, for which Spark sets that variable, one without what was installed here.
BARE_PYTHON = """#!/bin/sh
if [ -z "$SPARK_EXECUTOR_DIRS" ]; then exec "{driver}" "$@"; fi
exec "{base}" -S "$@"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def application(bootstrap_servers: str, tmp_path: Path, cluster: StandaloneCluster) -> Iterator[Application]:
    # Until the workers have ended the executors of the application before, Spark would wait for cores.
    eventually(lambda: cluster.state()["coresused"] == 0, cluster.state)
    found = Application(bootstrap_servers, tmp_path, cluster.master, environment())
    with found.topics():
        yield found


def test_penstock_run_with_a_master(application: Application, cluster: StandaloneCluster) -> None:
    with application.running("-c", "spark.executor.memory=512m") as process:
        count_more(application)
        assert cluster.applications() == [application.id], "it runs on both workers"
        assert "Spark's UI: http://" in application.log.read_text()
        finish(application, process)
    assert cluster.applications() == []


def test_spark_submit_in_client_mode(application: Application, cluster: StandaloneCluster, tmp_path: Path) -> None:
    """The master and the settings come from spark-submit, and the driver continues where the other one ended."""
    application.produce()
    (tmp_path / "driver.py").write_text(DRIVER)
    jars = ",".join(map(str, fetch_jars(read_lock(JARS))))
    command = [str(SCRIPTS / "spark-submit"), "--master", cluster.master, "--jars", jars, "--conf", "spark.ui.port=0"]
    command += ["--conf", "spark.executor.memory=512m", "driver.py", str(application.checkpoint)]
    found = subprocess.run(
        [*command, *application.settings()],
        env={**environment(), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    # Before them is the driver's standard error, which spark-submit passes on as output.
    assert found.stdout.splitlines()[-2:] == [f"READ {application.produced}", f"MASTER {cluster.master} 0"]
    application.await_counts()


def test_executors_without_penstock_are_reported_before_anything_runs(application: Application, tmp_path: Path) -> None:
    """With the Python of the setting, although the environment names another one, which has Penstock."""
    python = tmp_path / "python"
    base = getattr(sys, "_base_executable", sys.executable)
    python.write_text(BARE_PYTHON.format(driver=sys.executable, base=base))
    python.chmod(0o755)
    settings = ("-c", f"spark.pyspark.python={python}", "-c", "spark.executor.memory=512m")
    application.set_environment("PYSPARK_PYTHON", sys.executable)
    status, printed = application.run("run", "--engine", "spark", *settings)
    assert status == ExitCode.FAILED, printed
    assert "cannot import Penstock (ModuleNotFoundError: No module named 'penstock" in printed
    assert "--archives" in printed


def test_an_executor_that_no_worker_has_room_for_is_waited_for_aloud(application: Application) -> None:
    with application.running("-c", "spark.executor.memory=8g") as process:
        eventually(lambda: "of which 0 run" in application.log.read_text(), application.log.read_text)
        assert "spark.executor.memory" in application.log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == ExitCode.OK, application.log.read_text()


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_a_virtual_environment_is_sent_to_the_executors(
    application: Application, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """The workers' only Penstock is that of the archive, which is made as in docs/spark.md, and where it is made."""
    made, archive, source = (tmp_path / name for name in ("environment", "environment.tar.gz", "source"))
    copy_tree(source)
    penstock = (sys.executable, "-m", "penstock.cli", "--version")
    driver = subprocess.check_output(penstock, cwd=tmp_path, text=True).split()[-1]
    # As in an sdist: the archive has the driver's version, also when files have changed since the driver was installed.
    told = f"Metadata-Version: 2.1\nName: penstock-streams\nVersion: {driver}\n"
    (source / "PKG-INFO").write_text(told)
    pip = (made / "bin/pip", "install", "-q", "-c", ROOT / "constraints.txt")
    for command in (
        (sys.executable, "-m", "venv", made),
        (*pip, source, "pyarrow", "pandas", "protobuf", "venv-pack==0.2.0"),
        (made / "bin/venv-pack", "-q", "-p", made, "-o", archive),
    ):
        subprocess.run(list(map(str, command)), cwd=tmp_path, check=True, timeout=1_200)
    python = "spark.pyspark.python=./environment/bin/python"
    settings = ("-c", f"spark.archives={archive}#environment", "-c", python, "-c", "spark.executor.memory=512m")
    with application.running(*settings) as process:
        count_more(application)
        assert cluster.applications() == [application.id], "it runs on both workers"
        finish(application, process)
