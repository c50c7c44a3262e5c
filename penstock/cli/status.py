"""``penstock status|top|lag``: the state and progress of a running application."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from penstock.cli.options import Settings, as_json, configuration, examples, print_json
from penstock.cli.running_application import RunningApplication, application
from penstock.cli.status_view import PAUSED, TextConsole, lag_view, show, status_view

if TYPE_CHECKING:
    from penstock.supervisor.control.status_json import ApplicationJson


@click.command(
    epilog=examples(
        "penstock status                              the one application that runs here",
        "penstock status --config penstock.toml --tasks",
        "penstock status --json | jq .totals.lag",
    )
)
@configuration
@as_json
@click.option("--tasks", is_flag=True, help="Show every task, too.")
def status(settings: Settings, json_output: bool, tasks: bool) -> None:
    """Show the state of a running application, its progress and its last errors."""
    with application(settings) as running:
        found = running.ask("status")
    if json_output:
        print_json(found)
    else:
        show(status_view(found, tasks))


@click.command(
    epilog=examples(
        "penstock top",
        "penstock top --interval 5 --tasks",
        "penstock top --json -n 60 | jq .totals.records_per_second",
    )
)
@configuration
@as_json
@click.option("--tasks", is_flag=True, help="Show every task, too.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often.",
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after this number of updates.")
def top(settings: Settings, json_output: bool, tasks: bool, interval: float, count: int | None) -> None:
    """Show the status every second, until Ctrl-C."""
    with application(settings) as running:
        turns = _statuses(running, interval, count)
        if json_output:
            for found in turns:
                click.echo(json.dumps(found))
        elif sys.stdout.isatty():
            _live(turns, tasks)
        else:
            for found in turns:
                show(status_view(found, tasks))


def _statuses(running: RunningApplication, interval: float, count: int | None) -> Iterator[ApplicationJson]:
    """Yield the status at this interval; Ctrl-C ends it."""
    try:
        for turn in itertools.count() if count is None else range(count):
            if turn:
                time.sleep(interval)
            yield running.ask("status")
    except KeyboardInterrupt:
        return


def _live(turns: Iterator[ApplicationJson], tasks: bool) -> None:
    from rich.live import Live

    with Live(console=TextConsole(), screen=True, auto_refresh=False) as live:
        for found in turns:
            live.update(status_view(found, tasks, live=True), refresh=True)


@click.command(epilog=examples("penstock lag", "penstock lag --json"))
@configuration
@as_json
def lag(settings: Settings, json_output: bool) -> None:
    """Show the lag of input partitions, the largest first."""
    with application(settings) as running:
        rows = running.ask("lag")
        paused = running.ask("status")["paused"]
    if json_output:
        print_json(rows)
    else:
        show(lag_view(rows))
    if paused:
        click.echo(PAUSED, err=True)
