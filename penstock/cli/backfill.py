"""``penstock backfill``: process history on Spark, then continue on the local engine."""

from __future__ import annotations

from typing import Unpack

import click
from typing_extensions import override

from penstock.cli.handover import as_plain, show_result
from penstock.cli.options import Settings, SparkOptions, as_json, configuration, examples, print_json, spark_options
from penstock.cli.progress import progress_bar
from penstock.cli.reset import Moment
from penstock.pipeline.checkpoint.ownership import JSON_FILES, PARQUET_FILES
from penstock.pipeline.handover.backfill import Backfill

FILES = (PARQUET_FILES, JSON_FILES)


class Start(click.ParamType["int | str"]):
    """A Moment (converted to ms since 1970), ``earliest`` (converted to -1), ``parquet:PATH`` or ``json:PATH``."""

    name = "earliest|datetime|parquet:path|json:path"

    @override
    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if isinstance(value, str) and value.startswith(FILES):
            if value in FILES:
                self.fail(f"{value} needs a path after it", param, ctx)
            return value
        return -1 if value == "earliest" else Moment().convert(value, param, ctx)


@click.command(
    epilog=examples(
        "penstock backfill my_app:topology --config penstock.toml --checkpoint /data/checkpoints/my-app",
        "penstock backfill my_app:topology --config penstock.toml --from 2026-01-01T00:00:00+00:00",
        "penstock backfill my_app:topology --config penstock.toml --from parquet:/data/history/2025",
        "penstock backfill my_app:topology --config penstock.toml --from 'json:/data/history/*.jsonl.gz'",
    )
)
@click.argument("topology", metavar="MODULE:TOPOLOGY")
@configuration
@as_json
@click.option(
    "--from",
    "since",
    type=Start(),
    default="earliest",
    show_default=True,
    help="Where to start: earliest, a time, or files with the history: parquet:PATH, or lines of JSON, json:PATH.",
)
@click.option("--until", type=Moment(), metavar="TIME", help="Stop before this time; default: the current end.")
@spark_options
def backfill(
    topology: str,
    settings: Settings,
    json_output: bool,
    since: int | str,
    until: int | None,
    **spark: Unpack[SparkOptions],
) -> None:
    """Build an application's state from the history in its topics, on Spark.

    The application must not have state yet, and Spark's checkpoint directory must be empty. Afterwards `penstock run`
    continues where Spark stopped. If the command is interrupted, run it again: it resumes.
    """
    config = settings.load()
    with (
        progress_bar(not json_output, "Starting Spark") as progress,
        Backfill(topology, config, progress=progress, **spark) as filling,
    ):
        if isinstance(since, str):
            done = filling.run(None, until, since)
        else:
            done = filling.run(None if since < 0 else since, until)
    if json_output:
        print_json({"records": done.records, **as_plain(done.handed_over)})
        return
    click.echo(f"Spark has read {done.records:,} records, internal topics included.")
    show_result(done.handed_over)
