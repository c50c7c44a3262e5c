"""Each command where no application runs: it says what to do next, with the exit code for it, and changes nothing."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import cli
from penstock.supervisor.control_socket import SOCKET_NAME

NOT_RUNNING, FAILED, USAGE = 3, 1, 2
#: Of a running application.
ASKING = ("status", "top", "lag", "pause", "resume", "threads add", "threads remove", "threads restart 1")
#: Of the state of one that has ended too.
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
    assert [path.name for path in tmp_path.rglob("*")] == ["state"]  # a slip of the pen leaves nothing behind


@pytest.mark.parametrize("command", ASKING)
def test_an_application_that_was_killed(command: str, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "app" / SOCKET_NAME))
    code, text = run(command, tmp_path)
    assert code == NOT_RUNNING
    assert f"No application runs in {tmp_path / 'app'} any more: its supervisor was killed" in text
    assert "`penstock run`" in text


def test_a_configuration_file_that_is_not_there_says_who_names_it(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["status", "--config", str(tmp_path / "none.toml")], prog_name="penstock")
    assert result.exit_code == USAGE
    assert "--config, or PENSTOCK_CONFIG, names it" in result.stderr
