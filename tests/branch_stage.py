"""An application under load, and branches of it, for the tests of ``penstock branch``.

Its results are chains of hashes: one record that is missing, there twice, or in another order changes every later one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from tests.command_stage import PARTITIONS, ROOT, Stage, running
from tests.read_to_end import read_to_end
from tests.waiting import PATIENCE_SECONDS, eventually

KEYS = 40
PACE_SECONDS = 0.02
#: Two sub-topologies: stores of several kinds by key, and a chain by another key in a store in memory. The results of a
#: key travel through one partition of the repartition topic, so their order is always the same.
APP = """\
import hashlib
from penstock import Materialized, Serdes, Stores, StreamsBuilder, Suppressed, TimeWindows
from penstock.topology.context.store_interfaces import StoreBackend

TEXT = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}

def chained(key, value, before):
    return hashlib.sha256(f"{before} {value}".encode()).hexdigest()

def topology():
    builder = StreamsBuilder()
    words = builder.stream("@SOURCE@", **TEXT)
    grouped = words.group_by_key(**TEXT)
    windows = grouped.windowed_by(TimeWindows(500)).count(store="windows").suppress(Suppressed.until_window_closes())
    windows.to_stream().map(lambda at, count: (f"window of {at.key}", f"{at.start} {count}")).to("@SINK@", **TEXT)
    versions = Materialized(Stores.persistent_versioned_key_value_store("versions", 60_000), **TEXT)
    versioned = grouped.aggregate(lambda: "", chained, store=versions).to_stream()
    versioned.map(lambda key, chain: (f"version of {key}", chain)).to("@SINK@", **TEXT)
    counted = grouped.count(store="counts").to_stream()
    moved = counted.map(lambda key, count: (f"of {key}", str(count))).repartition(name="moved", **TEXT)
    memory = Materialized("chains", value_serde=Serdes.string(), store_type=StoreBackend.IN_MEMORY)
    moved.group_by_key(**TEXT).aggregate(lambda: "", chained, store=memory).to_stream().to("@SINK@", **TEXT)
    return builder.build()
"""
TASKS = 2 * PARTITIONS
#: (key, value, timestamp) by partition and key.
Results = dict[tuple[int, bytes], list[tuple[bytes | None, int]]]


@contextmanager
def original(folder: Path, bootstrap_servers: str, app: str = APP, **config: Any) -> Iterator[Stage]:
    """Yield the running application, with two stream threads and without a record cache."""
    config = {"statestore_cache_max_bytes": 0, "commit_interval_ms": 100, **config}
    with running(folder, bootstrap_servers, app, TASKS, **config) as stage:
        yield stage


@contextmanager
def load(stage: Stage, pace_seconds: float = PACE_SECONDS) -> Iterator[Load]:
    """Write one record for each key, again and again with these seconds in between, until the end of the block."""
    feeding = Load(stage, pace_seconds)
    feeding.thread.start()
    try:
        yield feeding
    finally:
        feeding.end()


class Load:
    """A thread that writes records to the source of an application, by default some thousand a second."""

    def __init__(self, stage: Stage, pace_seconds: float) -> None:
        self.written = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(stage, pace_seconds))

    def end(self) -> None:
        """Stop writing; all records are on the broker then."""
        self.ended.set()
        self.thread.join()

    def until_more(self, records: int) -> None:
        """Wait until this many more records are written."""
        enough = self.written + records
        eventually(lambda: self.written >= enough)

    def _run(self, stage: Stage, pace_seconds: float) -> None:
        producer = Producer({"bootstrap.servers": stage.bootstrap_servers, "linger.ms": 5})
        while not self.ended.wait(pace_seconds):
            for _ in range(KEYS):
                producer.produce(stage.source, key=f"key {self.written % KEYS}", value=str(self.written))
                self.written += 1
            producer.poll(0)
        assert producer.flush(PATIENCE_SECONDS) == 0


def on_host(port: int) -> dict[str, str]:
    """Return the settings of a host that the others of its application can ask."""
    return {"application.server": f"127.0.0.1:{port}", "penstock.http.port": str(port), "penstock.http.token": "geheim"}


def as_options(config: dict[str, str]) -> tuple[str, ...]:
    """Return settings as options of ``penstock run``."""
    return tuple(part for key, value in config.items() for part in ("-c", f"{key}={value}"))


def as_keywords(config: dict[str, str]) -> dict[str, Any]:
    """Return settings as keyword arguments of original()."""
    return {key.replace(".", "_"): value for key, value in config.items()}


class RunningBranch:
    """A running branch, in another process."""

    def __init__(self, stage: Stage, name: str, *options: str) -> None:
        self.name = name
        self._log = stage.folder / f"log of {name}"
        own = ("-c", f"application.id={name}", "-c", f"penstock.sink.prefix={name}.", *options)
        command = [
            sys.executable,
            "-m",
            "penstock.cli",
            "run",
            stage.topology,
            "--config",
            str(stage.config_file),
            *own,
        ]
        with self._log.open("a") as log:
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            self.process = subprocess.Popen(command, cwd=stage.folder, env=environment, stderr=log, text=True)

    @property
    def log(self) -> str:
        """The end of its log."""
        return self._log.read_text()[-3000:]

    def stop(self) -> None:
        """Stop it, and wait for its end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(PATIENCE_SECONDS)


@contextmanager
def started(stage: Stage, name: str, *options: str) -> Iterator[RunningBranch]:
    """Yield a running branch."""
    branch = RunningBranch(stage, name, *options)
    try:
        yield branch
    finally:
        branch.stop()


def results(bootstrap_servers: str, topic: str, starts: list[int] | None = None) -> Results:
    """Return the records of an output topic, by partition and key, from these offsets of its partitions on."""
    found: Results = {}
    for message in read_to_end(bootstrap_servers, topic):
        partition, offset = message.partition() or 0, message.offset() or 0
        if starts is None or offset >= starts[partition]:
            found.setdefault((partition, message.key() or b""), []).append((message.value(), message.timestamp()[1]))
    return found


def assert_equal(found: Results, expected: Results) -> None:
    """Assert that results are equal; the error has the first records of some keys that are not."""
    unlike = []
    for at in sorted(found.keys() | expected.keys()):
        pairs = enumerate(zip_longest(found.get(at, ()), expected.get(at, ())))
        first = next((number for number, (this, that) in pairs if this != that), None)
        if first is not None:
            unlike.append((at, first, found.get(at, [])[first : first + 2], expected.get(at, [])[first : first + 2]))
    assert not unlike, (len(unlike), unlike[:3])


def until_processed(stage: Stage, written: int) -> None:
    """Wait until the original has a result at the end of its chains for each record that was ever written."""

    def ends() -> int:
        found = results(stage.bootstrap_servers, stage.sink)
        return sum(len(records) for (_, key), records in found.items() if key.startswith(b"of "))

    eventually(
        lambda: ends() >= written,
        lambda: (stage.folder / "log").read_text()[-3000:],
    )


def assert_follows(stage: Stage, name: str, feeding: Load, outputs: dict[str, list[int]], *options: str) -> None:
    """Start a branch, and assert that it writes what the original has written since the cut, once all is written."""
    feeding.end()
    with started(stage, name, *options) as branch:
        until_processed(stage, feeding.written)
        assert assert_equal_from_the_cut(stage, branch, outputs) > 500


def assert_equal_from_the_cut(stage: Stage, branch: RunningBranch, outputs: dict[str, list[int]]) -> int:
    """Assert that the branch writes what the original has written since the cut; return how many records these are."""
    expected = results(stage.bootstrap_servers, stage.sink, outputs[stage.sink])
    number = sum(map(len, expected.values()))
    copy = f"{branch.name}.{stage.sink}"

    def has_all() -> bool:
        assert branch.process.poll() is None, branch.log
        return sum(map(len, results(stage.bootstrap_servers, copy).values())) >= number

    eventually(has_all, lambda: (number, branch.log))
    assert_equal(results(stage.bootstrap_servers, copy), expected)
    return number
