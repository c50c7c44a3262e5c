"""RocksDB's limits of writes, which a large restore raises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rocksdict import Options, UniversalCompactOptions
from typing_extensions import override

from penstock.statestore.rows.rocksdb_limits import MEMTABLE_BYTES, MEMTABLES, NEW_RUNS, RUNS, options_of
from penstock.statestore.rows.rocksdb_resources import RocksDBConfig, RocksDBResources
from penstock.statestore.rows.rocksdb_store import RocksDBStore
from tests.waiting import eventually

pytestmark = pytest.mark.medium

SLOWDOWN, STOP = RUNS
BATCH = [os.urandom(1_000) for _ in range(100)]
ALL = {*RUNS, MEMTABLES, MEMTABLE_BYTES}


def small_and_uncompacted(options: Options) -> None:
    """Small memtables, and no run is merged, as if the compaction were too slow."""
    options.set_write_buffer_size(1 << 16)
    universal = UniversalCompactOptions()
    universal.min_merge_width = 1_000
    universal.max_size_amplification_percent = 1_000_000
    options.set_universal_compaction_options(universal)


class LimitedStore(RocksDBStore):
    waits = 0

    @override
    def _wait_for_room(self) -> None:
        flushes = self._db.property_int_value("rocksdb.num-immutable-mem-table")
        self.waits += not flushes  # else it is no wait for a compaction
        super()._wait_for_room()

    def new_runs(self) -> int:
        return int(self.properties([NEW_RUNS.removeprefix("rocksdb.")])[NEW_RUNS.removeprefix("rocksdb.")])

    def merge(self) -> None:
        self._db.compact_range(None, None)


def restore(store: LimitedStore, batches: int) -> None:
    """Restore batches of the same keys, each of them into a file."""
    for number in range(batches):
        store.restore([(b"%d" % key, BATCH[(key + number) % 100]) for key in range(100)], number + 1)
        if store._limits.are_raised or store.new_runs() < 18:  # RocksDB waits with a flush that would slow down writes
            store.persist()


def test_a_restore_raises_the_limits_before_it_waits_for_compactions(tmp_path: Path) -> None:
    store = LimitedStore(tmp_path / "store", configure=small_and_uncompacted)
    before = options_of(store.path, ALL)
    assert before == {SLOWDOWN: 20, STOP: 36, MEMTABLES: 3, MEMTABLE_BYTES: 1 << 16}
    restore(store, 50)
    assert store.new_runs() > 36
    assert store.waits == 0
    total = 128 << 20
    assert options_of(store.path, ALL) == {**RUNS, MEMTABLES: 2, MEMTABLE_BYTES: total // 2}
    assert store.committed_offset() == 50
    assert store.get(b"7") == BATCH[(7 + 49) % 100]
    store.close()


@pytest.mark.parametrize("writes", ["restore", "commit"])
def test_the_former_limits_return_once_compactions_have_caught_up(tmp_path: Path, writes: str) -> None:
    store = LimitedStore(tmp_path / "store", configure=small_and_uncompacted)
    before = options_of(store.path, ALL)
    restore(store, 30)
    write(store, writes, 31)
    assert options_of(store.path, ALL) != before, "20 of 30 runs still wait"
    store.merge()
    write(store, writes, 32)
    assert options_of(store.path, ALL) == before
    assert store.committed_offset() == 32
    store.close()


def write(store: RocksDBStore, how: str, offset: int) -> None:
    if how == "restore":
        store.restore([(b"key", b"value")], offset)
    else:
        store.put(b"key", b"value")
        store.commit(offset)


def test_commits_of_a_running_task_do_not_raise_the_limits(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "store", configure=lambda options: options.set_write_buffer_size(1 << 16))
    before = options_of(store.path, ALL)
    for offset in range(60):
        store.put(b"%d" % offset, os.urandom(200_000))
        store.commit(offset)
    assert options_of(store.path, ALL) == before
    store.close()


def test_a_store_closed_before_its_runs_were_merged_does_not_wait_for_it_when_opened_again(tmp_path: Path) -> None:
    store = LimitedStore(tmp_path / "store", configure=small_and_uncompacted)
    restore(store, 40)
    store.close()
    again = LimitedStore(tmp_path / "store", configure=small_and_uncompacted)
    write(again, "commit", 41)
    assert again.waits == 0
    assert again.new_runs() >= 40
    assert options_of(again.path, {STOP}) == {STOP: RUNS[STOP]}
    again.close()


def test_higher_limits_of_the_user_stay(tmp_path: Path) -> None:
    def configure(options: Options) -> None:
        small_and_uncompacted(options)
        options.set_level_zero_slowdown_writes_trigger(25)
        options.set_level_zero_stop_writes_trigger(1_000)
        options.set_write_buffer_size(100 << 20)

    store = LimitedStore(tmp_path / "store", configure=configure)
    assert store._limits.raise_limits()
    assert options_of(store.path, ALL) == {SLOWDOWN: 128, STOP: 1_000, MEMTABLES: 3, MEMTABLE_BYTES: 100 << 20}
    store.close()


def test_compactions_run_by_themselves_after_a_restore_until_the_limits_return(tmp_path: Path) -> None:
    store = LimitedStore(tmp_path / "store", configure=lambda options: options.set_write_buffer_size(1 << 16))
    limits = store._limits
    before = options_of(store.path, ALL)
    assert limits.raise_limits()
    assert not limits.raise_limits()
    restore(store, 40)

    def are_lowered() -> bool:
        limits.lower_limits()
        return not limits.are_raised

    eventually(are_lowered, "40 runs are merged")
    assert options_of(store.path, ALL) == before
    store.close()


#: Restores batches until it is killed, and prints the offset after each one once the limits are raised.
RESTORE = """
import sys
from pathlib import Path
from tests.statestore.test_rocksdb_limits import ROWS, opened, row

store = opened(Path(sys.argv[1]))
offset = store.committed_offset() or 0
while True:
    store.restore([row(number) for number in range(offset, offset + ROWS)], offset + ROWS)
    offset += ROWS
    if store._limits.are_raised:
        print(offset, flush=True)
"""
ROWS = 500


def opened(path: Path) -> RocksDBStore:
    config = RocksDBConfig(write_buffer_total_bytes=2 << 20, write_buffer_bytes=1 << 18)
    return RocksDBStore(path, RocksDBResources(config))


def row(offset: int) -> tuple[bytes, bytes]:
    """Return the row of a changelog record; keys repeat after 10,007 records."""
    return b"%d" % (offset * 7_919 % 10_007), b"%d" % offset * 150


def test_a_killed_restore_leaves_rows_and_offset_of_one_moment(tmp_path: Path) -> None:
    path = tmp_path / "store"
    for lines in (1, 30, 90):
        with subprocess.Popen([sys.executable, "-c", RESTORE, str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(lines):
                assert process.stdout.readline()
            process.kill()
        store = opened(path)
        offset = store.committed_offset()
        assert offset
        assert dict(store.scan(None, None)) == dict(map(row, range(offset)))
        store.close()
