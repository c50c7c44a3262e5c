"""Renders a status for a terminal, in 80 columns."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from penstock.statestore.view.spelling import printable_lines

if TYPE_CHECKING:
    from penstock.supervisor.control.status_json import ApplicationJson, LagJson, TaskJson, ThreadJson

#: Colors of states: good, in transition, bad.
STYLES = {"RUNNING": "green", "ERROR": "bold red", "PENDING_ERROR": "bold red", "DEAD": "bold red"}
#: Columns whose text may exceed a line.
WRAPPED = ("topic", "key", "value", "store", "input topic", "source")
ERRORS_SHOWN = 5
PAUSED = "Paused: not all arriving records count as lag. `penstock resume` continues."
PAUSED_RESTORING = "Paused: tasks that are not restored yet wait for `penstock resume`."
MESSAGE_SHOWN = 500


class TextConsole(Console):
    """A console that prints text literally, without markup and control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    @override
    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable_lines(text), **options)


def show(view: RenderableType) -> None:
    """Print a status: in color on a terminal, plain to a file."""
    console = TextConsole(soft_wrap=False)
    with console.capture() as capture:
        console.print(view, crop=False)
    lines = (line.rstrip() for line in capture.get().splitlines())
    click.echo("\n".join(lines))


def table(*columns: str, left: Iterable[str] = ()) -> Table:
    """Return a table without lines. Numbers are right-aligned; ``left`` has the columns of text."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in columns:
        wraps = column in WRAPPED
        made.add_column(column, justify="left" if column in left else "right", no_wrap=not wraps, overflow="fold")
    return made


def status_view(status: ApplicationJson, with_tasks: bool = False, live: bool = False) -> RenderableType:
    """Return the view of Administration.status. live: for a screen of limited height: most important parts first."""
    return Group(*_parts(status, with_tasks, live))


Cells = dict[str, str | Text]


@dataclass(frozen=True, slots=True)
class _Listing:
    """A table that omits columns on a narrow terminal, because a truncated number would be wrong.

    rows: cells by column, the same columns in all rows; at least one. left: columns of text. spared: columns to omit
    first, in this order. If that is not enough, each row is printed as text.
    """

    rows: list[Cells]
    left: tuple[str, ...]
    spared: tuple[str, ...] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        for left_out in range(len(self.spared) + 1):
            made = self._table(self.spared[:left_out])
            if Measurement.get(console, options.update(width=1_000), made).maximum <= options.max_width:
                yield made
                return
        for row in self.rows:
            words = (part for column, cell in row.items() for part in (f"{column} ", cell, "  "))
            yield Text.assemble(*words)

    def _table(self, left_out: tuple[str, ...]) -> Table:
        shown = [column for column in self.rows[0] if column not in left_out]
        made = table(*shown, left=self.left)
        for row in self.rows:
            made.add_row(*(row[column] for column in shown))
        return made


def _parts(status: ApplicationJson, with_tasks: bool, live: bool) -> Iterator[RenderableType]:
    for line in _headline(status):
        # A listing does not wrap lines, so that ids and paths can be copied. A screen would truncate them.
        line.no_wrap, line.overflow = not live, "fold" if live else "ignore"
        yield line
    if status["reason"]:
        yield Text(printable_lines(f"Reason: {status['reason']}"), style="bold red")
    yield ""
    yield _threads(status["threads"])
    yield from _waits(status["threads"])
    restoring = [task for thread in status["threads"] for task in thread["tasks"] if task["restore_remaining"]]
    if restoring:
        yield ""
        yield _restoring(restoring)
    tasks = list(_with_tasks(status["threads"])) if with_tasks else []
    errors: list[RenderableType] = ["", *_errors(status)] if status["errors"] else []
    yield from (*errors, *tasks) if live else (*tasks, *errors)


def _headline(status: ApplicationJson) -> Iterator[Text]:
    totals, supervisor = status["totals"], status["supervisor"]
    state = "PAUSED" if status["paused"] and status["state"] == "RUNNING" else status["state"]
    standby = f", {number(totals['standby_tasks'])} standby" if totals["standby_tasks"] else ""
    yield Text.assemble((status["application_id"], "bold"), " is ", (state, STYLES.get(state, "yellow")))
    yield Text.assemble(
        f"{counted(totals['threads'], 'thread')}, {counted(totals['tasks'], 'task')}{standby}, "
        f"{number(totals['records_per_second'])} records/s, {counted(totals['lag'], 'record')} behind"
    )
    if status["paused"]:
        yield Text(PAUSED if status["state"] == "RUNNING" else PAUSED_RESTORING)
    up, memory = duration(status["uptime_seconds"]), size(supervisor["rss_bytes"])
    yield Text.assemble(f"up {up}, supervisor {supervisor['pid']} with {memory}")
    yield Text.assemble(f"state in {status['state_dir']}/{status['application_id']}")


def _threads(threads: list[ThreadJson]) -> RenderableType:
    if not threads:
        return Text("There is no stream thread: `penstock threads add` starts one.", style="bold red")
    rows = [_thread_cells(thread) for thread in threads]
    return _Listing(rows, ("state",), ("restarts", "CPU", "pid", "tasks"))


def _thread_cells(thread: ThreadJson) -> Cells:
    return {
        "thread": str(thread["number"]),
        "pid": str(thread["pid"]),
        "state": state_text(thread["state"]),
        "tasks": str(len(thread["tasks"])),
        "records/s": number(thread["records_per_second"]),
        "behind": number(thread["lag"]),
        "memory": _memory(thread),
        "CPU": f"{thread['cpu_percent']:.0f} %",
        "restarts": number(thread["restarts"]),
    }


def _waits(threads: list[ThreadJson]) -> Iterator[RenderableType]:
    """Yield what stream threads and their Kafka clients wait for, a line each."""
    for thread in threads:
        for text in thread.get("waits", ()):
            yield Text(printable_lines(f"Thread {thread['number']}: {text}"), style="yellow")


def _memory(thread: ThreadJson) -> str | Text:
    """Return the memory of a process, and its share if that is less."""
    taken, share = size(thread["rss_bytes"]), thread["memory_share_bytes"]
    if share is None or not thread["over_memory_share"]:
        return taken
    return Text(f"{taken} of {size(share)}", style="bold red")


def _restoring(tasks: list[TaskJson]) -> RenderableType:
    rows: list[Cells] = [
        {
            "restoring": task["task_id"],
            "task": task["kind"],
            "remaining": number(task["restore_remaining"]),
            "of total": number(task["restore_total"]),
            "records/s": number(task["restore_rate"]),
            "left": duration(task["restore_eta_seconds"]),
        }
        for task in tasks
    ]
    return _Listing(rows, ("restoring", "task"), ("of total", "records/s", "task"))


def _with_tasks(threads: list[ThreadJson]) -> Iterator[RenderableType]:
    """Yield the tables about tasks: of sinks and checkpoints only if there are some."""
    tasks = [task for thread in threads for task in thread["tasks"]]
    sinks = [row for task in tasks for row in _sink_cells(task)]
    checkpoints = [row for task in tasks for row in _checkpoint_cells(task)]
    yield from ("", _tasks(threads))
    if sinks:
        yield from ("", _Listing(sinks, ("sink", "task"), ("waiting", "retries")))
    if checkpoints:
        yield from ("", _Listing(checkpoints, ("checkpoint of", "loading"), ("failed", "upload took")))


def _sink_cells(task: TaskJson) -> Iterator[Cells]:
    for sink in task.get("sinks", ()):
        yield {
            "sink": sink["name"],
            "task": task["task_id"],
            "behind": number(sink["lag"]),
            "waiting": number(sink["waiting"]),
            "rows/s": number(sink["rows_per_second"]),
            "batch": f"{sink['batch_ms']:,.1f} ms",
            "retries": number(sink["retries"]),
        }


def _checkpoint_cells(task: TaskJson) -> Iterator[Cells]:
    found = task.get("checkpoint")
    if not found:
        return
    loading, is_taken = found["loading_bytes"], found["uploads"] > 0
    yield {
        "checkpoint of": task["task_id"],
        "age": duration(found["age_seconds"]) if is_taken else "-",
        "size": size(found["bytes"]) if is_taken else "-",
        "upload took": duration(found["upload_seconds"]) if is_taken else "-",
        "failed": number(found["failures"]),
        "loading": "" if loading is None else f"{size(loading)} of {size(found['loading_total_bytes'])}",
    }


def _tasks(threads: list[ThreadJson]) -> RenderableType:
    rows: list[Cells] = [
        {
            "task": task["task_id"],
            "kind": task["kind"],
            "state": state_text(task["state"]),
            "thread": str(thread["number"]),
            "behind": number(task["lag"]),
            "buffered": number(task["buffered"]),
            "waiting": number(task["waiting"]),
        }
        for thread in threads
        for task in thread["tasks"]
    ]
    if not rows:
        return Text("There is no task here.")
    return _Listing(rows, ("kind", "state"), ("waiting", "buffered", "kind", "thread"))


def _errors(status: ApplicationJson) -> Iterator[RenderableType]:
    shown = status["errors"][-ERRORS_SHOWN:]
    total = counted(status["errors_total"], "error")
    last = f", the last {len(shown)} of them" if status["errors_total"] > len(shown) else ""
    yield Text(f"{total} since the start{last} (the log has more):", style="bold red")
    for error in shown:
        when = time.strftime("%H:%M:%S", time.localtime(error["time_ms"] / 1000))
        yield Text(printable_lines(f"{when}  {error['message'][:MESSAGE_SHOWN]}"))


def lag_view(rows: list[LagJson]) -> RenderableType:
    """Return the view of Administration.lag, the largest lag first."""
    if not rows:
        return Text("No task is assigned to this host now: `penstock status` shows the threads.")
    view = table("topic", "partition", "behind", "task", "state", "thread", left=("topic", "state"))
    for row in sorted(rows, key=lambda row: (row["lag"] is None, -(row["lag"] or 0), row["topic"])):
        view.add_row(
            row["topic"],
            str(row["partition"]),
            number(row["lag"]),
            row["task_id"],
            state_text(row["task_state"]),
            row["thread"].rpartition("-")[2],
        )
    return view


def state_text(state: str) -> Text:
    """Return a state in its color; PARTITIONS_ASSIGNED as ASSIGNED, to fit the column."""
    return Text(state.removeprefix("PARTITIONS_"), style=STYLES.get(state, "yellow"))


def counted(count: int, what: str) -> str:
    """Return ``1 thread``, ``2 threads``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def number(value: float | None) -> str:
    """Return a rounded number with separators, ``-`` for None."""
    return "-" if value is None else f"{value:,.0f}"


def size(count: int) -> str:
    """Return bytes as MiB or GiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 10 * 2**30 else f"{count / 2**20:,.0f} MiB"


def duration(seconds: float | None) -> str:
    """Return seconds in their two largest units, ``-`` for None."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    units = (("d", whole // 86_400), ("h", whole // 3_600 % 24), ("min", whole // 60 % 60), ("s", whole % 60))
    first = next((i for i, (_, count) in enumerate(units) if count), len(units) - 1)
    return " ".join(f"{count} {unit}" for unit, count in units[first : first + 2])
