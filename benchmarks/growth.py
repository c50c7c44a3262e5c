"""``python -m benchmarks.growth``: the cost of a record as an application grows, in one table.

Operators, keys and windows are measured in one task without a broker, processes and tasks against a real one. The
measure is CPU time: the cost must not grow faster than the application. Wrong results end it with exit code 1.
"""

from __future__ import annotations

import random
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table

from benchmarks.checks import CountsCheck, check_topic
from benchmarks.data import Workload, load_topic, recreate_topic
from benchmarks.driver import BATCH, CACHE_BYTES, INPUT, OUTPUT
from benchmarks.measure import BenchmarkError, Program, measure
from benchmarks.systems import COMMON_CONFIG, Penstock, broker
from penstock import (
    Materialized,
    Processor,
    Punctuation,
    Record,
    Serdes,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
    Topology,
)
from penstock.statestore.cache.thread_cache import ThreadCache
from penstock.testing.driver_task import Clock, DriverTask
from penstock.topology.errors import PenstockError
from penstock.topology.graph.subtopologies import build_whole_topology
from penstock.topology.records import RawRecord, TopicPartition
from tests.topics import delete_topics_of

#: Each axis grows by these steps.
OPERATORS = (1, 3, 10, 30)
KEYS = (10, 1_000, 100_000, 10_000_000)
WINDOWS = (timedelta(hours=1), timedelta(hours=24), timedelta(days=7), timedelta(days=30))
PROCESSES = (1, 2, 4, 8)
TASKS = (1, 4, 16, 64, 256)
TIMERS = (1_000, 100_000, 1_000_000)
#: How many times the ttl of its rows a store is written for; rows that are alive at any time.
TTLS = (1, 5, 20)
ALIVE = 20_000
#: Maximum start time, in seconds.
START_LIMIT_SECONDS = 10.0
SEED = 11
#: Factor of the records for processes and tasks: enough for several commits, because CPU time is counted from commit to
#: commit.
ON_A_BROKER_TIMES = 20
#: On a fast machine all of these records take two seconds.
COMMIT_INTERVAL_MS = "200"
console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Step:
    """The size, and the cost of a record: microseconds of CPU time; start: seconds until the first commit."""

    size: float
    shown: str
    microseconds: float
    start_seconds: float | None = None


def operators(records: int) -> Iterator[Step]:
    """A chain of mappers."""
    given = [RawRecord(INPUT, 0, n, n, b"k", b"%d" % n) for n in range(records)]
    for number in OPERATORS:
        seconds, produced = _through(_chain(number), given)
        if produced != records:
            raise BenchmarkError(f"{number} operators gave {produced} results for {records} records")
        yield Step(number, f"{number}", seconds / records * 1e6)


def _chain(number: int) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(INPUT, key_serde=Serdes.string(), value_serde=Serdes.string())
    for _ in range(number):
        stream = stream.map_values(lambda value: value)
    stream.to(OUTPUT, key_serde=Serdes.string(), value_serde=Serdes.string())
    return builder.build()


def keys(records: int) -> Iterator[Step]:
    """A count over a store that already has this many keys, read and updated in random order."""
    for number in KEYS:
        draw = random.Random(SEED).randrange
        given = [RawRecord(INPUT, 0, n, n, b"k%08d" % draw(number), b"") for n in range(records)]
        seconds, _ = _through(_count(), given, partial(_fill, number=number))
        yield Step(number, f"{number:,}", seconds / records * 1e6)


def _count() -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(INPUT, key_serde=Serdes.string(), value_serde=Serdes.bytes())
    stream.group_by_key().count(store="counts").to_stream().to(OUTPUT, value_serde=Serdes.long())
    return builder.build()


def _fill(task: DriverTask, number: int) -> None:
    """Restore a count of one for each key, as from a changelog, and write it to files."""
    store, batch = task.stores["counts"], 100_000
    for begin in range(0, number, batch):
        rows = range(begin, min(begin + batch, number))
        store.restore([RawRecord("changelog", 0, n, 0, b"k%08d" % n, (1).to_bytes(8)) for n in rows], rows.stop)
    store.persist()


def windows(records: int) -> Iterator[Step]:
    """A count by key and tumbling window; the records are spread over three windows."""
    for size in WINDOWS:
        step = 3 * int(size.total_seconds() * 1000) / records
        given = [RawRecord(INPUT, 0, n, int(n * step), b"k%06d" % (n % 1000), b"") for n in range(records)]
        seconds, _ = _through(_windowed(size), given)
        hours = size.total_seconds() / 3600
        yield Step(hours, f"{hours:,.0f} h", seconds / records * 1e6)


def _windowed(size: timedelta) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(INPUT, key_serde=Serdes.string(), value_serde=Serdes.bytes())
    counts = stream.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(size)).count(store="counts")
    counts.to_stream().to(OUTPUT, value_serde=Serdes.long())
    return builder.build()


class _Later(Processor[str, bytes, str, bytes]):
    """Sends each key on when stream time has reached a time."""

    stores = (Stores.timer_store_builder(Stores.persistent_key_value_store("timers"), Serdes.string()),)

    def process(self, record: Record[str, bytes]) -> None:
        if record.value:
            self.context.timer(record.key, int(record.value), Punctuation.STREAM_TIME)

    def on_timer(self, key: str, at: int) -> None:
        self.context.forward(Record(key, b"", at))


def timers(records: int) -> Iterator[Step]:
    """Timers that are set in random order, and fire all at once, in the order of their times."""
    for number in TIMERS:
        draw = random.Random(SEED).randrange
        given = [RawRecord(INPUT, 0, n, 0, b"k%08d" % n, b"%d" % (1 + draw(number))) for n in range(number)]
        given.append(RawRecord(INPUT, 0, number, number, b"last", b""))
        builder = StreamsBuilder()
        stream = builder.stream(INPUT, key_serde=Serdes.string(), value_serde=Serdes.bytes())
        stream.process(_Later).to(OUTPUT, value_serde=Serdes.bytes())
        seconds, produced = _through(builder.build(), given)
        if produced != number:
            raise BenchmarkError(f"{produced} of {number} timers have fired")
        yield Step(number, f"{number:,}", seconds / number * 1e6)


def ttls(records: int) -> Iterator[Step]:
    """A count of keys that come once and end after a ttl; the disk must not grow with the number of ttls."""
    smallest: float | None = None
    for number in TTLS:
        given = [RawRecord(INPUT, 0, n, n, b"k%08d" % n, b"") for n in range(number * ALIVE)]
        builder = StreamsBuilder()
        stream = builder.stream(INPUT, key_serde=Serdes.string(), value_serde=Serdes.bytes())
        counts = stream.group_by_key().count(store=Materialized("counts", ttl=ALIVE))
        counts.to_stream().to(OUTPUT, value_serde=Serdes.long())
        used: list[int] = []
        seconds, produced = _through(builder.build(), given, ended=partial(_look, used))
        rows, size = used
        ended = (number - 1) * ALIVE
        if produced != len(given) + ended or rows != ALIVE:
            raise BenchmarkError(f"{number} ttls left {rows} rows and sent {produced} changes")
        smallest = smallest or size
        if size > 2 * smallest:
            raise BenchmarkError(f"{number} ttls take {size:,} bytes of disk, one takes {smallest:,}")
        yield Step(number, f"{number} ttls", seconds / len(given) * 1e6)


def _look(used: list[int], task: DriverTask) -> None:
    """Note the rows of a store, and the bytes that they take on disk once what was deleted is compacted."""
    store = task.stores["counts"]
    store.persist()
    store.rows.below._db.compact_range(None, None)
    used += [sum(1 for _ in store.all()), sum(file.stat().st_size for file in store.rows.below.path.glob("*.sst"))]


def _through(
    topology: Topology,
    given: list[RawRecord],
    prepare: Callable[[DriverTask], None] = lambda task: None,
    ended: Callable[[DriverTask], None] = lambda task: None,
) -> tuple[float, int]:
    """Return the CPU seconds of a task that commits after each batch, and its number of results."""
    config = StreamsConfig({"application.id": "growth", "bootstrap.servers": "localhost:0"})
    with tempfile.TemporaryDirectory(prefix="penstock-growth-") as directory:
        built = build_whole_topology(topology.internal_builder, config)
        task = DriverTask(built, config, Clock(0), Path(directory), ThreadCache(CACHE_BYTES))
        prepare(task)
        source = task.compiled.source_of(INPUT)
        assert source is not None
        produced, begun = 0, time.process_time()
        for begin in range(0, len(given), BATCH):
            source.process_batch(given[begin : begin + BATCH])
            task.commit()
            produced += sum(record.topic == OUTPUT for record in task.take_produced())
        seconds = time.process_time() - begun
        ended(task)
        task.close()
    return seconds, produced


@dataclass(frozen=True, slots=True)
class Cluster:
    """Runs applications of several sizes."""

    address: str
    directory: Path
    records: int

    def processes(self) -> Iterator[Step]:
        """Stream threads over 16 tasks; the last steps have more threads than there are cores."""
        for number in PROCESSES:
            yield self._run(tasks=16, threads=number, size=number)

    def tasks(self) -> Iterator[Step]:
        """Tasks on two stream threads."""
        for number in TASKS:
            yield self._run(tasks=number, threads=2, size=number)

    def _run(self, tasks: int, threads: int, size: int) -> Step:
        name = f"growth-{uuid.uuid4().hex[:8]}"
        workload = Workload(self.records)
        given = f"growth-input-{tasks}-{workload.records}"
        load_topic(self.address, given, workload.purchases(), workload.records, partitions=tasks)
        recreate_topic(self.address, f"{name}-output")
        properties = self.directory / f"{name}.properties"
        config = {"application.id": name, "bootstrap.servers": self.address, **COMMON_CONFIG}
        config |= {"state.dir": str(self.directory / name), "num.stream.threads": str(threads)}
        config["commit.interval.ms"] = COMMIT_INTERVAL_MS
        properties.write_text("".join(f"{key}={value}\n" for key, value in config.items()), "utf-8")
        topics = {"BENCHMARK_INPUT": given, "BENCHMARK_OUTPUT": f"{name}-output"}
        program = Program(Penstock().command("count", properties), topics, name, self.directory / f"{name}.log")
        partitions = [TopicPartition(given, number) for number in range(tasks)]
        found = measure(program, self.address, partitions, self.records, self.records // 5)
        problem = check_topic(self.address, f"{name}-output", CountsCheck(workload.counts()))
        if problem:
            raise BenchmarkError(f"{tasks} tasks on {threads} stream threads: wrong output: {problem}")
        delete_topics_of(AdminClient({"bootstrap.servers": self.address, "log_level": 3}), name)
        shutil.rmtree(self.directory / name)
        return Step(size, f"{size}", found.cpu_seconds_per_million, found.start_seconds)


def table(found: dict[str, list[Step]]) -> Table:
    """Return the text to print; the last columns compare with the first line of their axis."""
    shown = Table(title="cost of a record as an application grows")
    for heading in ("what grows", "to", "µs of CPU a record", "start s", "cost grew", "size grew"):
        shown.add_column(heading, justify="left" if heading == "what grows" else "right")
    for axis, steps in found.items():
        first = steps[0]
        for step in steps:
            start = "" if step.start_seconds is None else f"{step.start_seconds:.1f}"
            growth = f"{step.microseconds / first.microseconds:.2f}", f"{step.size / first.size:,.0f}"
            shown.add_row(axis if step is first else "", step.shown, f"{step.microseconds:.2f}", start, *growth)
        shown.add_section()
    return shown


def grows_faster(steps: list[Step]) -> bool:
    """Return True if the cost of a record grew faster than the application, from the first step to any other one."""
    first = steps[0]
    return any(s.microseconds / first.microseconds > s.size / first.size for s in steps[1:])


AXES: dict[str, Callable[[int], Iterator[Step]]] = {
    "operators": operators,
    "keys": keys,
    "windows": windows,
    "timers": timers,
    "ttls": ttls,
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", metavar="NAMES", help="Some of: operators,keys,windows,timers,ttls,processes,tasks.")
@click.option("--records", type=click.IntRange(min=1_000), default=400_000, show_default=True)
def main(only: str | None, records: int) -> None:
    """Print what a record costs from 1 to 30 operators, 10 to 10 million keys, 1 hour to 30 days of windows, 1,000 to a
    million timers, 1 to 20 times the ttl of rows, 1 to 8 processes and 1 to 256 tasks.
    """
    chosen = only.split(",") if only else [*AXES, "processes", "tasks"]
    unknown = set(chosen) - {*AXES, "processes", "tasks"}
    if unknown:
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: unknown", param_hint="--only")
    found: dict[str, list[Step]] = {}
    try:
        for axis in chosen:
            if axis in AXES:
                found[axis] = _said(axis, AXES[axis](records))
        real = [axis for axis in chosen if axis not in AXES]
        if real:
            found |= _with_broker(real, records)
    except (BenchmarkError, PenstockError) as error:
        raise click.ClickException(str(error)) from error
    Console().print(table(found))
    problems = [
        f"the cost of a record grows faster than {axis}" for axis, steps in found.items() if grows_faster(steps)
    ]
    for axis, steps in found.items():
        late = [step.shown for step in steps if (step.start_seconds or 0) > START_LIMIT_SECONDS]
        problems += [f"the start with {size} {axis} took over {START_LIMIT_SECONDS:.0f} s" for size in late]
    if problems:
        raise click.ClickException("; ".join(problems))


def _with_broker(axes: list[str], records: int) -> dict[str, list[Step]]:
    with tempfile.TemporaryDirectory(prefix="penstock-growth-") as work, broker("growth", Path(work)) as address:
        cluster = Cluster(address, Path(work), records * ON_A_BROKER_TIMES)
        ways: dict[str, Any] = {"processes": cluster.processes, "tasks": cluster.tasks}
        return {axis: _said(axis, ways[axis]()) for axis in axes}


def _said(axis: str, steps: Iterator[Step]) -> list[Step]:
    """Return the steps; print each when it is done."""
    found = []
    for step in steps:
        start = "" if step.start_seconds is None else f", start {step.start_seconds:.1f} s"
        console.print(f"{axis} {step.shown}: {step.microseconds:.2f} µs a record{start}")
        found.append(step)
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the programs that run are stopped then too
    sys.exit(main())
