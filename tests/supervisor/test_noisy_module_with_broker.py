"""Commands whose stdout is for programs, with a module that prints during its import."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from broker_stage import ROOT, App, produce, read_until

from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.broker

NOISE = """\
import os, sys
print("printed by Python")
sys.stdout.write("written without a line's end")
os.write(1, b"written by C\\n")
os.system("echo printed by a child")
"""


@pytest.fixture
def noisy(app: App, make_topic: Callable[..., str]) -> App:
    """An application with state that prints during its import."""
    source, sink = make_topic("in"), make_topic("out")
    app.module(
        f"{NOISE}topology = StreamsBuilder()\n"
        f"counts = topology.stream('{source}', key_serde=TEXT, value_serde=TEXT).group_by_key().count(store='counts')\n"
        f"counts.to_stream().to('{sink}', value_serde=JSON)\n"
    )
    process = app.start(threads=1)
    produce(app.config["bootstrap.servers"], source, "x")
    read_until(app.config["bootstrap.servers"], sink, "1")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_SECONDS)
    return app


def command(app: App, *words: str) -> str:
    """Return a command's stdout; the module's output must be on stderr."""
    settings = [part for key, value in app.config.items() for part in ("-c", f"{key}={value}")]
    ended = subprocess.run(
        [sys.executable, "-m", "penstock.cli", *words, *settings],
        cwd=app.folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    assert ended.stderr.count("printed by Python") == 1
    assert ended.stderr.count("written without a line's end") == 1
    assert ended.stderr.count("written by C") == 1
    assert ended.stderr.count("printed by a child") == 1
    return ended.stdout


@pytest.mark.slow
def test_commands_print_only_json(noisy: App) -> None:
    def found(*words: str) -> Any:
        return json.loads(command(noisy, *words, "--json"))

    assert [store["name"] for store in found("describe", "user_app:topology")["stores"]] == ["counts"]
    assert found("plan", "user_app:topology", "--engine", "spark")
    assert found("plan", "user_app:topology")
    assert found("state", "list", "--topology", "user_app:topology")
    assert found("state", "range", "counts", "--topology", "user_app:topology")
    assert found("reset", "user_app:topology")


def test_text_output_for_files_is_clean_too(noisy: App) -> None:
    assert command(noisy, "describe", "user_app:topology").startswith("Topologies:")
    assert command(noisy, "describe", "user_app:topology", "--html").startswith("<!DOCTYPE html>")
    assert command(noisy, "describe", "user_app:topology", "--mermaid").startswith("flowchart")
