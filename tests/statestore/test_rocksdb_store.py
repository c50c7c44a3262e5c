"""The disk always has a committed state: after SIGKILL, with damaged files and with handles that are still open."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from rocksdict import Options

from penstock.statestore.memory_store import InMemoryStore
from penstock.statestore.rows.bytes_store import BytesStore
from penstock.statestore.rows.rocksdb_errors import open_error
from penstock.statestore.rows.rocksdb_resources import RocksDBConfig, RocksDBResources
from penstock.statestore.rows.rocksdb_store import SCAN_ROWS, RocksDBStore
from penstock.statestore.store_factory import build_store
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.errors import LockError, ProcessorStateError, TaskCorruptedError
from penstock.topology.records import TaskId
from penstock.topology.serdes.serdes import Serdes
from tests.statestore.support import StoreTask

#: Commits forever: in commit n all keys get the value n, and the offset is n; prints each, and flushes some.
WRITER = """
import sys
import time
from pathlib import Path
from penstock.statestore.rows.bytes_store import BytesStore
from penstock.statestore.memory_store import InMemoryStore
from penstock.statestore.rows.rocksdb_resources import RocksDBConfig, RocksDBResources
from penstock.statestore.rows.rocksdb_store import RocksDBStore

store = RocksDBStore(Path(sys.argv[1]), RocksDBResources(RocksDBConfig(write_buffer_bytes=1 << 16)))
number = 0
while True:
    number += 1
    for key in range(100):
        store.put(b"key-%d" % key, b"%d" % number + b"x" * 100)
    store.commit(number, {"mark": number})
    if number % 7 == 0:
        store.persist()
        print(number, flush=True)
    store.put(b"key-0", b"never committed")
"""


@pytest.mark.parametrize("acknowledged", [1, 4])
def test_after_a_sigkill_data_and_offset_belong_to_the_same_commit(acknowledged: int, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        persisted = [int(writer.stdout.readline()) for _ in range(acknowledged)][-1]
        os.kill(writer.pid, signal.SIGKILL)
    store = RocksDBStore(path)
    offset = store.committed_offset()
    assert offset is not None
    assert offset >= persisted
    assert store.committed_mark("mark") == offset
    rows = list(store.scan(None, None))
    assert len(rows) == 100
    assert {value for _, value in rows} == {b"%d" % offset + b"x" * 100}
    store.close()


#: Commits rows and their offset, and dies during the close, after a given number of closed handles.
CLOSER = """
import os
import signal
import sys
from pathlib import Path
from rocksdict import Rdict
from penstock.statestore.rows.bytes_store import BytesStore
from penstock.statestore.rows.rocksdb_store import RocksDBStore

store = RocksDBStore(Path(sys.argv[1]))
for number in range(1, 3):
    store.put(b"key", b"%d" % number)
    store.keep_context(b"key", b"%d" % number)
    store.commit(number)
closed, left = Rdict.close, int(sys.argv[2])


def close(database):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    closed(database)


Rdict.close = close
store.close()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_after_a_sigkill_during_a_close_no_offset_is_ahead_of_the_data(closed: int, tmp_path: Path) -> None:
    path = tmp_path / "store"
    assert subprocess.run([sys.executable, "-c", CLOSER, str(path), str(closed)], check=False).returncode < 0
    store = RocksDBStore(path)
    offset, value = store.committed_offset(), store.get(b"key")
    assert offset is None or value == b"%d" % offset
    store.close()


@pytest.mark.parametrize("is_sorted_from", [1000, 1001])
def test_sorting_rows_first_does_not_change_them(
    is_sorted_from: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.statestore.rows.rocksdb_store.SORTED_BATCH_ROWS", is_sorted_from)
    numbers = [number * 37 % 1000 for number in range(1000)]
    after = {b"k%03d" % number: None if number % 3 else b"%d" % number for number in numbers}
    store = RocksDBStore(tmp_path / "rows")
    store.restore([(b"k%03d" % number, b"before") for number in numbers], 1000)
    for key, value in after.items():
        store.put(key, value)
    store.commit(2000)
    store.close()
    again = RocksDBStore(tmp_path / "rows")
    assert dict(again.scan(None, None)) == {key: value for key, value in after.items() if value is not None}
    assert again.committed_offset() == 2000
    again.close()


def damaged(path: Path, damage: str) -> None:
    """Write a store and damage its files."""
    store = RocksDBStore(path)
    for number in range(1000):
        store.put(b"%d" % number, b"x" * 100)
    store.commit(1)
    store.persist()
    store.close()
    if damage == "no CURRENT":
        (path / "CURRENT").unlink()
    elif damage == "garbage in CURRENT":
        (path / "CURRENT").write_text("garbage")
    elif damage == "no MANIFEST":
        next(path.glob("MANIFEST-*")).unlink()
    else:
        os.truncate(next(path.glob("*.sst")), 100)


@pytest.mark.parametrize("damage", ["no CURRENT", "garbage in CURRENT", "no MANIFEST", "truncated SST"])
def test_a_damaged_store_raises_task_corrupted(damage: str, tmp_path: Path) -> None:
    damaged(tmp_path / "store", damage)
    with pytest.raises(TaskCorruptedError, match=r"(?s)store .* is damaged: .* delete the task's directory"):
        RocksDBStore(tmp_path / "store")


@pytest.mark.parametrize("beside_writes", [True, False])
def test_damage_found_by_a_compaction_raises_task_corrupted(beside_writes: bool, tmp_path: Path) -> None:
    """RocksDB then has a background error: a flush sees only that there was one."""
    path = tmp_path / "store"

    def write(store: RocksDBStore, numbers: range) -> None:
        for number in numbers:
            for key in range(2000):
                store.put(b"%06d" % key, b"%d" % (number + key * 7919) * 20)
            store.commit(number)
            store.persist(beside_writes)

    store = RocksDBStore(path)
    write(store, range(3))  # the fourth file triggers a compaction
    store.close()
    file = max(path.glob("*.sst"), key=lambda found: found.stat().st_size)
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        opened.write(b"damage" * 100)
    store = RocksDBStore(path)
    with pytest.raises(TaskCorruptedError, match=r"(?s)store .* is damaged: .* delete the task's directory"):
        write(store, range(3, 20))
    with suppress(TaskCorruptedError):  # like a task that is closed dirty
        store.close()
    shutil.rmtree(path)
    RocksDBStore(path).close()  # not locked


def test_damaged_offsets_raise_task_corrupted(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = RocksDBStore(path)
    store.commit(7, {"mark": 7})
    store.close()
    for file in path.glob("*.sst"):
        data = bytearray(file.read_bytes())
        data[:16] = bytes(16)  # within the first block: the file can be opened, but not read
        file.write_bytes(data)
    store, errors = RocksDBStore(path), []
    for read in (store.committed_offset, lambda: store.committed_mark("mark")):
        with pytest.raises(TaskCorruptedError, match="store") as caught:
            read()
        errors.append(caught.value)
    store.close()
    RocksDBStore(path).close()  # although the tracebacks of both errors still refer to the previous store


def test_a_damaged_store_names_its_task(tmp_path: Path) -> None:
    damaged(tmp_path / "stores" / "counts", "truncated SST")
    builder = StoreBuilder("counts", StoreKind.KEY_VALUE, Serdes.string(), Serdes.int64())
    with pytest.raises(TaskCorruptedError, match="Task 0_0: The store") as caught:
        build_store(builder, StoreTask(), tmp_path, None)
    assert caught.value.task_ids == {TaskId(0, 0)}


def test_a_store_that_is_open_elsewhere_can_be_retried(tmp_path: Path) -> None:
    first = RocksDBStore(tmp_path / "store")
    with pytest.raises(LockError, match="open elsewhere"):
        RocksDBStore(tmp_path / "store")
    first.close()
    RocksDBStore(tmp_path / "store").close()


def test_the_error_names_a_path_that_cannot_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProcessorStateError, match=r"file/store.*check state\.dir"):
        RocksDBStore(tmp_path / "file" / "store")
    assert isinstance(open_error(tmp_path, Exception("IO error: Permission denied")), ProcessorStateError)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("IO error: While open a file for appending: {}/000010.sst: No space left on device", ProcessorStateError),
        ("IO error: While open a file for lock: {}/LOCK: Permission denied", ProcessorStateError),
        ("IO error: While lock file: {}/LOCK: Resource temporarily unavailable", LockError),
        ("IO error: lock hold by current process, acquire time 1 acquiring thread 2: {}/LOCK: No locks", LockError),
        ("Corruption: CURRENT file does not end with newline", TaskCorruptedError),
    ],
)
@pytest.mark.parametrize("name", ["counts", "corrupted-orders", "clock", "while lock file"])
def test_a_stores_name_does_not_affect_its_files(name: str, text: str, kind: type[Exception]) -> None:
    path = Path("state") / name
    assert type(open_error(path, Exception(text.format(path)))) is kind


#: Writes while it persists, twenty times; prints how many rows the store has, and dies.
PERSISTER = """
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from penstock.statestore.rows.rocksdb_store import RocksDBStore

store, written = RocksDBStore(Path(sys.argv[1])), 0
with ThreadPoolExecutor(1) as beside:
    for _ in range(20):
        persisting = beside.submit(store.persist, beside_writes=True)
        while not persisting.done():
            store.put(b"%09d" % written, b"x" * 20)
            written += 1
            store.commit(written)
        persisting.result()
print(written, len(list(store.scan(None, None))), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_store_can_be_written_while_it_is_persisted(tmp_path: Path) -> None:
    """No flush counts as failed, and data and offset agree after a SIGKILL."""
    program = [sys.executable, "-c", PERSISTER, str(tmp_path / "store")]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    written, rows = map(int, ended.stdout.split())
    assert rows == written
    left = RocksDBStore(tmp_path / "store")
    assert written >= len(list(left.scan(None, None))) == (left.committed_offset() or 0) > 0
    left.close()


def test_a_store_can_be_persisted_during_rocksdbs_own_flush(tmp_path: Path) -> None:
    """A commit that finds a full memtable starts such a flush, and writes its own offset after it."""
    resources = RocksDBResources(RocksDBConfig(write_buffer_bytes=1 << 18))
    for number in range(40):
        store = RocksDBStore(tmp_path / str(number), resources)
        written = 0
        while not store.properties(["num-immutable-mem-table"])["num-immutable-mem-table"]:
            for _ in range(100):
                store.put(b"%09d" % written, b"x" * 40)
                written += 1
            store.commit(written)
            store.commit(written + 1)
        store.persist()
        reader = RocksDBStore(store.path, resources, read_only=True)  # reads only the files
        assert reader.committed_offset() == written + 1
        reader.close()
        store.close()


def test_an_open_iterator_does_not_keep_a_closed_store_locked(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "store")
    store.put(b"a", b"1")
    store.put(b"b", b"1")
    store.commit(1)
    started, untouched = store.scan(None, None), store.scan(None, None)
    assert next(started) == (b"a", b"1")
    assert store.rows(None, None) == [(b"a", b"1"), (b"b", b"1")]
    store.close()
    store.close()
    again = RocksDBStore(tmp_path / "store")
    assert (list(started), list(untouched)) == ([(b"b", b"1")], [(b"a", b"1"), (b"b", b"1")]), "read ahead"
    assert again.get(b"a") == b"1"
    again.close()


def test_a_read_only_store_shows_committed_rows(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "store")
    store.put(b"a", b"1")
    store.commit(3)
    store.persist()
    store.put(b"a", b"2")
    reader = RocksDBStore(tmp_path / "store", read_only=True)
    assert reader.get(b"a") == b"1"
    assert reader.committed_offset() == 3
    reader.close()
    store.close()


def test_a_config_setter_changes_the_options_of_a_store(tmp_path: Path) -> None:
    def setter(store_name: str, options: Options, config: Mapping[str, Any]) -> None:
        assert store_name == "counts"
        assert config["application.id"] == "app"
        options.create_if_missing(False)

    task = StoreTask()
    task.config = {"application.id": "app", "rocksdb.config.setter": setter}
    builder = StoreBuilder("counts", StoreKind.KEY_VALUE, Serdes.string(), Serdes.int64())
    with pytest.raises(ProcessorStateError, match=r"does not exist \(create_if_missing is false\)"):
        build_store(builder, task, tmp_path, None)


def test_rows_without_an_offset_are_persisted_too(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "store")
    for value in (b"1", b"2"):
        store.put(b"a", value)
        store.commit(None)
        store.persist()
        reader = RocksDBStore(tmp_path / "store", read_only=True)  # reads only the files
        assert reader.get(b"a") == value
        reader.close()
    store.close()


def test_many_uncommitted_bytes_request_a_commit(tmp_path: Path) -> None:
    requests: list[int] = []
    resources = RocksDBResources(RocksDBConfig(uncommitted_max_bytes=100_000))
    store = RocksDBStore(tmp_path / "store", resources, lambda: requests.append(1))
    for number in range(90):
        store.put(b"key-%d" % number, b"x" * 900)
    assert requests == []
    for number in range(90, 130):
        store.put(b"key-%d" % number, b"x" * 900)
    assert requests
    store.commit(1)
    requests.clear()
    for number in range(50):
        store.put(b"key-%d" % number, b"x" * 900)
    assert requests == []
    store.close()


def test_a_deleted_range_is_gone_after_the_commit_and_back_after_a_rollback(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "store")
    store.put(b"a1", b"1")
    store.put(b"b1", b"1")
    store.commit(1)
    store.put(b"a2", b"2")
    store.delete_range(b"a", b"b")
    store.rollback()
    assert store.rows(None, None) == [(b"a1", b"1"), (b"b1", b"1")]
    store.put(b"a2", b"2")
    store.delete_range(b"a", b"b")
    store.put(b"a3", b"3")
    assert store.has_uncommitted()
    store.commit(2)
    assert not store.has_uncommitted()
    assert store.rows(None, None) == [(b"a3", b"3"), (b"b1", b"1")]
    store.close()


def test_a_commit_without_offset_keeps_the_previous_one(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "store")
    assert store.committed_offset() is None
    store.commit(5)
    store.put(b"a", b"1")
    store.commit(None)
    assert store.committed_offset() == 5
    store.close()


@pytest.mark.parametrize("make", [RocksDBStore, lambda path: InMemoryStore()])
def test_a_rollback_reverts_every_change_since_the_commit(make: Callable[[Path], BytesStore], tmp_path: Path) -> None:
    store = make(tmp_path / "store")
    store.put(b"a", b"1")
    store.commit(1, {"mark": 1})
    for key, value in ((b"a", b"2"), (b"a", None), (b"a", b"3"), (b"b", b"1"), (b"b", b"2")):
        store.put(key, value)
    assert store.has_uncommitted()
    store.rollback()
    assert store.rows(None, None) == [(b"a", b"1")]
    assert store.committed_mark("mark") == 1
    assert not store.has_uncommitted()
    store.close()


@pytest.mark.parametrize("make", [RocksDBStore, lambda path: InMemoryStore()])
def test_ranges_include_their_start_and_exclude_their_end(make: Callable[[Path], BytesStore], tmp_path: Path) -> None:
    store = make(tmp_path / "store")
    for key in (b"a", b"c", b"e"):
        store.put(key, key)
    for committed in (False, True):
        if committed:
            store.commit(1)
            store.put(b"b", b"b")
            store.put(b"c", None)
        keys = [b"a", b"b", b"e"] if committed else [b"a", b"c", b"e"]
        for start in (None, b"", b"a", b"b", b"z"):
            for end in (None, b"", b"a", b"c", b"e", b"z"):
                wanted = [(k, k) for k in keys if (start is None or k >= start) and (end is None or k < end)]
                assert store.rows(start, end) == list(store.scan(start, end)) == wanted
                assert store.rows(start, end, reverse=True) == wanted[::-1]
                assert list(store.scan(start, end, reverse=True)) == wanted[::-1]
    assert store.approximate_num_entries() >= 3
    store.close()


def test_a_scan_continues_after_each_chunk_of_rows(tmp_path: Path) -> None:
    """With uncommitted changes before, among and behind them."""
    store = RocksDBStore(tmp_path / "rows")
    keys = [b"%03d" % number for number in range(3 * SCAN_ROWS)]
    rows = dict.fromkeys(keys, b"committed")
    store.restore(list(rows.items()), 1)
    changes = {key: None if number % 10 else b"changed" for number, key in enumerate(keys) if number % 5 == 0}
    changes |= {key + b"+": b"new" for key in keys[::7]}
    for key, value in changes.items():
        store.put(key, value)
    now = {key: value for key, value in sorted((rows | changes).items()) if value is not None}
    for first in range(0, len(keys), 5):
        for last in range(first, len(keys), 5):
            wanted = [(key, value) for key, value in now.items() if keys[first] <= key < keys[last]]
            scan = store.scan(keys[first], keys[last])
            assert list(scan) == wanted
            assert list(store.scan(keys[first], keys[last], reverse=True)) == wanted[::-1]
    scan = store.scan(keys[0], keys[-1])
    before = [(key, value) for key, value in now.items() if key < keys[-1]]
    store.put(keys[1], b"later")
    store.commit(2)
    assert list(scan) == before, "the rows are those of the moment at which it was made"
    store.close()


BYTES = st.binary(max_size=3)


def test_a_get_from_a_large_file_does_not_read_all_of_its_filter(tmp_path: Path) -> None:
    """As one block, the filter of a large file did not fit into a shard of the cache: a get cost 23 times as much."""
    keys, gets = 600_000, 2_000
    resources = RocksDBResources(RocksDBConfig(block_cache_bytes=4 << 20))
    store = RocksDBStore(tmp_path, resources, keeps_statistics=True)
    store.restore([(b"k%08d" % key, b"12345678") for key in range(keys)], keys)
    store.persist()
    store._db.compact_range(None, None)

    def cached() -> int:
        """Return how many bytes were read into the cache."""
        found = re.search(r"rocksdb\.block\.cache\.bytes\.write COUNT : (\d+)", store.statistics())
        assert found is not None
        return int(found[1])

    before = cached()
    assert all(store.get(b"k%08d" % (number * 7919 % keys)) is not None for number in range(gets))
    assert (cached() - before) / gets < 100_000, "keys have 10 bits each in the filter: 750,000 bytes"
    store.close()


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_scan_that_meets_a_damaged_block_is_an_error_and_not_a_part(part: float, tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "store")
    for number in range(20_000):
        store.put(b"%05d" % number, os.urandom(20))
    store.commit(1)
    store.persist()
    store.close()
    (file,) = (path for path in (tmp_path / "store").glob("*.sst") if path.stat().st_size > 100_000)
    with file.open("r+b") as opened:
        opened.seek(int(file.stat().st_size * part))
        opened.write(b"damage" * 20)
    store = RocksDBStore(tmp_path / "store")
    with pytest.raises(TaskCorruptedError, match=r"(?s)store .* is damaged"):
        list(store.scan(None, None))
    store.close()


@pytest.mark.parametrize("count", [SCAN_ROWS - 1, SCAN_ROWS, SCAN_ROWS + 1, 5 * SCAN_ROWS])
def test_scans_of_a_few_chunks_end_with_their_last_row(count: int, tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path)
    keys = [b"%04d" % number for number in range(count)]
    for key in keys:
        store.put(key, b"")
    store.commit(1)
    assert [key for key, _ in store.scan(None, None)] == keys
    assert [key for key, _ in store.scan(b"0001", keys[-1])] == keys[1:-1]
    assert [key for key, _ in store.scan(None, b"0070")] == keys[:70]
    store.close()
