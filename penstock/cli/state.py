"""``penstock state list|get|range|export``: reads the state stores of a running or a stopped application."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import click
from typing_extensions import override

from penstock.cli.options import LIMIT, Settings, as_json, configuration, examples, print_json, print_text
from penstock.cli.running_application import NotRunningError, RunningApplication, find
from penstock.cli.status_view import number, show, state_text, table
from penstock.supervisor.source.state_places import located
from penstock.topology.errors import InvalidStateStoreError

Row = dict[str, Any]
#: Time limit and interval of the wait for tasks that move.
SETTLED_SECONDS = 10.0
LOOK_SECONDS = 0.2
#: Rows per table; a longer list is split into several tables.
TABLE_ROWS = 1_000


class State(Protocol):
    """The stores of an application, running or not."""

    def stores(self) -> list[Row]:
        """Return a summary of each store of each task."""

    def get(self, store: str, key: str) -> list[Row]:
        """Return the rows of a key."""

    def rows(self, store: str, key_from: str | None, key_to: str | None) -> Iterator[Row]:
        """Yield the rows of a range, task after task."""


class OpenState(State):
    """The stores of a running application, queried over its control socket."""

    def __init__(self, running: RunningApplication) -> None:
        self._running = running

    @override
    def stores(self) -> list[Row]:
        found: list[Row] = self._running.ask("stores")
        return found

    @override
    def get(self, store: str, key: str) -> list[Row]:
        """Return the rows of a key; raises InvalidStateStoreError if there is none and its task may be moving."""
        found: list[Row] = self._running.ask("store_get", {"store": store, "key": key})
        if not found:
            self._wait_until_settled(store)
            found = self._running.ask("store_get", {"store": store, "key": key})
        return found

    @override
    def rows(self, store: str, key_from: str | None, key_to: str | None) -> Iterator[Row]:
        """Read page by page. Raises InvalidStateStoreError if a task is moving: its rows would be missing."""
        self._wait_until_settled(store)
        all_stores = self.stores()
        tasks = [row["task_id"] for row in all_stores if row["store"] == store and row["task_kind"] == "active"]
        if not tasks:
            there = ", ".join(sorted({row["store"] for row in all_stores})) or "none"
            raise InvalidStateStoreError(f"There is no store {store} on this host; there are {there}.")
        for task in tasks:
            after = None
            while True:
                asked = {"store": store, "task_id": task, "key_from": key_from, "key_to": key_to, "after": after}
                page = self._running.ask("store_page", asked)
                yield from ({**row, "task_id": task} for row in page["rows"])
                after = page["after"]
                if after is None:
                    break

    def _wait_until_settled(self, store: str) -> None:
        """Wait for stream threads that start or rebalance, because their rows are unavailable."""
        deadline = time.monotonic() + SETTLED_SECONDS
        while moving := [each for each in self._running.ask("status")["threads"] if each["state"] != "RUNNING"]:
            if time.monotonic() > deadline:
                states = ", ".join(f"stream thread {each['number']} is {each['state']}" for each in moving)
                raise InvalidStateStoreError(
                    f"Not all tasks of the store {store} can be read now: {states}. Try again; `penstock status` "
                    "shows the progress."
                )
            time.sleep(LOOK_SECONDS)


@contextmanager
def _state(settings: Settings, topology: str | None) -> Iterator[State]:
    """Yield the state of the running or stopped application."""
    config = settings.load()
    try:
        running = find(config)
    except NotRunningError:
        if config["application.id"] is None:
            raise
        from penstock.supervisor.offline.closed_state import ClosedState  # imports RocksDB

        with ClosedState(located(config), topology) as closed:
            yield closed
        return
    with running:
        yield OpenState(running)


def _of_a_store(command: Callable[..., None]) -> Callable[..., None]:
    """Add the common options of commands that read rows."""
    command = click.option(
        "--topology", metavar="MODULE:TOPOLOGY", help="Defines the stores, if the application does not run."
    )(command)
    return configuration(command)


@click.group(
    epilog=examples(
        "penstock state list",
        "penstock state get counts alice",
        "penstock state range counts --from a --to b",
        "penstock state export counts > counts.jsonl",
    )
)
def state() -> None:
    """Read the state stores of a running or a stopped application."""


@state.command("list", epilog=examples("penstock state list", "penstock state list --json"))
@_of_a_store
@as_json
def list_stores(settings: Settings, topology: str | None, json_output: bool) -> None:
    """List the stores of each task on this host."""
    with _state(settings, topology) as found:
        rows = found.stores()
    if json_output:
        print_json(rows)
        return
    if not rows:
        click.echo("There is no store on this host.")
        return
    view = table("store", "task", "state", "kind", "about rows", "offset", left=("store", "task", "state", "kind"))
    for row in rows:
        standby = " standby" if row["task_kind"] == "standby" else ""
        offset = row.get("changelog_offset")
        view.add_row(
            row["store"],
            row["task_id"] + standby,
            state_text(row["task_state"]),
            row.get("kind") or "-",
            number(row.get("entries")),
            "-" if offset is None else str(offset),
        )
    show(view)


@state.command(epilog=examples("penstock state get counts alice", "penstock state get orders 17 --json"))
@click.argument("store")
@click.argument("key")
@_of_a_store
@as_json
def get(store: str, key: str, settings: Settings, topology: str | None, json_output: bool) -> None:
    """Show the rows of a key: one, or one per window or session.

    KEY has the form of the key serde: text, a number, JSON, 0xff00 for bytes. The exit code is 1 if there is none.
    """
    with _state(settings, topology) as found:
        rows = found.get(store, key)
    _show_rows(rows, json_output)
    if not rows:
        print_text(f"The store {store} has no key {key} on this host.", err=True)
        raise SystemExit(1)


def _ranged(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option("--to", "key_to", metavar="KEY", help="The last key; default: the store's last.")(command)
    return click.option("--from", "key_from", metavar="KEY", help="The first key; default: the store's first.")(command)


@state.command(
    "range", epilog=examples("penstock state range counts --limit 5", "penstock state range counts --from a --to b")
)
@click.argument("store")
@_ranged
@click.option("--limit", type=LIMIT, default=100, show_default=True, help="Maximum number of rows.")
@_of_a_store
@as_json
def show_range(
    store: str,
    key_from: str | None,
    key_to: str | None,
    limit: int,
    settings: Settings,
    topology: str | None,
    json_output: bool,
) -> None:
    """Show rows in the order of their keys' bytes, task after task."""
    with _state(settings, topology) as found:
        rows = found.rows(store, key_from, key_to)
        _show_rows(itertools.islice(rows, limit), json_output)
        has_more = next(rows, None) is not None
    if has_more:
        click.echo(f"There are more than {limit} rows: --limit shows more, `penstock state export` all.", err=True)


@state.command(epilog=examples("penstock state export counts > counts.jsonl"))
@click.argument("store")
@_ranged
@_of_a_store
@click.option("--json", is_flag=True, expose_value=False, help="No effect: an export is always lines of JSON.")
def export(store: str, key_from: str | None, key_to: str | None, settings: Settings, topology: str | None) -> None:
    """Write all rows of a store on this host as JSON, one per line."""
    count = 0
    with _state(settings, topology) as found:
        for row in found.rows(store, key_from, key_to):
            print_text(json.dumps(row))
            count += 1
    click.echo(f"{count:,} rows", err=True)


def _show_rows(rows: Iterable[Row], json_output: bool) -> None:
    """Print rows as they arrive: lines of JSON, or tables of a limited size, to limit memory."""
    if json_output:
        for row in rows:
            print_text(json.dumps(row))
        return
    following = iter(rows)
    while shown := list(itertools.islice(following, TABLE_ROWS)):
        _show_table(shown)


def _show_table(rows: list[Row]) -> None:
    flat = [{**row, **row.get("window", {})} for row in rows]
    columns = [name for name in ("key", "start", "end", "value", "timestamp", "task_id") if name in flat[0]]
    view = table(*(_HEADINGS.get(name, name) for name in columns), left=("key", "timestamp", "task", "start", "end"))
    for row in flat:
        view.add_row(*(_cell(name, row[name]) for name in columns))
    show(view)


_HEADINGS = {"task_id": "task"}


def _cell(name: str, value: Any) -> str:
    if name in ("timestamp", "start", "end"):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value / 1000)) if value >= 0 else "-"
    return value if isinstance(value, str) else json.dumps(value)
