"""Settings of conftest.py for the processes of tests, to save CPU time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.pipeline.session.spark_session import SparkUnavailableError, require_jdk
from tests import short_lived_jvms
from tests.spark_classes import spark_home


def test_processes_keep_bytecode_regardless_of_the_environment() -> None:
    look = "import os, penstock, sys; print(sys.dont_write_bytecode, os.path.exists(penstock.__spec__.cached))"
    shown = subprocess.run([sys.executable, "-c", look], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert shown == "False True\n"
    assert not sys.dont_write_bytecode, "pytest keeps what it makes of the tests"


def test_jvm_options_of_the_environment_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_OPTS", "-Xmx2g")
    monkeypatch.delenv("SPARK_SUBMIT_OPTS")
    short_lived_jvms.use_options()
    assert os.environ["KAFKA_OPTS"] == "-Xmx2g"
    assert os.environ["SPARK_SUBMIT_OPTS"].split() == list(short_lived_jvms.OPTIONS)


@pytest.mark.slow
@pytest.mark.broker
def test_spark_maps_the_archive_of_its_classes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    try:
        home, java = spark_home(), require_jdk()
    except SparkUnavailableError as error:
        pytest.skip(str(error))
    make = [sys.executable, "-m", "tests.spark_classes"]
    made = subprocess.run(make, stdout=subprocess.PIPE, text=True, check=True).stdout
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"{made} -Xshare:on")  # ends if it cannot map it
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.setenv("JAVA_HOME", str(java.resolve().parent.parent))
    start = [str(home / "bin" / "spark-submit"), "--version"]
    assert subprocess.run(start, check=False).returncode == 0
    (tmp_path / "spark-defaults.conf").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))  # another class path
    assert subprocess.run(start, check=False).returncode == 1
