"""What the demo shows: the stream threads while they work, and the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from examples.flights import topics
from examples.flights.progress import Progress
from penstock.supervisor.application_state import ApplicationState
from penstock.supervisor.processes.worker import ThreadStatus

ROWS_SHOWN = 10
#: The minimum number of departures for an average: with fewer it depends on single flights.
DEPARTURES_MIN = 10

Row = dict[str, Any]
Answers = dict[str, dict[str, Row]]


def live_view(state: ApplicationState, threads: Iterable[ThreadStatus], progress: Progress) -> RenderableType:
    """Return the table of stream threads with the progress through the flights above it."""
    done, there = progress.committed.get(topics.FLIGHTS, 0), progress.available.get(topics.FLIGHTS, 0)
    head = Table.grid(padding=(0, 2))
    head.add_row(f"[b]{state.name}[/b]", ProgressBar(max(there, 1), done, width=40), f"{done:,} of {there:,} flights")
    return Group(head, thread_table(threads))


def thread_table(threads: Iterable[ThreadStatus]) -> Table:
    """Return one row for each stream thread."""
    table = _table("thread", "pid", "state", "tasks", "records/s", "lag", "restored", "RSS MB", "CPU %")
    for thread in threads:
        table.add_row(
            thread.name.rpartition("-StreamThread-")[2],
            str(thread.pid),
            thread.state,
            _tasks(thread),
            f"{thread.records_per_second:,.0f}",
            f"{thread.lag:,}",
            _restored(thread),
            f"{thread.rss_bytes / 1e6:,.0f}",
            f"{thread.cpu_percent:.0f}",
        )
    return table


def _tasks(thread: ThreadStatus) -> str:
    standby = sum(task.kind == "standby" for task in thread.tasks)
    active = len(thread.tasks) - standby
    return f"{active} + {standby} standby" if standby else str(active)


def _restored(thread: ThreadStatus) -> str:
    if not thread.restore_remaining:
        return "-"
    share = 1 - thread.restore_remaining / max(thread.restore_total, 1)
    return f"{share:.0%} at {thread.restore_rate:,.0f}/s"


def status_line(state: ApplicationState, threads: Iterable[ThreadStatus], progress: Progress) -> str:
    """Return the same in a line, for output that is not a terminal."""
    done, there = progress.committed.get(topics.FLIGHTS, 0), progress.available.get(topics.FLIGHTS, 0)
    parts = [f"{thread.name.rpartition('-')[2]}: {thread.state}, {len(thread.tasks)} tasks" for thread in threads]
    return f"{state.name}: {done:,} of {there:,} flights ({'; '.join(parts)})"


def answer_tables(answers: Answers) -> Group:
    """Return all answers as tables."""
    return Group(
        _delays(answers[topics.DELAYS]),
        _routes(answers[topics.ROUTES]),
        _manufacturers(answers[topics.MANUFACTURERS]),
        _temperatures(answers[topics.TEMPERATURES]),
    )


def _delays(rows: dict[str, Row]) -> Table:
    count = f"{len(rows):,}"
    table = _table("hour (UTC)", "airline", "departures", "average delay, minutes")
    table.title = f"The worst of {count} carrier hours (of at least {DEPARTURES_MIN} departures)"
    busy = [(key, row) for key, row in rows.items() if row["departures"] >= DEPARTURES_MIN]
    for key, row in _top(busy, lambda row: row["average"]):
        hour = datetime.fromtimestamp(int(key.partition("@")[2]) / 1000, UTC)
        table.add_row(f"{hour:%Y-%m-%d %H:%M}", row["airline"], f"{row['departures']}", f"{row['average']:.1f}")
    return table


def _routes(rows: dict[str, Row]) -> Table:
    table = _table("route", "to", "flights", "cancelled")
    table.title = f"The busiest of {len(rows)} routes"
    for key, row in _top(rows.items(), lambda row: row["flights"]):
        table.add_row(key, row["airport"], f"{row['flights']:,}", f"{row['cancelled'] / row['flights']:.1%}")
    return table


def _manufacturers(rows: dict[str, Row]) -> Table:
    table = _table("manufacturer", "flights", "cancelled")
    table.title = f"Flights by manufacturer of the plane ({len(rows)} in all)"
    for key, row in _top(rows.items(), lambda row: row["flights"]):
        table.add_row(key, f"{row['flights']:,}", f"{row['cancelled'] / row['flights']:.1%}")
    return table


def _temperatures(rows: dict[str, Row]) -> Table:
    table = _table("temperature at the airport", "departures", "average delay, minutes")
    table.title = "Delay by temperature"
    for key, row in _top(rows.items(), lambda row: row["average"]):
        table.add_row(key, f"{row['departures']:,}", f"{row['average']:.1f}")
    return table


def _top(rows: Iterable[tuple[str, Row]], value: Callable[[Row], float]) -> list[tuple[str, Row]]:
    return sorted(rows, key=lambda item: value(item[1]), reverse=True)[:ROWS_SHOWN]


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < len(columns) - 2 else "right")
    return table
