"""``penstock sql``: a SELECT over the state stores of a running application."""

from __future__ import annotations

import json
from typing import Any

import click

from penstock.cli.options import Settings, as_json, configuration, examples, print_json, print_text
from penstock.cli.running_application import application
from penstock.cli.status_view import show, table
from penstock.topology.query.isolation_level import IsolationLevel

#: How much longer than the query its answer may take, in seconds: to start DuckDB, and to send the rows.
MORE_SECONDS = 30.0
TIMEOUT_SECONDS = 30.0


@click.command(
    epilog=examples(
        "penstock sql 'select key, value from \"flights-by-carrier\" order by value desc limit 10'",
        "penstock sql 'describe counts'",
        "penstock sql 'select sum(price) from orders' --schema orders=n:int64,price:double",
        "penstock sql 'select count(*) as n from counts' --json",
    )
)
@click.argument("query")
@click.option(
    "--isolation",
    type=click.Choice([level.value for level in IsolationLevel]),
    help="The rows of the last commit, or of all processed records; default: the application's.",
)
@click.option(
    "--schema",
    "schemas",
    multiple=True,
    metavar="STORE=COLUMN:TYPE,…",
    help="The columns of a store's values with types of Arrow, instead of those of its first rows; may be repeated.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.001),
    default=TIMEOUT_SECONDS,
    show_default=True,
    help="Seconds after which the query is stopped; at most penstock.sql.timeout.ms.",
)
@configuration
@as_json
def sql(
    query: str,
    isolation: str | None,
    schemas: tuple[str, ...],
    timeout: float,
    settings: Settings,
    json_output: bool,
) -> None:
    """Run a SELECT over the state stores of a running application.

    The rows of all its hosts are read. Each store is a table. A name with a hyphen needs double quotes.
    """
    arguments = {"query": query, "isolation": isolation, "schemas": dict(map(_schema, schemas)), "timeout": timeout}
    with application(settings) as running:
        result: dict[str, Any] = running.ask("sql", arguments, timeout=timeout + MORE_SECONDS)
    if json_output:
        print_json(result)
        return
    if not result["rows"]:
        print_text(f"No rows: {', '.join(result['columns'])}")
        return
    numbers = [all(_is_number(row[at]) for row in result["rows"]) for at in range(len(result["columns"]))]
    left = [name for name, is_number in zip(result["columns"], numbers, strict=True) if not is_number]
    view = table(*result["columns"], left=left)
    for row in result["rows"]:
        view.add_row(*map(_cell, row))
    show(view)


def _schema(text: str) -> tuple[str, dict[str, str]]:
    """Return a store, and the types of its columns."""
    store, _, listed = text.partition("=")
    columns = [column.strip().rpartition(":") for column in listed.split(",")]
    if not store or not all(name and kind for name, _, kind in columns):
        raise click.BadParameter(f"{text!r} is not STORE=COLUMN:TYPE,…, e.g. orders=n:int64", param_hint="--schema")
    return store, {name: kind for name, _, kind in columns}


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
