"""``penstock service``: an application as a systemd service, of the system or of one user."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from penstock.cli.options import as_json, examples, print_json
from penstock.supervisor.service.service_unit import ServiceUnit, is_ours, unit_file_name
from penstock.supervisor.service.unit_checks import check
from penstock.supervisor.source.config_loader import load_config
from penstock.supervisor.source.topology_source import TopologySource
from penstock.topology.config.config_def import is_secret
from penstock.topology.errors import ConfigError

#: Exists if systemd runs this machine (sd_booted(3)).
BOOTED = Path("/run/systemd/system")
DIRECTORY = click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path)


@click.group(
    epilog=examples(
        "penstock service print my_app:topology --config penstock.toml",
        "sudo penstock service install my_app:topology --config /srv/delays/penstock.toml --run-as delays",
        "penstock service install my_app:topology --config penstock.toml --user",
        "sudo penstock service uninstall delays",
    )
)
def service() -> None:
    """Run an application as a systemd service."""


def _unit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that define the unit; see _unit."""
    file = click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path)
    for option in (
        click.option(
            "--run-as", metavar="USER", default="", help="System user to run as; default: one allocated by systemd."
        ),
        click.option("--user", "user_manager", is_flag=True, help="Use your own systemd manager (systemctl --user)."),
        click.option("--name", help="Name of the service; default: application.id."),
        click.option(
            "--working-directory",
            type=DIRECTORY,
            default=".",
            help="Directory with the modules; default: the current one.",
        ),
        click.option("--config", "config_file", type=file, required=True, help="Configuration file (TOML)."),
        click.option("-c", "assignments", multiple=True, metavar="KEY=VALUE", help="Set one key; may be repeated."),
        click.argument("topology", metavar="MODULE:TOPOLOGY"),
    ):
        command = option(command)
    return command


def _unit(
    topology: str,
    config_file: Path,
    assignments: tuple[str, ...],
    working_directory: Path,
    name: str | None,
    user_manager: bool,
    run_as: str,
) -> ServiceUnit:
    # Without this shell's variables: the service does not have them.
    config = load_config(config_file, assignments=assignments)
    if any(is_secret(assignment.partition("=")[0].strip()) for assignment in assignments):
        raise ConfigError(
            "-c would write a secret into the unit, which is world-readable: put it into the EnvironmentFile."
        )
    config.require("application.id", "bootstrap.servers")
    TopologySource.of(topology)
    if user_manager and run_as:
        raise ConfigError("--run-as and --user exclude each other: a user's own manager runs everything as that user.")
    return ServiceUnit(
        name=_checked(name or config["application.id"]),
        topology=topology,
        config_file=config_file,
        assignments=assignments,
        working_directory=working_directory,
        python=Path(sys.executable),
        config=config,
        user_manager=user_manager,
        run_as=run_as,
    )


def _checked(name: str) -> str:
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or not name.isascii():
        raise ConfigError(f"{name!r} cannot name a service: use letters, digits, '.', '_' and '-'.")
    return name


@service.command("print", epilog=examples("penstock service print my_app:topology --config penstock.toml"))
@_unit_options
@as_json
def print_unit(json_output: bool, **options: Any) -> None:
    """Print the unit that install would write, and change nothing."""
    unit = _unit(**options)
    if json_output:
        print_json({"name": unit.file_name, "unit": unit.text()})
    else:
        click.echo(unit.text(), nl=False)


@service.command(
    epilog=examples(
        "sudo penstock service install my_app:topology --config penstock.toml --run-as delays",
        "penstock service install my_app:topology --config penstock.toml --user --dry-run",
    )
)
@_unit_options
@click.option("--directory", type=DIRECTORY, help="Directory of the unit, e.g. in an image; systemd is not reloaded.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, without doing it.")
@click.option("--force", is_flag=True, help="Overwrite a unit that was changed by hand, or is not Penstock's.")
@as_json
def install(directory: Path | None, dry_run: bool, force: bool, json_output: bool, **options: Any) -> None:
    """Write the unit and make systemd reload it; starts nothing.

    First it checks whether the unit can start on this host. With --directory, which may be for another host, the
    findings are warnings.
    """
    unit = _unit(**options)
    _check_here(unit, directory)
    file = _folder(directory, unit.user_manager) / unit.file_name
    _check_ours(file, force, "overwritten")
    text = unit.text()
    click.echo(f"{'Would write' if dry_run else 'Writing'} {file}", err=json_output)
    if not dry_run:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        except OSError as error:
            raise ConfigError(f"{file} cannot be written: {error.strerror}. Use sudo, or --user.") from error
    if directory is None:
        _systemctl(unit.user_manager, dry_run, json_output, "daemon-reload")
    if json_output:
        print_json({"unit": unit.file_name, "file": str(file), "executed": not dry_run})
        return
    click.echo(f"Start it, now and at each boot:  {_command(unit.user_manager, 'enable', '--now', unit.file_name)}")
    click.echo(f"Its log:  journalctl {'--user ' if unit.user_manager else ''}-u {unit.file_name} -f")


@service.command(epilog=examples("sudo penstock service uninstall delays", "penstock service uninstall delays --user"))
@click.argument("name")
@click.option("--user", "user_manager", is_flag=True, help="Use your own systemd manager (systemctl --user).")
@click.option("--directory", type=DIRECTORY, help="Directory of the unit, e.g. in an image; systemd is not reloaded.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, without doing it.")
@click.option("--force", is_flag=True, help="Delete a unit that was changed by hand, or is not Penstock's.")
@as_json
def uninstall(
    name: str, user_manager: bool, directory: Path | None, dry_run: bool, force: bool, json_output: bool
) -> None:
    """Stop and disable the service of an application and delete its unit. Its state stays on disk."""
    file = _folder(directory, user_manager) / unit_file_name(_checked(name))
    if not file.exists():
        raise ConfigError(f"There is no {file}. `penstock service uninstall` takes the NAME given to install.")
    _check_ours(file, force, "deleted")
    if directory is None:
        _systemctl(user_manager, dry_run, json_output, "disable", "--now", file.name)
    click.echo(f"{'Would delete' if dry_run else 'Deleting'} {file}", err=json_output)
    if not dry_run:
        try:
            file.unlink()
        except OSError as error:
            raise ConfigError(f"{file} cannot be deleted: {error.strerror}. Use sudo, or --user.") from error
    if directory is None:
        _systemctl(user_manager, dry_run, json_output, "daemon-reload")
    if json_output:
        print_json({"unit": file.name, "file": str(file), "executed": not dry_run})


def _folder(directory: Path | None, user_manager: bool) -> Path:
    """Return the given folder, or the folder of the system's or the user's units (systemd.unit(5))."""
    if directory is not None:
        return directory
    if not user_manager:
        return Path("/etc/systemd/system")
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd/user"


def _check_here(unit: ServiceUnit, directory: Path | None) -> None:
    """Raise ConfigError if the unit cannot start on this host; with a directory of another host only warn."""
    found = check(unit)
    if found.problems and directory is None:
        raise ConfigError("The service could not start, and nothing was written: " + "\n".join(found.problems))
    for problem in found.problems:
        click.echo(f"Warning: if the service runs on this host: {problem}", err=True)
    for warning in found.warnings:
        click.echo(f"Warning of systemd: {warning}", err=True)


def _check_ours(file: Path, force: bool, done: str) -> None:
    """Raise ConfigError for a unit that Penstock did not write, or that was changed since."""
    try:
        text = file.read_text()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from error
    if not force and not is_ours(text):
        raise ConfigError(
            f"{file} was not written by Penstock, or was changed since, and is not {done}. Move your changes into a "
            f"drop-in (systemctl edit {file.name}), or use --force."
        )


def _command(user_manager: bool, *arguments: str) -> str:
    return " ".join(("systemctl", *(["--user"] if user_manager else []), *arguments))


def _systemctl(user_manager: bool, dry_run: bool, to_stderr: bool, *arguments: str) -> None:
    """Run systemctl; without systemd, print the remaining steps. Raises ConfigError if it fails."""
    command = _command(user_manager, *arguments)
    if dry_run:
        click.echo(f"Would run {command}", err=to_stderr)
    elif not BOOTED.is_dir():
        click.echo(f"systemd does not run this machine: skipped  {command}", err=to_stderr)
    else:
        click.echo(f"Running {command}", err=to_stderr)
        done = subprocess.run(command.split(), stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise ConfigError(f"{command} failed: {done.stderr.strip()}")
