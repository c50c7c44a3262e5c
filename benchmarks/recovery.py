"""Recovery times: how fast an application restores from nothing, and how soon it continues after a SIGKILL.

Both systems get the same changelog, written here record by record as by a count without a cache, and are observed from
outside. Their own logs report restores, with times: see LogLines.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from typing_extensions import override

from benchmarks.checks import CountsCheck, check_topic
from benchmarks.data import (
    ADMIN_TIMEOUT_SECONDS,
    PARTITIONS,
    Workload,
    append,
    load_topic,
    recreate_topic,
)
from benchmarks.measure import CLEAN_EXIT_CODES, STOP_TIMEOUT_SECONDS, BenchmarkError
from benchmarks.systems import COMMON_CONFIG, System
from penstock.clients.group.offsets_reader import GroupOffsetsReader
from penstock.clients.network_settings import network_settings
from penstock.topology.records import TopicPartition

#: Records that are counted after the restored ones: they show that the restore is complete.
TAIL_RECORDS = 20_000
#: Timeout of a program's step before the run counts as failed, and its extension per record.
PATIENCE_SECONDS, PATIENCE_SECONDS_PER_RECORD = 600.0, 30e-6
LOOK_SECONDS = 0.02
#: Kafka's shortest session with the broker's defaults: with Kafka Streams' 45 s a failover would measure only the
#: session.
SESSION_TIMEOUT_MS = 6_000
console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Recovered:
    """One run. value: in the scenario's unit; first_answer_seconds: from the start, or the SIGKILL, to a result."""

    value: float
    first_answer_seconds: float
    rss_bytes: int
    cpu_seconds: float


class LogLines:
    """Lines in the logs of programs: ``RESTORE <start|end> <ms since 1970>`` and ``STANDBY <partition> <offset>``."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files

    def _found(self, pattern: str) -> Iterator[tuple[str, ...]]:
        for file in self._files:
            for match in re.finditer(pattern, file.read_text("utf-8", errors="replace"), re.MULTILINE):
                yield match.groups()

    def restore_seconds(self, stores: int, begin_ms: int | None = None) -> float:
        """Return the time from the first store's start, or from begin_ms, to the last one's end.

        Some start or end twice: a task moves from the first thread to the second one when that has joined.
        """
        times = [(what, int(at)) for what, at in self._found(r"^RESTORE (start|end) (\d+)\s*$")]
        starts, ends = ([at for what, at in times if what == wanted] for wanted in ("start", "end"))
        if len(starts) < stores or len(ends) < stores:
            raise BenchmarkError(f"{len(starts)} restores have begun and {len(ends)} ended instead of {stores}")
        return (max(ends) - (min(starts) if begin_ms is None else begin_ms)) / 1000

    def standby_offsets(self) -> dict[int, int]:
        """Return the offset of the standby task of each partition that has one."""
        return {int(partition): int(offset) for partition, offset in self._found(r"^STANDBY (\d+) (\d+)\s*$")}


@dataclass
class Instance:
    """A running program, and its resource usage."""

    process: subprocess.Popen[bytes]
    log_file: Path
    properties: Path
    rss_bytes: int = 0
    cpu_seconds: float = 0.0

    def tree(self) -> list[psutil.Process]:
        """Return the program's processes."""
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        return []

    def look(self) -> None:
        """Sample memory and CPU time; raises BenchmarkError if the program has ended."""
        if self.process.poll() is not None:
            raise BenchmarkError(f"it ended with exit code {self.process.returncode}. Its log: {self.log_file}")
        rss, cpu = 0, 0.0
        for process in self.tree():
            with suppress(psutil.NoSuchProcess), process.oneshot():
                times = process.cpu_times()
                rss += process.memory_info().rss
                cpu += times.user + times.system
        self.rss_bytes, self.cpu_seconds = max(self.rss_bytes, rss), max(self.cpu_seconds, cpu)

    def workers(self) -> list[psutil.Process]:
        """Return the processes that do the work: for Penstock those of the stream threads, for Java the program."""
        return [p for p in self.tree() if " ".join(p.cmdline()).startswith("penstock: ")] or self.tree()[:1]

    def kill(self) -> None:
        """Kill all its processes at once."""
        for process in reversed(self.tree()):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End the program cleanly; raises BenchmarkError if it fails."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            code = None
        if code not in CLEAN_EXIT_CODES:
            raise BenchmarkError(f"exit code {code} after the run. Its log: {self.log_file}")


@dataclass
class Run:
    """One application of one system: its topics, its directory, its programs.

    records: the workload's; more of them extend timeouts. partitions: of its input; topology, store: its topology, and
    the store with a changelog.
    """

    bootstrap_servers: str
    system: System
    name: str
    home: Path
    input: str
    config: Mapping[str, str] = field(default_factory=dict)
    partitions: int = PARTITIONS
    topology: str = "count"
    store: str = "counts"
    records: int = 0
    instances: list[Instance] = field(default_factory=list)

    @property
    def output(self) -> str:
        """The output topic."""
        return f"{self.name}-output"

    @property
    def changelog(self) -> str:
        """The changelog of the store."""
        return f"{self.name}-{self.store}-changelog"

    def start(self, threads: int, config: Mapping[str, str] | None = None) -> Instance:
        """Start one more program; each has its own state directory, as on its own machine.
        config: additional settings.
        """
        number = sum(1 for _ in self.home.glob("*.properties"))
        all_settings = {
            "application.id": self.name,
            "bootstrap.servers": self.bootstrap_servers,
            **COMMON_CONFIG,
            **self.system.config,
            "statestore.cache.max.bytes": "0",
            "num.stream.threads": str(threads),
            "state.dir": str(self.home / f"state-{number}"),
            **self.config,
            **(config or {}),
        }
        properties = self.home / f"application-{number}.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in all_settings.items()), "utf-8")
        return self.start_with(properties)

    def start_with(self, properties: Path) -> Instance:
        """Start a program with these properties, possibly again: then its state is on its disk."""
        log_file = self.home / f"log-{len(self.instances)}"
        environment = {**os.environ, "BENCHMARK_INPUT": self.input, "BENCHMARK_OUTPUT": self.output}
        with log_file.open("wb") as log:
            command = self.system.command(self.topology, properties)
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self.instances.append(Instance(process, log_file, properties))
        return self.instances[-1]

    @contextmanager
    def committed(self) -> Iterator[Callable[[], dict[int, int]]]:
        """Yield a function that returns the number of committed records of each partition of the input."""
        partitions = [TopicPartition(self.input, number) for number in range(self.partitions)]
        with GroupOffsetsReader(self.name, network_settings({"bootstrap.servers": self.bootstrap_servers})) as offsets:
            yield lambda: {p.partition: at.offset for p, at in offsets.committed(partitions).items() if at is not None}

    def log_lines(self) -> LogLines:
        """Return all programs' log lines so far."""
        return LogLines([instance.log_file for instance in self.instances])

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition; raises BenchmarkError if it takes too long or a program ends."""
        patience = PATIENCE_SECONDS + self.records * PATIENCE_SECONDS_PER_RECORD
        deadline = time.monotonic() + patience
        with console.status(f"Waiting for {what}"):
            while not condition():
                for instance in self.instances:
                    instance.look()
                if time.monotonic() > deadline:
                    raise BenchmarkError(f"not within {patience:.0f} s: {what}. Its logs: {self.home}")
                time.sleep(LOOK_SECONDS)  # from outside only its results are visible

    def write_counts(self, workload: Workload) -> Counter[bytes]:
        """Write the changelog of a count of the workload; return the counts by key. Raises KafkaException."""
        counts: Counter[bytes] = Counter()

        def rows() -> Iterator[tuple[bytes, bytes, int]]:
            for number, user in enumerate(workload.users()):
                key = b"k%06d" % user
                counts[key] += 1
                yield key, counts[key].to_bytes(8), workload.timestamp(number)

        self.write_changelog(rows(), workload.records)
        return counts

    def write_changelog(self, rows: Iterable[tuple[bytes, bytes, int]], number: int) -> None:
        """Write this many rows (key, value, timestamp in ms) to the changelog of the store; raises KafkaException."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 3})
        new = NewTopic(self.changelog, self.partitions, 1, config={"cleanup.policy": "compact"})
        admin.create_topics([new])[self.changelog].result(ADMIN_TIMEOUT_SECONDS)
        append(self.bootstrap_servers, self.changelog, rows, number)

    def end(self) -> None:
        """Stop running programs; raises BenchmarkError if one did not end cleanly."""
        for instance in self.instances:
            if instance.process.poll() is None:
                instance.stop()


@contextmanager
def running(run: Run) -> Iterator[Run]:
    """Create the output topic, and leave no program behind."""
    recreate_topic(run.bootstrap_servers, run.output)
    try:
        yield run
        run.end()
    finally:
        for instance in run.instances:
            instance.kill()
        for state in run.home.glob("state-*"):
            shutil.rmtree(state, ignore_errors=True)


class RecoveryScenario(ABC):
    """name: for --only; title and unit: in the table; more_is_better: whether a high value is good."""

    name: str
    title: str
    unit: str
    more_is_better: bool

    @abstractmethod
    def run(self, run: Run, workload: Workload) -> Recovered:
        """Measure once; raises BenchmarkError for a failed run or wrong results."""

    def prepare(self, bootstrap_servers: str) -> str:
        """Return the input topic of a run; "" if the run makes its own."""
        return ""


class Restore(RecoveryScenario):
    """From an empty group and an empty disk to the first results: there is no earlier member whose session must end.

    start_included: many stores are opened one after the other, some before the first restore and some after it.
    """

    unit, more_is_better = "k/s", True

    def __init__(
        self,
        name: str = "restore",
        title: str = "restore a count, empty disk",
        partitions: int = PARTITIONS,
        start_included: bool = False,
    ) -> None:
        self.name, self.title, self._partitions, self._start_included = name, title, partitions, start_included

    @override
    def prepare(self, bootstrap_servers: str) -> str:
        tail, partitions = Workload(TAIL_RECORDS), self._partitions
        topic = f"{tail.topic}-in-{partitions}"
        load_topic(bootstrap_servers, topic, tail.purchases(), TAIL_RECORDS, partitions)
        return topic

    @override
    def run(self, run: Run, workload: Workload) -> Recovered:
        run.partitions = self._partitions
        restored = run.write_counts(workload)
        tail = Workload(TAIL_RECORDS)
        with running(run), run.committed() as committed:
            begin, begin_ms = time.monotonic(), int(time.time() * 1000)
            program = run.start(threads=int(COMMON_CONFIG["num.stream.threads"]))
            run.wait_until(lambda: any(committed().values()), "the first answers")
            first_answer = time.monotonic() - begin
            run.wait_until(lambda: sum(committed().values()) == TAIL_RECORDS, "all answers")
            program.look()
            seconds = run.log_lines().restore_seconds(run.partitions, begin_ms if self._start_included else None)
        expected = {key: restored[key] + count for key, count in tail.counts().items()}
        problem = check_topic(run.bootstrap_servers, run.output, CountsCheck(expected))
        if problem:
            raise BenchmarkError(f"wrong output: {problem}")
        return Recovered(workload.records / seconds / 1000, first_answer, program.rss_bytes, program.cpu_seconds)


#: By scenario and system.
RecoveryResults = dict[RecoveryScenario, dict[str, list[Recovered]]]
