"""``python -m benchmarks.checkpoints``: what checkpoints save and what they cost.

The load of a store from a bucket, and beside it the same rows written as a replay of the changelog writes them. The
bucket is moto's S3 server on this machine. The replay has its records in memory: no broker, no network, no decoding, so
it is faster than a real one.

And a windowed count with and without checkpoints, in turn: to a directory, by a process that shares the two cores.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.__main__ import Bench
from benchmarks.data import CODEC, Workload
from benchmarks.measure import BenchmarkError
from benchmarks.rounds import Rounds
from benchmarks.scenarios import SCENARIOS
from benchmarks.systems import Penstock, broker
from penstock.statestore.checkpoints.fitness import ChangelogNow
from penstock.statestore.checkpoints.manifest import Manifest, StoredStore
from penstock.statestore.checkpoints.transfer_messages import Report
from penstock.statestore.checkpoints.transfer_process import TransferProcess
from penstock.statestore.rows.rocksdb_store import RocksDBStore
from penstock.topology.errors import PenstockError
from tests.s3_server import s3_server

TOPIC, TOPIC_ID = "app-rows-changelog", "0a" * 16
FACTS: dict[str, Any] = {"version": 1, "subtopologies": {}, "stores": {}, "internal_topics": {}}
BATCH = 1_000
#: Many rows, which change all the time; long enough for several checkpoints.
SCENARIO = replace(next(each for each in SCENARIOS if each.name == "windowed-count"), times=8)


class Checkpointing(Penstock):
    """Penstock with checkpoints in a directory. bucket: that directory. interval_ms: between those of a task."""

    name = "with checkpoints"

    def __init__(self, bucket: Path, interval_ms: int) -> None:
        super().__init__()
        self._bucket, self._interval_ms = bucket, interval_ms

    @property
    def config(self) -> Mapping[str, str]:
        """Its settings."""
        return {
            "penstock.checkpoint.uri": f"file://{self._bucket}",
            "penstock.checkpoint.interval.ms": str(self._interval_ms),
        }

    def manifests(self) -> int:
        """Return the number of checkpoints in the directory."""
        return sum(1 for _ in self._bucket.glob("*/*/manifests/*.json"))


class Plain(Penstock):
    """Penstock without checkpoints."""

    name = "without checkpoints"


def batches(rows: int, value_bytes: int) -> Iterator[list[tuple[bytes, bytes | None]]]:
    """Yield records in the order in which a changelog may have them."""
    for first in range(0, rows, BATCH):
        yield [
            ((number * 2_654_435_761 % rows).to_bytes(8, "big"), os.urandom(value_bytes))
            for number in range(first, min(first + BATCH, rows))
        ]


def replay(path: Path, rows: int, value_bytes: int) -> float:
    """Return the seconds that a store needs for the rows, and leave it closed."""
    store, spent = RocksDBStore(path), 0.0
    for number, batch in enumerate(batches(rows, value_bytes)):
        began = time.perf_counter()
        store.restore(batch, (number + 1) * BATCH)
        spent += time.perf_counter() - began
    began = time.perf_counter()
    store.persist()
    spent += time.perf_counter() - began
    store.close()
    return spent


def transfer(job: dict[str, Any]) -> tuple[float, Report]:
    """Return the seconds of a transfer, and its last report."""
    reports: list[Report] = []
    began = time.perf_counter()
    TransferProcess(job).run(reports.append)
    return time.perf_counter() - began, reports[-1]


def load(folder: Path, rows: int, value_bytes: int) -> None:
    """Print the figures."""
    print(f"replay of {rows:,} rows of {value_bytes:,} bytes: {replay(folder / 'store', rows, value_bytes):.1f} s")
    store = RocksDBStore(folder / "store")
    store.checkpoint(folder / "checkpoint" / "rows")
    offset = store.committed_offset() or 0
    store.close()
    now_ms = time.time_ns() // 1_000_000
    manifest = Manifest("app", "0_0", 1, now_ms, "1", "", FACTS, {"rows": StoredStore(TOPIC, TOPIC_ID, 0, offset)})
    changelog = ChangelogNow(TOPIC, TOPIC_ID, 0, 0, offset, None)
    with s3_server(folder / "s3.log") as server:
        os.environ.update(server.environment())
        upload = {
            "kind": "upload",
            "uri": server.uri,
            "manifest": manifest.encode().decode(),
            "directory": str(folder / "checkpoint"),
            "hashes": str(folder / "hashes.json"),
            "keep": 2,
        }
        seconds, report = transfer(upload)
        size = report["uploaded"]["total_bytes"]
        print(f"upload of {size / 1e9:.2f} GB: {seconds:.1f} s")
        job = {
            "kind": "load",
            "uri": server.uri,
            "application_id": "app",
            "task": "0_0",
            "directory": str(folder / "loaded"),
            "changelogs": {"rows": asdict(changelog)},
            "facts": FACTS,
            "tried": [],
            "now_ms": time.time_ns() // 1_000_000,
        }
        seconds, report = transfer(job)
    print(f"load and verification of {size / 1e9:.2f} GB: {seconds:.1f} s, {size / 1e6 / seconds:.0f} MB/s")
    loaded = RocksDBStore(Path(report["loaded"]["directory"]) / "rows")
    assert loaded.committed_offset() == offset, "another state"
    loaded.close()


def throughput(folder: Path, records: int, rounds: int, interval: int) -> None:
    """Print the rates with and without checkpoints. Raises BenchmarkError if there were none, or results are wrong.

    interval: between checkpoints of a task, in seconds.
    """
    bucket = folder / "bucket"
    bucket.mkdir()
    checkpointing = Checkpointing(bucket, interval * 1000)
    with broker("checkpoints", folder) as servers:
        in_turn = Rounds(rounds)
        results = Bench(servers, Workload(records, CODEC), folder, [Plain(), checkpointing]).run([SCENARIO], in_turn)
    if in_turn.problems:
        raise BenchmarkError("; ".join(in_turn.problems))
    if not checkpointing.manifests():
        raise BenchmarkError("no run has taken a checkpoint")
    (by_system,) = results.values()
    without, with_checkpoints = (
        median(each.rate for each in by_system[name]) for name in (Plain.name, Checkpointing.name)
    )
    print(
        f"{SCENARIO.title}: {without:,.0f} records/s without checkpoints, {with_checkpoints:,.0f} with one each "
        f"{interval} s: {with_checkpoints / without:.3f}"
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rows", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="Of the loaded store.")
@click.option("--value-bytes", type=click.IntRange(min=1), default=1_000, show_default=True, help="Of each row.")
@click.option("--records", type=click.IntRange(min=10_000), default=6_000_000, show_default=True, help="Of the count.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Of the count.")
@click.option("--interval", type=click.IntRange(min=1), default=10, show_default=True, help="Of checkpoints, in s.")
@click.option("--only", type=click.Choice(["load", "throughput"]), help="One of the two.")
def main(rows: int, value_bytes: int, records: int, rounds: int, interval: int, only: str | None) -> None:
    """Load a store from a checkpoint, and count with and without checkpoints."""
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-checkpoints-") as folder:
            if only != "throughput":
                load(Path(folder), rows, value_bytes)
            if only != "load":
                throughput(Path(folder), records, rounds, interval)
    except (BenchmarkError, PenstockError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the broker and the programs are stopped
    sys.exit(main())
