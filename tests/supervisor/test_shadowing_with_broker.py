"""A user's file with the name of a module that Penstock needs: the error names it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from broker_stage import ROOT, App, last_line

from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.broker

SCRIPT = """\
import sys
from penstock import KafkaStreams

if __name__ == "__main__":
    streams = KafkaStreams("user_app:topology", {config!r})
    code = streams.run()
    print(streams.failure_reason, file=sys.stderr)
    sys.exit(code)
"""


@pytest.fixture
def shadowed(app: App, make_topic: Callable[..., str]) -> App:
    return app.module(
        "topology = StreamsBuilder()\n"
        f"topology.stream('{make_topic('in')}', key_serde=TEXT, value_serde=TEXT).to('{make_topic('out')}')\n"
    )


def fails(app: App, *command: str, **environment: str) -> str:
    ended = subprocess.run(
        command,
        cwd=app.folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ended.returncode in (1, 2, 3), ended.stderr
    return last_line(ended.stderr)


@pytest.mark.parametrize("name", ["orjson", "penstock", "logging", "queue", "random", "rocksdict"])
def test_the_commands_error_names_it(shadowed: App, name: str) -> None:
    (shadowed.folder / f"{name}.py").write_text("x = 1\n")
    settings = [part for key, value in shadowed.config.items() for part in ("-c", f"{key}={value}")]
    command = str(Path(sys.executable).with_name("penstock"))
    assert str(shadowed.folder / f"{name}.py") in fails(shadowed, command, "run", "user_app:topology", *settings)


@pytest.mark.parametrize("name", ["orjson", "penstock", "logging", "queue", "random", "rocksdict"])
def test_a_scripts_error_names_it(shadowed: App, name: str) -> None:
    (shadowed.folder / f"{name}.py").write_text("x = 1\n")
    (shadowed.folder / "script.py").write_text(SCRIPT.format(config=shadowed.config))
    line = fails(shadowed, sys.executable, "script.py", PYTHONPATH=str(ROOT))
    assert str(shadowed.folder / f"{name}.py") in line


def test_a_folder_with_such_a_name_counts_too(shadowed: App) -> None:
    (shadowed.folder / "rocksdict").mkdir()
    (shadowed.folder / "rocksdict" / "__init__.py").touch()
    _, log = shadowed.fails()
    assert f"{shadowed.folder}/rocksdict/__init__.py hides the module rocksdict that Penstock needs" in last_line(log)


def test_a_lazily_loaded_command_names_it(shadowed: App) -> None:
    (shadowed.folder / "confluent_kafka.py").write_text("x = 1\n")
    line = fails(shadowed, sys.executable, "-m", "penstock.cli", "reset", "--help", PYTHONPATH=str(ROOT))
    assert f"{shadowed.folder}/confluent_kafka.py hides the module confluent_kafka that Penstock needs" in line


def test_a_file_that_shadows_no_needed_module_is_ignored(shadowed: App) -> None:
    (shadowed.folder / "turtle.py").write_text("x = 1\n")
    (shadowed.folder / "user_app.py").write_text("import nowhere\n")
    code, log = shadowed.fails()
    assert code == 3
    assert "turtle.py" not in log
    assert "No module named 'nowhere'" in log
