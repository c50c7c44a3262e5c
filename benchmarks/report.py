"""The results as a table for people and as JSON for programs."""

from __future__ import annotations

import io
import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.data import Workload
from benchmarks.measure import Measurement
from benchmarks.recovery import Recovered, RecoveryResults
from benchmarks.scenarios import Scenario
from benchmarks.systems import THREADS, KafkaStreams, Penstock

PAGE_WIDTH = 160
MARKDOWN_WIDTH = 400  # no row of a table is broken
CAPTION = (
    "k/s: thousand records (of scans: rows) a second after the warm-up, as long as there were records to read; for s:\n"
    "so long.\n"
    "Penstock: its rate as a multiple of this system's, by the medians (and in single rounds). start: from the\n"
    "process's start to the first commit. CPU s/M: of all processes of the system, for a million records."
)
RECOVERY_CAPTION = (
    "k/s: thousand changelog records a second, from the first store's begin to the last one's end. s: from the\n"
    "SIGKILL until every task answers again. answer: from the start, or the SIGKILL, to the first answer.\n"
    "ms: from a record's creation to its answer. CPU s: of all processes."
)
Results = dict[Scenario, dict[str, list[Measurement]]]


def environment_line(workload: Workload, versions: list[str], scenarios: Iterable[Scenario] = ()) -> str:
    """Return the environment of the numbers: date, machine, records, versions."""
    others: dict[float, list[str]] = {}
    for scenario in scenarios:
        if scenario.times != 1:
            others.setdefault(scenario.times, []).append(scenario.name)
    records = workload.records
    more = "".join(f" ({', '.join(names)}: {int(records * times):,})" for times, names in others.items())
    read = f"{records:,} records{more} in {workload.codec}, {THREADS} threads"
    return f"{datetime.now(UTC):%Y-%m-%d}; {machine_line()}; {read}; {', '.join(versions)}"


def machine_line() -> str:
    """Return a description of the machine: cores, memory, system."""
    memory = psutil.virtual_memory().total / 2**30
    return f"{os.cpu_count()} cores{_processor()}, {memory:.0f} GiB, {platform.system()} {platform.machine()}"


def _processor() -> str:
    """Return " of" and the processor's name from Linux, or "" if it is unknown."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return f" of {line.partition(':')[2].strip()}"
    return ""


def print_table(results: Results, environment: str) -> None:
    """Print a table to standard output."""
    _console().print(environment, _table(results, box.SIMPLE_HEAD), CAPTION, sep="\n")


def print_recovery_table(results: RecoveryResults, environment: str) -> None:
    """Print the table of restores and failovers to standard output."""
    _console().print(environment, _recovery_table(results, box.SIMPLE_HEAD), RECOVERY_CAPTION, sep="\n")


def _console() -> Console:
    console = Console()
    if not console.is_terminal:
        console.width = PAGE_WIDTH
    return console


def write_markdown(results: Results, recovered: RecoveryResults, environment: str, file: Path) -> None:
    """Write the non-empty tables as Markdown."""
    tables = [_table(results, box.MARKDOWN)] if results else []
    tables += [_recovery_table(recovered, box.MARKDOWN)] if recovered else []
    text = io.StringIO()
    console = Console(file=text, width=MARKDOWN_WIDTH)
    console.print(environment, soft_wrap=True)
    for table in tables:
        console.print(table)
    file.write_text("\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines()) + "\n", "utf-8")


def _table(results: Results, style: box.Box) -> Table:
    table = Table(box=style)
    for column in ("scenario", "system"):
        table.add_column(column)
    for column in ("min k/s", "median", "max", "for s", "Penstock", "start s", "RSS MB", "CPU s/M"):
        table.add_column(column, justify="right")
    for scenario, by_system in results.items():
        for system, runs in by_system.items():
            rates = sorted(run.rate / 1000 for run in runs)
            table.add_row(
                scenario.title,
                system,
                *(f"{rate:,.0f}" for rate in (rates[0], statistics.median(rates), rates[-1])),
                f"{_median(runs, lambda run: run.seconds):.0f}",
                _ratio(by_system, system),
                f"{_median(runs, lambda run: run.start_seconds):.1f}",
                f"{_median(runs, lambda run: run.rss_bytes) / 1e6:,.0f}",
                f"{_median(runs, lambda run: run.cpu_seconds_per_million):.2f}",
            )
    return table


def _recovery_table(results: RecoveryResults, style: box.Box) -> Table:
    table = Table(box=style)
    for column in ("scenario", "system"):
        table.add_column(column)
    for column in ("unit", "min", "median", "max", "ratio", "answer s", "RSS MB", "CPU s"):
        table.add_column(column, justify="right")
    for scenario, by_system in results.items():
        for system, runs in by_system.items():
            values = sorted(run.value for run in runs)
            table.add_row(
                scenario.title,
                system,
                scenario.unit,
                *(f"{value:,.2f}" for value in (values[0], statistics.median(values), values[-1])),
                _recovery_ratio(by_system) if system == Penstock.name else "",
                f"{statistics.median(run.first_answer_seconds for run in runs):.1f}",
                f"{statistics.median(run.rss_bytes for run in runs) / 1e6:,.0f}",
                f"{statistics.median(run.cpu_seconds for run in runs):.1f}",
            )
    return table


def _recovery_ratio(by_system: dict[str, list[Recovered]]) -> str:
    ours, theirs = by_system[Penstock.name], by_system.get(KafkaStreams.name)
    if not theirs:
        return ""
    return f"{statistics.median(r.value for r in ours) / statistics.median(r.value for r in theirs):.2f}"


def _median(runs: list[Measurement], value: Callable[[Measurement], float]) -> float:
    return statistics.median(map(value, runs))


def _ratio(by_system: dict[str, list[Measurement]], system: str) -> str:
    """Return Penstock's rate as a multiple of another system's: of the medians, and the range over the rounds."""
    ours, theirs = by_system.get(Penstock.name), by_system[system]
    if not ours or system == Penstock.name:
        return ""
    rounds = [mine.rate / other.rate for mine, other in zip(ours, theirs, strict=True)]
    medians = _median(ours, lambda run: run.rate) / _median(theirs, lambda run: run.rate)
    return f"{medians:.2f} ({min(rounds):.2f} to {max(rounds):.2f})"


def write_json(results: Mapping[Any, Mapping[str, list[Any]]], file: Path) -> None:
    """Write every single run."""
    document = {
        scenario.name: {system: [asdict(run) for run in runs] for system, runs in by_system.items()}
        for scenario, by_system in results.items()
    }
    file.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
