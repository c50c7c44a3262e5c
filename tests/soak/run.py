"""Runs the application, feeds it, samples its processes, and compares output with input."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from confluent_kafka import Producer

from tests.chaos.checker import read_table
from tests.command_stage import PARTITIONS, Stage, running
from tests.free_port import free_port
from tests.soak.figures import MIB, Sample, faults, table
from tests.soak.http_load import HttpLoad, compared
from tests.waiting import eventually

#: An environment variable of the application: "leak" makes a function keep memory and files, to test that this is
#: detected.
FAULT_VARIABLE = "SOAK_FAULT"
APP = """\
import os
from datetime import timedelta
from penstock import Serdes, StreamsBuilder, TimeWindows

kept = []

def leaking(value):
    kept.append((bytearray(os.urandom(64)) * 256, open(os.devnull) if len(kept) % 16 == 0 else None))
    return value

def topology():
    builder, text = StreamsBuilder(), Serdes.string()
    words = builder.stream("@SOURCE@", key_serde=text, value_serde=text)
    if os.environ.get("SOAK_FAULT") == "leak":
        words = words.map_values(leaking)
    grouped = words.group_by_key()
    counts = grouped.count(store="counts")
    counts.to_stream().to("@SINK@", key_serde=text, value_serde=Serdes.json())
    grouped.windowed_by(TimeWindows.of_size_with_no_grace(timedelta(seconds=10))).count(store="recent")
    words.group_by(lambda key, value: value, key_serde=text, value_serde=text, name="by-value").count(store="by-value")
    return builder.build()
"""
KEYS = 2_000
THREADS = 2
#: For both stream threads. Small, so that caches and memtables are full after the warm-up.
BUDGET = 2 * 260 * MIB
#: How long the feeder rests between two portions, in seconds.
PORTION_SECONDS = 0.05
#: The share of a run without load on the HTTP server, in percent, for comparison.
WITHOUT_LOAD_PERCENT = 20


@dataclass(frozen=True)
class Outcome:
    """records: the written ones; faults: violations, empty if there are none; load: a summary of the HTTP load."""

    records: int
    samples: tuple[Sample, ...]
    faults: tuple[str, ...]
    seconds: float
    shares: dict[str, int]
    load: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the figures and the verdict."""
        verdict = list(self.faults) or [
            f"Within the budget of {BUDGET // MIB} MiB, no growth, all counts right: {self.records} records, "
            f"{len(self.samples)} samples"
        ]
        return [*table(self.samples, self.seconds), *self.load, *verdict]


@dataclass
class Watched:
    """The observations: the processes, their shares of memory, and records processed by seconds since the start."""

    samples: list[Sample] = field(default_factory=list)
    shares: dict[str, int] = field(default_factory=dict)
    progress: list[tuple[float, int]] = field(default_factory=list)


class Feeder(threading.Thread):
    """Writes records with recurring keys at a steady rate (records per second), until ``finish``."""

    def __init__(self, bootstrap_servers: str, topic: str, rate: int, seed: int = 1) -> None:
        super().__init__(name="feeder", daemon=True)
        self.written: Counter[str] = Counter()
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 20})
        self._topic, self._rate, self._rng = topic, rate, random.Random(seed)
        self._end = threading.Event()

    def run(self) -> None:
        """Write due records, including those that became due while the machine was busy."""
        begin = time.monotonic()
        while not self._end.wait(PORTION_SECONDS):
            due = int((time.monotonic() - begin) * self._rate) - self.written.total()
            for _ in range(due):
                key = f"key-{self._rng.randrange(KEYS)}"
                self._producer.produce(self._topic, key=key, value=f"value-{self._rng.randrange(100)}")
                self.written[key] += 1
            self._producer.poll(0)

    def finish(self) -> None:
        """End, once the broker has all records."""
        self._end.set()
        self.join()
        left = self._producer.flush(60)
        if left:
            raise RuntimeError(f"{left} records were not taken by the broker")


def soak(
    folder: Path,
    bootstrap_servers: str,
    seconds: float,
    rate: int,
    tell: Callable[[str], None] = lambda _: None,
    records_min: int = 0,
    http: bool = False,
) -> Outcome:
    """Run for this long at this many records per second; tell: called with a line now and then.

    records_min: continue until this many were processed, on a busy machine. http: with load on the HTTP server after
    WITHOUT_LOAD_PERCENT of the time.
    """
    port, after = free_port(), seconds * WITHOUT_LOAD_PERCENT / 100
    config = {
        "penstock_http_port": port,
        "penstock_memory_bytes": BUDGET,
        "processing_guarantee": "exactly_once_v2",
        "num_stream_threads": THREADS,
        "statestore_cache_max_bytes": 4 * MIB,
    }
    with running(folder, bootstrap_servers, APP, tasks=2 * PARTITIONS, **config) as stage:
        feeder = Feeder(bootstrap_servers, stage.source, rate)
        load = HttpLoad(port, after)
        feeder.start()
        try:
            with load if http else ExitStack():
                watched = _watch(stage, seconds, records_min, tell)
        finally:
            feeder.finish()
        expected = 2 * feeder.written.total()  # once more behind the repartition topic
        eventually(lambda: stage.json("status")["totals"]["records_processed"] >= expected)
        stage.stop()
        took = watched.samples[-1].at
        wrong = [*faults(watched.samples, took, watched.shares), *_wrong_counts(stage, feeder.written)]
        done: list[str] = []
        if http:
            lines, worse = compared(watched.progress, watched.samples, after, (stage.folder / "log").stat().st_size)
            done += [*load.lines(), *lines]
            wrong += [*load.faults(), *worse]
    return Outcome(feeder.written.total(), tuple(watched.samples), tuple(wrong), took, watched.shares, tuple(done))


def _watch(stage: Stage, seconds: float, records_min: int, tell: Callable[[str], None]) -> Watched:
    """Sample all processes about sixty times, and return the observations."""
    begin, pace = time.monotonic(), threading.Event()
    watched = Watched()
    processed = 0
    while (at := time.monotonic() - begin) < seconds or processed < records_min:
        status = stage.json("status")
        seen = [_sample("supervisor", status["supervisor"]["pid"], at)]
        for thread in status["threads"]:
            name = f"StreamThread-{thread['number']}"
            seen.append(_sample(name, thread["pid"], at))
            if thread["memory_share_bytes"]:
                watched.shares[name] = thread["memory_share_bytes"]
        watched.samples += seen
        totals = status["totals"]
        processed = totals["records_processed"]
        watched.progress.append((at, processed))
        tell(
            f"{at:5.0f} s: {processed} records, {totals['lag']} behind; "
            + ", ".join(
                f"{one.process} {one.rss / MIB:.1f} MiB, {one.handles} files, {one.threads} threads" for one in seen
            )
        )
        pace.wait(seconds / 60)
    return watched


def _sample(process: str, pid: int, at: float) -> Sample:
    found = psutil.Process(pid)
    with found.oneshot():
        return Sample(process, pid, at, found.memory_info().rss, found.num_fds(), found.num_threads())


def _wrong_counts(stage: Stage, written: Counter[str]) -> list[str]:
    """Return errors in the last count of each key."""
    counted = read_table(stage.bootstrap_servers, stage.sink)
    wrong = {key for key in written | counted if counted.get(key, 0) != written[key]}
    return [f"{key}: {written[key]} were written, {counted.get(key, 0)} counted" for key in sorted(wrong)[:5]]
