"""The penstock command: help, messages, exit codes. With a broker: tests/supervisor/test_with_broker.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import penstock
from penstock.cli import cli
from penstock.supervisor.exit_codes import ExitCode
from penstock.topology.config.config_keys import KEYS

ROOT = Path(__file__).resolve().parent.parent
APP = """\
from penstock.topology.declare.streams_builder import StreamsBuilder

def topology():
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    return builder.build()

def broken():
    raise KeyError("no such thing")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an app; the test's working directory."""
    (tmp_path / "cli_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for variable in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(variable)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="penstock")


def command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, in a separate process."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["", "run", "describe", "config"])
def test_every_help_ends_in_examples(name: str) -> None:
    result = run(*name.split(), "--help")
    assert result.exit_code == 0
    examples = result.output.partition("Examples:")[2].strip().splitlines()
    assert examples
    assert all("penstock " in line for line in examples)


def leaves(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield each command, but no groups, with its full name."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for part in command.list_commands(context):
            found = command.get_command(context, part)
            assert found is not None
            yield from leaves(f"{name} {part}".strip(), found)
    else:
        yield name, command


def test_every_command_takes_json() -> None:
    without = [
        name for name, command in leaves("", cli) if not any("--json" in parameter.opts for parameter in command.params)
    ]
    # bench forwards its arguments, including --json; completion prints a shell's script; logs prints another program's
    # log.
    assert without == ["bench", "broker logs", "completion"]


def test_describe_as_json_equals_the_http_response(folder: Path) -> None:
    told = json.loads(run("describe", "cli_app:topology", "--json").output)
    assert told["text"].rstrip() == run("describe", "cli_app:topology").output.rstrip()
    assert [node["topics"] for node in told["subtopologies"][0]["nodes"]] == [["in"], ["out"]]
    on_spark = json.loads(run("plan", "cli_app:topology", "--engine", "spark", "--json").output)
    assert on_spark["capability"] == "identical"
    assert [finding["node"] for finding in on_spark["subtopologies"][0]["findings"]]
    assert "exclude each other" in run("describe", "cli_app:topology", "--html", "--json").output


def test_the_configuration_as_json_has_values_and_origins_and_no_secret(folder: Path) -> None:
    (folder / "penstock.toml").write_text('"application.id" = "app"')
    result = run("config", "--config", "penstock.toml", "-c", "sasl.password=geheim", "--json")
    assert json.loads(result.output) == {
        "application.id": {"value": "app", "origin": "penstock.toml"},
        "sasl.password": {"value": "***", "origin": "-c"},
    }
    assert json.loads(run("config", "--json").output) == {}
    assert len(json.loads(run("config", "--all", "--json").output)) > 80


def test_run_with_json_logs_json(folder: Path) -> None:
    result = command(
        *("run", "cli_app:broken", "--json", "-c", "application.id=a", "-c", "bootstrap.servers=nowhere:1"),
        *("-c", f"state.dir={folder}"),
        folder=folder,
    )
    assert result.returncode == ExitCode.TOPOLOGY
    assert all(json.loads(line)["level"] for line in result.stderr.splitlines())


def test_the_version_is_that_of_the_package() -> None:
    assert penstock.__version__ == metadata.version("penstock-streams")
    assert run("--version").output == f"penstock {penstock.__version__}\n"


def test_describe_prints_the_topology(folder: Path) -> None:
    result = run("describe", "cli_app:topology")
    assert result.exit_code == 0
    assert result.output.startswith(
        "Topologies:\n   Sub-topology: 0\n    Source: KSTREAM-SOURCE-0000000000 (topics: [in])"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["describe", "cli_app"], ExitCode.TOPOLOGY, "'cli_app' is not of the form module:attribute"),
        (["describe", "nowhere:x"], ExitCode.TOPOLOGY, "No module named 'nowhere'. Is the name right, and is"),
        (["describe", "cli_app:nothing"], ExitCode.TOPOLOGY, "Is the part after the colon the name of a topology"),
        (["describe", "cli_app:broken"], ExitCode.TOPOLOGY, "KeyError: 'no such thing' ("),
        (["config", "-c", "comit.interval.ms=1"], ExitCode.USAGE, "Did you mean commit.interval.ms?"),
        (["config", "--config", "no.toml"], ExitCode.USAGE, "no.toml cannot be read"),
        (["run", "cli_app:topology"], ExitCode.USAGE, "missing: application.id, bootstrap.servers"),
        (["run", "cli_app:topology", "--engine", "spark", "--threads", "2"], ExitCode.USAGE, "--engine local"),
        (["run", "cli_app:topology", "--threads", "0"], ExitCode.USAGE, "x>=1"),
        (["run"], ExitCode.USAGE, "Missing argument"),
        (["nonsense"], ExitCode.USAGE, "No such command"),
    ],
)
def test_user_errors_give_one_message_and_an_exit_code(
    folder: Path, arguments: list[str], code: int, message: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == code
    assert message in result.output
    assert "Traceback" not in result.output
    assert len([line for line in result.output.splitlines() if line.startswith("Error:")]) == 1


def test_config_prints_configured_values_with_their_origin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "penstock.toml").write_text('"application.id" = "app"\nprocessing.guarantee = "exactly_once_v2"')
    monkeypatch.setenv("PENSTOCK_POLL_MS", "7")
    result = run("config", "--config", "penstock.toml", "-c", "sasl.password=geheim")
    assert result.output.splitlines() == [
        '"application.id" = "app"  # penstock.toml',
        '"processing.guarantee" = "exactly_once_v2"  # penstock.toml',
        '"commit.interval.ms" = 100  # default by processing.guarantee',
        '"poll.ms" = 7  # PENSTOCK_POLL_MS',
        '"isolation.level" = "read_committed"  # default by processing.guarantee',
        '"delivery.timeout.ms" = 2147483647  # default by processing.guarantee',
        '"transaction.timeout.ms" = 10000  # default by processing.guarantee',
        '"sasl.password" = "***"  # -c',
    ]


def test_config_reports_an_empty_configuration(folder: Path) -> None:
    assert run("config").output == "# Nothing is configured: every key has its default, which --all shows.\n"


def test_the_whole_configuration_is_printed_as_a_file(folder: Path) -> None:
    (folder / "penstock.toml").write_text(run("config", "--all").output)
    again = run("config", "--config", "penstock.toml")
    assert again.exit_code == 0, again.output
    shown = tomllib.loads((folder / "penstock.toml").read_text())
    assert set(shown) == {name for name, key in KEYS.items() if name in shown}
    assert shown["commit.interval.ms"] == 30_000
    assert len(shown) > 80


def test_the_broker_commands_exist() -> None:
    assert "start" in run("broker", "--help").output


def test_a_topology_that_fails_in_its_processes_ends_the_command(folder: Path) -> None:
    result = command(
        *("run", "cli_app:broken", "--threads", "2", "-c", "application.id=a", "-c", "bootstrap.servers=nowhere:1"),
        *("-c", f"state.dir={folder}"),
        folder=folder,
    )
    assert result.returncode == ExitCode.TOPOLOGY
    assert "cannot start, and another attempt would fail too" in result.stderr
    assert "KeyError: 'no such thing'" in result.stderr
    assert "is replaced" not in result.stderr


def test_a_bug_gives_a_traceback_and_its_own_exit_code(folder: Path) -> None:
    (folder / "buggy.py").write_text(
        "import penstock.cli\n"
        "def load(*_): raise ZeroDivisionError('a bug')\n"
        "penstock.cli.options.load_config = load\n"
        "penstock.cli.main()\n"
    )
    result = subprocess.run(
        [sys.executable, "buggy.py", "config"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == ExitCode.INTERNAL
    assert "ZeroDivisionError: a bug" in result.stderr
    assert "This is a bug in Penstock" in result.stderr
