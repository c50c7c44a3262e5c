"""Shared by several commands: options, examples at the end of a help text, JSON."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import click
from typing_extensions import override

from penstock.cli.terminal import print_text
from penstock.supervisor.source.config_loader import load_config
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

    def load(self, options: Mapping[str, tuple[str, Any]] | None = None) -> StreamsConfig:
        """Return the configuration; options: the command's own, see load_config."""
        return load_config(self.file, os.environ, self.assignments, options)


def configuration(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for the configuration; they become settings."""
    file = click.Path(dir_okay=False, path_type=Path)

    @functools.wraps(command)
    def configured(*args: Any, config_file: Path | None, assignments: tuple[str, ...], **kwargs: Any) -> None:
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


def print_json(value: Any) -> None:
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
