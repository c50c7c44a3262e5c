"""``penstock broker start|stop|status|logs``: the broker for development. penstock.cli prints its errors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click

from penstock.cli.options import as_json, print_json
from penstock.dev.dev_broker import DEFAULT_NAME, DevBroker, DevBrokerError, MemoryBroker
from penstock.dev.kafka_distribution import distributions

#: Exit code of ``penstock broker status`` for a broker that does not run, as for init scripts (LSB).
EXIT_NOT_RUNNING = 3
FOLLOW_PAUSE_SECONDS = 0.2


def _names_a_broker(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select the broker."""
    folder = click.Path(file_okay=False, path_type=Path)
    command = click.option("--directory", type=folder, help="Directory of its files, if not the default.")(command)
    return click.option(
        "--name", default=DEFAULT_NAME, show_default=True, help="Name of the broker; each name is a separate one."
    )(command)


@click.group()
def broker() -> None:
    """Run a real Kafka broker for development, in the background."""


@broker.command()
@_names_a_broker
@click.option("--port", type=int, help="Port; default: the last used one, 9092 (broker dev), or any free port.")
@click.option(
    "--kafka",
    type=click.Choice(list(distributions())),
    help="Default: the last used one, $KAFKA_VERSION, or the newest.",
)
@click.option("--in-memory", is_flag=True, help="A broker without Java and without data on disk, ready at once.")
@as_json
def start(
    name: str, directory: Path | None, port: int | None, kafka: str | None, in_memory: bool, json_output: bool
) -> None:
    """Start the broker, and wait until it serves.

    Prints the line for an application's configuration file on stderr, and a line for the shell on stdout: eval
    "$(penstock broker start)" sets KAFKA_BOOTSTRAP_SERVERS.
    """
    if in_memory and kafka:
        raise click.UsageError("--in-memory runs no Kafka of a version: leave --kafka out.")
    if in_memory:
        started: DevBroker = MemoryBroker(name, directory, port=port)
    else:
        started = DevBroker(name, directory, port=port, kafka=kafka)
    address = started.start()
    if json_output:
        print_json(asdict(started.status()))
        return
    click.echo(f"Broker {name} (Kafka {started.kafka_version}) serves {address}", err=True)
    click.echo(f'In penstock.toml: "bootstrap.servers" = "{address}"', err=True)
    click.echo(f"export KAFKA_BOOTSTRAP_SERVERS={address}")


@broker.command()
@_names_a_broker
@click.option("--delete-data", is_flag=True, help="Delete all its topics, too.")
@as_json
def stop(name: str, directory: Path | None, delete_data: bool, json_output: bool) -> None:
    """Stop the broker; no effect if it does not run."""
    stopped = DevBroker(name, directory)
    did_run = stopped.stop()
    if delete_data:
        stopped.delete_data()
    if json_output:
        print_json({"name": name, "stopped": did_run, "deleted": str(stopped.directory) if delete_data else None})
        return
    click.echo(f"Broker {name} " + ("stopped" if did_run else "does not run"))
    if delete_data:
        click.echo(f"Deleted {stopped.directory}")


@broker.command()
@_names_a_broker
@as_json
def status(name: str, directory: Path | None, json_output: bool) -> None:
    """Show whether the broker runs, and its address. The exit code is 0 if it runs, 3 if not."""
    found = DevBroker(name, directory).status()
    if json_output:
        print_json(asdict(found))
    else:
        click.echo(f"Broker {name} (Kafka {found.kafka_version}) " + ("runs" if found.running else "does not run"))
        if found.running:
            click.echo(f"address   {found.bootstrap_servers}\npid       {found.pid}")
        click.echo(f"directory {found.directory}\nlog       {found.log_file}")
    if not found.running:
        raise SystemExit(EXIT_NOT_RUNNING)


@broker.command()
@_names_a_broker
@click.option("-n", "--lines", default=50, show_default=True, help="Number of lines.")
@click.option("-f", "--follow", is_flag=True, help="Follow the log until Ctrl-C.")
def logs(name: str, directory: Path | None, lines: int, follow: bool) -> None:
    """Show the last lines of the broker's log."""
    log_file = DevBroker(name, directory).log_file
    if not log_file.exists():
        raise DevBrokerError(f"broker {name!r} has no log yet at {log_file}: it was never started")
    with log_file.open(encoding="utf-8", errors="replace") as log:
        click.echo("".join(deque(log, maxlen=lines)), nl=False)
        while follow:
            text = log.read()
            if text:
                click.echo(text, nl=False)
            else:
                time.sleep(FOLLOW_PAUSE_SECONDS)
