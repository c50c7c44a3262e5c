"""RocksDB's statistics of a store, as metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.statestore.rows.rocksdb_statistics import statistics_metrics
from penstock.statestore.rows.rocksdb_store import RocksDBStore

TEXT = """\
rocksdb.block.cache.data.miss COUNT : 25
rocksdb.block.cache.data.hit COUNT : 75
rocksdb.memtable.hit COUNT : 1
rocksdb.memtable.miss COUNT : 3
rocksdb.bytes.written COUNT : 117890
rocksdb.no.file.opens COUNT : 5
rocksdb.no.file.closes COUNT : 2
rocksdb.stall.micros COUNT : 2500
rocksdb.db.flush.micros P50 : 1350.000000 P95 : 1.0 P99 : 1.0 P100 : 2000.000000 COUNT : 2 SUM : 3000
rocksdb.compaction.times.micros P50 : 0.000000 P95 : 0.0 P99 : 0.0 P100 : 0.000000 COUNT : 0 SUM : 0
"""


def test_statistics_are_read_from_rocksdbs_text() -> None:
    found = statistics_metrics(TEXT)
    assert {name: value for name, value in found.items() if value} == {
        "block-cache-data-hit-ratio": 0.75,
        "memtable-hit-ratio": 0.25,
        "bytes-written-total": 117_890.0,
        "number-open-files": 3.0,
        "write-stall-duration-total": 2.5,
        "memtable-flush-time-avg": 1.5,
        "memtable-flush-time-max": 2.0,
    }
    assert found["compaction-time-avg"] == found["bytes-read-total"] == 0.0


@pytest.mark.parametrize("keeps", [True, False])
def test_a_store_counts_only_if_it_shall(tmp_path: Path, keeps: bool) -> None:
    store = RocksDBStore(tmp_path / "db", keeps_statistics=keeps)
    for number in range(1_000):
        store.put(b"%d" % number, b"x" * 100)
    store.commit(1)
    store.checkpoint(tmp_path / "copy")
    found = statistics_metrics(store.statistics())
    assert (found["bytes-written-total"] > 100_000) == keeps
    assert (found["memtable-bytes-flushed-total"] > 0) == keeps
    assert (found["memtable-flush-time-max"] > 0) == keeps
    assert (store.statistics() == "") != keeps
    store.close()
