"""Each command without a running application: it says what to do next, exits with the right
code, and changes nothing.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import cli
from penstock.supervisor.control.control_socket import SOCKET_NAME

ROOT = Path(__file__).resolve().parent.parent
NOT_RUNNING, FAILED, USAGE = 3, 1, 2
#: Commands that need a running application.
ASKING = ("status", "top", "lag", "pause", "resume", "threads add", "threads remove", "threads restart 1")
#: Commands that read the state of a stopped application too.
LOOKING = {
    "state list": FAILED,
    "state get counts k": FAILED,
    "state range counts": FAILED,
    "state export counts": FAILED,
    "snapshot create snapshots": USAGE,
}
COMMANDS = [*((command, NOT_RUNNING) for command in ASKING), *LOOKING.items()]


def run(command: str, state_dir: Path) -> tuple[int, str]:
    options = ("-c", f"state.dir={state_dir}", "-c", "application.id=app")
    result = CliRunner(env={"PENSTOCK_CONFIG": None}).invoke(cli, [*command.split(), *options], prog_name="penstock")
    assert result.stdout == ""
    return result.exit_code, result.stderr


@pytest.mark.parametrize(("command", "code"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_no_application_or_a_wrong_state_directory(
    command: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state").mkdir()
    for state_dir in (tmp_path / "state", tmp_path / "nowhere"):
        found, text = run(command, state_dir)
        assert found == code, text
        assert text.startswith("Error: ")
        assert str(state_dir / "app") in text
        assert "--config FILE" in text
    assert [path.name for path in tmp_path.rglob("*")] == ["state"]  # a typing error creates no files


@pytest.mark.parametrize("command", ASKING)
def test_an_application_that_was_killed(command: str, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "app" / SOCKET_NAME))
    code, text = run(command, tmp_path)
    assert code == NOT_RUNNING
    assert f"No application runs in {tmp_path / 'app'} any more: its supervisor was killed" in text
    assert "`penstock run`" in text


def test_the_error_for_a_missing_configuration_file_says_which_option_names_it(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["status", "--config", str(tmp_path / "none.toml")], prog_name="penstock")
    assert result.exit_code == USAGE
    assert "--config, or PENSTOCK_CONFIG, names it" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        "snapshot list LONG",
        "snapshot create LONG -c application.id=app -c state.dir=STATE",
        "snapshot restore LONG -c application.id=app -c state.dir=STATE",
        "state list -c application.id=app -c state.dir=LONG",
        "status -c application.id=app -c state.dir=LONG",
        "status --config LONG",
        "plan app:topology -c application.id=app -c state.dir=LONG -c bootstrap.servers=localhost:1",
        "topic produce words LONG -c bootstrap.servers=localhost:1",
        "broker status --directory LONG",
        "broker start --directory LONG",
        "broker logs --directory LONG",
    ],
)
def test_a_name_that_no_file_system_accepts_is_a_user_error(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = command.replace("LONG", str(tmp_path / ("x" * 300))).replace("STATE", str(tmp_path)).split()
    result = CliRunner(env={"PENSTOCK_CONFIG": None}).invoke(cli, words, prog_name="penstock")
    assert isinstance(result.exception, SystemExit | None), (result.exception, result.output)
    assert result.exit_code in (0, FAILED, USAGE, NOT_RUNNING), result.output


@pytest.mark.parametrize("command", ["state range counts", "dlq list", "topic consume words"])
def test_a_limit_that_cannot_be_reached_is_a_usage_error(command: str) -> None:
    result = CliRunner().invoke(cli, [*command.split(), "--limit", "9" * 20], prog_name="penstock")
    assert result.exit_code == USAGE
    assert "--limit" in result.stderr


def test_text_outside_the_encoding_of_stdout_is_escaped(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "config", "-c", f"state.dir={tmp_path}/☃"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "latin-1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "\\u2603" in done.stdout


# -- the user's errors, not Penstock's


CONFIG = [sys.executable, "-m", "penstock.cli", "config"]


def test_the_error_names_a_full_disk_behind_stdout() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(CONFIG, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (
        FAILED,
        "Error: The standard output cannot be used: No space left on device.\n",
    )


def test_the_error_names_a_deleted_directory(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone} && exec {sys.executable} -m penstock.cli topic list -c bootstrap.servers=127.0.0.1:1"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        ["bash", "-c", command], cwd=gone, env=environment, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (
        FAILED,
        "Error: The current directory cannot be used: No such file or directory.\n",
    )


def test_a_closed_pipe_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        ended = subprocess.run(CONFIG, cwd=ROOT, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_invalid_serde_is_a_configuration_error() -> None:
    options = ("--value-serde", "os:system", "-c", "bootstrap.servers=127.0.0.1:1")
    result = CliRunner(env={"PENSTOCK_CONFIG": None}).invoke(cli, ["topic", "consume", "t", *options])
    assert result.exit_code == USAGE
    assert "default.value.serde='os:system' (--value-serde): a serde needs serialize" in result.stderr
