"""``python -m benchmarks.hot_loop SCENARIO``: a profile of one stream thread, per record.

Runs one of the benchmark's topologies in a stream thread of this process, and samples the stack of its main thread
every two milliseconds of CPU time. That costs nothing between two samples, unlike a tracing profiler, which would cost
more than the measured code. docs/laboratory.md has such profiles.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table

from benchmarks import topologies
from benchmarks.data import Workload, recreate_topic
from benchmarks.scenarios import SCENARIOS, WIDE, Scenario
from benchmarks.systems import COMMON_CONFIG, broker
from penstock.kernel.buffers import keep_buffers
from penstock.topology.config.streams_config import StreamsConfig
from penstock.workers.control.messages import Command, Failed, Report, Shutdown, Status, ThreadSpec
from penstock.workers.thread.stream_thread import StreamThread
from tests.topics import delete_topics_of

PROCESS_ID = "8d1dd3a8-9b0b-4f0e-8d1c-3c1f0d6c3d55"  # the id of an application that does not exist
SAMPLE_SECONDS = 0.002  # of CPU time
#: Shares of the records: nothing is measured before the first and after the second.
FROM, TO = 0.2, 0.95
BY_NAME = {scenario.name: scenario for scenario in (*SCENARIOS, *WIDE)}

#: The stage of a sample: the first stage that one of its frames, the innermost first, belongs to.
STAGES = (
    ("RocksDB", ("rocksdb_store.py",)),
    ("send: compress, requests, answers", ("kafka_producer.py", "sender.py")),
    ("produce", ("record_sends.py", "record_collector.py", "streams_producer.py")),
    ("evict", ("NamedCache.evict", "NamedCache.grown")),
    ("flush: order of the changes", ("NamedCache.take_dirty",)),
    ("flush: changelog, encode", ("._write_entries",)),
    ("flush: downstream", ("CachingStore._send",)),
    ("nodes: decode, operators, cache", ("partition_group.py",)),
    ("poll: consume", ("LibrdkafkaReader._consume", "Fetcher.fetch")),
    ("poll: by partition", ("PartitionConsumer.poll", "by_partition")),
    ("commit", ("committer.py", "task_commits.py")),
)


class Watch:
    """The thread's supervisor: measures between two shares of the records, and ends the thread after the last one."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._marks: list[tuple[int, float, float]] = []
        self._commands: list[Command] = []

    def poll_commands(self) -> list[Command]:
        """Return the commands for the stream thread: a shutdown once all records are processed."""
        commands, self._commands = self._commands, []
        return commands

    def watched_by(self, watch: Callable[[int], None]) -> None:
        """Ignore it: there are no commands."""

    def report(self, report: Report) -> None:
        """Handle a report of the stream thread: print failures, and keep the time of each status."""
        if isinstance(report, Failed):
            click.echo(report.traceback, err=True)
        if isinstance(report, Status):
            self._marks.append((report.records_processed, time.thread_time(), time.process_time()))
            if report.records_processed >= self._records:
                self._commands = [Shutdown(leave_group=True)]

    def cost(self) -> tuple[float, float]:
        """Return microseconds of CPU time for each record: of the main thread, and of the whole process."""
        first = next(mark for mark in self._marks if mark[0] >= self._records * FROM)
        last = next(mark for mark in self._marks if mark[0] >= self._records * TO)
        records = last[0] - first[0]
        if not records:  # a status is reported only now and then
            raise click.ClickException("The thread was done too soon to be measured: give it more --records.")
        return (last[1] - first[1]) / records * 1e6, (last[2] - first[2]) / records * 1e6


class Samples:
    """Samples of the main thread's stack."""

    def __init__(self) -> None:
        self.stages: Counter[str] = Counter()
        self.places: Counter[str] = Counter()

    def take(self, _signal: int, frame: FrameType | None) -> None:
        """Sample the main thread's stack: a signal handler."""
        places = list(self._places(frame))
        self.stages[next((stage for place in places if (stage := _stage_of(place))), "everything else")] += 1
        self.places[places[0]] += 1

    @staticmethod
    def _places(frame: FrameType | None) -> Iterator[str]:
        while frame is not None:
            code = frame.f_code
            file = Path(code.co_filename).name
            yield f"{file}:{code.co_qualname}"
            frame = frame.f_back

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Take samples while the context is active."""
        signal.signal(signal.SIGPROF, self.take)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def _stage_of(place: str) -> str | None:
    return next((stage for stage, parts in STAGES if any(part in place for part in parts)), None)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", metavar="SCENARIO", type=click.Choice(list(BY_NAME)))
@click.option("--records", type=click.IntRange(min=10_000), default=6_000_000, show_default=True)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="More configuration.")
def main(name: str, records: int, settings: tuple[str, ...]) -> None:
    """Print where one stream thread's time goes while it runs a scenario of the benchmarks.

    $KAFKA_BOOTSTRAP_SERVERS names the broker; else a dev broker is started for the run.
    """
    scenario = BY_NAME[name]
    directory = Path(tempfile.mkdtemp(prefix="penstock-hot-loop-"))
    try:
        with broker("hot-loop", directory) as address:
            more = dict(setting.split("=", 1) for setting in settings)
            watch, samples = profile(address, scenario, {**scenario.config, **more}, Workload(records), directory)
    finally:
        shutil.rmtree(directory)
    _print(name, watch, samples)


def profile(
    address: str, scenario: Scenario, config: Mapping[str, str], workload: Workload, directory: Path
) -> tuple[Watch, Samples]:
    """Run a scenario's topology over a workload, in this thread."""
    name = f"hot-loop-{uuid.uuid4().hex[:8]}"
    workload.load(address)
    if scenario.with_payments:
        workload.load_payments(address)
    recreate_topic(address, f"{name}-output")
    os.environ |= {
        topologies.INPUT_VARIABLE: workload.topic,
        topologies.TABLE_VARIABLE: workload.table,
        topologies.PAYMENTS_VARIABLE: workload.payments_topic,
        topologies.OUTPUT_VARIABLE: f"{name}-output",
    }
    given = {"application.id": name, "bootstrap.servers": address, "state.dir": str(directory / "state")}
    effective = StreamsConfig({**COMMON_CONFIG, **config, **given})
    spec = ThreadSpec(1, "hot-loop", PROCESS_ID, 1, effective)  # it reads all partitions, so it has the whole cache
    watch, samples = Watch(scenario.processed(workload)), Samples()
    keep_buffers()  # as in a supervisor's process
    thread = StreamThread.create(getattr(topologies, scenario.topology)(), spec, watch)
    with samples.taken():
        thread.run()
    delete_topics_of(AdminClient({"bootstrap.servers": address, "log_level": 3}), name)
    return watch, samples


def _print(name: str, watch: Watch, samples: Samples) -> None:
    main_thread, process = watch.cost()
    total = samples.stages.total()
    table = Table(
        title=f"{name}: {main_thread:.2f} µs of CPU a record in the main thread, {process:.2f} in the process"
    )
    for heading in ("stage", "µs a record", "share"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for stage, number in samples.stages.most_common():
        table.add_row(stage, f"{main_thread * number / total:.2f}", f"{number / total:.0%}")
    table.add_section()
    for place, number in samples.places.most_common(12):
        table.add_row(place, f"{main_thread * number / total:.2f}", f"{number / total:.0%}")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
