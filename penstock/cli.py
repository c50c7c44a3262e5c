"""The ``penstock`` command. What users do wrong ends in one message and an exit code of supervisor/exit_codes.py."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from penstock.supervisor.config_loader import load_config
from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.kafka_streams import KafkaStreams
from penstock.supervisor.topology_source import TopologySource
from penstock.topology.config_def import is_secret
from penstock.topology.errors import ConfigError, LockError, PenstockError, TopologyError
from penstock.topology.streams_config import KEYS, StreamsConfig

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s (%(name)s)"
#: The first class that fits says how the command ends.
EXIT_CODES: tuple[tuple[type[PenstockError], ExitCode], ...] = (
    (ConfigError, ExitCode.USAGE),
    (TopologyError, ExitCode.TOPOLOGY),
    (LockError, ExitCode.LOCKED),
    (PenstockError, ExitCode.FAILED),
)


class PenstockGroup(click.Group):
    """Turns what Penstock raises on purpose into a message; loads ``broker`` only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all commands."""
        return sorted([*super().list_commands(ctx), "broker"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; the broker's brings a Kafka client, which the supervisor must not hold."""
        if cmd_name == "broker":
            from penstock.broker_command import broker

            return broker
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            click.echo(f"Error: {error}", err=True)
            return ctx.exit(next(code for kind, code in EXIT_CODES if isinstance(error, kind)))


def examples(*lines: str) -> str:
    """Return the end of a help text: one example a line, not re-wrapped."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def configuration(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what the configuration is; they become config_file and assignments."""
    file = click.Path(dir_okay=False, path_type=Path)
    command = click.option(
        "-c",
        "assignments",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set one key; may be repeated, wins over the file.",
    )(command)
    return click.option(
        "--config",
        "config_file",
        type=file,
        envvar="PENSTOCK_CONFIG",
        show_envvar=True,
        help="Configuration file (TOML).",
    )(command)


@click.group(
    cls=PenstockGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=examples(
        "penstock broker start                          a real Kafka for development",
        "penstock describe my_app:topology              what a topology consists of",
        "penstock run my_app:topology --config penstock.toml --threads 4",
        "penstock config --config penstock.toml         what is configured, and where it comes from",
    ),
)
@click.version_option(version("penstock"), message="%(prog)s %(version)s")
def cli() -> None:
    """Run Kafka Streams topologies in Python, on as many processes as you like."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # topologies and handlers are named as seen from here


@cli.command(
    epilog=examples(
        "penstock run my_app:topology --config penstock.toml",
        "penstock run my_app:topology --threads 4 -c application.id=delays -c bootstrap.servers=localhost:9092",
        "PENSTOCK_COMMIT_INTERVAL_MS=1000 penstock run my_app:topology --config penstock.toml",
    )
)
@click.argument("topology", metavar="MODULE:TOPOLOGY")
@configuration
@click.option("--threads", type=click.IntRange(min=1), help="Stream threads, each a process (num.stream.threads).")
@click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="What runs the topology.",
)
def run(
    topology: str, config_file: Path | None, assignments: tuple[str, ...], threads: int | None, engine: str
) -> None:
    """Run a topology until a signal ends it.

    MODULE:TOPOLOGY names a Topology, a StreamsBuilder, or a function that returns one; modules are found in the working
    directory too.

    \b
    Signals:
      SIGTERM, SIGINT    stop in good order: commit and close; a second one kills
      SIGTTIN, SIGTTOU   add, remove a stream thread
      SIGUSR1            write a description of what runs to the log
    """
    if engine == "spark":
        raise ConfigError("--engine spark is not part of this version: run the topology with --engine local.")
    options = {} if threads is None else {"num.stream.threads": ("--threads", threads)}
    config = load_config(config_file, os.environ, assignments, options)
    logging.basicConfig(level=config["penstock.log.level"], format=LOG_FORMAT)
    logging.captureWarnings(True)
    streams = KafkaStreams(topology, config)
    code = streams.run()
    if streams.failure_reason:  # the log may be long, and its last lines are of the shutdown
        click.echo(f"Error: {streams.failure_reason}", err=True)
    raise SystemExit(code)


@cli.command(epilog=examples("penstock describe my_app:topology"))
@click.argument("topology", metavar="MODULE:TOPOLOGY")
@configuration
def describe(topology: str, config_file: Path | None, assignments: tuple[str, ...]) -> None:
    """Print a topology's sub-topologies, processors, stores and topics, as Kafka Streams does."""
    config = load_config(config_file, os.environ, assignments)
    click.echo(str(TopologySource.of(topology).load(config).describe()).rstrip("\n"))


@cli.command(
    "config",
    epilog=examples(
        "penstock config --config penstock.toml",
        "penstock config --all > penstock.toml          a file to start from",
    ),
)
@configuration
@click.option("--all", "show_all", is_flag=True, help="Every key with what it means, defaults too.")
def show_config(config_file: Path | None, assignments: tuple[str, ...], show_all: bool) -> None:
    """Print the effective configuration and where each value comes from, in TOML. Secrets are masked.

    The command line (-c) wins over the environment (PENSTOCK_COMMIT_INTERVAL_MS sets commit.interval.ms), that over the
    file, that over the defaults.
    """
    config = load_config(config_file, os.environ, assignments)
    text = "\n".join(_all_lines(config) if show_all else _lines(config))
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.syntax import Syntax

        Console().print(Syntax(text, "toml", background_color="default"))
    else:
        click.echo(text)


def _lines(config: StreamsConfig) -> list[str]:
    """Return what was given, and the defaults that depend on it."""
    given = {key for key in config if not config.origin(key).startswith("default")}
    wanted = given | {key for key in config if config.origin(key).removeprefix("default by ") in given}
    nothing = ["# Nothing is configured: every key has its default, which --all shows."]
    return [_line(config, key) for key in config if key in wanted] or nothing


def _all_lines(config: StreamsConfig) -> list[str]:
    lines = []
    for key in config:
        if key in KEYS:
            lines.append(f"# {KEYS[key].documentation}")
        lines.append(_line(config, key))
    return lines


def _line(config: StreamsConfig, key: str) -> str:
    value = config.shown(key)
    text = f'"{key}" = {_toml("***" if is_secret(key) else value)}  # {config.origin(key)}'
    return text if value is not None else f"# {text}"


def _toml(value: Any) -> str:
    if value is None:
        return '""'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    escapes: Mapping[str, str] = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}
    return '"' + "".join(escapes.get(character, character) for character in str(value)) + '"'


def main() -> None:
    """Run the command; never returns."""
    # Processes of stream threads import the main module, as multiprocessing has it: this one holds nothing for them.
    this = sys.modules["__main__"]
    this.__file__ = this.__spec__ = None
    try:
        cli(prog_name="penstock")
    except Exception:  # noqa: BLE001  everything that is meant for a user is a message by now
        traceback.print_exc()
        click.echo("This is a bug in Penstock, or in a function of yours that the traceback names.", err=True)
        sys.exit(ExitCode.INTERNAL)


if __name__ == "__main__":
    main()
