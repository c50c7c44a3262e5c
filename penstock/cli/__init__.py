"""The ``penstock`` command, with one file for each subcommand.

A user error ends in one message and an exit code of supervisor/exit_codes.py.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from io import TextIOWrapper
from typing import Unpack

import click

from penstock.cli.options import (
    Settings,
    SparkOptions,
    as_json,
    configuration,
    examples,
    is_stdout_read,
    leave_stdout,
    print_json,
    spark_options,
)
from penstock.cli.running_application import EXIT_NOT_RUNNING, NotRunningError
from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.kafka_streams import KafkaStreams
from penstock.supervisor.logs.formats import (
    flush_log,
    is_the_journal,
    leave_client_logs_out,
    say_at_the_end,
    set_up_logging,
    write_error,
)
from penstock.supervisor.logs.output_stream import open_standard_streams
from penstock.supervisor.service.signals import ignore_stops, let_in
from penstock.supervisor.source.topology_source import TopologySource
from penstock.topology.config.config_def import is_secret
from penstock.topology.config.config_keys import KEYS
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError, LockError, PenstockError, TopologyError
from penstock.topology.graph.topology import Topology
from penstock.topology.graph.topology_graph import html, mermaid
from penstock.topology.shadowing import NamingShadows, ShadowedModuleError
from penstock_distribution import version

#: The first matching class decides how the command ends.
EXIT_CODES: tuple[tuple[type[PenstockError], int], ...] = (
    (NotRunningError, EXIT_NOT_RUNNING),
    (ConfigError, ExitCode.USAGE),
    (TopologyError, ExitCode.TOPOLOGY),
    (LockError, ExitCode.LOCKED),
    (PenstockError, ExitCode.FAILED),
)

#: What an error without the name of a file is about.
_OF_THE_SYSTEM: Mapping[int | None, str] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO), "The standard output"),
    errno.ENOENT: "The current directory",
}
#: Commands in separate modules, with their summaries for `penstock --help`. They are imported on use: some need a Kafka
#: client or RocksDB, which a supervisor must not load.
LAZY_COMMANDS: Mapping[str, tuple[str, str]] = {
    "backfill": ("backfill", "Build an application's state from the history in its topics, on Spark."),
    "bench": ("bench", "Measure Penstock against Kafka Streams; only from the source tree."),
    "branch": ("branch", "Copy a running application, with its state and its positions, under another application.id."),
    "broker": ("broker", "Run a real Kafka broker for development, in the background."),
    "checkpoint": ("checkpoint", "List, verify and delete the checkpoints of state stores in object storage."),
    "completion": ("completion", "Print the shell script that completes commands and options of penstock."),
    "debug": ("debug", "Stop in your function at one record of a task, with the state that the task had before it."),
    "dlq": ("dlq", "List, show and replay dead letters."),
    "handover": ("handover", "Move an application's state and offsets from the local engine to Spark, or back."),
    "lag": ("status", "Show the lag of input partitions, the largest first."),
    "pause": (
        "threads",
        "Stop processing until resume or the next start; the application stays in its group (KIP-834).",
    ),
    "plan": ("plan", "Compare a topology with the running one and the one that created the state; changes nothing."),
    "rehearse": (
        "rehearse",
        "Run two versions of a topology on the same state and input, and compare what they send and store.",
    ),
    "reset": ("reset", "Reset an application: input offsets, internal topics, the state on this host."),
    "resume": ("threads", "Continue after a pause."),
    "service": ("service", "Run an application as a systemd service."),
    "snapshot": ("snapshot", "Copy the state stores, and start another machine from them."),
    "sql": ("sql", "Run a SELECT over the state stores of a running application."),
    "state": ("state", "Read the state stores of a running or a stopped application."),
    "status": ("status", "Show the state of a running application, its progress and its last errors."),
    "threads": ("threads", "Add, remove and restart stream threads."),
    "topic": ("topic", "Create topics, list them, write and read their records."),
    "top": ("status", "Show the status every second, until Ctrl-C."),
}


class PenstockGroup(click.Group):
    """Prints expected errors as one message; imports LAZY_COMMANDS on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all commands."""
        return sorted([*super().list_commands(ctx), *LAZY_COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; imports it if it is one of LAZY_COMMANDS."""
        if cmd_name in LAZY_COMMANDS:
            module = importlib.import_module(f".{LAZY_COMMANDS[cmd_name][0]}", __name__)
            command: click.Command = getattr(module, cmd_name)
            return command
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands into the help text."""
        names = self.list_commands(ctx)
        help_texts = {name: text for name, (_, text) in LAZY_COMMANDS.items()}
        help_texts |= {name: command.get_short_help_str(100) for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_texts[name]) for name in names])

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            say_at_the_end(str(error))
            flush_log()
            return ctx.exit(next(code for kind, code in EXIT_CODES if isinstance(error, kind)))
        except OSError as error:
            if isinstance(error, BrokenPipeError) and not is_stdout_read():
                leave_stdout()  # e.g. head has read enough
                return ctx.exit(ExitCode.OK)
            if error.filename is None and error.errno not in _OF_THE_SYSTEM:
                raise
            say_at_the_end(f"{error.filename or _OF_THE_SYSTEM[error.errno]} cannot be used: {error.strerror}.")
            if error.filename is None:
                leave_stdout()
            return ctx.exit(ExitCode.FAILED)


def _show_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"{ctx.info_name} {version()}")
        ctx.exit()


@click.group(
    cls=PenstockGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=examples(
        "penstock broker start                          a real Kafka for development",
        "penstock topic create flights                  a topic; produce and consume write and read records",
        "penstock describe my_app:topology              sub-topologies, processors, stores, topics",
        "penstock run my_app:topology --config penstock.toml --threads 4",
        "penstock config --config penstock.toml         the effective configuration and its origins",
        "penstock status                                state and progress of the application on this host",
    ),
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Run Kafka Streams topologies in Python, on any number of processes."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # penstock_command.py; from here on click prints Aborted!
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # topologies and handlers are named as seen from here
    leave_client_logs_out()


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
    help="The engine that runs the topology; --master, --checkpoint and --packages are for spark.",
)
@spark_options
@click.option(
    "--json",
    "json_output",
    is_flag=True,
    help="Log in JSON (penstock.log.format=json); with --engine spark one line per micro-batch.",
)
@click.option(
    "--accept-changes", is_flag=True, help="Run even if `penstock plan` refuses (penstock.topology.changes=accept)."
)
def run(
    topology: str,
    settings: Settings,
    threads: int | None,
    engine: str,
    json_output: bool,
    accept_changes: bool,
    **spark: Unpack[SparkOptions],
) -> None:
    """Run a topology until a signal ends it.

    MODULE:TOPOLOGY names a Topology, a StreamsBuilder, or a function that returns one; modules are found in the working
    directory too.

    \b
    Signals:
      SIGTERM, SIGINT    stop cleanly: commit and close; a second one, a second later, kills
      SIGQUIT            kill at once
      SIGTTIN, SIGTTOU   add, remove a stream thread
      SIGUSR1            write a status description to the log
    """
    if engine == "local" and any(spark.values()):
        raise ConfigError("--master, --checkpoint and --packages require --engine spark.")
    if engine == "spark" and threads is not None:
        raise ConfigError("--threads requires --engine local. On Spark the master sets the parallelism, e.g. local[4].")
    options: dict[str, tuple[str, object]] = {}
    if threads is not None:
        options["num.stream.threads"] = "--threads", threads
    if accept_changes:
        options["penstock.topology.changes"] = "--accept-changes", "accept"
    if json_output and engine == "local":
        options["penstock.log.format"] = "--json", "json"
    config = settings.load(options)
    set_up_logging(config)
    if engine == "spark":
        from penstock.cli.on_spark import run_on_spark

        run_on_spark(topology, config, json_output, **spark)
        ignore_stops()
        return
    streams = KafkaStreams(topology, config)
    code = streams.run()
    ignore_stops()
    if streams.failure_reason:  # the log may be long, and ends with the shutdown
        say_at_the_end(streams.failure_reason)
    raise SystemExit(code)


@cli.command(
    epilog=examples(
        "penstock describe my_app:topology",
        "penstock describe my_app:topology --mermaid",
        "penstock describe my_app:topology --html > topology.html",
        "penstock describe my_app:topology --json | jq .stores",
    )
)
@click.argument("topology", metavar="MODULE:TOPOLOGY")
@configuration
@click.option("--mermaid", "form", flag_value="mermaid", help="Print a Mermaid flowchart.")
@click.option("--html", "form", flag_value="html", help="Print a self-contained HTML page with drawings.")
@as_json
def describe(topology: str, settings: Settings, form: str | None, json_output: bool) -> None:
    """Print a topology, as text in Kafka Streams' format or as a picture."""
    config = settings.load()
    if form is not None and json_output:
        raise click.UsageError(f"--{form} and --json exclude each other.")
    built = TopologySource.of(topology).load_for_command(config)
    if json_output:
        print_json(_as_json(built, config))
    elif form is not None:
        click.echo(mermaid(built.describe()) if form == "mermaid" else html(built.describe(), topology))
    else:
        click.echo(str(built.describe()).rstrip("\n"))


def _as_json(topology: Topology, config: StreamsConfig) -> dict[str, object]:
    """Return the JSON that ``/topology`` serves for a running application. Without an application.id, names show a
    placeholder.
    """
    import orjson

    from penstock.workers.group.topic_names import TopicNames
    from penstock.workers.queries.topology_json import topology_json

    built = topology.internal_builder.build_subtopologies(config)
    names = TopicNames(config["application.id"] or "<application.id>", built)
    found: dict[str, object] = orjson.loads(topology_json(topology, built, names))
    return found


@cli.command(
    "config",
    epilog=examples(
        "penstock config --config penstock.toml",
        "penstock config --all > penstock.toml          a file to start from",
    ),
)
@configuration
@as_json
@click.option("--all", "show_all", is_flag=True, help="Print every key with its description, including defaults.")
def show_config(settings: Settings, json_output: bool, show_all: bool) -> None:
    """Print the effective configuration and the origin of each value, in TOML. Secrets are masked.

    The command line (-c) overrides the environment (PENSTOCK_COMMIT_INTERVAL_MS sets commit.interval.ms), which
    overrides the file, which overrides the defaults.
    """
    config = settings.load()
    if json_output:
        keys = config if show_all else _told(config)
        print_json({key: {"value": _value(config, key), "origin": config.origin(key)} for key in keys})
        return
    text = "\n".join(_all_lines(config) if show_all else _lines(config))
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.syntax import Syntax

        Console().print(Syntax(text, "toml", background_color="default"))
    else:
        click.echo(text)


def _told(config: StreamsConfig) -> list[str]:
    """Return the given keys, and those whose defaults depend on them."""
    given = {key for key in config if not config.origin(key).startswith("default")}
    return [key for key in config if key in given or config.origin(key).removeprefix("default by ") in given]


def _lines(config: StreamsConfig) -> list[str]:
    nothing = ["# Nothing is configured: every key has its default, which --all shows."]
    return [_line(config, key) for key in _told(config)] or nothing


def _all_lines(config: StreamsConfig) -> list[str]:
    lines = []
    for key in config:
        if key in KEYS:
            lines.append(f"# {KEYS[key].documentation}")
        lines.append(_line(config, key))
    return lines


def _value(config: StreamsConfig, key: str) -> object:
    return "***" if is_secret(key) and config.shown(key) is not None else config.shown(key)


def _line(config: StreamsConfig, key: str) -> str:
    value = config.shown(key)
    text = f'"{key}" = {_toml("***" if is_secret(key) else value)}  # {config.origin(key)}'
    return text if value is not None else f"# {text}"


def _toml(value: object) -> str:
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
    # multiprocessing imports the main module in stream threads, too; this one has nothing that they need.
    this = sys.modules["__main__"]
    this.__file__ = this.__spec__ = None
    let_in()
    open_standard_streams()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does by itself
    try:
        with NamingShadows():
            # For people click itself prints errors of the command line, with the usage.
            sys.exit(cli(prog_name="penstock", standalone_mode=not is_the_journal(sys.stderr, os.environ)))
    except click.ClickException as error:
        say_at_the_end(error.format_message())
        sys.exit(error.exit_code)
    except ShadowedModuleError as error:
        say_at_the_end(str(error))
        sys.exit(ExitCode.USAGE)
    except Exception:  # noqa: BLE001  everything that is meant for a user is a message by now
        flush_log()
        bug = "This is a bug in Penstock, or in one of your functions that the traceback names."
        write_error(f"{traceback.format_exc()}{bug}")
        sys.exit(ExitCode.INTERNAL)
