"""``penstock branch``: live copies of a running application, and which of them writes the real outputs."""

from __future__ import annotations

import time

import click

from penstock.cli.branches.branch_record import BranchRecord, BranchRecords
from penstock.cli.branches.branching import Branched, Branching, branch_config, delete_branch
from penstock.cli.branches.exchange import Exchange, start_line
from penstock.cli.options import Settings, as_json, configuration, examples, print_json
from penstock.cli.progress import progress_bar
from penstock.cli.status_view import counted, duration
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError

#: The defaults of --stop-at-most, in seconds.
STOP_SECONDS = 2.0
EXCHANGE_SECONDS = 10.0


_wait = click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Wait for members of the branch to leave.",
)


@click.group(
    epilog=examples(
        "penstock branch create delays-next --config penstock.toml",
        "penstock branch cutover delays-next --config penstock.toml",
        "penstock branch rollback delays-next --config penstock.toml",
        "penstock branch list --config penstock.toml",
        "penstock branch delete delays-next --config penstock.toml --execute",
    )
)
def branch() -> None:
    """Copy a running application, with its state and its positions, under another application.id."""


@branch.command(epilog=examples("penstock branch create delays-next --config penstock.toml"))
@click.argument("name")
@configuration
@click.option("--sink-prefix", metavar="PREFIX", help="Put before the names of output topics; default: NAME and a dot.")
@click.option(
    "--stop-at-most",
    "limit",
    type=click.FloatRange(min=0.1, max=60),
    default=STOP_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="The longest time for which the application may stop.",
)
@_wait
@as_json
def create(
    name: str, settings: Settings, sink_prefix: str | None, limit: float, wait: float, json_output: bool
) -> None:
    """Make the branch NAME of the application that runs on this host, and perhaps on others.

    All tasks are copied as of one commit. The application stops for that commit, usually for less than 100 ms. If the
    command is interrupted, run it again.
    """
    config = settings.load_located()
    prefix = f"{name}." if sink_prefix is None else sink_prefix
    if not prefix:
        raise ConfigError(
            "--sink-prefix must not be empty: the branch would write to the output topics of its original."
        )
    branch_config(config, name).with_overrides({"penstock.sink.prefix": prefix}, "--sink-prefix")  # checks both

    with (
        progress_bar(not json_output, "Looking at the application") as progress,
        Branching(config, name, prefix, limit, wait, _report, progress) as branching,
    ):
        made = branching.make()
    if json_output:
        print_json({**_described(made.record), "held_ms": round(made.cut.held_ms), "records": made.records})
    else:
        _show(made, config["application.id"])


def _report(line: str) -> None:
    click.echo(line, err=True)


def _show(made: Branched, application_id: str) -> None:
    record = made.record
    if record.outputs:
        click.echo(f"{record.name} is ready. It begins after these records of the outputs of {application_id}:")
    else:
        click.echo(f"{record.name} is ready.")
    for topic, ends in record.outputs.items():
        for partition, end in enumerate(ends):
            click.echo(f"  {topic}-{partition} at offset {end}")
    click.echo("Start it:")
    click.echo(start_line(record.name, application_id, record.sink_prefix))


def _described(record: BranchRecord) -> dict[str, object]:
    return {
        "name": record.name,
        "ready": record.is_ready,
        "sink_prefix": record.sink_prefix,
        "cut_ms": record.cut_ms,
        "writer_since_ms": record.writer_since_ms,
        "topics": list(record.topics),
        "outputs": record.outputs,
    }


def _record(config: StreamsConfig, name: str) -> BranchRecord:
    record = BranchRecords(config).get(name)
    if record is None:
        raise ConfigError(
            f"{config['application.id']} has no branch {name} on this host. `penstock branch list` shows the existing "
            "ones. If their files were deleted with state.dir: "
            f"`penstock reset MODULE:TOPOLOGY -c application.id={name} --execute` deletes a branch except for its "
            "output topics."
        )
    return record


_stop_at_most = click.option(
    "--stop-at-most",
    "limit",
    type=click.FloatRange(min=1, max=600),
    default=EXCHANGE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="The longest time for which the outputs may wait before both applications stop.",
)
_catch_up_within = click.option(
    "--catch-up-within",
    "catch_up",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long the next writer may take to process its lag; default: no limit.",
)


@branch.command(epilog=examples("penstock branch cutover delays-next --config penstock.toml"))
@click.argument("name")
@configuration
@click.option(
    "--sink-prefix",
    metavar="PREFIX",
    help="Put before the names of the original's output topics when it runs as a shadow; default: its application.id "
    "and a dot.",
)
@_stop_at_most
@_catch_up_within
@as_json
def cutover(
    name: str, settings: Settings, sink_prefix: str | None, limit: float, catch_up: float | None, json_output: bool
) -> None:
    """Let the branch NAME write the real outputs, from exactly where its original stops.

    Both must run on this host, and perhaps on others. Both stop at the same point of their input, and the command
    prints how to start them. If it is interrupted, run it again.
    """
    config = settings.load_located()
    record = _record(config, name)
    prefix = sink_prefix or record.original_prefix or f"{config['application.id']}."
    if record.original_prefix not in ("", prefix):
        raise ConfigError(f"--sink-prefix is {record.original_prefix} since an earlier cutover of {name}.")
    config.with_overrides({"penstock.sink.prefix": prefix}, "--sink-prefix")  # checks it
    _exchange(config, record, True, prefix, limit, catch_up, json_output)


@branch.command(epilog=examples("penstock branch rollback delays-next --config penstock.toml"))
@click.argument("name")
@configuration
@_stop_at_most
@_catch_up_within
@as_json
def rollback(name: str, settings: Settings, limit: float, catch_up: float | None, json_output: bool) -> None:
    """Let the original write the real outputs again, from exactly where its branch NAME stops.

    The original must run as a shadow, with a prefix. Otherwise as `cutover`.
    """
    config = settings.load_located()
    record = _record(config, name)
    _exchange(config, record, False, record.original_prefix, limit, catch_up, json_output)


def _exchange(
    config: StreamsConfig,
    record: BranchRecord,
    to_branch: bool,
    prefix: str,
    limit: float,
    catch_up: float | None,
    json_output: bool,
) -> None:
    if not record.is_ready:
        raise ConfigError(
            f"The branch {record.name} is not complete: run `penstock branch create {record.name}` again."
        )
    with (
        progress_bar(not json_output, "Looking at both applications") as progress,
        Exchange(config, record, to_branch, prefix, limit, catch_up, _report, progress) as exchange,
    ):
        record, (writer_line, shadow_line) = exchange.run(), exchange.start_lines()
    writer = record.name if to_branch else config["application.id"]
    if json_output:
        print_json({**_described(record), "writer": writer, "points": record.points})
        return
    click.echo(f"{writer} writes the real outputs" + (", after this point of the input:" if record.points else "."))
    for topic, offsets in record.points.items():
        for partition, offset in enumerate(offsets):
            click.echo(f"  {topic}-{partition} at offset {offset}")
    click.echo(f"Start it:\n{writer_line}")
    click.echo(f"The other one can run as its shadow, so that it can write the real outputs again:\n{shadow_line}")


@branch.command("list", epilog=examples("penstock branch list --config penstock.toml"))
@configuration
@as_json
def list_branches(settings: Settings, json_output: bool) -> None:
    """List the branches that were made on this host."""
    config = settings.load_located()
    found = BranchRecords(config).all()
    if json_output:
        print_json([_described(record) for record in found])
        return
    if not found:
        click.echo(f"{config['application.id']} has no branches on this host.")
        return
    for record in found:
        state = _state(record)
        topics = counted(len(record.topics), "topic")
        click.echo(f"{record.name}  {state}, {topics}, prefix {record.sink_prefix}")


def _state(record: BranchRecord) -> str:
    if record.cut_ms is None:
        return "unfinished: create it again, or delete it"
    state = f"cut {_age(record.cut_ms)} ago"
    if record.writer_since_ms is not None:
        state += f", writes the real outputs for {_age(record.writer_since_ms)}"
    return state


def _age(since_ms: int) -> str:
    return duration(time.time() - since_ms / 1000)


@branch.command(
    epilog=examples(
        "penstock branch delete delays-next --config penstock.toml              what it would delete",
        "penstock branch delete delays-next --config penstock.toml --execute",
    )
)
@click.argument("name")
@configuration
@click.option("--execute", is_flag=True, help="Delete them; without it they are only listed.")
@_wait
@as_json
def delete(name: str, settings: Settings, execute: bool, wait: float, json_output: bool) -> None:
    """Delete a branch that does not run: its topics, its group, and its state on this host."""
    config = settings.load_located()
    record = _record(config, name)
    if execute:
        delete_branch(config, record, wait)
    if json_output:
        print_json({"deleted": execute, "branch": _described(record)})
        return
    for topic in record.topics:
        click.echo(topic)
    topics = counted(len(record.topics), "topic")
    click.echo(f"Deleted {name}: {topics}." if execute else f"Would delete {name}: {topics}. Run it with --execute.")
