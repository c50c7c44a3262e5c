"""The default of state.dir, and how commands find an application's state elsewhere."""

from __future__ import annotations

import logging
import os
import pickle
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock import KafkaStreams, StreamsBuilder
from penstock.cli import cli
from penstock.pipeline.spark_streams import checkpoint_directory
from penstock.supervisor.control.control_socket import ControlSocket
from penstock.supervisor.source import state_places
from penstock.supervisor.source.state_places import left_behind, located, state_dirs
from penstock.topology.config.state_dir_default import default_state_dir
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError

NEEDED = {"application.id": "delays", "bootstrap.servers": "127.0.0.1:9"}


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with its own home, temporary folder and services."""
    for name, folder in (("HOME", "home"), ("XDG_CONFIG_HOME", "config"), ("XDG_STATE_HOME", "home/.local/state")):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv(name, str(tmp_path / folder))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "var").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(state_places, "SYSTEM_STATE", tmp_path / "var")
    for variable in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(variable)
    return tmp_path


def run(*arguments: str) -> Result:
    settings = [part for key, value in NEEDED.items() for part in ("-c", f"{key}={value}")]
    return CliRunner().invoke(cli, [*arguments, *settings], prog_name="penstock")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOME": "{home}"}, "{home}/.local/state/penstock"),
        ({"HOME": "{home}", "XDG_STATE_HOME": "/xdg"}, "/xdg/penstock"),
        ({"HOME": "{home}", "XDG_STATE_HOME": "not/absolute"}, "{home}/.local/state/penstock"),
        ({"HOME": "/nonexistent"}, "{tmp}/penstock-{user}"),
        ({"HOME": "{home}", "XDG_STATE_HOME": "/xdg", "STATE_DIRECTORY": "/var/lib/a:/var/lib/b"}, "/var/lib/a"),
    ],
)
def test_the_default_is_the_folder_of_the_service_or_of_the_user(
    environment: dict[str, str], expected: str, host: Path
) -> None:
    places = {"home": host / "home", "tmp": host / "tmp", "user": os.geteuid()}
    given = {name: value.format(**places) for name, value in environment.items()}
    assert default_state_dir(given) == expected.format(**places)


def test_the_default_comes_from_the_process_that_read_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    config = StreamsConfig()
    monkeypatch.setenv("XDG_STATE_HOME", "/elsewhere")
    assert pickle.loads(pickle.dumps(config))["state.dir"] == config["state.dir"]
    assert StreamsConfig()["state.dir"] == "/elsewhere/penstock"
    assert StreamsConfig().origin("state.dir") == "default by user"
    assert StreamsConfig().is_default("state.dir")
    assert not StreamsConfig({"state.dir": "/elsewhere/penstock"}).is_default("state.dir")


@pytest.fixture
def earlier(host: Path) -> Path:
    """The state of the application in the former default folder."""
    folder = host / "tmp" / "penstock" / "delays"
    folder.mkdir(parents=True)
    return folder


def test_state_in_the_former_default_folder_is_logged_once(
    earlier: Path, host: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new = host / "home/.local/state/penstock/delays"
    for times in (1, 1):
        with caplog.at_level(logging.WARNING), KafkaStreams(StreamsBuilder().build(), NEEDED):
            assert caplog.text.count(f"mkdir -p {new.parent} && mv {earlier} {new}`, or set state.dir=") == times
    assert earlier.is_dir()


@pytest.mark.parametrize("command", [["status"], ["state", "list"], ["snapshot", "create", "backup"]])
def test_commands_name_state_in_the_former_default_folder(command: list[str], earlier: Path) -> None:
    result = run(*command)
    assert result.exit_code != 0
    assert f"{earlier} has state of delays" in result.output


def test_plan_names_state_in_the_former_default_folder(
    earlier: Path, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (host / "former_app.py").write_text("from penstock import StreamsBuilder\ntopology = StreamsBuilder()\n")
    monkeypatch.chdir(host)
    monkeypatch.syspath_prepend(host)
    assert f"{earlier} has state of delays" in run("plan", "former_app:topology", "--offline").output


@pytest.mark.parametrize("state_dir", ["set", "new state"])
def test_other_applications_state_in_the_former_default_folder_is_ignored(
    state_dir: str, earlier: Path, host: Path
) -> None:
    if state_dir == "set":
        assert left_behind(StreamsConfig(NEEDED | {"state.dir": str(host / "mine")})) == ""
    else:
        (host / "home/.local/state/penstock/delays").mkdir(parents=True)
        assert left_behind(StreamsConfig(NEEDED)) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_another_users_state_in_the_former_default_folder_is_ignored(earlier: Path) -> None:
    os.chown(earlier, 65_534, 65_534)
    assert left_behind(StreamsConfig(NEEDED)) == ""


def test_files_that_cannot_be_restored_are_not_left_behind(earlier: Path, host: Path) -> None:
    """The mark of a handover, and Spark's checkpoint: without them records would be processed twice."""
    (earlier / "handed-over.json").write_text("{}")
    with pytest.raises(ConfigError, match="was handed over to Spark"):
        KafkaStreams(StreamsBuilder().build(), NEEDED)
    (earlier / "spark").mkdir()
    with pytest.raises(ConfigError, match="would start from the beginning"):
        checkpoint_directory(StreamsConfig(NEEDED), None)
    assert checkpoint_directory(StreamsConfig(NEEDED), "/given") == "/given"


@pytest.mark.parametrize(
    "folder", ["var/penstock-delays", "home/.local/state/penstock-other", "config/penstock-delays"]
)
def test_the_state_of_a_service_is_found(folder: str, host: Path) -> None:
    """For the system's service manager, and for a user's, with and without systemd 254; the unit's name may differ from
    the application.id.
    """
    (host / folder / "delays").mkdir(parents=True)
    config = StreamsConfig(NEEDED)
    assert located(config)["state.dir"] == str(host / folder)
    assert state_dirs(config) == [Path(config["state.dir"]), host / folder]
    assert state_dirs(config.with_overrides({"application.id": "another"})) == [Path(config["state.dir"])]
    given = config.with_overrides({"state.dir": "/given"})
    assert (state_dirs(given), located(given)["state.dir"]) == ([Path("/given")], "/given")


@pytest.mark.parametrize("with_id", [True, False])
def test_a_command_finds_an_application_that_runs_as_a_service(with_id: bool, host: Path) -> None:
    directory = host / "var" / "penstock-x" / "delays"
    directory.mkdir(parents=True)
    (host / "home/.local/state/penstock/delays").mkdir(parents=True)  # it ran without the service once
    control = ControlSocket(directory, {"pause": lambda: None})
    control.start()
    try:
        assert CliRunner().invoke(cli, ["pause", *(["-c", "application.id=delays"] if with_id else [])]).exit_code == 0
    finally:
        control.stop()


def test_a_snapshot_folder_that_only_the_service_sees_is_an_error(host: Path) -> None:
    directory = host / "var" / "penstock-delays" / "delays"
    directory.mkdir(parents=True)
    control = ControlSocket(directory, {"snapshot": lambda directory: {"path": f"{directory}/one", "tasks": {}}})
    control.start()
    try:
        result = run("snapshot", "create", str(host / "backup"))
    finally:
        control.stop()
    assert result.exit_code == 2
    assert "it is not in this command's file system: the service has its own /tmp" in result.stderr
