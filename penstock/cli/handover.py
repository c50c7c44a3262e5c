"""``penstock handover``: from the local engine to Spark, and back."""

from __future__ import annotations

from typing import Unpack

import click

from penstock.cli.options import Settings, SparkOptions, as_json, configuration, examples, print_json, spark_options
from penstock.cli.progress import progress_bar
from penstock.cli.status_view import counted, show, table
from penstock.pipeline.handover.handover import HandedOver, Handover


@click.command(
    epilog=examples(
        "penstock handover my_app:topology --config penstock.toml --to spark --checkpoint /data/checkpoints/my-app",
        "penstock handover my_app:topology --config penstock.toml --to local --checkpoint /data/checkpoints/my-app",
    )
)
@click.argument("topology", metavar="MODULE:TOPOLOGY")
@configuration
@as_json
@click.option("--to", "engine", type=click.Choice(["spark", "local"]), required=True, help="The engine to move to.")
@spark_options
@click.option(
    "--keep-checkpoint",
    is_flag=True,
    help="With --to spark: return to the state of the checkpoint, and drop the state of a local run by mistake.",
)
@click.option("--wait", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Wait for members to leave.")
def handover(
    topology: str,
    settings: Settings,
    json_output: bool,
    engine: str,
    keep_checkpoint: bool,
    wait: float,
    **spark: Unpack[SparkOptions],
) -> None:
    """Move an application's state and offsets from the local engine to Spark, or back.

    The application must not run. Afterwards `penstock run` continues on the other engine. If the command is
    interrupted, the application stays on the old engine; run the command again.
    """
    if keep_checkpoint and engine != "spark":
        raise click.UsageError("--keep-checkpoint requires --to spark.")
    config = settings.load_located()
    with (
        progress_bar(not json_output, "Starting Spark") as progress,
        Handover(topology, config, wait_seconds=wait, progress=progress, **spark) as handing,
    ):
        if keep_checkpoint:
            done = handing.keep_checkpoint()
        else:
            done = handing.to_spark() if engine == "spark" else handing.to_local()
    if json_output:
        print_json(as_plain(done))
    else:
        show_result(done)


def as_plain(done: HandedOver) -> dict[str, object]:
    """Return a result as plain values."""
    return {
        "engine": done.engine,
        "stores": {name: {"keys": moved.rows, "deleted": moved.deleted} for name, moved in done.stores.items()},
        "offsets": done.offsets,
        "deleted_tasks": list(done.deleted_tasks),
        "seconds": round(done.seconds, 1),
        "note": done.note,
    }


def show_result(done: HandedOver) -> None:
    """Print the moved parts."""
    if done.stores:
        view = table("store", "keys", "deleted", left=("store",))
        for name, moved in sorted(done.stores.items()):
            view.add_row(name, f"{moved.rows:,}", f"{moved.deleted:,}")
        show(view)
    partitions = sum(map(len, done.offsets.values()))
    keys = sum(moved.rows for moved in done.stores.values())
    parts = [counted(len(done.stores), "store"), f"{keys:,} keys", f"offsets of {counted(partitions, 'partition')}"]
    if done.note:
        click.echo(done.note)
    else:
        click.echo(f"Moved {', '.join(parts)} in {done.seconds:.1f} s.")
    if done.deleted_tasks:
        click.echo(f"Deleted stale state of {counted(len(done.deleted_tasks), 'task')} on this host.")
    run = "`penstock run --engine spark`" if done.engine == "spark" else "`penstock run`"
    click.echo(f"The application is now on the {done.engine} engine: {run} continues.")
