"""``python -m benchmarks``: Penstock and Kafka Streams in turn, on the same broker and records, in one run."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from confluent_kafka.admin import AdminClient
from rich.console import Console

from benchmarks.checks import check_topic
from benchmarks.data import CODEC, PARTITIONS, Workload, recreate_topic
from benchmarks.failover import RECOVERY_SCENARIOS, RecoveryBench
from benchmarks.idle import IDLE_SCENARIOS
from benchmarks.measure import BenchmarkError, Measurement, Program, measure
from benchmarks.moving import MOVING_SCENARIOS
from benchmarks.plot import write_plot
from benchmarks.recovery import RecoveryScenario
from benchmarks.report import (
    Results,
    environment_line,
    print_recovery_table,
    print_table,
    write_json,
    write_markdown,
)
from benchmarks.rounds import Rounds
from benchmarks.scenarios import SCENARIOS, WIDE, Scenario
from benchmarks.spark_jobs import SPARK_SCENARIOS, SparkBench, SparkScenario, print_spark_table, spark_version
from benchmarks.systems import COMMON_CONFIG, FOR_PEERS, KafkaStreams, Penstock, System, broker, peers
from penstock.topology.errors import PenstockError
from penstock.topology.records import TopicPartition
from tests.topics import delete_topics_of

DEFAULT_RECORDS = 6_000_000
QUICK_RECORDS = 4_000_000  # the JVM is hardly warm then: this only checks that it runs, in less than two minutes
#: Measurements shorter than this use commits that are closer together.
QUICK_CONFIG = {"commit.interval.ms": "100"}
QUICK_SCENARIOS = "count,map-filter"
#: Share of the records before the clock starts: a JVM compiles its hot code during the first seconds.
WARM_UP_SHARE = 1 / 3
ALL_SCENARIOS: dict[str, Scenario | RecoveryScenario] = {
    **{scenario.name: scenario for scenario in SCENARIOS},
    **{scenario.name: scenario for scenario in RECOVERY_SCENARIOS},
}
#: Only on request: they need PySpark and a JDK.
ON_SPARK = {scenario.name: scenario for scenario in SPARK_SCENARIOS}
#: Only on request, one by one or as a group by its name.
GROUPS: dict[str, tuple[Scenario | RecoveryScenario, ...]] = {
    "wide": WIDE,
    "idle": IDLE_SCENARIOS,
    "moving": MOVING_SCENARIOS,
}
ON_REQUEST = {scenario.name: scenario for group in GROUPS.values() for scenario in group}
console = Console(stderr=True)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only", metavar="NAMES", help=f"Some of: {','.join([*ALL_SCENARIOS, *GROUPS, *ON_REQUEST, *ON_SPARK])}."
)
@click.option("--system", "systems", type=click.Choice(["all", "penstock", "kafka-streams"]), default="all")
@click.option("--peers", "with_peers", is_flag=True, help="Other Python libraries too, with fewer records.")
@click.option("--records", type=click.IntRange(min=10_000), help=f"By default {DEFAULT_RECORDS:,}.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--codec", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default=CODEC, show_default=True)
@click.option("--quick", is_flag=True, help=f"One round of {QUICK_RECORDS:,} records; {QUICK_SCENARIOS} by default.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write every run there.")
@click.option("--markdown", "markdown_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the tables.")
@click.option("--plot", "plot_file", type=click.Path(dir_okay=False, path_type=Path), help="Draw the rates (SVG).")
def main(
    only: str | None,
    systems: str,
    with_peers: bool,
    records: int | None,
    rounds: int,
    codec: str,
    quick: bool,
    json_file: Path | None,
    markdown_file: Path | None,
    plot_file: Path | None,
) -> None:
    """Measure Penstock against Kafka Streams: k records/s, memory and CPU, with the ratio between the two.

    $KAFKA_BOOTSTRAP_SERVERS names the broker; else a dev broker is started for the run. A system that fails or answers
    wrong is left out of this scenario's report. The exit code is 1 then, unless it is a peer.
    """
    scenarios, recoveries, on_spark = _chosen(only or (QUICK_SCENARIOS if quick else None))
    if quick:
        scenarios = [replace(each, times=1, config={**each.config, **QUICK_CONFIG}) for each in scenarios]
    workload = Workload(records or (QUICK_RECORDS if quick else DEFAULT_RECORDS), codec)
    try:
        settings = FOR_PEERS if with_peers else {}
        directory = Path(tempfile.mkdtemp(prefix="penstock-benchmark-"))
        with broker("benchmark", directory, settings) as address:
            measured = _systems(systems, directory) if scenarios or recoveries else []
            measured += peers(directory) if with_peers else []
            versions = [system.version for system in measured] + ([spark_version()] if on_spark else [])
            in_turn = Rounds(1 if quick else rounds)
            results = Bench(address, workload, directory, measured).run(scenarios, in_turn)
            recovered = RecoveryBench(address, workload, directory, measured).run(recoveries, in_turn)
            spark = SparkBench(address, workload, directory, console).run(on_spark, rounds)
    except (BenchmarkError, PenstockError) as error:
        raise click.ClickException(str(error)) from error
    environment = environment_line(workload, versions, scenarios)
    if results:
        print_table(results, environment)
        if plot_file:
            write_plot(results, environment, plot_file)
    if recovered:
        print_recovery_table(recovered, environment)
    if markdown_file:
        write_markdown(results, recovered, environment, markdown_file)
    if spark:
        print_spark_table(spark, environment)
    if json_file:
        write_json(dict[Any, Any](results) | dict[Any, Any](recovered) | dict[Any, Any](spark), json_file)
    for problem in in_turn.problems:
        click.echo(f"Not reported: {problem}")
    if in_turn.failed:
        raise click.ClickException(f"Not all runs were right; their logs are in {directory}")
    shutil.rmtree(directory)


def _chosen(only: str | None) -> tuple[list[Scenario], list[RecoveryScenario], list[SparkScenario]]:
    known: dict[str, Any] = {**ALL_SCENARIOS, **ON_REQUEST, **ON_SPARK}
    named = only.split(",") if only else list(ALL_SCENARIOS)
    names = [each for name in named for each in ([s.name for s in GROUPS[name]] if name in GROUPS else [name])]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(known)}", param_hint="--only")
    chosen = [known[name] for name in names]
    return (
        [scenario for scenario in chosen if isinstance(scenario, Scenario)],
        [scenario for scenario in chosen if isinstance(scenario, RecoveryScenario)],
        [scenario for scenario in chosen if isinstance(scenario, SparkScenario)],
    )


def _systems(choice: str, directory: Path) -> list[System]:
    systems: list[System] = []
    if choice != "penstock":
        systems.append(KafkaStreams(directory))
    if choice != "kafka-streams":
        systems.append(Penstock())
    return systems


class Bench:
    """Runs throughput scenarios. apart: see Progress."""

    apart = True

    def __init__(self, bootstrap_servers: str, workload: Workload, directory: Path, systems: list[System]) -> None:
        self._systems = systems
        self._bootstrap_servers = bootstrap_servers
        self._workload = workload
        self._directory = directory
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 3})

    def run(self, scenarios: list[Scenario], rounds: Rounds) -> Results:
        """Run all scenarios."""
        runs = list(rounds.runs(self._systems, scenarios))
        for workload in {self._workload_of(scenario, system) for _, scenario, system in runs}:
            workload.load(self._bootstrap_servers)
        for workload in {self._workload_of(scenario, system) for _, scenario, system in runs if scenario.with_payments}:
            workload.load_payments(self._bootstrap_servers)
        return rounds.run(self._systems, scenarios, self._run_one, lambda _, found: f"{found.rate:,.0f} records/s")

    def _workload_of(self, scenario: Scenario, system: System) -> Workload:
        records = int(self._workload.records * scenario.times * system.share(scenario))
        return replace(self._workload, records=records)

    def _run_one(self, scenario: Scenario, system: System) -> Measurement:
        # A unique token, so that no earlier run's committed offsets are used.
        name = f"benchmark-{uuid.uuid4().hex[:8]}-{scenario.name}-{system.name.lower().replace(' ', '-')}"
        output = f"{name}-output"
        workload, home = self._workload_of(scenario, system), self._directory / name
        home.mkdir()
        properties = home / "application.properties"
        properties.write_text(self._properties(name, scenario, system, home), "utf-8")
        recreate_topic(self._bootstrap_servers, output)
        topics = {
            "BENCHMARK_INPUT": workload.topic,
            "BENCHMARK_TABLE": workload.table,
            "BENCHMARK_PAYMENTS": workload.payments_topic,
            "BENCHMARK_OUTPUT": output,
        }
        work = partial(scenario.rows, workload)
        program = Program(system.command(scenario.topology, properties), topics, name, home / "log", work)
        progress = scenario.progress(workload, name)
        partitions = [TopicPartition(topic, number) for topic in progress for number in range(PARTITIONS)]
        records = sum(progress.values())
        warm_up = int(records * WARM_UP_SHARE)
        try:
            result = measure(program, self._bootstrap_servers, partitions, records, warm_up, self.apart)
        finally:
            shutil.rmtree(home / "state", ignore_errors=True)
        problem = check_topic(self._bootstrap_servers, output, scenario.check(workload))
        if problem:
            raise BenchmarkError(f"wrong output: {problem}")
        delete_topics_of(self._admin, name)
        return result

    def _properties(self, name: str, scenario: Scenario, system: System, home: Path) -> str:
        config = {
            "application.id": name,
            "bootstrap.servers": self._bootstrap_servers,
            "state.dir": str(home / "state"),
            **COMMON_CONFIG,
            "producer.compression.type": self._workload.codec,
            **system.config,
            **scenario.config,
        }
        return "".join(f"{key}={value}\n" for key, value in config.items())


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # running programs are stopped then too
    sys.exit(main())
