"""Watches a program from outside, whatever it is written in: committed offsets, memory and CPU of its processes.

The clock starts when the group has committed its share of warm-up records and ends at the last commit at which there
were still records to read: what comes after it is mostly the wait for the next commit. A commit comes after the outputs
are acknowledged, so both ends are moments at which the answers were there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient

from penstock.topology.records import TopicPartition
from penstock.workers.membership.offsets_reader import GroupOffsetsReader

SAMPLE_SECONDS = 0.05
PROCESSES_EVERY = 5  # samples: to look through /proc costs more than to ask the broker
STALL_SECONDS = 120.0  # without a commit
MEASURED_UNTIL = 0.95  # of the records
STOP_TIMEOUT_SECONDS = 60.0
REQUEST_TIMEOUT_SECONDS = 10.0
#: Java ends with 128 + SIGTERM after its shutdown hooks have run, Penstock with 0.
CLEAN_EXIT_CODES = (0, 128 + signal.SIGTERM, -signal.SIGTERM)


class BenchmarkError(Exception):
    """A run that says nothing: the program failed or stalled, or its answers were wrong."""


@dataclass(frozen=True, slots=True)
class Program:
    """What is started: command and environment; its consumer group; where its output goes."""

    command: list[str]
    environment: Mapping[str, str]
    group: str
    log_file: Path


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run. rate: records/s after the warm-up; seconds: how long it was measured; start_seconds: from the process's
    start to the first commit.
    """

    rate: float
    seconds: float
    start_seconds: float
    rss_bytes: int
    cpu_seconds_per_million: float


@dataclass(frozen=True, slots=True)
class Sample:
    """committed: records; at: monotonic seconds; cpu: seconds that the processes have used so far."""

    at: float
    committed: int
    cpu: float


class Watch:
    """Samples one running program."""

    def __init__(
        self, process: subprocess.Popen[bytes], offsets: GroupOffsetsReader, partitions: list[TopicPartition]
    ) -> None:
        self._root = psutil.Process(process.pid)
        self._offsets = offsets
        self._partitions = partitions
        self._taken = 0
        self._cpu = 0.0
        self.rss_bytes = 0

    def sample(self) -> Sample:
        """Look once; memory and CPU now and then."""
        if self._taken % PROCESSES_EVERY == 0:
            self._look_at_processes()
        self._taken += 1
        return Sample(time.monotonic(), self._committed(), self._cpu)

    def look_closely(self, sample: Sample) -> Sample:
        """Return the sample with the CPU time of now."""
        self._look_at_processes()
        return Sample(sample.at, sample.committed, self._cpu)

    def _committed(self) -> int:
        found = self._offsets.committed(self._partitions)
        return sum(at.offset for at in found.values() if at is not None)

    def _look_at_processes(self) -> None:
        rss, cpu = 0, 0.0
        for process in _tree(self._root):
            with suppress(psutil.NoSuchProcess), process.oneshot():
                times = process.cpu_times()
                rss += process.memory_info().rss
                cpu += times.user + times.system
        self.rss_bytes = max(self.rss_bytes, rss)
        self._cpu = cpu


def _tree(root: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [root, *root.children(recursive=True)]
    return []


def measure(program: Program, bootstrap_servers: str, topic: str, records: int, warm_up: int) -> Measurement:
    """Run a program until its group has committed all records of the input topic; raises BenchmarkError."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 3})
    found = admin.list_topics(topic, REQUEST_TIMEOUT_SECONDS).topics[topic].partitions
    partitions = [TopicPartition(topic, number) for number in found]
    reader = GroupOffsetsReader(program.group, {"bootstrap_servers": bootstrap_servers})
    with reader, program.log_file.open("wb") as log:
        environment = {**os.environ, **program.environment}
        process = subprocess.Popen(program.command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            measurement = _watch(process, Watch(process, reader, partitions), records, warm_up)
        except BenchmarkError as error:
            raise BenchmarkError(f"{error}. Its log: {program.log_file}") from error
        finally:
            _stop(process)
    if process.returncode not in CLEAN_EXIT_CODES:
        raise BenchmarkError(f"exit code {process.returncode} after the run. Its log: {program.log_file}")
    return measurement


def _watch(process: subprocess.Popen[bytes], watch: Watch, records: int, warm_up: int) -> Measurement:
    begin = latest = Sample(time.monotonic(), 0, 0.0)
    first: Sample | None = None
    warm: Sample | None = None
    end: Sample | None = None
    while latest.committed < records:
        if _has_ended(process):
            raise BenchmarkError(f"it ended with exit code {process.returncode} after {latest.committed} records")
        sample = watch.sample()
        if sample.committed > latest.committed:
            latest = sample
            if warm is not None and (end is None or sample.committed <= records * MEASURED_UNTIL):
                end = watch.look_closely(sample)
        elif sample.at - latest.at > STALL_SECONDS:
            raise BenchmarkError(f"nothing was committed for {STALL_SECONDS:.0f} s, after {latest.committed} records")
        if first is None and sample.committed:
            first = sample
        if warm is None and sample.committed >= warm_up:
            warm = watch.look_closely(sample)
    if first is None or warm is None or end is None:
        raise BenchmarkError("all was committed at once: there is nothing to measure after the warm-up")
    measured = end.committed - warm.committed
    return Measurement(
        rate=measured / (end.at - warm.at),
        seconds=end.at - warm.at,
        start_seconds=first.at - begin.at,
        rss_bytes=watch.rss_bytes,
        cpu_seconds_per_million=(end.cpu - warm.cpu) / measured * 1e6,
    )


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Wait for the time between two samples, or until the process ends."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(SAMPLE_SECONDS)
        return True
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        for left in _tree(psutil.Process(process.pid)):
            left.kill()
        process.wait()
