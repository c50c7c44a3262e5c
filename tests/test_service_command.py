"""penstock service: the unit, systemd's check of it, and the files that install and uninstall touch."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.cli import cli
from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.service.service_unit import ServiceUnit, is_ours
from penstock.supervisor.service.unit_checks import TEMPORARY, check
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent
CONFIG = '"application.id" = "delays"\n"bootstrap.servers" = "kafka:9092"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An application's folder, the test's working directory, and a folder for units."""
    fill(tmp_path)
    (tmp_path / "units").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fill(folder: Path) -> None:
    """Write an application that cannot be imported: install only looks for its module."""
    (folder / "penstock.toml").write_text(CONFIG)
    (folder / "my_app.py").write_text("raise SystemExit('imported')\n")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["service", *arguments], prog_name="penstock")


def unit(*arguments: str) -> str:
    result = run("print", "my_app:topology", "--config", "penstock.toml", *arguments)
    assert result.exit_code == 0, result.output
    return result.output


def values(text: str) -> dict[str, str]:
    """Return the settings of a unit; the last one if a name appears several times."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def test_settings_of_the_command_line_are_in_the_unit(folder: Path) -> None:
    text = unit("-c", "application.id=hours", "-c", "client.id=the hours")
    command = values(text)["ExecStart"]
    assert command.endswith(f'--config {folder}/penstock.toml -c application.id=hours -c "client.id=the hours"')
    result = run("print", "my_app:topology", "--config", "penstock.toml", "-c", "sasl.password=x")
    assert result.exit_code == ExitCode.USAGE
    assert "put it into the EnvironmentFile" in result.output


def make(**changes: object) -> ServiceUnit:
    values: dict[str, object] = {
        "name": "delays",
        "topology": "my_app:topology",
        "config_file": Path("/srv/delays/penstock.toml"),
        "working_directory": Path("/srv/delays"),
        "python": Path("/srv/delays/.venv/bin/python"),
        "config": StreamsConfig({}),
        "run_as": "delays",
    }
    return ServiceUnit(**values | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [(), ("--run-as", "root"), ("--user",)], ids=" ".join)
def test_systemd_accepts_the_unit(folder: Path, options: tuple[str, ...]) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian: apt install systemd)")
    (folder / "penstock-delays.service").write_text(unit(*options))
    manager = ["--user"] if "--user" in options else []
    done = subprocess.run(
        ["systemd-analyze", *manager, "verify", "./penstock-delays.service"],
        env=os.environ | {"XDG_RUNTIME_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_runs_the_command_of_this_interpreter(folder: Path) -> None:
    shown = values(unit())
    assert shlex.split(shown["ExecStart"]) == [
        *(sys.executable, "-m", "penstock.cli", "run", "my_app:topology"),
        *("--config", str(folder / "penstock.toml")),
    ]
    assert shown["WorkingDirectory"] == str(folder)
    assert shown["Environment"] == "PENSTOCK_STATE_DIR=%S/penstock-delays"


def test_timeouts_follow_the_configuration(folder: Path) -> None:
    (folder / "penstock.toml").write_text(CONFIG + '"penstock.shutdown.timeout.ms" = 200_500\n')
    assert values(unit())["TimeoutStopSec"] == "231"  # 200.5 s, 5 s to abort, and the margin, rounded up


def test_no_restart_for_exit_codes_that_need_an_operator(folder: Path) -> None:
    """The table of docs/operations.md lists these codes."""
    table = (ROOT / "docs" / "operations.md").read_text()
    wanted = [line.split("|")[1].strip() for line in table.splitlines() if "| no: it needs an operator |" in line]
    assert values(unit())["RestartPreventExitStatus"].split() == wanted


def test_a_configured_state_dir_is_kept(folder: Path) -> None:
    (folder / "penstock.toml").write_text(CONFIG + '"state.dir" = "/data/100%"\n')
    shown = values(unit())
    assert shown["ReadWritePaths"] == "/data/100%%"
    assert "StateDirectory" not in shown


def test_the_environment_of_this_shell_is_not_passed_to_the_service(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", "/elsewhere")
    assert "StateDirectory" in values(unit())


def test_words_and_paths_are_escaped() -> None:
    text = make(working_directory=Path("/srv/50% off"), config_file=Path('/srv/a "b" $HOME;/c.toml')).text()
    assert values(text)["WorkingDirectory"] == "/srv/50%% off"
    assert values(text)["ExecStart"].endswith(r'--config "/srv/a \"b\" $$HOME;/c.toml"')
    with pytest.raises(ConfigError, match="cannot be used in a systemd unit"):
        make(working_directory=Path("/srv/'quoted'")).text()


def test_home_directories_stay_readable_only_if_they_are_needed() -> None:
    assert values(make().text())["ProtectHome"] == "yes"
    assert values(make(python=Path("/home/me/.venv/bin/python")).text())["ProtectHome"] == "read-only"


def test_the_unit_as_json_is_the_unit(folder: Path) -> None:
    assert json.loads(unit("--json")) == {"name": "penstock-delays.service", "unit": unit()}


def test_the_example_unit_is_the_commands_output() -> None:
    """bin/penstock.service, except for its first line."""
    example = (ROOT / "bin" / "penstock.service").read_text()
    assert example.partition("\n")[2] == make().text().partition("\n")[2]


def test_install_writes_overwrites_its_own_and_uninstall_deletes(folder: Path) -> None:
    file = folder / "units" / "penstock-delays.service"
    arguments = ("my_app:topology", "--config", "penstock.toml", "--directory", "units")
    assert f"Would write {file}" in run("install", *arguments, "--dry-run").output
    told = run("install", *arguments, "--dry-run", "--json")
    assert json.loads(told.stdout) == {"unit": file.name, "file": str(file), "executed": False}
    assert not file.exists()
    assert run("install", *arguments).exit_code == 0
    assert is_ours(file.read_text())
    assert run("install", *arguments, "--run-as", "me").exit_code == 0
    assert values(file.read_text())["User"] == "me"
    assert f"Would delete {file}" in run("uninstall", "delays", "--directory", "units", "--dry-run").output
    assert file.exists()
    assert json.loads(run("uninstall", "delays", "--directory", "units", "--json").stdout)["executed"]
    assert not file.exists()


@pytest.mark.parametrize("change", ["# mine\n", None], ids=["another's", "changed by hand"])
def test_files_of_others_are_left_alone(folder: Path, change: str | None) -> None:
    file = folder / "units" / "penstock-delays.service"
    arguments = ("my_app:topology", "--config", "penstock.toml", "--directory", "units")
    text = change or unit().replace("WatchdogSec=30", "WatchdogSec=300")
    file.write_text(text)
    for command in (("install", *arguments), ("uninstall", "delays", "--directory", "units")):
        refused = run(*command)
        assert refused.exit_code == ExitCode.USAGE
        assert "was not written by Penstock, or was changed since" in refused.output
        assert file.read_text() == text
    assert run("install", *arguments, "--force").exit_code == 0
    assert file.read_text() == unit()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["print", "my_app", "--config", "penstock.toml"], "not of the form module:attribute"),
        (["print", "my_app:t", "--config", "penstock.toml", "--name", "../x"], "cannot name a service"),
        (["print", "my_app:t", "--config", "penstock.toml", "--user", "--run-as", "me"], "exclude each other"),
        (["print", "my_app:t", "--config", "no.toml"], "does not exist"),
        (["uninstall", "nobody", "--directory", "units"], "takes the NAME given to install"),
    ],
)
def test_mistakes_are_reported(folder: Path, arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code in (ExitCode.USAGE, ExitCode.TOPOLOGY)
    assert message in result.output


# -- reasons that prevent a unit from starting are found before it is written

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as another user")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An application's folder outside /tmp, which a service cannot see."""
    if any(Path(sys.executable).is_relative_to(folder) for folder in TEMPORARY):
        pytest.skip("this checkout's Python is below a folder for temporary files, which no service sees")
    with tempfile.TemporaryDirectory(dir="/srv") as name:
        fill(Path(name))
        Path(name).chmod(0o755)
        monkeypatch.chdir(name)
        yield Path(name)


def install(*arguments: str, topology: str = "my_app:topology") -> Result:
    return run("install", topology, "--config", "penstock.toml", "--dry-run", *arguments)


@as_root
def test_a_unit_that_can_start_is_written(elsewhere: Path) -> None:
    for options in ((), ("--run-as", "root"), ("--run-as", "daemon")):
        assert "Would write" in install(*options).output


@as_root
def test_code_below_tmp_is_refused(folder: Path) -> None:
    result = install("--run-as", "root")
    assert result.exit_code == ExitCode.USAGE
    assert f"The working directory {folder} is below a folder for temporary files" in result.stderr
    assert "The configuration" in result.stderr
    assert "Would write" in install("--user").output  # a user's service manager creates no mounts


@as_root
def test_an_unknown_user_is_refused(elsewhere: Path) -> None:
    result = install("--run-as", "no-such-user")
    assert result.exit_code == ExitCode.USAGE
    assert "There is no user no-such-user on this host (systemd's 217/USER)" in result.stderr


@as_root
@pytest.mark.parametrize(
    ("state_dir", "message"),
    [
        ("state", "state.dir=state depends on the folder"),
        ("~/state", "state.dir=~/state depends on the folder"),
        ("/srv/no-such-folder", "state.dir=/srv/no-such-folder does not exist, .*install -d -m 750 -o daemon"),
        ("/var/tmp/state", "The state.dir /var/tmp/state is below a folder for temporary files"),
        ("/srv", "The user daemon cannot write to /srv"),
        ("/etc/passwd", "state.dir=/etc/passwd is not a folder"),
        ("/srv/no such", "-o daemon '/srv/no such'"),
    ],
)
def test_a_state_dir_that_the_service_cannot_use_is_refused(elsewhere: Path, state_dir: str, message: str) -> None:
    result = install("--run-as", "daemon", "-c", f"state.dir={state_dir}")
    assert result.exit_code == ExitCode.USAGE
    assert re.search(message, result.stderr)


@as_root
@pytest.mark.parametrize("run_as", ["daemon", ""])
def test_code_that_the_user_cannot_reach_is_refused(elsewhere: Path, run_as: str) -> None:
    elsewhere.chmod(0o700)
    result = install(*(["--run-as", run_as] if run_as else []))
    assert result.exit_code == ExitCode.USAGE
    assert re.search(rf"The user .* cannot reach {elsewhere}\. Change its permissions", result.stderr)


@as_root
def test_a_certificate_that_the_user_cannot_reach_is_refused(elsewhere: Path) -> None:
    certificate = elsewhere / "ca.pem"
    setting = ("-c", f"ssl.ca.location={certificate}", "-c", "consumer.ssl.key.location=/tmp/no-such-key.pem")
    assert f"ssl.ca.location={certificate} does not exist" in install("--run-as", "daemon", *setting).stderr
    certificate.touch(mode=0o600)
    result = install("--run-as", "daemon", *setting)
    assert result.exit_code == ExitCode.USAGE
    assert f"The user daemon cannot reach {certificate}. Change its permissions" in result.stderr
    assert "consumer.ssl.key.location /tmp/no-such-key.pem is below a folder for temporary files" in result.stderr


@as_root
@pytest.mark.parametrize("name", ["working directory", "interpreter", "configuration", "module", "state.dir", "file"])
def test_a_link_into_tmp_is_refused(elsewhere: Path, folder: Path, name: str) -> None:
    """The folder of the application is outside of /tmp, and one of its parts is a link into it."""
    link = elsewhere / "my_app.py" if name == "module" else elsewhere / "link"
    link.unlink(missing_ok=True)
    target = folder
    if name == "interpreter":
        target = folder / "python"
        shutil.copy2(sys.executable, target)
    elif name in ("configuration", "module", "file"):
        target = folder / {"configuration": "penstock.toml", "module": "my_app.py", "file": "ca.pem"}[name]
        target.touch()
    link.symlink_to(target)
    settings = {"state.dir": str(link)} if name == "state.dir" else {}
    if name == "file":
        name = "ssl.ca.location"
        settings[name] = str(link)
    changes: dict[str, object] = {
        "working_directory": link if name == "working directory" else elsewhere,
        "config_file": link if name == "configuration" else elsewhere / "penstock.toml",
        "python": link if name == "interpreter" else Path(sys.executable),
        "config": StreamsConfig.of(settings),
        "run_as": "daemon",
    }
    found = check(make(**changes)).problems
    assert any(f"The {name} {link} -> {target} is below a folder for temporary files" in problem for problem in found)


@as_root
@pytest.mark.parametrize("name", ["the app", "tab\tinside", "100% full", "plain"])
def test_a_state_dir_with_spaces_is_writable_for_the_service(elsewhere: Path, name: str) -> None:
    state = elsewhere / name
    state.mkdir()
    shutil.chown(state, "daemon")
    result = install("--run-as", "daemon", "-c", f"state.dir={state}")
    assert "Would write" in result.output
    assert "Warning" not in result.output
    shown = values(unit("-c", f"state.dir={state}"))["ReadWritePaths"]
    assert shlex.split(shown.replace("%%", "%")) == [str(state)]


@as_root
@pytest.mark.parametrize("made", ["module", "package", "namespace"])
def test_a_module_that_the_user_cannot_read_is_refused(elsewhere: Path, made: str) -> None:
    file = elsewhere / "other.py"
    if made != "module":
        file = elsewhere / "other"
        file.mkdir()
    if made == "package":
        file = file / "__init__.py"
    if made != "namespace":
        file.touch()
    assert "Would write" in install("--run-as", "daemon", topology="other:topology").output
    file.chmod(0o600)
    for topology in ("other:topology", "other.part:topology"):
        result = install("--run-as", "daemon", topology=topology)
        assert result.exit_code == ExitCode.USAGE
        assert f"The user daemon cannot reach {file}. Change its permissions" in result.stderr


@pytest.mark.parametrize("options", [(), ("--user",)], ids=["system", "user"])
def test_a_module_that_does_not_exist_is_refused(elsewhere: Path, options: tuple[str, ...]) -> None:
    result = install(*options, topology="no_such.part:topology")
    assert result.exit_code == ExitCode.USAGE
    assert f"The module no_such of no_such.part:topology is neither in the working directory {elsewhere} nor" in (
        result.stderr
    )
    assert "Would write" in install(*options, topology="penstock.testing:topology").output  # installed


@as_root
def test_a_warning_of_systemd_does_not_refuse_the_unit(elsewhere: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian: apt install systemd)")
    result = install("--run-as", "nobody")
    assert result.exit_code == 0
    assert re.search("Warning of systemd: .*Special user nobody configured", result.stderr)
    assert "Would write" in result.stdout


def test_systemds_complaint_about_the_unit_is_quoted(folder: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian: apt install systemd)")
    found = check(make(python=Path("/srv/no-such-python"), user_manager=True))
    assert any(".service: Command /srv/no-such-python is not executable" in text for text in found.problems)


def test_a_unit_for_another_host_is_written_with_warnings(folder: Path) -> None:
    result = run(
        *("install", "my_app:topology", "--config", "penstock.toml", "--directory", "units", "--run-as", "no-such-user")
    )
    assert result.exit_code == 0
    assert "Warning: if the service runs on this host: There is no user no-such-user" in result.stderr
    assert (folder / "units" / "penstock-delays.service").exists()


@pytest.mark.parametrize("name", ["python", "config_file", "working_directory"])
def test_a_home_with_a_linked_part_stays_readable(folder: Path, name: str) -> None:
    """With uv, .venv/bin/python is a link into ~/.local/share/uv."""
    (folder / "link").symlink_to("/home/me/.local/share/uv/python/bin/python3.11")
    assert values(make(**{name: folder / "link"}).text())["ProtectHome"] == "read-only"


def test_the_home_of_the_installing_user_is_not_used_for_the_service(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/home/me/.local/state")
    assert values(make().text())["ProtectHome"] == "yes"
