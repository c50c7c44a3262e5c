"""``python -m benchmarks.instructions``: the number of bytecode instructions per record in operators, cache and stores.

Seconds depend on the machine and its load; instructions do not, so a test can enforce a limit
(tests/test_instructions.py). Work in C does not count: this finds Python code that has crept into a loop, not a slow
library. The unit is the instructions of the simplest possible loop of a count, so that the limits hold for other
versions of Python too.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from operator import call
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks import topologies
from benchmarks.driver import CACHE_BYTES
from benchmarks.measure import BenchmarkError
from penstock import StreamsConfig, Topology
from penstock.statestore.cache.thread_cache import ThreadCache
from penstock.testing.driver_task import Clock, DriverTask
from penstock.topology.graph.subtopologies import build_whole_topology
from penstock.topology.records import RawRecord, SentRecord

INPUT, OUTPUT, USERS, PAYMENTS = "in", "out", "users", "payments"
KEYS = 100
RECORDS = 2_000  # the first half only warms up caches and Python's specialization
BATCHES = 4
STEP_MS = 10  # of event time between two records

SCENARIOS: dict[str, tuple[Callable[[], Topology], int]] = {
    "count": (topologies.count, CACHE_BYTES),
    "count-uncached": (topologies.count, 0),
    "windowed-count": (topologies.windowed_count, CACHE_BYTES),
    "event-time": (topologies.event_time, CACHE_BYTES),
    "map-filter": (topologies.map_filter, CACHE_BYTES),
    "table-join": (topologies.table_join, CACHE_BYTES),
    "processor": (topologies.processor, CACHE_BYTES),
    "prefix-scan": (topologies.prefix_scan, CACHE_BYTES),
    "range-scan": (topologies.range_scan, CACHE_BYTES),
    "window-suppress": (topologies.window_suppress, CACHE_BYTES),
    "session": (topologies.session, CACHE_BYTES),
    "session-uncached": (topologies.session, 0),
    "hopping": (topologies.hopping, CACHE_BYTES),
    "sliding-uncached": (topologies.sliding, 0),
    "final-windows-uncached": (topologies.final_windows, 0),
    "stream-join": (topologies.stream_join, CACHE_BYTES),
    "left-stream-join": (topologies.left_stream_join, CACHE_BYTES),
    "self-join": (topologies.self_join, CACHE_BYTES),
    "table-table-join": (topologies.table_table_join, CACHE_BYTES),
    "foreign-key-join": (topologies.foreign_key_join, 0),  # the left table and its subscriptions
    "retraction": (topologies.retraction, 0),
}


def counted(work: Callable[[], object]) -> int:
    """Do some work and return the number of bytecode instructions in this thread."""
    number = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal number
        if event == "call":
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
        elif event == "opcode":
            number += 1
        return trace

    before = sys.gettrace()
    gc.disable()  # garbage collection may run Python code
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return number


def purchases(first: int, records: int) -> list[RawRecord]:
    """Return the benchmarks' purchases, of KEYS users in turn."""
    value = b'{"user":"%b","amount":%d,"page":"/","ts":%d}'
    return [
        RawRecord(INPUT, 0, n, n * STEP_MS, _user(n), value % (_user(n), n, n)) for n in range(first, first + records)
    ]


def _user(number: int) -> bytes:
    return b"k%06d" % (number % KEYS)


def least(messages: Sequence[RawRecord]) -> Callable[[], None]:
    """Return the loop that is the unit: a count in a dict."""

    def loop() -> None:
        counts: dict[bytes | None, tuple[int, int]] = {}
        for message in messages:
            key, timestamp = message.key(), message.timestamp()[1]
            old, newest = counts.get(key, (0, 0))
            counts[key] = (old + 1, timestamp if timestamp > newest else newest)

    return loop


def cost(name: str) -> float:
    """Return the instructions of a record of a scenario, in units of the least loop's; raises BenchmarkError."""
    half = RECORDS // 2
    measured = purchases(half, half)
    with tempfile.TemporaryDirectory(prefix="penstock-instructions-") as directory:
        task = _task(name, Path(directory))
        if task.compiled.source_of(USERS) is not None:
            city = b'{"name":"n","city":"Bern"}'
            process(task, [RawRecord(USERS, 0, n, 0, _user(n), city) for n in range(KEYS)])
        if task.compiled.source_of(PAYMENTS) is not None:
            payment = b'{"user":"u","method":"card","ts":1}'
            at = half * STEP_MS  # near to the purchases that are measured
            process(task, [RawRecord(PAYMENTS, 0, n, at, _user(n), payment) for n in range(KEYS)])

        numbers: list[int] = []
        for run, messages in ((call, purchases(0, half)), (lambda work: numbers.append(counted(work)), measured)):
            size = len(messages) // BATCHES
            for begin in range(0, half, size):
                process(task, messages[begin : begin + size], run)
        task.close()
    return sum(numbers) / counted(least(measured))


def process(
    task: DriverTask, messages: Sequence[RawRecord], run: Callable[[Callable[[], None]], None] = call
) -> list[SentRecord]:
    """Process records of one topic as a batch, then the records that they sent to internal topics; return the output.

    run: calls its argument, which processes a batch and commits.
    """
    source = task.compiled.source_of(messages[0].topic())
    if source is None:
        raise BenchmarkError(f"no source for {messages[0].topic()}")

    def work() -> None:
        source.process_batch(messages)
        task.commit()

    run(work)
    left: list[SentRecord] = []
    again: dict[str, list[RawRecord]] = {}
    for sent in task.take_produced():
        if task.compiled.source_of(sent.topic) is None:
            left.append(sent)
        else:
            made = again.setdefault(sent.topic, [])
            made.append(RawRecord(sent.topic, 0, len(made), sent.timestamp or 0, sent.key, sent.value))
    return left + [sent for batch in again.values() for sent in process(task, batch, run)]


def _task(name: str, directory: Path) -> DriverTask:
    make, cache_bytes = SCENARIOS[name]
    topics = {
        topologies.INPUT_VARIABLE: INPUT,
        topologies.OUTPUT_VARIABLE: OUTPUT,
        topologies.TABLE_VARIABLE: USERS,
        topologies.PAYMENTS_VARIABLE: PAYMENTS,
    }
    before = dict(os.environ)
    os.environ.update(topics)
    try:
        topology = make()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return made_task(topology, cache_bytes, directory)


def made_task(topology: Topology, cache_bytes: int, directory: Path) -> DriverTask:
    """Return a task of this process that runs a topology, with its stores in a directory."""
    config = StreamsConfig({"application.id": "benchmark", "bootstrap.servers": "localhost:0"})
    built = build_whole_topology(topology.internal_builder, config)
    return DriverTask(built, config, Clock(0), directory, ThreadCache(cache_bytes))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Print the cost of a record."""
    table = Table(title="bytecode instructions a record, in units of a count in a dict")
    table.add_column("scenario")
    table.add_column("units", justify="right")
    for name in SCENARIOS:
        table.add_row(name, f"{cost(name):.2f}")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
