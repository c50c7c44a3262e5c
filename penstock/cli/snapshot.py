"""``penstock snapshot``: copies of the state stores, for the start of another machine."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from penstock.cli.options import Settings, as_json, configuration, examples, print_json, print_text
from penstock.cli.running_application import NotRunningError, find
from penstock.cli.status_view import counted
from penstock.statestore.directory.snapshot import (
    MANIFEST_NAME,
    Snapshot,
    checkpoint_closed,
    complete,
    new_snapshot,
    read_snapshot,
    size_bytes,
    snapshots_in,
)
from penstock.statestore.directory.snapshot import restore as restore_snapshot
from penstock.statestore.directory.state_directory import StateDirectory
from penstock.supervisor.queries.snapshots import SNAPSHOT_SECONDS, snapshot_name
from penstock.supervisor.source.state_places import application_directory, left_behind, located
from penstock.supervisor.source.topology_gate import FACTS_FILE_NAME
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError
from penstock_distribution import version

DIRECTORY = click.Path(file_okay=False, resolve_path=True, path_type=Path)
MIB = 1 << 20
HOUR_MS = 3_600_000
#: The brokers' default for delete.retention.ms, which applies to changelogs unless the store overrides it.
DELETE_RETENTION_HOURS = 24.0


@click.group(
    epilog=examples(
        "penstock snapshot create /backup/delays --config penstock.toml",
        "penstock snapshot list /backup/delays",
        "penstock snapshot restore /backup/delays/20260131T120000Z --config penstock.toml",
    )
)
def snapshot() -> None:
    """Copy the state stores, and start another machine from them."""


@snapshot.command(epilog=examples("penstock snapshot create /backup/delays --config penstock.toml"))
@click.argument("directory", type=DIRECTORY)
@configuration
@click.option("--name", help="Name of the snapshot; default: the time, in UTC.")
@as_json
def create(directory: Path, settings: Settings, name: str | None, json_output: bool) -> None:
    """Take a snapshot of the stores on this host, into DIRECTORY, whether the application runs or not.

    Each store is copied as of its task's last commit. On the same file system the files are hard links, which take no
    space until RocksDB replaces the originals.
    """
    config = settings.load()
    config.require("application.id")
    try:
        with find(config) as running:
            arguments = {"directory": str(directory), **({"name": name} if name else {})}
            made: dict[str, Any] = running.ask("snapshot", arguments, timeout=SNAPSHOT_SECONDS + 10)
            _check_visible(Path(made["path"]))
    except NotRunningError:
        made = _create_closed(located(config), directory, name)
    if json_output:
        print_json(made)
    else:
        click.echo(f"{made['path']}: {_counts(read_snapshot(Path(made['path'])))}")


def _check_visible(path: Path) -> None:
    """Raise ConfigError if the application has written the snapshot where only it sees it."""
    if not (path / MANIFEST_NAME).exists():
        raise ConfigError(
            f"The application wrote the snapshot {path}, but it is not in this command's file system: the service has "
            "its own /tmp and /var/tmp (PrivateTmp=yes), or runs in a container. Choose a directory that both see."
        )


def _create_closed(config: StreamsConfig, directory: Path, name: str | None) -> dict[str, object]:
    now_ms = time.time_ns() // 1_000_000
    name = name or snapshot_name(now_ms)
    path = application_directory(config)
    nothing = ConfigError(
        f"There is nothing to take a snapshot of: no application runs in {path}, and there is no store. For another "
        f"application, name its configuration: --config FILE. {left_behind(config)}".rstrip()
    )
    if not path.is_dir():
        raise nothing
    with closing(_locked(config)) as state, new_snapshot(directory, name) as path:
        tasks = checkpoint_closed(state, path)
        if not tasks:
            raise nothing
        taken = Snapshot(config["application.id"], now_ms, version(), tasks)
        complete(path, taken, state.path / FACTS_FILE_NAME)
    return {"path": str(directory / name), "tasks": tasks}


def _locked(config: StreamsConfig) -> StateDirectory:
    """Return the state directory of a stopped application, which cannot start until it is closed."""
    state = StateDirectory(
        config["state.dir"], config["application.id"], allow_group_write=config["allow.os.group.write.access"]
    )
    state.lock_application()
    return state


@snapshot.command("list", epilog=examples("penstock snapshot list /backup/delays"))
@click.argument("directory", type=DIRECTORY)
@as_json
def list_snapshots(directory: Path, json_output: bool) -> None:
    """List the complete snapshots in DIRECTORY, the oldest first."""
    found = [(path, snapshot, size_bytes(path)) for path, snapshot in snapshots_in(directory, _warn)]
    if json_output:
        print_json([_described(path, snapshot, size) for path, snapshot, size in found])
        return
    if not found:
        click.echo(f"There are no snapshots in {directory}. `penstock snapshot create {directory}` takes one.")
    for path, taken, size in found:
        print_text(f"{path.name}  {taken.application_id}  {_counts(taken)}, {size / MIB:.1f} MiB")


def _warn(text: str) -> None:
    print_text(f"Warning: {text}", err=True)


def _described(path: Path, taken: Snapshot, size: int) -> dict[str, object]:
    return {
        "path": str(path),
        "application_id": taken.application_id,
        "time_ms": taken.time_ms,
        "penstock_version": taken.penstock_version,
        "bytes": size,
        "tasks": taken.tasks,
    }


def _counts(taken: Snapshot) -> str:
    return f"{counted(len(taken.tasks), 'task')}, {counted(taken.stores, 'store')}"


@snapshot.command(
    epilog=examples(
        "penstock snapshot restore /backup/delays/20260131T120000Z --config penstock.toml",
        "penstock snapshot restore /backup/delays --config penstock.toml        the newest one there",
    )
)
@click.argument("path", type=DIRECTORY)
@configuration
@click.option("--force", is_flag=True, help="Replace existing state of tasks.")
@click.option(
    "--max-age-hours",
    type=click.FloatRange(min=0),
    default=DELETE_RETENTION_HOURS,
    show_default=True,
    help="Refuse an older snapshot: changelogs drop tombstones after their delete.retention.ms.",
)
@as_json
def restore(path: Path, settings: Settings, force: bool, max_age_hours: float, json_output: bool) -> None:
    """Copy the stores of a snapshot into state.dir; the next `penstock run` replays only newer records.

    The application must not run on this host. Tasks that are not in the snapshot are left alone.
    """
    config = settings.load_located()
    if not (path / MANIFEST_NAME).exists() and (found := snapshots_in(path, _warn)):
        path = found[-1][0]
    taken = read_snapshot(path)
    if taken.application_id != config["application.id"]:
        raise ConfigError(
            f"The snapshot {path} belongs to application {taken.application_id}, not to {config['application.id']}: "
            "its offsets are meaningless for other changelogs."
        )
    age_hours = (time.time() * 1000 - taken.time_ms) / HOUR_MS
    if age_hours > max_age_hours:
        raise ConfigError(
            f"The snapshot {path} is {age_hours:.0f} hours old. Newer tombstones may have left the changelogs, "
            "so deleted keys would reappear. Give --max-age-hours if nothing is deleted from the stores, or if the "
            "changelogs' delete.retention.ms is longer."
        )
    with closing(_locked(config)) as state:
        restore_snapshot(path, state, force, lambda task: click.echo(f"Restoring task {task}", err=json_output))
    if json_output:
        print_json({"path": str(path), "state": str(state.path), "tasks": taken.tasks})
        return
    click.echo(f"{path.name} is in {state.path}: {_counts(taken)}. Start the application with `penstock run`.")
