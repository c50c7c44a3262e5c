"""Spark: a topology through Penstock beside the same job written by hand for Spark, in one session on the same records.

Each variant reads the benchmark's input with Spark's Kafka source in micro-batches of equal size (availableNow) and
writes the same records. A first round of each warms up Java and Python and is discarded; then they run in turn.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import topologies
from benchmarks.checks import Check, CountsCheck, RowsCheck, check_topic, sum_of_rows
from benchmarks.data import KEYS, PARTITIONS, Workload, recreate_topic
from benchmarks.measure import BenchmarkError
from penstock import Topology
from penstock.pipeline import SparkStreams
from penstock.pipeline.session.query_settings import set_for_queries
from penstock.pipeline.session.spark_session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

#: Each partition's share of a micro-batch for all variants; Penstock's own limit.
OFFSETS_PER_TRIGGER = 1_000_000
SHARE_OF_RECORDS = 1 / 3  # Spark is slower than the local engine


@dataclass(frozen=True, slots=True)
class SparkScenario:
    """topology: made by benchmarks.topologies. by_hand: by name, (frame of Kafka's records) -> frame to write."""

    name: str
    title: str
    topology: Callable[[], Topology]
    check: Callable[[Workload], Check]
    by_hand: dict[str, Callable[[DataFrame], DataFrame]]
    output_mode: str

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class SparkRun:
    """One run: seconds from the query's start to its end."""

    records: int
    seconds: float

    @property
    def rate(self) -> float:
        """The rate in records per second."""
        return self.records / self.seconds


def native_count(frame: DataFrame) -> DataFrame:
    """Count by key with Spark's own aggregation."""
    return frame.groupBy("key").count().selectExpr("key", "unhex(lpad(hex(count), 16, '0')) AS value")


def state_count(frame: DataFrame) -> DataFrame:
    """Count by key with transformWithState, as in Spark's documentation."""
    from benchmarks.spark_count import OUTPUT, CountProcessor

    return frame.groupBy("key").transformWithState(CountProcessor(), OUTPUT, "Update", "None")


def native_map_filter(frame: DataFrame) -> DataFrame:
    """Keep the purchases of an odd amount and add its double, with Spark's own functions."""
    from pyspark.sql.functions import col, from_json, struct, to_json

    row = from_json(col("value").cast("string"), "user string, amount bigint, page string, ts bigint")
    rows = frame.select("key", row.alias("row")).where("row.amount % 2 = 1")
    made = to_json(struct("row.user", "row.amount", "row.page", "row.ts", (col("row.amount") * 2).alias("x")))
    return rows.select("key", made.cast("binary").alias("value"))


SPARK_SCENARIOS = (
    SparkScenario(
        "spark-count",
        "Spark: count by key",
        topologies.count,
        lambda workload: CountsCheck(workload.counts()),
        {"transformWithState by hand": state_count, "native groupBy.count": native_count},
        "update",
    ),
    SparkScenario(
        "spark-stateless",
        "Spark: JSON map and filter",
        topologies.map_filter,
        lambda workload: RowsCheck(sum_of_rows(workload.doubled_purchases())),
        {"native functions": native_map_filter},
        "append",
    ),
)


def spark_version() -> str:
    """Return Spark's name and version."""
    return f"Spark {metadata.version('pyspark')}"


class SparkBench:
    """Runs scenarios in rounds. directory: for checkpoints."""

    def __init__(self, bootstrap_servers: str, workload: Workload, directory: Path, console: Console) -> None:
        self._servers = bootstrap_servers
        self._workload = replace(workload, records=int(workload.records * SHARE_OF_RECORDS))
        self._directory = directory
        self._console = console

    def run(self, scenarios: list[SparkScenario], rounds: int) -> dict[SparkScenario, dict[str, list[SparkRun]]]:
        """Run everything; raises BenchmarkError at the first run with wrong results."""
        if not scenarios:
            return {}
        self._workload.load(self._servers)
        spark = spark_session("benchmark", f"local[{PARTITIONS // 2}]")
        spark.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
        try:
            return {scenario: dict(self._rounds(spark, scenario, rounds)) for scenario in scenarios}
        finally:
            spark.stop()

    def _rounds(
        self, spark: SparkSession, scenario: SparkScenario, rounds: int
    ) -> Iterator[tuple[str, list[SparkRun]]]:
        ways = ["Penstock", *scenario.by_hand]
        runs: dict[str, list[SparkRun]] = {way: [] for way in ways}
        for number in range(rounds + 1):
            for way in ways if number % 2 else ways[::-1]:
                run = self._run(spark, scenario, way)
                what = f"round {number}" if number else "warm-up"
                self._console.print(f"{what}: {scenario.name}, {way}: {run.rate / 1000:,.1f} k/s")
                if number:
                    runs[way].append(run)
        yield from runs.items()

    def _run(self, spark: SparkSession, scenario: SparkScenario, way: str) -> SparkRun:
        name = f"benchmark-{uuid.uuid4().hex[:8]}"
        output, checkpoint = f"{name}-output", self._directory / name
        recreate_topic(self._servers, output)
        started = time.monotonic()
        if way == "Penstock":
            self._penstock(spark, scenario, name, output, checkpoint)
        else:
            topics = self._workload.topic, output
            run_by_hand(spark, scenario.by_hand[way], scenario.output_mode, self._servers, topics, checkpoint)
        seconds = time.monotonic() - started
        problem = check_topic(self._servers, output, scenario.check(self._workload))
        if problem:
            raise BenchmarkError(f"{scenario.name}, {way}: wrong output: {problem}")
        shutil.rmtree(checkpoint)
        return SparkRun(self._workload.records, seconds)

    def _penstock(self, spark: SparkSession, scenario: SparkScenario, name: str, output: str, checkpoint: Path) -> None:
        os.environ[topologies.INPUT_VARIABLE] = self._workload.topic
        os.environ[topologies.OUTPUT_VARIABLE] = output
        config: dict[str, Any] = {
            "application.id": name,
            "bootstrap.servers": self._servers,
            "state.dir": str(self._directory / "state"),
        }
        SparkStreams(scenario.topology(), config, spark, checkpoint=str(checkpoint)).process_available()


def run_by_hand(
    spark: SparkSession,
    job: Callable[[DataFrame], DataFrame],
    output_mode: str,
    servers: str,
    topics: tuple[str, str],
    checkpoint: Path,
    per_trigger: int = OFFSETS_PER_TRIGGER,
) -> StreamingQuery:
    """Run a job from one topic to another, in micro-batches of this many records; return its query, which has ended."""
    set_for_queries(spark)
    source = spark.readStream.format("kafka").options(
        **{
            "kafka.bootstrap.servers": servers,
            "subscribe": topics[0],
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(per_trigger),
        }
    )
    writer = job(source.load()).writeStream.format("kafka").outputMode(output_mode)
    settings = {"kafka.bootstrap.servers": servers, "topic": topics[1], "checkpointLocation": str(checkpoint)}
    query = writer.options(**settings).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def print_spark_table(results: dict[SparkScenario, dict[str, list[SparkRun]]], environment: str) -> None:
    """Print the rates, and Penstock's as a multiple of each other variant's."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("scenario", "way"):
        table.add_column(column)
    for column in ("min k/s", "median", "max", "Penstock"):
        table.add_column(column, justify="right")
    for scenario, by_way in results.items():
        ours = statistics.median(run.rate for run in by_way["Penstock"])
        for way, runs in by_way.items():
            rates = sorted(run.rate / 1000 for run in runs)
            ratio = "" if way == "Penstock" else f"{ours / 1000 / statistics.median(rates):.2f}"
            shown = (f"{rate:,.1f}" for rate in (rates[0], statistics.median(rates), rates[-1]))
            table.add_row(scenario.title, way, *shown, ratio)
    caption = f"Penstock: its rate as a multiple of this way's, by the medians. {KEYS:,} keys, a third of the records."
    Console().print(environment, table, caption, sep="\n")
