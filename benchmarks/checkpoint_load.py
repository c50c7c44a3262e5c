"""Loads a store from a checkpoint in a bucket, and beside it writes the same rows as a replay of the changelog does.

    python -m benchmarks.checkpoint_load [--rows 1000000] [--value-bytes 1000]

The bucket is moto's S3 server on this machine. The replay has its records in memory: no broker, no network, no
decoding, so it is faster than a real one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.statestore.checkpoints.fitness import ChangelogNow
from penstock.statestore.checkpoints.manifest import Manifest, StoredStore
from penstock.statestore.checkpoints.transfer_process import TransferProcess
from penstock.statestore.rows.rocksdb_store import RocksDBStore
from tests.s3_server import s3_server

TOPIC, TOPIC_ID = "app-rows-changelog", "0a" * 16
FACTS: dict[str, Any] = {"version": 1, "subtopologies": {}, "stores": {}, "internal_topics": {}}
BATCH = 1_000


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


def transfer(job: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Return the seconds of a transfer, and its last report."""
    reports: list[dict[str, Any]] = []
    began = time.perf_counter()
    TransferProcess(job).run(reports.append)
    return time.perf_counter() - began, reports[-1]


def measure(folder: Path, rows: int, value_bytes: int) -> None:
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
        load = {
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
        seconds, report = transfer(load)
    print(f"load and verification of {size / 1e9:.2f} GB: {seconds:.1f} s, {size / 1e6 / seconds:.0f} MB/s")
    loaded = RocksDBStore(Path(report["directory"]) / "rows")
    assert loaded.committed_offset() == offset, "another state"
    loaded.close()


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=1_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-checkpoint-") as folder:
        measure(Path(folder), arguments.rows, arguments.value_bytes)


if __name__ == "__main__":
    main()
