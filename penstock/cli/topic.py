"""``penstock topic create|list|produce|consume``: the topics of a cluster, and their records."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from typing import IO

import click

from penstock.cli.options import (
    LIMIT,
    Duration,
    Settings,
    as_json,
    configuration,
    examples,
    is_stdout_read,
    print_json,
    print_line,
    until_stdout_closes,
)
from penstock.cli.status_view import counted, number, show, table
from penstock.cli.topic_lines import json_line, read_lines, text_line
from penstock.cli.topics import Topics, TopicWriter
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError, SerializationError, StreamsError
from penstock.topology.serdes.serdes import Serde, Serdes
from penstock.workers.queries.record_lines import TopicSerdes, read_line


@click.group(
    epilog=examples(
        "penstock topic create flights --partitions 4",
        "penstock topic produce flights < flights.jsonl",
        "penstock topic consume counts --value-serde int64 --follow",
        "penstock topic list",
    )
)
def topic() -> None:
    """Create topics, list them, write and read their records."""


def _pairs(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    if wrong := [text for text in given if "=" not in text]:
        raise click.BadParameter(f"{wrong[0]!r}: expected KEY=VALUE, e.g. cleanup.policy=compact")
    return dict(text.split("=", 1) for text in given)


@topic.command(
    epilog=examples(
        "penstock topic create flights --partitions 4",
        "penstock topic create rates --set cleanup.policy=compact --if-not-exists",
    )
)
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--partitions", type=click.IntRange(min=1), help="Number of partitions; default: the broker's.")
@click.option("--replicas", type=click.IntRange(min=1), help="Replicas of each partition; default: the broker's.")
@click.option(
    "--set",
    "topic_config",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_pairs,
    help="A setting of the topic; may be repeated.",
)
@click.option("--if-not-exists", is_flag=True, help="Leave existing topics as they are.")
@configuration
@as_json
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replicas: int | None,
    topic_config: dict[str, str],
    if_not_exists: bool,
    settings: Settings,
    json_output: bool,
) -> None:
    """Create topics, and wait until they can be used."""
    topics = Topics(settings.load())
    created = topics.create(names, partitions, replicas, topic_config)
    if json_output:
        print_json(created)
    existing = [name for name, is_new in created.items() if not is_new]
    for name in created if not json_output else ():
        if name not in existing:
            click.echo(f"Created {name}.")
        elif if_not_exists:
            click.echo(f"{name} exists and is left as it is.")
    if existing and not if_not_exists:
        raise StreamsError(
            f"{', '.join(existing)}: exists already on {topics.servers}. Choose another name, or --if-not-exists."
        )


@topic.command("list", epilog=examples("penstock topic list", "penstock topic list --json"))
@click.option("--internal", is_flag=True, help="Include Kafka's own topics, whose names begin with two underscores.")
@configuration
@as_json
def list_topics(internal: bool, settings: Settings, json_output: bool) -> None:
    """List the topics.

    RECORDS is the distance from the first offset to the last. A compacted topic, or one with transactions, has fewer
    records.
    """
    topics = Topics(settings.load())
    found = topics.list(internal)
    if json_output:
        print_json([asdict(each) for each in found])
    elif found:
        view = table("topic", "partitions", "replicas", "records", left=("topic",))
        for each in found:
            view.add_row(each.topic, str(each.partitions), str(each.replicas), number(each.records))
        show(view)
    else:
        click.echo(f"There is no topic on {topics.servers} yet.")


def _with_serdes(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for the serdes of keys and values."""
    for part in ("value", "key"):
        command = click.option(
            f"--{part}-serde",
            metavar="SERDE",
            help=f"Serde of {part}s: string, json, int64, bytes … or module:attribute; default: default.{part}.serde.",
        )(command)
    return configuration(command)


def _config(settings: Settings, key_serde: str | None, value_serde: str | None) -> tuple[StreamsConfig, TopicSerdes]:
    given = {"key": key_serde, "value": value_serde}
    options = {f"default.{part}.serde": (f"--{part}-serde", name) for part, name in given.items() if name is not None}
    config = settings.load(options)
    return config, TopicSerdes(_serde(config, "default.key.serde"), _serde(config, "default.value.serde"))


def _serde(config: StreamsConfig, key: str) -> Serde:
    try:
        return Serdes.of(config[key])
    except TypeError as error:
        raise ConfigError(f"{key}={config.shown(key)!r} ({config.origin(key)}): {error}.") from error


@topic.command(
    epilog=examples(
        """echo '{"key": "JFK", "value": {"carrier": "UA"}}' | penstock topic produce flights""",
        "penstock topic produce flights flights.jsonl",
        "penstock topic consume flights --json | penstock topic produce copy",
    )
)
@click.argument("name", metavar="TOPIC")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True), default="-")
@_with_serdes
@as_json
def produce(
    name: str, file: str, settings: Settings, key_serde: str | None, value_serde: str | None, json_output: bool
) -> None:
    """Write records, given as lines of JSON in FILE or on standard input.

    A line is an object with key, value, headers and timestamp, all of them optional: {"key": "JFK", "value":
    {"carrier": "UA"}, "headers": {"trace": "7"}, "timestamp": "2026-11-21T06:00:00Z"}. The timestamp may also be ms
    since the epoch; the default is now. A null value is a tombstone. The key decides the partition, as with Java's
    producer.

    The exit code is 0 when the brokers have confirmed all records.
    """
    config, serdes = _config(settings, key_serde, value_serde)
    writer = Topics(config).writer(name)
    try:
        with click.open_file(file, "rb") as lines:
            if lines.isatty():
                click.echo("Enter one record per line, as JSON; Ctrl-D ends.", err=True)
            _write_lines(lines, writer, name, serdes)
    except SerializationError as error:
        raise SerializationError(f"{'Standard input' if file == '-' else file}, {error}.") from error
    finally:
        writer.flush()
        writer.close()
        click.echo(f"{counted(writer.written, 'record')} written to {name}.", err=True)
    writer.check()
    if json_output:
        print_json({"topic": name, "written": writer.written})


def _write_lines(lines: IO[bytes], writer: TopicWriter, name: str, serdes: TopicSerdes) -> None:
    for line_number, line in enumerate(read_lines(lines, writer.flush), start=1):
        if line.strip():
            try:
                record = read_line(line, name, serdes)
            except SerializationError as error:
                raise SerializationError(f"line {line_number}: {error}") from error
            writer.write(record)


@topic.command(
    epilog=examples(
        "penstock topic consume flights-by-carrier --value-serde int64 --follow",
        "penstock topic consume flights --since 10m --limit 5 --json | jq .value",
        "penstock topic consume flights --follow --since 0s          only records written from now on",
    )
)
@click.argument("name", metavar="TOPIC")
@click.option("-f", "--follow", is_flag=True, help="Continue with new records, until Ctrl-C.")
@click.option("--since", type=Duration(), metavar="TIME", help="Only records of at most this age, e.g. 2h.")
@click.option("--limit", type=LIMIT, help="Maximum number of records.")
@_with_serdes
@as_json
def consume(
    name: str,
    follow: bool,
    since: int | None,
    limit: int | None,
    settings: Settings,
    key_serde: str | None,
    value_serde: str | None,
    json_output: bool,
) -> None:
    """Print the records of a topic: key and value separated by a tab, or the whole record as JSON.

    Starts with the first record and ends after the last existing one. Reads only committed records, joins no group and
    commits no offsets. On a terminal, control characters are escaped.
    """
    config, serdes = _config(settings, key_serde, value_serde)
    since_ms = None if since is None else time.time_ns() // 1_000_000 - since
    as_line = json_line if json_output else text_line
    records = Topics(config).read(name, since_ms=since_ms, is_wanted=is_stdout_read if follow else None)
    with closing(records), until_stdout_closes():
        try:
            for message in itertools.islice(records, limit):
                print_line(as_line(message, serdes))
        except KeyboardInterrupt:
            if not follow:
                raise
