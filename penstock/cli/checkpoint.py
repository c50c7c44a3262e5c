"""``penstock checkpoint list|verify|delete``: checkpoints of the state stores in object storage."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from penstock.cli.options import Settings, as_json, configuration, examples, print_json, print_text
from penstock.cli.status_view import counted, duration, show, table
from penstock.statestore.checkpoints.bucket import Bucket, BucketError
from penstock.statestore.checkpoints.manifest import Manifest
from penstock.statestore.checkpoints.task_checkpoints import Found, TaskCheckpoints
from penstock.topology.errors import ConfigError, StreamsError
from penstock.topology.records import TaskId

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint. checkpoints: those of its task."""

    checkpoints: TaskCheckpoints
    found: Found

    @property
    def manifest(self) -> Manifest | None:
        """Its manifest, None if that cannot be read."""
        return None if isinstance(self.found.manifest, str) else self.found.manifest

    def described(self) -> dict[str, object]:
        """Return it for --json."""
        own = {"task": self.checkpoints.task, "name": self.found.name}
        manifest = self.manifest
        if manifest is None:
            return {**own, "problem": self.found.manifest}
        return {
            **own,
            "time_ms": manifest.time_ms,
            "bytes": manifest.total_bytes,
            "files": len(manifest.files),
            "generation": manifest.generation,
            "penstock_version": manifest.penstock_version,
            "offsets": {name: store.offset for name, store in manifest.stores.items()},
        }


def _bucket(settings: Settings) -> Bucket:
    config = settings.load()
    config.require("application.id")
    uri = config["penstock.checkpoint.uri"]
    if not uri:
        raise ConfigError(
            "penstock.checkpoint.uri is not set, so there are no checkpoints: name the application's configuration "
            "with --config FILE, or give -c penstock.checkpoint.uri=s3://bucket/prefix."
        )
    return Bucket(uri, config["application.id"])


def _listed(bucket: Bucket, task: str | None) -> Iterator[Listed]:
    """Yield the checkpoints of all tasks or of one, the newest of each task first. Raises StreamsError."""
    try:
        for name in sorted(filter(_is_task, bucket.folders()), key=TaskId.parse):
            if task in (None, name):
                checkpoints = TaskCheckpoints(bucket, name)
                yield from (Listed(checkpoints, found) for found in checkpoints.found())
    except BucketError as error:
        raise StreamsError(f"The checkpoints cannot be read: {error}") from error


def _is_task(name: str) -> bool:
    return all(part.isascii() and part.isdigit() for part in name.split("_")) and name.count("_") == 1


_of_task = click.option("--task", metavar="TASK", help="Only the checkpoints of this task, e.g. 0_3.")


@click.group(
    epilog=examples(
        "penstock checkpoint list --config penstock.toml",
        "penstock checkpoint verify --config penstock.toml --task 0_3",
        "penstock checkpoint delete --config penstock.toml --execute",
    )
)
def checkpoint() -> None:
    """List, verify and delete the checkpoints of state stores in object storage."""


@checkpoint.command("list", epilog=examples("penstock checkpoint list --config penstock.toml"))
@configuration
@_of_task
@as_json
def list_checkpoints(settings: Settings, task: str | None, json_output: bool) -> None:
    """List the checkpoints of an application, the newest of each task first."""
    bucket = _bucket(settings)
    listed = list(_listed(bucket, task))
    if json_output:
        print_json([each.described() for each in listed])
        return
    if not listed:
        click.echo(f"There are no checkpoints in {bucket.uri}/{bucket.prefix}.")
        return
    now = time.time()
    rows = table("task", "age", "MiB", "offsets", "checkpoint")
    for each in listed:
        manifest = each.manifest
        if manifest is None:
            rows.add_row(each.checkpoints.task, "", "", str(each.found.manifest), each.found.name)
            continue
        offsets = ", ".join(f"{name} {store.offset}" for name, store in manifest.stores.items())
        size = f"{manifest.total_bytes / MIB:.1f}"
        rows.add_row(each.checkpoints.task, duration(now - manifest.time_ms / 1000), size, offsets, each.found.name)
    show(rows)


@checkpoint.command(epilog=examples("penstock checkpoint verify --config penstock.toml"))
@configuration
@_of_task
@as_json
def verify(settings: Settings, task: str | None, json_output: bool) -> None:
    """Read all files of the checkpoints, and compare their checksums. Exits with 1 if one is damaged."""
    results = []
    with tempfile.TemporaryDirectory(prefix="penstock-verify-") as scratch:
        for each in _listed(_bucket(settings), task):
            if each.manifest is None:
                problems = [str(each.found.manifest)]
            else:
                problems = each.checkpoints.problems(each.manifest, Path(scratch))
            results.append({"task": each.checkpoints.task, "name": each.found.name, "problems": problems})
            if not json_output:
                print_text(f"{each.checkpoints.task}  {each.found.name}  {'; '.join(problems) or 'whole'}")
    if json_output:
        print_json(results)
    damaged = sum(1 for result in results if result["problems"])
    if damaged:
        raise StreamsError(
            f"{counted(damaged, 'checkpoint')} cannot be used. A task without state then takes an older one, or its "
            "changelog; `penstock checkpoint delete --damaged --execute` removes them."
        )


@checkpoint.command(
    epilog=examples(
        "penstock checkpoint delete --config penstock.toml                  what it would delete",
        "penstock checkpoint delete --config penstock.toml --execute",
    )
)
@configuration
@_of_task
@click.option("--damaged", is_flag=True, help="Only those whose manifest or files are damaged; it reads all files.")
@click.option("--execute", is_flag=True, help="Delete them; without it they are only listed.")
@as_json
def delete(settings: Settings, task: str | None, damaged: bool, execute: bool, json_output: bool) -> None:
    """Delete checkpoints of an application.

    The application may run: its tasks write new ones. The files of a task without checkpoints are deleted at once,
    others with a later checkpoint.
    """
    chosen: dict[str, list[Listed]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-verify-") as scratch:
        for each in _listed(_bucket(settings), task):
            whole = each.manifest is not None and not (
                damaged and each.checkpoints.problems(each.manifest, Path(scratch))
            )
            if not (damaged and whole):
                chosen.setdefault(each.checkpoints.task, []).append(each)
    if execute:
        try:
            for mine in chosen.values():
                mine[0].checkpoints.delete([each.found.name for each in mine])
        except BucketError as error:
            raise StreamsError(f"Not all checkpoints were deleted: {error}") from error
    every = [each for mine in chosen.values() for each in mine]
    if json_output:
        print_json({"deleted": execute, "checkpoints": [each.described() for each in every]})
        return
    for each in every:
        print_text(f"{each.checkpoints.task}  {each.found.name}")
    number = counted(len(every), "checkpoint")
    click.echo(f"Deleted {number}." if execute else f"Would delete {number}: run it with --execute.")
