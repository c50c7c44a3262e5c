"""A store without space: on the disk, or in RocksDB's memtables while the disk is slow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rocksdict import Options

from penstock.statestore.rows.rocksdb_errors import last_complaint
from penstock.statestore.rows.rocksdb_store import ROOM_POLL_SECONDS, RocksDBStore
from tests.small_disk import small_disk
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.medium

#: Limits file sizes to 100 kB, which RocksDB treats like a full disk.
FULL_DISK = """
import resource, sys
from pathlib import Path
from penstock.statestore.rows.bytes_store import BytesStore
from penstock.statestore.memory_store import InMemoryStore
from penstock.statestore.rows.rocksdb_store import RocksDBStore
from penstock.topology.errors import ProcessorStateError

store = RocksDBStore(Path(sys.argv[1]))
store.put(b"a", b"1")
store.commit(1)
store.persist()
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for number in range(10_000):
    store.put(b"%d" % number, b"%d" % (number * 7919) * 20)
store.commit(2)
for attempt in (
    lambda: store.persist(beside_writes="beside" in sys.argv), lambda: (store.put(b"b", b"1"), store.commit(3))
):
    try:
        attempt()
    except ProcessorStateError as error:
        print(error)
"""


@pytest.mark.parametrize("beside", ["beside writes", "alone"])
def test_a_full_disk_is_reported_and_the_last_state_stays_on_disk(tmp_path: Path, beside: str) -> None:
    path = tmp_path / "store"
    command = [sys.executable, "-c", FULL_DISK, str(path), *beside.split()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    flush, commit = run.stdout.splitlines()
    assert flush.startswith(f"Cannot flush the store {path}: memtables were not written (")
    assert re.search(r"; RocksDB's log: .*File too large.*\); is the disk full\?$", flush)
    assert commit.startswith(f"Cannot write to the store {path}: IO error: ")
    assert commit.endswith("File too large; is the disk full?")
    store = RocksDBStore(path)
    assert store.committed_offset() == 1
    assert list(store.scan(None, None)) == [(b"a", b"1")]
    store.close()


def test_a_healthy_database_has_no_complaints(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "store")
    assert last_complaint(store.path) == ""
    store.close()
    assert last_complaint(tmp_path / "log-is-elsewhere") == ""


#: RocksDB writes memtables in the background while commits continue, until there is no space. The first write that
#: waits for space may start before or after a failure is known; several stores cover both.
FULL_IN_THE_BACKGROUND = """
import sys
from pathlib import Path
from shutil import rmtree
from penstock.statestore.rows.rocksdb_store import RocksDBStore
from penstock.topology.errors import ProcessorStateError

for number in range(5):
    path = Path(sys.argv[1]) / str(number)
    store = RocksDBStore(path, configure=lambda options: options.set_write_buffer_size(1 << 16))
    try:
        for offset in range(100_000):
            store.put(b"%d" % offset, b"%d" % (offset * 7919) * 2_000)
            store.commit(offset)
    except ProcessorStateError as error:
        print(error)
    try:
        store.close()
    except ProcessorStateError:
        rmtree(path)
"""


def test_a_commit_that_waits_for_memtables_does_not_wait_for_a_full_disk(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    with small_disk(place, 8) as disk:
        command = [*disk.prefix, sys.executable, "-c", FULL_IN_THE_BACKGROUND, str(place)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    said = run.stdout.splitlines()
    assert len(said) == 5
    assert all(
        re.search(r"the store /\S*/disk/\d: .*(No space left|[01] MB free).*is the disk full\?", line) for line in said
    )


class WaitingStore(RocksDBStore):
    waits = 0

    def _wait_for_room(self) -> None:
        self.waits += 1
        super()._wait_for_room()


def test_commits_faster_than_the_disk_wait_for_it(tmp_path: Path) -> None:
    store = WaitingStore(tmp_path / "store", configure=lambda options: options.set_write_buffer_size(1 << 16))
    for offset in range(2_000):
        store.put(b"%d" % offset, b"%d" % (offset * 7919) * 2_000)
        store.commit(offset)
    assert store.waits
    assert [key for key, _ in store.scan(None, None)] == sorted(b"%d" % offset for offset in range(2_000))
    assert store.committed_offset() == 1_999
    store.close()


def test_commits_that_rocksdb_throttles_are_written_when_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowed_down_early(options: Options) -> None:
        options.set_write_buffer_size(1 << 18)
        options.set_level_zero_slowdown_writes_trigger(6)
        options.set_level_zero_stop_writes_trigger(400)

    def sleep_and_note(seconds: float) -> None:
        pauses.append(seconds)
        sleep(seconds)

    pauses: list[float] = []
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", sleep_and_note)
    store = RocksDBStore(tmp_path / "store", configure=slowed_down_early)
    offset = 0
    while not any(pause > ROOM_POLL_SECONDS for pause in pauses):
        store.put(b"%d" % offset, os.urandom(200_000))
        store.commit(offset)
        offset += 1
    assert len(list(store.scan(None, None))) == offset
    assert store.committed_offset() == offset - 1
    store.close()
