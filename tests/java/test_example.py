"""The example's two programs are one application."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.systems import compile_java
from tests.java.conftest import kafka_streams_jars

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "moving"

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # its jars, and a compiler


def test_both_programs_describe_the_same_topology(tmp_path: Path) -> None:
    java, class_path = kafka_streams_jars()
    compile_java(java, EXAMPLE / "OrderCounts.java", tmp_path, class_path)
    command = [str(java), "-cp", f"{tmp_path}{os.pathsep}{class_path}", "OrderCounts", "describe"]
    described = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ours = [sys.executable, "-m", "penstock.cli", "describe", "order_counts:topology"]
    text = subprocess.run(ours, capture_output=True, text=True, check=True, cwd=EXAMPLE).stdout
    assert text.strip() == described.strip()
