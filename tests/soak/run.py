"""Runs the application, feeds it, samples its processes, and compares output with input."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
from confluent_kafka import Producer

from tests.chaos.checker import read_table
from tests.command_stage import PARTITIONS, Stage, running
from tests.free_port import free_port
from tests.read_to_end import read_to_end
from tests.soak.figures import MIB, Sample, faults, table
from tests.soak.http_load import HttpLoad, compared
from tests.waiting import eventually

#: An environment variable of the application: "leak" makes a function keep memory and files, "no ttl" keeps all rows,
#: to test that this is detected.
FAULT_VARIABLE = "SOAK_FAULT"
#: How many times the ttl of visits passes in a run; each visit has another key.
TTLS = 24
APP = """\
import os
from datetime import timedelta
from penstock import Materialized, Serdes, StreamsBuilder, TimeWindows

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
    by_value = words.group_by(lambda key, value: value.split()[0], key_serde=text, value_serde=text, name="by-value")
    by_value.count(store="by-value")
    ttl = None if os.environ.get("SOAK_FAULT") == "no ttl" else @TTL_MS@
    by_visit = words.group_by(lambda key, value: value.split()[1], key_serde=text, value_serde=text, name="by-visit")
    by_visit.count(store=Materialized("visits", ttl=ttl, caching=False))
    return builder.build()
"""
#: By how much the rest of the rows may be above those of a ttl: a busy machine gets them later, and all at once.
LEFT_MAX = 2.0
KEYS = 2_000
THREADS = 2
#: For both stream threads. Little above the least, so that caches and memtables are full after the warm-up: RocksDB's
#: cache also keeps blocks of tables that are deleted since, until it has no room.
BUDGET = 2 * 184 * MIB
#: How long the feeder rests between two portions, in seconds.
PORTION_SECONDS = 0.05
#: When the load on the HTTP server begins and ends, in percent of a run: before the figures are judged, because threads
#: that it needs are no growth.
LOAD_PERCENT = (20, 50)


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
                visit = f"value-{self._rng.randrange(100)} visit-{self.written.total()}"
                self._producer.produce(self._topic, key=key, value=visit)
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

    records_min: continue until this many were processed, on a busy machine. http: with load on the HTTP server for a
    part of the time (LOAD_PERCENT).
    """
    port = free_port()
    begin, end = (seconds * percent / 100 for percent in LOAD_PERCENT)
    ttl_ms = int(seconds * 1000 / TTLS)
    config = {
        "penstock_http_port": port,
        "penstock_memory_bytes": BUDGET,
        "processing_guarantee": "exactly_once_v2",
        "num_stream_threads": THREADS,
        "statestore_cache_max_bytes": 4 * MIB,
    }
    app = APP.replace("@TTL_MS@", str(ttl_ms))
    with running(folder, bootstrap_servers, app, tasks=3 * PARTITIONS, **config) as stage:
        feeder = Feeder(bootstrap_servers, stage.source, rate)
        load = HttpLoad(port, begin, end)
        feeder.start()
        try:
            with load if http else ExitStack():
                watched = _watch(stage, seconds, records_min, tell)
        finally:
            feeder.finish()
        expected = 3 * feeder.written.total()  # once more behind each repartition topic
        eventually(lambda: stage.json("status")["totals"]["records_processed"] >= expected)
        stage.stop()
        took = watched.samples[-1].at
        wrong = [*faults(watched.samples, took, watched.shares), *_wrong_counts(stage, feeder.written)]
        wrong += _visits_left(stage, feeder.written.total(), rate * ttl_ms / 1000)
        done: list[str] = []
        if http:
            log_bytes = (stage.folder / "log").stat().st_size
            lines, worse = compared(watched.progress, watched.samples, begin, end, log_bytes)
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
        seen = [replace(_sample("supervisor", status["supervisor"]["pid"], at), disk=_disk(stage))]
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


def _disk(stage: Stage) -> int:
    """Return the size of the tables of all stores. RocksDB may delete one meanwhile."""
    size = 0
    for file in (stage.folder / "state").rglob("*.sst"):
        with suppress(FileNotFoundError):
            size += file.stat().st_size
    return size


def _visits_left(stage: Stage, written: int, alive: float) -> list[str]:
    """Return an error unless the rows that are left are about those of the last ttl. alive: how many come in a ttl."""
    changelog = f"{stage.application_id}-visits-changelog"
    last = {message.key(): message.value() for message in read_to_end(stage.bootstrap_servers, changelog)}
    left = sum(value is not None for value in last.values())
    if len(last) == written and 0 < left <= LEFT_MAX * alive:
        return []
    return [f"{left} of {len(last)} visits are left, {written} were written, about {alive:.0f} come in a ttl"]


def _wrong_counts(stage: Stage, written: Counter[str]) -> list[str]:
    """Return errors in the last count of each key."""
    counted = read_table(stage.bootstrap_servers, stage.sink)
    wrong = {key for key in written | counted if counted.get(key, 0) != written[key]}
    return [f"{key}: {written[key]} were written, {counted.get(key, 0)} counted" for key in sorted(wrong)[:5]]
