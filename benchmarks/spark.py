"""``python -m benchmarks.spark``: a count of many keys on Spark, with a breakdown of the time of a micro-batch.

Penstock beside a hand-written transformWithState, in Python (by rows, and in pandas) and in Java. Each variant has its
own Spark, whose first micro-batch warms it up and fills much of the state. The figures are those of the other
micro-batches, from Spark's own progress reports. Wrong counts end it with exit code 1. With --empty: what micro-batches
without records cost.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
import zipfile
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import psutil
from confluent_kafka.admin import AdminClient
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import topologies
from benchmarks.checks import CountsCheck, check_topic
from benchmarks.data import PARTITIONS, WINDOW_MS, Workload, load_topic, make_producer, recreate_topic
from benchmarks.measure import BenchmarkError
from benchmarks.report import PAGE_WIDTH
from benchmarks.spark_jobs import run_by_hand, spark_version, state_count
from benchmarks.systems import HERE, broker, compile_java
from penstock.pipeline import SparkStreams
from penstock.pipeline.java.java_runtime import find_java
from penstock.pipeline.session.spark_session import spark_session
from penstock.topology.errors import PenstockError
from tests.topics import delete_topics_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOOK_SECONDS = 0.5
#: Of the measurement of micro-batches without records.
EMPTY_TASKS, EMPTY_BATCHES, EMPTY_WARM_UP = 8, 30, 5
console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a micro-batch. ms: reads its time from a report of Spark's progress."""

    title: str
    ms: Callable[[Mapping[str, Any]], float]


def _duration(*names: str) -> Callable[[Mapping[str, Any]], float]:
    return lambda progress: sum(progress["durationMs"].get(name, 0) for name in names)


def _commit_ms(progress: Mapping[str, Any]) -> float:
    """Return the average commit time of a partition's state: partitions commit concurrently."""
    return sum(float(each["commitTimeMs"]) for each in progress["stateOperators"]) / PARTITIONS


PARTS = (
    Part("batch", _duration("triggerExecution")),
    Part("offsets", _duration("latestOffset", "getBatch", "walCommit", "commitOffsets")),
    Part("plan", _duration("queryPlanning")),
    Part("process", _duration("addBatch")),
    Part("of it state", _commit_ms),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One variant. progress: of the micro-batches after the first; rss_bytes: the maximum over all processes;
    cpu_seconds: of these micro-batches, by Python and by Java.
    """

    progress: Sequence[Mapping[str, Any]]
    rss_bytes: int
    cpu_seconds: tuple[float, float]
    checkpoint_bytes: int

    @property
    def rate(self) -> float:
        """The rate in records per second."""
        seconds = sum(PARTS[0].ms(each) for each in self.progress) / 1000
        return float(sum(each["numInputRows"] for each in self.progress) / seconds)

    @property
    def growth(self) -> float:
        """The time of the last tenth of the micro-batches, in times of the first tenth."""
        few = -(-len(self.progress) // 10)
        return sum(map(PARTS[0].ms, self.progress[-few:])) / sum(map(PARTS[0].ms, self.progress[:few]))


def empty_batches(servers: str, master: str, directory: Path) -> Sequence[Mapping[str, Any]]:
    """Return the progress of micro-batches without records that wake tasks with a store, without the first ones."""
    name, tasks = f"benchmark-{uuid.uuid4().hex[:8]}", EMPTY_TASKS
    source = f"{name}-input"
    recreate_topic(servers, source, tasks)
    os.environ |= {topologies.INPUT_VARIABLE: source}
    producer = make_producer(servers)
    for number in range(tasks):
        producer.produce(source, value=b"", partition=number)
    producer.flush()
    config = {"application.id": name, "bootstrap.servers": servers, "state.dir": str(directory / "state")}
    spark = spark_session(name, master)
    try:
        with SparkStreams(topologies.punctuated(), config, spark, checkpoint=str(directory / name)) as streams:
            streams.start()
            (query,) = streams.queries
            while query.isActive and len(query.recentProgress) < EMPTY_BATCHES + EMPTY_WARM_UP:
                query.awaitTermination(1)
            found = [dict(each) for each in query.recentProgress]
    finally:
        spark.stop()
    delete_topics_of(AdminClient({"bootstrap.servers": servers, "log_level": 3}), name)
    return [each for each in found[EMPTY_WARM_UP:] if not each["numInputRows"]]


def pandas_count(frame: DataFrame) -> DataFrame:
    """Count by key with transformWithStateInPandas."""
    from benchmarks.spark_count import OUTPUT, PandasCountProcessor

    keys = frame.select("key").groupBy("key")
    return keys.transformWithStateInPandas(PandasCountProcessor(), OUTPUT, "Update", "None")


def _pyspark() -> Path:
    """Return PySpark's folder, which is Spark's home."""
    import pyspark

    return Path(pyspark.__file__).parent


class JavaCount:
    """Counts by key with transformWithState in Java; compiled into a directory."""

    def __init__(self, directory: Path) -> None:
        classes, self._jar = directory / "classes", directory / "count.jar"
        jars = _pyspark() / "jars" / "*"
        compile_java(find_java(), HERE / "spark_java" / "SparkCount.java", classes, str(jars))
        with zipfile.ZipFile(self._jar, "w") as jar:
            for file in classes.iterdir():
                jar.write(file, file.name)

    def __call__(self, frame: DataFrame, padding: int, late: int) -> DataFrame:
        """Return key and count of each key of a micro-batch, or of each key and window if some purchases are late.

        padding: random bytes beside each count in the state.
        """
        from pyspark.sql.classic.dataframe import DataFrame as JavaFrame

        spark: Any = frame.sparkSession
        spark.sql(f"ADD JAR '{self._jar}'")
        key = "CAST(key AS STRING)"
        if late:
            key = f"concat({key}, '@', unix_millis(timestamp) div {WINDOW_MS} * {WINDOW_MS})"
        return JavaFrame(spark._jvm.SparkCount.count(frame.selectExpr(f"{key} AS key")._jdf, padding), spark)


def child_processes() -> frozenset[int]:
    """Return the ids of this process's children, grandchildren and so on."""
    return frozenset(process.pid for process in psutil.Process().children(recursive=True))


class Processes:
    """Follows the memory and the CPU time of Spark's Java and of its Python workers, in a thread.

    before: processes that were there before Spark. Between two looks, a worker may use CPU time and end: that is not
    seen.
    """

    def __init__(self, before: frozenset[int]) -> None:
        self.highest_rss = 0
        self._before = before
        self._cpu_seconds: dict[tuple[bool, int], float] = {}  # by whether it is Java, and process
        #: Seconds since the epoch, CPU seconds until then of Python and Java.
        self._looks: list[tuple[float, float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="processes")

    def __enter__(self) -> Processes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def cpu_seconds(self, start: float, end: float) -> tuple[float, float]:
        """Return the CPU time of Python and Java between two times, in seconds since the epoch."""
        times = [time for time, *_ in self._looks]
        first, last = (self._looks[min(bisect_left(times, time), len(times) - 1)] for time in (start, end))
        return last[1] - first[1], last[2] - first[2]

    def _follow(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            rss = 0
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    rss += process.memory_info().rss
                    if process.pid not in self._before:
                        times = process.cpu_times()
                        self._cpu_seconds[process.name() == "java", process.pid] = times.user + times.system
            self.highest_rss = max(self.highest_rss, rss)
            python, java = (sum(v for (is_java, _), v in self._cpu_seconds.items() if is_java == of) for of in (0, 1))
            self._looks.append((time.time(), python, java))


@dataclass(frozen=True, slots=True)
class Setting:
    """What all variants have in common. per_trigger: records of a micro-batch; padding: bytes beside each count;
    before: processes that were there before Spark.
    """

    workload: Workload
    servers: str
    master: str
    per_trigger: int
    padding: int
    directory: Path
    before: frozenset[int]


def run_way(way: str, setting: Setting) -> Run:
    """Run a variant on its own Spark; raises BenchmarkError for wrong counts."""
    workload, servers, master, directory = setting.workload, setting.servers, setting.master, setting.directory
    name = f"benchmark-{uuid.uuid4().hex[:8]}"
    output, checkpoint = f"{name}-output", directory / name
    recreate_topic(servers, output)
    spark = spark_session(name, master)
    try:
        spark.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
        with Processes(setting.before) as processes, console.status(f"{way}: running"):
            if way == PENSTOCK:
                os.environ |= {topologies.INPUT_VARIABLE: workload.topic, topologies.OUTPUT_VARIABLE: output}
                os.environ[topologies.PADDING_VARIABLE] = str(setting.padding)
                os.environ[topologies.LATE_VARIABLE] = str(workload.late)
                if workload.late:
                    topology = topologies.late_count()
                else:
                    topology = topologies.padded_count() if setting.padding else topologies.count()
                config = {
                    "application.id": name,
                    "bootstrap.servers": servers,
                    "state.dir": str(directory / "state"),
                    "penstock.spark.max.records.per.batch": setting.per_trigger,
                }
                streams = SparkStreams(topology, config, spark, checkpoint=str(checkpoint))
                streams.process_available()
                (query,) = streams.queries
            else:
                job = BY_HAND.get(way) or partial(JavaCount(directory), padding=setting.padding, late=workload.late)
                topics = workload.topic, output
                query = run_by_hand(spark, job, "update", servers, topics, checkpoint, setting.per_trigger)
            progress = [dict(each) for each in query.recentProgress if each["numInputRows"]]
    finally:
        spark.stop()
        if master.startswith("local-cluster"):  # it always keeps its workers' logs there
            shutil.rmtree(_pyspark() / "work", ignore_errors=True)
    expected = workload.named_windowed_counts() if workload.late else workload.counts()
    problem = check_topic(servers, output, CountsCheck(expected))
    if problem:
        raise BenchmarkError(f"{way}: wrong output: {problem}")
    stored = sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
    shutil.rmtree(checkpoint)
    delete_topics_of(AdminClient({"bootstrap.servers": servers, "log_level": 3}), name)
    timed = progress[1:]
    cpu_seconds = processes.cpu_seconds(_started(timed[0]), _started(timed[-1]) + PARTS[0].ms(timed[-1]) / 1000)
    return Run(timed, processes.highest_rss, cpu_seconds, stored)


def _started(progress: Mapping[str, Any]) -> float:
    """Return when a micro-batch has started, in seconds since the epoch."""
    return datetime.fromisoformat(progress["timestamp"]).timestamp()


PENSTOCK, JAVA = "Penstock", "transformWithState, Java"
BY_HAND: dict[str, Callable[[DataFrame], DataFrame]] = {
    "transformWithState, Python rows": state_count,
    "transformWithState, pandas": pandas_count,
}
WAYS = (PENSTOCK, JAVA, *BY_HAND)


def table(found: Mapping[str, Run]) -> Table:
    """Return the text to print: average seconds of a micro-batch."""
    shown = Table(box=box.SIMPLE_HEAD)
    shown.add_column("way")
    cpu = "Python CPU s", "Java CPU s"
    for heading in ("k/s", *(f"{part.title} s" for part in PARTS), *cpu, "last tenth", "RSS MB", "checkpoint MB"):
        shown.add_column(heading, justify="right")
    for way, run in found.items():
        seconds = (sum(map(part.ms, run.progress)) / len(run.progress) / 1000 for part in PARTS)
        memory = f"{run.rss_bytes / 1e6:,.0f}", f"{run.checkpoint_bytes / 1e6:,.0f}"
        rate, growth = f"{run.rate / 1000:,.1f}", f"{run.growth:.2f}"
        used = (each / len(run.progress) for each in run.cpu_seconds)
        shown.add_row(way, rate, *(f"{each:.2f}" for each in (*seconds, *used)), growth, *memory)
    return shown


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--keys", type=click.IntRange(min=1), default=1_000_000, show_default=True)
@click.option("--records", type=click.IntRange(min=1_000), default=6_000_000, show_default=True)
@click.option("--batches", type=click.IntRange(min=2), default=6, show_default=True, help="Micro-batches of each way.")
@click.option("--master", default="local[2]", show_default=True, help="Also: local-cluster[2,1,1024].")
@click.option("--skew", type=click.IntRange(min=1), default=1, show_default=True, help="4: a sixteenth buys half.")
@click.option("--padding", type=click.IntRange(min=0), default=0, show_default=True, help="Bytes beside each count.")
@click.option("--late", type=click.IntRange(min=0), default=0, help="Counts in windows; a tenth is so many late.")
@click.option("--empty", is_flag=True, help="Only micro-batches without records.")
@click.option("--only", metavar="NUMBERS", help=f"Some ways: {', '.join(f'{n} {way}' for n, way in enumerate(WAYS))}.")
def main(
    keys: int,
    records: int,
    batches: int,
    master: str,
    skew: int,
    padding: int,
    late: int,
    empty: bool,
    only: str | None,
) -> None:
    """Count records of many keys on Spark, and print where the time of a micro-batch goes."""
    ways = [WAYS[int(number)] for number in only.split(",")] if only else list(WAYS[:2] if padding or late else WAYS)
    workload = Workload(records, keys=keys, skew=skew, late=late)
    found: dict[str, Run] = {}
    try:
        with (
            tempfile.TemporaryDirectory(prefix="penstock-spark-") as work,
            broker("spark", Path(work)) as servers,
        ):
            if empty:
                slow = sorted(PARTS[0].ms(each) for each in empty_batches(servers, master, Path(work)))
                middle, most = slow[len(slow) // 2] / 1000, slow[-1] / 1000
                what = f"{len(slow)} empty micro-batches of {EMPTY_TASKS} tasks"
                print(f"{what}: median {middle:.2f} s, at most {most:.2f} s")
                return
            load_topic(servers, workload.topic, workload.purchases(), records)
            before = child_processes()
            for way in ways:
                setting = Setting(workload, servers, master, -(-records // batches), padding, Path(work), before)
                found[way] = run_way(way, setting)
                console.print(f"{way}: {found[way].rate / 1000:,.1f} k/s")
    except (BenchmarkError, PenstockError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        if found:  # some may take hours
            output = Console()
            if not output.is_terminal:
                output.width = PAGE_WIDTH
            beside = f", {padding} bytes beside each count" if padding else ""
            beside += f", skew {skew}" if skew > 1 else ""
            beside += f", a tenth late by up to {late} windows" if late else ""
            heading = f"{spark_version()}, {master}: {records:,} records of {keys:,} keys{beside}"
            output.print(heading, table(found), sep="\n")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Spark is stopped then too
    sys.exit(main())
