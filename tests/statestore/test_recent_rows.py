"""Rows that stay in memory after a commit: reads return the rows on disk, and their number is limited."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Rdict

from penstock.kernel.rows import RowBuffer
from penstock.statestore.rows import recent_rows
from penstock.statestore.rows.recent_rows import FIRST_READS, READS_WITHOUT, RecentRows, bytes_of_a_row
from penstock.statestore.rows.rocksdb_resources import RocksDBConfig, RocksDBResources
from penstock.statestore.rows.rocksdb_store import RocksDBStore

PLENTY = 1 << 20


def key(number: int) -> bytes:
    return b"key-%03d" % number


def rows(*numbers: int) -> dict[bytes, bytes | None]:
    return {key(number): b"value" for number in numbers}


class Recent:
    """A buffer over an initially empty disk, with the rows that it keeps after commits and reads."""

    def __init__(self) -> None:
        self.disk: dict[bytes, bytes | None] = {}
        self._max_bytes = PLENTY
        self.buffer = RowBuffer(self._read, pytest.fail, 1_000, self._refill)
        self._recent = RecentRows(self.buffer)

    def _refill(self) -> None:
        self._recent.refill(self._max_bytes)

    def _read(self, key: bytes) -> bytes | None:
        return self.disk.get(key)

    def commit(self, rows: dict[bytes, bytes | None], max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.buffer.rows.update(rows)
        self._recent.take(max_bytes)
        self.buffer.clear()

    def kept(self, numbers: range) -> list[int]:
        there = [number for number in numbers if key(number) in self.buffer.recent]
        return [number for number in there if self.buffer.get(key(number)) is not None]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys that are read from RocksDB, for databases opened after this."""
    asked: list[bytes] = []
    get_from_disk = Rdict.get

    def get(db: Rdict, key: bytes) -> Any:
        asked.append(key)
        return get_from_disk(db, key)

    monkeypatch.setattr(Rdict, "get", get)
    return asked


def test_committed_rows_are_found_without_rocksdb(tmp_path: Path, asked: list[bytes]) -> None:
    store = RocksDBStore(tmp_path / "db")
    store.put(b"k", b"1")
    store.put(b"gone", None)
    store.commit(1)
    assert store.get(b"k") == b"1"
    assert store.get(b"gone") is None
    assert not asked
    assert store.get(b"never") is None
    assert asked == [b"never"]
    store.delete_range(b"g", b"h")
    store.commit(2)
    assert store.get(b"k") == b"1"
    assert asked == [b"never"], "other rows stay known"
    assert store.get(b"gone") is None
    assert asked == [b"never", b"gone"]
    store.close()


def test_restored_rows_that_are_only_read_are_found_without_rocksdb(tmp_path: Path, asked: list[bytes]) -> None:
    store = RocksDBStore(tmp_path / "db")
    count = FIRST_READS + 100
    store.restore(
        [(b"%d" % number, b"first") for number in range(count)], None
    )  # like a global table: no commit follows
    for _ in range(3):
        assert [store.get(b"%d" % number) for number in range(count)] == [b"first"] * count
    assert len(asked) == count
    store.restore([(b"1", b"second")], None)
    assert store.get(b"1") == b"second"
    store.close()


@pytest.mark.parametrize("seed", range(6))
def test_reads_equal_those_of_a_dict_after_any_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(recent_rows, "READS_WITHOUT", 5)
    monkeypatch.setattr(recent_rows, "FIRST_READS", 3)
    draw = random.Random(seed)
    store = RocksDBStore(tmp_path / "db", RocksDBResources(RocksDBConfig(recent_bytes=30 * 200)))
    committed: dict[bytes, bytes] = {}
    now: dict[bytes, bytes] = {}
    for step in range(3_000):
        chosen = key(draw.randrange(60))
        action = draw.random()
        if action < 0.45:
            assert store.get(chosen) == now.get(chosen)
        elif action < 0.8:
            store.put(chosen, b"%d" % step)
            now[chosen] = b"%d" % step
        elif action < 0.9:
            store.put(chosen, None)
            now.pop(chosen, None)
        elif action < 0.96:
            store.commit(step)
            committed = dict(now)
        elif action < 0.97:
            store.rollback()
            now = dict(committed)
        elif action < 0.98:
            store.commit(step)
            store.restore([(chosen, b"restored"), (key(3), None)], step)
            now[chosen] = b"restored"
            now.pop(key(3), None)
            committed = dict(now)
        else:
            start, end = sorted((chosen, key(draw.randrange(60))))
            store.delete_range(start, end)
            now = {k: v for k, v in now.items() if not start <= k < end}
            store.commit(step)
            committed = dict(now)
    assert dict(store.scan(None, None)) == now
    store.close()


def test_earlier_rows_stay_while_there_is_room() -> None:
    recent = Recent()
    room = 10 * int(bytes_of_a_row(rows(1).items()) + 1)
    recent.commit(rows(*range(6)), room)
    assert recent.kept(range(20)) == [0, 1, 2, 3, 4, 5]
    recent.commit(rows(*range(4, 10)), room)
    assert recent.kept(range(20)) == list(range(10))
    recent.commit(rows(*range(8, 12)), room)
    assert recent.kept(range(20)) == list(range(2, 12)), "those that came first have left"
    recent.commit(rows(*range(11)), room)
    assert recent.kept(range(20)) == []


def test_read_rows_are_found_without_rocksdb_until_the_room_is_full() -> None:
    recent = Recent()
    recent.disk = rows(*range(20))
    room = 10 * int(bytes_of_a_row(rows(1).items()) + 1)
    recent.commit({}, room)
    assert [recent.buffer.get(key(number)) for number in range(5)] == [b"value"] * 5
    assert recent.kept(range(20)) == [0, 1, 2, 3, 4]
    recent.commit(rows(*range(4, 7)), room)
    assert [recent.buffer.get(key(number)) for number in range(20)] == [b"value"] * 20
    assert recent.kept(range(20)) == list(range(10)), "no more than there is room for"
    recent.disk[key(15)] = b"another"
    recent.commit({}, room)
    assert recent.buffer.get(key(15)) == b"another"


@pytest.fixture
def decided_after_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_rows, "DECIDED_AFTER", 8)


@pytest.mark.usefixtures("decided_after_8")
def test_rows_that_are_never_read_are_dropped_and_tried_again_later() -> None:
    recent = Recent()
    for _ in range(4):  # the first sixteen rows decide nothing
        recent.commit(rows(*range(8)), PLENTY)
    for _ in range(10):
        assert recent.buffer.recent == {}
        recent.commit(rows(*range(8)), PLENTY)
    recent.disk = rows(*range(8))
    for _ in range(READS_WITHOUT):
        recent.buffer.get(key(1))
    assert recent.buffer.recent == {}
    recent.commit(rows(*range(4)), PLENTY)
    recent.buffer.get(key(6))
    assert sorted(recent.buffer.recent) == [key(number) for number in (0, 1, 2, 3, 6)]


@pytest.mark.usefixtures("decided_after_8")
def test_a_read_only_table_needs_no_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_rows, "READS_WITHOUT", 100)
    recent = Recent()
    for number in range(40):  # a table is loaded: each row is read, and then written
        recent.buffer.get(key(number))
        recent.commit(rows(number), PLENTY)
    assert recent.buffer.recent == {}
    recent.disk = rows(*range(40))
    for number in range(400):
        recent.buffer.get(key(number % 40))
    assert len(recent.buffer.recent) == 40
    assert recent.buffer.found > 100


@pytest.mark.usefixtures("decided_after_8")
def test_one_read_per_sixteen_rows_is_enough() -> None:
    recent = Recent()
    recent.commit(rows(*range(9)), PLENTY)
    recent.commit(rows(*range(8)), PLENTY)
    recent.buffer.get(key(5))
    recent.commit(rows(*range(8)), PLENTY)
    assert len(recent.buffer.recent) == 9
    recent.commit(rows(*range(9)), PLENTY)
    assert recent.buffer.recent == {}, "reads before the last decision do not count"


@pytest.mark.usefixtures("decided_after_8")
def test_the_first_rows_of_many_keys_decide_nothing() -> None:
    """A key that was read and written can be found in memory in the next commit at the earliest."""
    recent = Recent()
    for number in range(20):
        recent.buffer.get(key(number))
    recent.commit(rows(*range(20)), PLENTY)
    assert len(recent.buffer.recent) == 20
    for number in range(20):
        recent.buffer.get(key(number))
    recent.commit(rows(*range(20)), PLENTY)
    assert len(recent.buffer.recent) == 20
    recent.commit(rows(*range(20)), PLENTY)
    assert recent.buffer.recent == {}


@pytest.mark.usefixtures("decided_after_8")
def test_a_commit_without_rows_does_not_count_for_the_decision() -> None:
    recent = Recent()
    recent.commit(rows(*range(8)), PLENTY)
    for _ in range(20):
        recent.commit({}, PLENTY)
    assert len(recent.buffer.recent) == 8


@pytest.mark.usefixtures("decided_after_8")
def test_non_repeating_reads_of_many_keys_keep_nothing() -> None:
    recent = Recent()
    recent.disk = rows(*range(20))
    recent.commit({}, PLENTY)
    for number in range(20):
        recent.buffer.get(key(number))
    recent.commit({}, PLENTY)
    assert len(recent.buffer.recent) == 20, "which are the first"
    for number in range(20, 40):
        recent.buffer.get(key(number))
    recent.commit({}, PLENTY)
    assert recent.buffer.recent == {}


def test_the_stores_of_a_process_share_the_room(tmp_path: Path) -> None:
    resources = RocksDBResources(RocksDBConfig(recent_bytes=1_000))
    stores = [RocksDBStore(tmp_path / str(number), resources) for number in range(4)]
    assert resources.recent_room(0) == 1_000
    for number in range(3):
        stores[0].put(key(number), b"value")
    stores[0].commit(1)
    kept = resources.recent_bytes
    assert kept == 3 * (180 + len(key(0)) + len(b"value"))
    assert resources.recent_room(kept) == 1_000, "of the store itself"
    assert resources.recent_room(0) == 1_000 - kept, "what it does not use"
    stores[1].put(key(1), bytes(500))
    stores[1].commit(1)
    assert resources.recent_bytes == kept, "there is no room for it"
    resources.recent_bytes = 1_000
    assert resources.recent_room(0) == 250, "at least its share"
    resources.recent_bytes = kept
    for store in stores:
        store.close()
    assert resources.recent_bytes == 0
