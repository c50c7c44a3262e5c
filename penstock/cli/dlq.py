"""``penstock dlq list|show|replay``: dead letters."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from penstock.cli.dead_letters import Choice, DeadLetters, Letter, Replayed, check_names, shown, text
from penstock.cli.options import LIMIT, Duration, Settings, as_json, configuration, examples, print_json, print_text
from penstock.cli.status_view import counted, show, table
from penstock.topology.errors import StreamsError


def _chooses(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select dead letters."""

    @functools.wraps(command)
    def chosen(*args: object, exception: str, message: str, source: str, since: int | None, **kwargs: object) -> None:
        since_ms = None if since is None else time.time_ns() // 1_000_000 - since
        command(*args, choice=Choice(frozenset(), exception, message, source, since_ms), **kwargs)

    decorated: Callable[..., None] = chosen
    for option in (
        as_json,
        configuration,
        click.option("--topic", help="The dead-letter topic, if not the configured one."),
        click.option("--since", type=Duration(), metavar="TIME", help="Only records of at most this age, e.g. 2h."),
        click.option("--source", default="", metavar="TOPIC", help="Only records of this topic."),
        click.option("--message", default="", metavar="TEXT", help="Only errors whose message contains this."),
        click.option("--exception", default="", metavar="TEXT", help="Only exceptions whose class name contains this."),
    ):
        decorated = option(decorated)
    return decorated


def _letters(settings: Settings, topic: str | None) -> DeadLetters:
    return DeadLetters(settings.load(), topic)


@click.group(
    epilog=examples(
        "penstock dlq list --exception ZeroDivisionError",
        "penstock dlq show 0:17",
        "penstock dlq replay --exception ZeroDivisionError --execute",
    )
)
def dlq() -> None:
    """List, show and replay dead letters."""


@dlq.command("list", epilog=examples("penstock dlq list", "penstock dlq list --source flights --since 2h --json"))
@_chooses
@click.option("--limit", type=LIMIT, default=100, show_default=True, help="Maximum number of dead letters, the newest.")
def list_letters(
    settings: Settings,
    topic: str | None,
    choice: Choice,
    json_output: bool,
    limit: int,
) -> None:
    """List dead letters, the newest last."""
    letters = _letters(settings, topic)
    found = sorted(filter(choice.fits, letters.letters()), key=lambda letter: letter.timestamp)
    rows = shown(found[-limit:], letters.replayed())
    if json_output:
        print_json(rows)
    elif rows:
        _show(rows)
    else:
        click.echo(f"No dead letter in {letters.topic} matches.")
    if len(found) > limit:
        click.echo(f"The last {limit} of {len(found):,}: --limit shows more.", err=True)


@dlq.command("show", epilog=examples("penstock dlq show 0:17"))
@click.argument("letter")
@click.option("--topic", help="The dead-letter topic, if not the configured one.")
@configuration
@as_json
def show_letter(letter: str, topic: str | None, settings: Settings, json_output: bool) -> None:
    """Show a dead letter: the reason, the source, the record, the traceback."""
    letters = _letters(settings, topic)
    found = next(filter(Choice(check_names((letter,))).fits, letters.letters()), None)
    if found is None:
        raise StreamsError(f"There is no letter {letter} in {letters.topic}; its retention time may have passed.")
    (row,) = shown([found], letters.replayed())
    headers = {key: text(data) for key, data in found.own_headers}
    full = {**row, "headers": headers, "stacktrace": found.error("stacktrace")}
    if json_output:
        print_json(full)
        return
    for name, value in full.items():
        if name == "timestamp":
            value = _time(value)
        if name == "stacktrace":
            print_text(f"\n{value}")
        elif value not in ({}, None):
            print_text(f"{name + ':':11}{_yes(value)}")


@dlq.command(
    epilog=examples(
        "penstock dlq replay --exception ZeroDivisionError",
        "penstock dlq replay --exception ZeroDivisionError --execute",
        "penstock dlq replay 0:17 0:18 --execute",
        "penstock dlq replay --all --execute",
    )
)
@click.argument("names", nargs=-1, metavar="[LETTER]...")
@_chooses
@click.option("--all", "every", is_flag=True, help="All letters.")
@click.option("--execute", is_flag=True, help="Do it; without this, only print what would be done.")
def replay(
    names: tuple[str, ...],
    settings: Settings,
    topic: str | None,
    choice: Choice,
    json_output: bool,
    every: bool,
    execute: bool,
) -> None:
    """Write the records of dead letters back to their source topics, each once. Dry run by default."""
    choice = replace(choice, names=check_names(names))
    if (choice == Choice()) is not every:
        raise click.UsageError(
            "Select dead letters by name, or by --exception, --message, --source, --since, or --all."
        )
    letters = _letters(settings, topic)
    done, stuck = letters.replay(choice) if execute else letters.waiting(choice)
    if json_output:
        rows = {"executed": execute, "letters": shown(done, Replayed()), "without_source": shown(stuck, Replayed())}
        print_json(rows)
        return
    _say(done, stuck, execute)


def _say(done: list[Letter], stuck: list[Letter], executed: bool) -> None:
    if not executed and done:
        click.echo("Dry run: nothing is written. Add --execute to replay these.\n")
    if done:
        _show(shown(done, Replayed()))
        click.echo()
    click.echo(f"{counted(len(done), 'letter')} {'replayed' if executed else 'to replay'}.")
    if stuck:
        names = ", ".join(letter.name for letter in stuck)
        click.echo(f"Cannot be replayed, because they have no source, or no key and value: {names}.")


def _show(rows: list[dict[str, Any]]) -> None:
    columns = ("letter", "failed", "exception", "source", "replayed", "key")
    view = table(*columns, left=columns)
    for row in rows:
        view.add_row(
            row["letter"],
            _time(row["timestamp"]),
            row["exception"].rpartition(".")[2],
            row["source"] or "-",
            _yes(row["replayed"]),
            row["key"] or "-",
        )
    show(view)


def _time(timestamp: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp / 1000))


def _yes(value: object) -> str:
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
