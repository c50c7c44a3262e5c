"""Shared by several commands: options, examples at the end of a help text, text that may come from records, JSON."""

from __future__ import annotations

import functools
import json
import os
import re
import select
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import click
from typing_extensions import override

from penstock.statestore.view.spelling import printable_lines
from penstock.supervisor.source.config_loader import load_config
from penstock.supervisor.source.state_places import located
from penstock.topology.common.durations import iso_8601_millis
from penstock.topology.config.streams_config import StreamsConfig

#: Number of rows or records: up to the limit of all counters.
LIMIT = click.IntRange(1, 2**31 - 1)
_SHORT = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def examples(*lines: str) -> str:
    """Return the end of a help text: one example per line, not rewrapped."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


class Settings(NamedTuple):
    """The configuration that a command's options name."""

    file: Path | None
    assignments: tuple[str, ...]

    def load(self, options: Mapping[str, tuple[str, object]] | None = None) -> StreamsConfig:
        """Return the configuration; options: the command's own, see load_config."""
        return load_config(self.file, os.environ, self.assignments, options)

    def load_located(self) -> StreamsConfig:
        """Return the configuration with the state.dir that has the application's state, perhaps a service's."""
        config = self.load()
        config.require("application.id")
        return located(config)


def configuration(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for the configuration; they become settings."""
    file = click.Path(dir_okay=False, path_type=Path)

    @functools.wraps(command)
    def configured(*args: object, config_file: Path | None, assignments: tuple[str, ...], **kwargs: object) -> None:
        command(*args, settings=Settings(config_file, assignments), **kwargs)

    add_assignments = click.option(
        "-c",
        "assignments",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set one key; may be repeated, overrides the file.",
    )
    add_file = click.option(
        "--config",
        "config_file",
        type=file,
        envvar="PENSTOCK_CONFIG",
        show_envvar=True,
        help="Configuration file (TOML).",
    )
    return add_file(add_assignments(configured))


def as_json(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option --json, which becomes json_output."""
    return click.option("--json", "json_output", is_flag=True, help="Print JSON, for programs.")(command)


class SparkOptions(TypedDict):
    """What spark_options adds: arguments of SparkStreams."""

    master: str | None
    checkpoint: str | None
    packages: str | None


def spark_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for Spark; they become SparkOptions."""
    master = click.option("--master", help="Spark's master: local[4], spark://host:7077, yarn …")
    checkpoint = click.option("--checkpoint", metavar="DIR", help="Spark's checkpoint directory.")
    help_text = "Maven coordinates of Spark's Kafka connector, fetched in place of the locked jars."
    return master(checkpoint(click.option("--packages", metavar="COORDINATES", help=help_text)(command)))


def print_json(value: object) -> None:
    """Print a value as JSON: indented for a terminal, one line for a program."""
    print_text(json.dumps(value, indent=2 if sys.stdout.isatty() else None, default=str))


class Duration(click.ParamType[int]):
    """A duration such as PT1H30M or 90m; becomes ms."""

    name = "duration"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SHORT.fullmatch(value)
        if match is not None and any(match.groups()):
            days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
            return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
        try:
            return iso_8601_millis(value)
        except ValueError:
            self.fail(f"{value!r} is not a duration such as PT1H30M, 90m or 2d", param, ctx)


def print_text(text: str, err: bool = False) -> None:
    """Print a message that may quote a record."""
    click.echo(printable_lines(text), err=err)


def print_line(text: str) -> None:
    """Print data: unchanged to a file or pipe; on a terminal as one line without control characters except tabs.

    JSON stays JSON.
    """
    if sys.stdout.isatty():
        text = printable_lines(text).replace("\n", "\\u000a")
    # As bytes, because click strips colors from text if stdout is not a terminal; a value must arrive unchanged.
    click.echo(text.encode(sys.stdout.encoding, "backslashreplace"))


def is_stdout_read() -> bool:
    """Return False once the other end of the pipe or terminal that is stdout has been closed."""
    stdout = select.poll()
    stdout.register(sys.stdout.fileno(), 0)  # errors and hang-ups are always reported
    return not stdout.poll(0)


@contextmanager
def until_stdout_closes() -> Iterator[None]:
    """End the block without an error when the reader of stdout, e.g. ``head``, closes it."""
    try:
        yield
    except BrokenPipeError:
        leave_stdout()


def leave_stdout() -> None:
    """Write nothing more to stdout: buffered data must not fail again when Python exits."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
