"""``python -m benchmarks.waiting``: records with a service call each, by Penstock and by other systems."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import click
import orjson
from rich import box
from rich.console import Console
from rich.table import Table
from typing_extensions import override

from benchmarks.__main__ import Bench
from benchmarks.checks import Check
from benchmarks.data import Workload
from benchmarks.measure import BenchmarkError
from benchmarks.report import Results, environment_line
from benchmarks.rounds import Rounds
from benchmarks.scenarios import Scenario
from benchmarks.systems import Peer, Penstock, System, broker, environment
from benchmarks.waiting_topologies import SERVICE_VARIABLE

HERE = Path(__file__).resolve().parent
START_SECONDS = 30.0
#: How long a failing service is up and down, in seconds.
UP_SECONDS, AWAY_SECONDS = 5.0, 2.0
#: The number of records in one share.
RECORDS = 100_000


def answers(workload: Workload) -> dict[bytes, int]:
    """Return the hashes that AnswersCheck compares."""
    rows = ((key, orjson.loads(value)) for key, value, _ in workload.purchases())
    return in_order((key, orjson.dumps({**row, "x": 2 * row["amount"]})) for key, row in rows)


def in_order(rows: Iterable[tuple[bytes, bytes]]) -> dict[bytes, int]:
    """Return one hash of each key's rows, which depends on their order."""
    found: dict[bytes, int] = {}
    for key, value in rows:
        _add(found, key, value)
    return found


def _add(rows: dict[bytes, int], key: bytes, value: bytes) -> None:
    rows[key] = hash((rows.get(key), value))


class AnswersCheck(Check):
    """The rows of each key are the expected ones, in order, byte for byte."""

    def __init__(self, expected: Mapping[bytes, int]) -> None:
        self._expected = expected
        self._found: dict[bytes, int] = {}

    @override
    def read(self, key: bytes, value: bytes) -> None:
        _add(self._found, key, value)

    @override
    def problem(self) -> str | None:
        keys = self._expected.keys() | self._found.keys()
        wrong = [key for key in keys if self._expected.get(key) != self._found.get(key)]
        return f"the rows of {len(wrong)} of {len(keys)} keys are others, e.g. of {min(wrong)!r}" if wrong else None


class Waiting(Penstock):
    """Penstock, with async functions."""

    module = "benchmarks.waiting_topologies"
    topology = "waiting"
    name = "Penstock 256 in flight"

    def __init__(self, _work_directory: Path) -> None:
        super().__init__()

    @override
    def command(self, topology: str, properties: Path) -> list[str]:
        return super().command(self.topology, properties)


class WaitingByKey(Waiting):
    """The same, ordered by key."""

    topology, name = "waiting_by_key", "Penstock 256 in flight by key"


class Plain(Waiting):
    """Penstock, with plain functions."""

    topology, name = "plain", "Penstock plain function"
    shares: Mapping[str, float] = {"steady": 0.03}


class Pool(Peer):
    """A thread pool over confluent-kafka, in two processes."""

    name = "thread pool by hand"
    package, program, pins = "confluent-kafka", "confluent_kafka_pool.py", "confluent_kafka.txt"


class Quix(Peer):
    """Quix Streams in two processes; its functions are synchronous."""

    name = "Quix Streams"
    package, program, pins = "quixstreams", "quix_streams.py", "quix_streams.txt"
    scenarios: tuple[str, ...] | None = ("steady",)
    shares: Mapping[str, float] = {"steady": 0.03}


SCENARIOS = tuple(
    Scenario(name, title, "ask", answers, AnswersCheck)
    for name, title in {
        "steady": "answers in 20 ms",
        "spread": "answers in 5 to 500 ms",
        "failing": "answers in 20 ms, one in ten fails",
        "dying": "dies every 5 s, back after 2 s",
    }.items()
)
#: Failing or slow services need async functions.
SYSTEMS: dict[str, tuple[type[Waiting | Peer], ...]] = {"steady": (Plain, Waiting, WaitingByKey, Pool, Quix)}
OTHERS: tuple[type[Waiting | Peer], ...] = (Waiting, WaitingByKey, Pool)
SHARES = {"steady": 1.0, "spread": 0.3, "failing": 0.6, "dying": 0.6}


class Service:
    """The service in a separate process, which can be killed and restarted."""

    def __init__(self, python: Path, mode: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port: int = listener.getsockname()[1]
        self._environment = {**os.environ, "SERVICE_MODE": mode}
        options = ["--port", str(self.port), "--log-level", "warning", "--no-access-log", "--lifespan", "off"]
        self._command = [str(python), "-m", "uvicorn", "benchmarks.service:app", "--backlog", "4096", *options]

    def start(self) -> None:
        """Start it, and wait until it responds; raises BenchmarkError."""
        self._process = subprocess.Popen(self._command, env=self._environment, cwd=HERE.parent)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except ConnectionRefusedError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise BenchmarkError("the service does not start: see above") from None
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        """Kill it, even with pending requests."""
        self._process.kill()
        self._process.wait()


@contextmanager
def dying(service: Service) -> Iterator[None]:
    """Kill and restart the service repeatedly."""
    ended = threading.Event()

    def die() -> None:
        while not ended.wait(UP_SECONDS):
            service.kill()
            ended.wait(AWAY_SECONDS)
            service.start()

    thread = threading.Thread(target=die)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", metavar="NAMES", help=f"Some of: {','.join(scenario.name for scenario in SCENARIOS)}.")
@click.option("--records", type=click.IntRange(min=1_000), default=RECORDS, show_default=True)
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Keep the peers' environments there.")
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True)
def main(only: str | None, records: int, keep: Path | None, rounds: int) -> None:
    """Measure records per second where a service is asked for each: four tasks, two processes.

    A system whose output is of wrong content, or in another order, is left out; the exit code is 1 then.
    """
    chosen = [scenario for scenario in SCENARIOS if only is None or scenario.name in only.split(",")]
    directory = Path(tempfile.mkdtemp(prefix="penstock-waiting-"))
    results: Results = {}
    in_turn = Rounds(rounds)
    versions: set[str] = set()
    try:
        environments = keep or directory
        environments.mkdir(parents=True, exist_ok=True)
        python = environment(environments / "service", HERE / "peers" / "service.txt", "the service")
        with broker("waiting", directory) as address:
            for scenario in chosen:
                systems = _systems(scenario, environments)
                versions |= {system.version for system in systems}
                bench = Bench(address, Workload(records), directory, systems)
                bench.apart = False
                service = Service(python, "steady" if scenario.name == "dying" else scenario.name)
                os.environ[SERVICE_VARIABLE] = f"http://127.0.0.1:{service.port}"
                service.start()
                try:
                    with dying(service) if scenario.name == "dying" else nullcontext():
                        results |= bench.run([scenario], in_turn)
                finally:
                    service.kill()
    except BenchmarkError as error:
        raise click.ClickException(str(error)) from error
    problems = (f"Not reported: {problem}" for problem in in_turn.problems)
    Console().print(environment_line(Workload(records), sorted(versions)), _table(results), *problems, sep="\n")
    if in_turn.failed:
        raise click.ClickException(f"Not all runs were right; their logs are in {directory}")
    shutil.rmtree(directory)


def _systems(scenario: Scenario, directory: Path) -> list[System]:
    systems: list[System] = []
    for kind in SYSTEMS.get(scenario.name, OTHERS):
        system = kind(directory)
        system.shares = {**SHARES, **system.shares}
        systems.append(system)
    return systems


def _table(results: Results) -> Table:
    table = Table(box=box.MARKDOWN)
    for column in ("the service", "who asks"):
        table.add_column(column)
    for column in ("records/s", "CPU s/M", "RSS MB"):
        table.add_column(column, justify="right")
    for scenario, by_system in results.items():
        for system, runs in by_system.items():
            figures: Sequence[float] = (
                statistics.median(run.rate for run in runs),
                statistics.median(run.cpu_seconds_per_million for run in runs),
                statistics.median(run.rss_bytes for run in runs) / 1e6,
            )
            table.add_row(scenario.title, system, *(f"{figure:,.0f}" for figure in figures))
    return table


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
