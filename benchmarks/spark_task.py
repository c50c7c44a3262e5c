"""``python -m benchmarks.spark_task``: a task's own part of a micro-batch on Spark, without Spark, for a count.

CPU time of opening the task, of its records and of its commit; and how much it exchanges with Spark's state, which is a
dict here. Beside it, a micro-batch has the time of Spark itself, which `python -m benchmarks.spark` measures.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from typing_extensions import override

from benchmarks import topologies
from penstock import StreamsConfig
from penstock.pipeline.tasks.changelog_reader import MemoryState
from penstock.pipeline.tasks.spark_task import SparkTask, TaskPlan
from penstock.topology.graph.subtopologies import build_whole_topology
from penstock.topology.records import RawRecord

INPUT, OUTPUT = "purchases", "counts"
NOW_MS = 1_700_000_000_000
FILLING_RECORDS = 50_000  # of a micro-batch that fills the state
VALUE = b'{"user":"u000001","amount":12,"page":"p1","ts":1700000000000}'


class CountedState(MemoryState):
    """A state that counts what is exchanged."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.forget()

    def forget(self) -> None:
        """Count from zero."""
        self.reads = self.writes = self.bytes_read = self.bytes_written = 0

    @override
    def read(self, store: str, numbers: Sequence[int]) -> list[bytes | None]:
        found = super().read(store, numbers)
        self.reads += len(found)
        self.bytes_read += sum(len(blob) for blob in found if blob is not None)
        return found

    @override
    def write(self, store: str, number: int, data: bytes) -> None:
        super().write(store, number, data)
        self.writes += 1
        self.bytes_written += len(data)


class NoSink:
    """Drops what the task sends."""

    def send(self, topic: str, *record: object) -> None:
        """See TaskOutput.send."""


def counting_plan(padding: int) -> TaskPlan:
    """Return the plan of a count, with so many bytes beside each count."""
    os.environ[topologies.INPUT_VARIABLE], os.environ[topologies.OUTPUT_VARIABLE] = INPUT, OUTPUT
    os.environ[topologies.PADDING_VARIABLE] = str(padding)
    topology = topologies.padded_count() if padding else topologies.count()
    config = StreamsConfig({"application.id": "benchmark", "bootstrap.servers": "none:1"})
    return TaskPlan(build_whole_topology(topology.internal_builder, config), config, {INPUT: 1, OUTPUT: 1})


def run_batch(plan: TaskPlan, state: CountedState, keys: Iterable[int]) -> list[float]:
    """Run a micro-batch; return the CPU seconds of opening, processing, committing and closing."""
    records = [RawRecord(INPUT, 0, at, NOW_MS + at, b"k%06d" % key, VALUE, None) for at, key in enumerate(keys)]
    times = [time.process_time()]
    task = SparkTask(plan, 0, state, lambda: NOW_MS, NoSink())
    times.append(time.process_time())
    task.process({INPUT: records})
    times.append(time.process_time())
    task.commit()
    times.append(time.process_time())
    task.close()
    times.append(time.process_time())
    return [end - start for start, end in pairwise(times)]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--keys", type=click.IntRange(min=1), default=250_000, show_default=True, help="In the task's state.")
@click.option("--records", type=click.IntRange(min=1), default=2_000, show_default=True, help="Of a micro-batch.")
@click.option("--batches", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--padding", type=click.IntRange(min=0), default=0, show_default=True, help="Bytes beside each count.")
def main(keys: int, records: int, batches: int, padding: int) -> None:
    """Run micro-batches of a task over a full state, and print the average of one."""
    plan, draw = counting_plan(padding), random.Random(1)
    with TemporaryDirectory(prefix="penstock-spark-task-") as directory:
        state = CountedState(Path(directory))
        for start in range(0, keys, FILLING_RECORDS):
            run_batch(plan, state, range(start, min(start + FILLING_RECORDS, keys)))
        state.forget()
        found = [run_batch(plan, state, (draw.randrange(keys) for _ in range(records))) for _ in range(batches)]
    opening, processing, committing, closing = (sum(parts) / batches * 1000 for parts in zip(*found, strict=True))
    print(f"{records:,} records, {keys:,} keys, {padding} bytes beside each count; a micro-batch of {batches}:")
    print(f"CPU ms: {opening:.1f} open, {processing:.1f} process, {committing:.1f} commit, {closing:.1f} close")
    for what, calls, size in (
        ("read", state.reads, state.bytes_read),
        ("written", state.writes, state.bytes_written),
    ):
        print(f"{what}: {calls / batches:.1f} values, {size / batches / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
