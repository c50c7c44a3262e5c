"""Settings of conftest.py for the processes of tests, to save CPU time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import short_lived_jvms


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
