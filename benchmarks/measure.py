"""Observes a program from outside, in any language: committed offsets, memory and CPU of its processes.

The clock starts when a warm-up share of the records is processed, and ends while all partitions have records left: the
rest is mostly the wait for the last commits. The number of processed records is known only from commits (progress.py),
which follow the acknowledgement of outputs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.progress import Curve, Progress
from penstock.clients.group.offsets_reader import GroupOffsetsReader
from penstock.clients.network_settings import network_settings
from penstock.topology.records import TopicPartition

SAMPLE_SECONDS = 0.05
PROCESSES_EVERY = 5  # samples: reading /proc costs more than asking the broker
STALL_SECONDS = 120.0  # without a commit
MEASURED_SECONDS_MIN = 0.25  # some samples; a shorter measurement means little
STOP_TIMEOUT_SECONDS = 60.0
#: Java ends with 128 + SIGTERM after its shutdown hooks have run, Penstock with 0.
CLEAN_EXIT_CODES = (0, 128 + signal.SIGTERM, -signal.SIGTERM)


class BenchmarkError(Exception):
    """An invalid run: the program failed or stalled, or its results were wrong."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program to start: command and environment; its consumer group; the file of its output.

    work: the amount of work for a number of processed records, if it is not the records themselves.
    """

    command: list[str]
    environment: Mapping[str, str]
    group: str
    log_file: Path
    work: Callable[[float], float] = float


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run. rate: records/s after the warm-up, or the unit of Program.work; seconds: the duration of the
    measurement; start_seconds: from the process's start to the first commit.
    """

    rate: float
    seconds: float
    start_seconds: float
    rss_bytes: int
    cpu_seconds_per_million: float


class Watch:
    """Observes one running program repeatedly."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        offsets: GroupOffsetsReader,
        partitions: list[TopicPartition],
        apart: bool = True,
    ) -> None:
        self._root = psutil.Process(process.pid)
        self._offsets = offsets
        self._partitions = partitions
        self._taken = 0
        self.progress = Progress(partitions, apart)
        self.cpu = Curve()
        self.rss_bytes = 0

    def look(self) -> float:
        """Read the committed offsets, and at intervals memory and CPU. Returns the time (monotonic seconds)."""
        if self._taken % PROCESSES_EVERY == 0:
            self._look_at_processes()
        self._taken += 1
        found = self._offsets.committed(self._partitions)
        now = time.monotonic()
        self.progress.note(now, {p: 0 if at is None else at.offset for p, at in found.items()})
        return now

    def _look_at_processes(self) -> None:
        rss, cpu = 0, 0.0
        for process in _tree(self._root):
            with suppress(psutil.NoSuchProcess), process.oneshot():
                times = process.cpu_times()
                rss += process.memory_info().rss
                cpu += times.user + times.system
        self.rss_bytes = max(self.rss_bytes, rss)
        self.cpu.add(time.monotonic(), cpu)


def _tree(root: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [root, *root.children(recursive=True)]
    return []


def measure(
    program: Program,
    bootstrap_servers: str,
    partitions: list[TopicPartition],
    records: int,
    warm_up: int,
    apart: bool = True,
) -> Measurement:
    """Run a program until its group has committed this many records of these partitions; raises BenchmarkError.

    apart: see Progress.
    """
    reader = GroupOffsetsReader(program.group, network_settings({"bootstrap.servers": bootstrap_servers}))
    with reader, program.log_file.open("wb") as log:
        environment = {**os.environ, **program.environment}
        process = subprocess.Popen(program.command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            measurement = _watch(process, Watch(process, reader, partitions, apart), records, warm_up, program.work)
        except BenchmarkError as error:
            raise BenchmarkError(f"{error}. Its log: {program.log_file}") from error
        finally:
            _stop(process)
    if process.returncode not in CLEAN_EXIT_CODES:
        raise BenchmarkError(f"exit code {process.returncode} after the run. Its log: {program.log_file}")
    return measurement


def _watch(
    process: subprocess.Popen[bytes],
    watch: Watch,
    records: int,
    warm_up: int,
    work: Callable[[float], float] = float,
) -> Measurement:
    begin = latest = time.monotonic()
    first: float | None = None
    committed = 0
    while committed < records:
        if _has_ended(process):
            raise BenchmarkError(f"it ended with exit code {process.returncode} after {committed} records")
        now = watch.look()
        if watch.progress.committed > committed:
            first = first or now
            latest, committed = now, watch.progress.committed
        elif now - latest > STALL_SECONDS:
            raise BenchmarkError(f"nothing was committed for {STALL_SECONDS:.0f} s, after {committed} records")
    return _measured(watch, warm_up, (first or begin) - begin, work)


def _measured(watch: Watch, warm_up: int, start_seconds: float, work: Callable[[float], float]) -> Measurement:
    span = watch.progress.span(warm_up)
    seconds = 0.0 if span is None else span[1] - span[0]
    if span is None or seconds < MEASURED_SECONDS_MIN:
        raise BenchmarkError(f"after the warm-up there were only {seconds:.2f} s to measure: give it more --records")
    done = work(watch.progress.at(span[1])) - work(watch.progress.at(span[0]))
    cpu = watch.cpu.at(span[1]) - watch.cpu.at(span[0])
    return Measurement(
        rate=done / seconds,
        seconds=seconds,
        start_seconds=start_seconds,
        rss_bytes=watch.rss_bytes,
        cpu_seconds_per_million=cpu / done * 1e6,
    )


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Wait for the time between two samples, or until the process ends; return whether it has ended."""
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
