"""``python -m benchmarks.driver``: records per second through the operators alone, without a broker.

There are two modes: record by record through TopologyTestDriver, which commits after each record; and in batches
through the same task, as a stream thread calls it. Seconds are CPU time of this process, so that other load on the
machine counts less. A wrong result ends it with exit code 1.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.measure import BenchmarkError
from penstock import Record, Serdes, StreamsBuilder, StreamsConfig, TimeWindows, Topology
from penstock.statestore.cache.thread_cache import ThreadCache
from penstock.testing import TopologyTestDriver
from penstock.testing.driver_task import Clock, DriverTask
from penstock.topology.graph.subtopologies import build_whole_topology
from penstock.topology.records import RawRecord

INPUT, OUTPUT = "in", "out"
KEYS = 100  # so that a cache merges ten updates of each key in a batch
BATCH = 1_000  # records between two commits, in batches
WINDOW_MS = 10_000
STEP_MS = 10  # of event time between two records
CACHE_BYTES = 10_485_760  # Kafka Streams' default for statestore.cache.max.bytes

#: A checked result: key and value, in order of output.
Results = Sequence[tuple[bytes | None, bytes | None]]


def chain() -> Topology:
    """Five stateless operators: filter, map_values, select_key, peek, flat_map_values."""
    builder = StreamsBuilder()
    numbers = builder.stream(INPUT, key_serde=Serdes.string(), value_serde=Serdes.int64())
    (
        numbers.filter(lambda key, value: value % 2 == 0)
        .map_values(lambda value: value // 2)
        .select_key(lambda key, value: f"{key}!")
        .peek(lambda key, value: None)
        .flat_map_values(lambda value: (value,))
        .to(OUTPUT, key_serde=Serdes.string(), value_serde=Serdes.int64())
    )
    return builder.build()


def windowed() -> Topology:
    """A sum by key and tumbling window, in RocksDB with its changelog."""
    builder = StreamsBuilder()
    numbers = builder.stream(INPUT, key_serde=Serdes.string(), value_serde=Serdes.int64())
    sums = numbers.group_by_key().windowed_by(TimeWindows(WINDOW_MS))
    sums.aggregate(int, lambda key, value, total: total + value, value_serde=Serdes.int64()).to_stream().to(OUTPUT)
    return builder.build()


def key_of(number: int) -> str:
    """Return the key of a record: all keys in turn."""
    return f"key-{number % KEYS}"


def check_chain(records: int, results: Results) -> None:
    """Raise BenchmarkError unless these are exactly the results of the chain."""
    encode = Serdes.int64().serialize
    expected = [(f"{key_of(n)}!".encode(), encode("", n // 2)) for n in range(0, records, 2)]
    if results != expected:
        raise BenchmarkError(
            f"the chain gave {len(results)} results, expected {len(expected)}, or others than expected"
        )


def check_windowed(records: int, results: Results) -> None:
    """Raise BenchmarkError unless the last result of each key and window is its sum."""
    expected: dict[tuple[str, int], int] = {}
    for number in range(records):
        window = (key_of(number), number * STEP_MS // WINDOW_MS * WINDOW_MS)
        expected[window] = expected.get(window, 0) + number
    windows = Serdes.time_windowed(Serdes.string(), WINDOW_MS)
    last: dict[tuple[str, int], Any] = {}
    for key, value in results:
        found: Any = windows.deserialize("", key)
        last[found.key, found.start] = Serdes.int64().deserialize("", value)
    if last != expected:
        raise BenchmarkError(f"the windows have wrong sums: {len(last)} windows, expected {len(expected)}")


@dataclass(frozen=True)
class Scenario:
    """A measured scenario: a topology, its configuration, and a check of (number of records, results)."""

    name: str
    topology: Callable[[], Topology]
    check: Callable[[int, Results], None]
    config: dict[str, Any] = field(default_factory=dict)


SCENARIOS = (
    Scenario("five stateless operators", chain, check_chain),
    Scenario("windowed aggregate", windowed, check_windowed, {"statestore.cache.max.bytes": 0}),
    Scenario("windowed aggregate, cached", windowed, check_windowed, {"statestore.cache.max.bytes": CACHE_BYTES}),
)


def messages(records: int) -> list[RawRecord]:
    """Return the input: rising numbers, 10 ms of event time apart."""
    encode = Serdes.int64().serialize
    return [RawRecord(INPUT, 0, n, n * STEP_MS, key_of(n).encode(), encode("", n)) for n in range(records)]


def by_record(scenario: Scenario, given: Sequence[RawRecord]) -> tuple[float, Results]:
    """Run a scenario through TopologyTestDriver; return seconds of CPU time and the results."""
    with TopologyTestDriver(scenario.topology(), scenario.config) as driver:
        source = driver.create_input_topic(INPUT, Serdes.bytes(), Serdes.bytes())
        records = [Record(m.key(), m.value(), m.timestamp()[1]) for m in given]
        begun = time.process_time()
        for record in records:
            source.pipe_input(record)
        seconds = time.process_time() - begun
        output = driver.create_output_topic(OUTPUT, Serdes.bytes(), Serdes.bytes())
        return seconds, output.read_key_values_to_list()


def in_batches(scenario: Scenario, given: Sequence[RawRecord]) -> tuple[float, Results]:
    """Run a scenario as a task that gets batches and commits after each; return seconds of CPU time and the results."""
    config = StreamsConfig({"application.id": "benchmark", "bootstrap.servers": "localhost:0", **scenario.config})
    with tempfile.TemporaryDirectory(prefix="penstock-benchmark-") as directory:
        built = build_whole_topology(scenario.topology().internal_builder, config)
        cache = ThreadCache(config["statestore.cache.max.bytes"])
        task = DriverTask(built, config, Clock(0), Path(directory), cache)
        source = task.compiled.source_of(INPUT)
        if source is None:
            raise BenchmarkError(f"{scenario.name} has no source for {INPUT}")
        begun = time.process_time()
        for batch in batches(given):
            source.process_batch(batch)
            task.commit()
        seconds = time.process_time() - begun
        task.close()
        return seconds, [(r.key, r.value) for r in task.take_produced() if r.topic == OUTPUT]


def batches(given: Sequence[RawRecord]) -> Iterator[Sequence[RawRecord]]:
    """Yield the input in batches."""
    for begin in range(0, len(given), BATCH):
        yield given[begin : begin + BATCH]


WAYS = {"record by record": by_record, "in batches": in_batches}


def rates(scenario: Scenario, way: str, given: Sequence[RawRecord], rounds: int) -> list[float]:
    """Return records per second of CPU time for each round; raises BenchmarkError for a wrong result."""
    found = []
    for _ in range(rounds):
        seconds, results = WAYS[way](scenario, given)
        scenario.check(len(given), results)
        found.append(len(given) / seconds)
    return found


def table(rows: Iterable[tuple[str, str, list[float]]]) -> Table:
    """Return the text to print."""
    shown = Table(title="records per second of CPU time, one process, no broker")
    for heading in ("topology", "way", "min", "median", "max"):
        shown.add_column(heading, justify="left" if heading in ("topology", "way") else "right")
    for name, way, found in rows:
        numbers = (min(found), statistics.median(found), max(found))
        shown.add_row(name, way, *(f"{number:,.0f}" for number in numbers))
    return shown


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--records", type=click.IntRange(min=100), default=200_000, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
def main(records: int, rounds: int) -> None:
    """Print how many records per second go through a chain of operators and through a windowed aggregate."""
    given = messages(records)
    try:
        found = [(s.name, way, rates(s, way, given, rounds)) for s in SCENARIOS for way in WAYS]
    except BenchmarkError as error:
        raise click.ClickException(str(error)) from error
    Console().print(table(found))


if __name__ == "__main__":
    sys.exit(main())
