"""The rows with the latest timestamps: reads find the rows that were put, whatever was dropped meanwhile."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.kernel.rows import LatestRows, RowBuffer
from penstock.statestore.rows.rocksdb_store import RocksDBStore
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.serdes.serdes import Serdes
from tests.statestore.support import STATEFUL, OpenStore

KEYS = st.sampled_from([b"", b"a", b"a\0", b"b"])
TIMES = st.integers(0, 30)
SECONDS = st.integers(0, 3)
SUFFIXES = {4: struct.Struct(">qi"), 8: struct.Struct(">qq")}
#: By LatestRows' own count: less than all rows of a machine need.
ROOM = 2_000


def latest_rows(second_size: int, room: Callable[[], int]) -> Any:
    buffer = RowBuffer(lambda key: None, pytest.fail, 1 << 30, pytest.fail)
    return LatestRows(buffer, second_size, 60_000, room)


class LatestRowsMachine(RuleBasedStateMachine):
    """Random operations on the rows and on a dict that drops nothing."""

    @initialize(second_size=st.sampled_from([4, 8]))
    def set_up(self, second_size: int) -> None:
        self.suffix = SUFFIXES[second_size]
        self.room = ROOM
        self.rows = latest_rows(second_size, lambda: self.room)
        self.model: dict[tuple[bytes, int, int], bytes] = {}

    def log_key(self, key: bytes, time: int, second: int) -> bytes:
        return key + self.suffix.pack(time, second)

    @rule(key=KEYS, time=TIMES, second=SECONDS, data=st.none() | st.binary(max_size=300))
    def put(self, key: bytes, time: int, second: int, data: bytes | None) -> None:
        self.rows.put(self.log_key(key, time, second), data)
        if data is None:
            self.model.pop((key, time, second), None)
        else:
            self.model[key, time, second] = data

    @rule()
    def start(self) -> None:
        """As after a restart: all rows with later timestamps than any put are known."""
        self.rows.start(max((time for _, time, _ in self.model), default=-1) + 1)
        assert not self.rows.resting

    @rule()
    def rest(self) -> None:
        self.rows.rest()
        assert self.rows.resting

    @rule(room=st.sampled_from([0, 400, ROOM, 1 << 20]))
    def have_room(self, room: int) -> None:
        self.room = room

    @rule(key=KEYS, time=TIMES, second=SECONDS)
    def get(self, key: bytes, time: int, second: int) -> None:
        found = self.rows.get(self.log_key(key, time, second))
        if time < self.rows.complete_from:
            assert found is self.rows.NOT_KNOWN
        else:
            assert found == self.model.get((key, time, second))

    @rule(key=KEYS, first=TIMES, last=TIMES)
    def fetch(self, key: bytes, first: int, last: int) -> None:
        found, lengths = self.rows.fetch(key, first, last), self.rows.values(key, first, last, len)
        if first < self.rows.complete_from:
            assert found is None
            assert lengths is None
        else:
            assert found == self.expected(key, first, last)
            assert lengths == [(time, len(data)) for time, _, data in found]

    def expected(self, key: bytes, first: int, last: int) -> list[Any]:
        return sorted(
            (time, second, data)
            for (of, time, second), data in self.model.items()
            if of == key and first <= time <= last
        )

    @invariant()
    def all_later_rows_are_there(self) -> None:
        if hasattr(self, "rows") and self.rows.complete_from <= 30:
            for key in (b"", b"a", b"a\0", b"b"):
                assert self.rows.fetch(key, self.rows.complete_from, 30) == self.expected(
                    key, self.rows.complete_from, 30
                )


TestLatestRows = LatestRowsMachine.TestCase
TestLatestRows.settings = STATEFUL


def test_the_rows_with_the_earliest_timestamps_are_dropped_first() -> None:
    rows = latest_rows(4, lambda: 100_000)
    rows.start(0)
    suffix = SUFFIXES[4]
    for number in range(10_000):
        rows.put(b"k%03d" % (number % 100) + suffix.pack(number, 0), b"value")
        assert rows.fetch(b"k%03d" % (number % 100), max(0, number - 150), number), "it and the one before"
    assert rows.complete_from > 5_000
    assert rows.fetch(b"k000", 0, 10_000) is None
    assert rows.get(b"k099" + suffix.pack(9_999, 0)) == b"value"


def test_rows_that_are_never_fetched_are_not_kept() -> None:
    rows = latest_rows(4, lambda: 10_000)
    rows.start(0)
    for number in range(1_000):
        rows.put(b"k%03d" % number + SUFFIXES[4].pack(number, 0), b"value")
    assert rows.resting
    rows.start(1_000)
    rows.put(b"k" + SUFFIXES[4].pack(1_000, 0), b"again")
    assert rows.fetch(b"k", 1_000, 2_000) == [(1_000, 0, b"again")]


def test_a_key_that_is_too_short_is_refused() -> None:
    rows = latest_rows(8, lambda: 10_000)
    rows.start(0)
    with pytest.raises(ValueError, match="a changelog key of 15 bytes is too short"):
        rows.put(bytes(15), b"")
    with pytest.raises(ValueError, match="a changelog key of 3 bytes is too short"):
        rows.get(b"abc")


def test_a_store_reads_its_disk_only_for_times_before_its_first_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes | None] = []
    rows = RocksDBStore.rows

    def counted(store: RocksDBStore, start: bytes | None, end: bytes | None, reverse: bool = False) -> Any:
        asked.append(start)
        return rows(store, start, end, reverse)

    monkeypatch.setattr(RocksDBStore, "rows", counted)
    builder = StoreBuilder(
        "store", StoreKind.WINDOW, Serdes.string(), Serdes.int64(), retention_ms=100_000, window_size_ms=10
    )
    open_store = OpenStore(builder, tmp_path)
    store = open_store.store
    store.put("a", 1, 10)
    open_store.commit()
    assert list(store.fetch_range("a", 0, 100)) == list(store.fetch_range("a", 10, 100)) == [(10, 1)]
    assert len(asked) == 2
    store.put("a", 2, 20)
    store.put("b", 3, 20)
    store.put("b", None, 20)
    open_store.commit()
    assert list(store.fetch_range("a", 11, 100)) == [(20, 2)]
    assert store.fetch("a", 20) == 2
    assert list(store.fetch_range("b", 11, 100)) == list(store.fetch_range("c", 11, 100)) == []
    assert len(asked) == 2, "also for rows that are not there"
    assert list(store.fetch_range("a", 0, 100)) == [(10, 1), (20, 2)]
    assert len(asked) == 3
    store.put("a", 4, 30)
    open_store.abort()
    assert list(store.fetch_range("a", 11, 100)) == [(20, 2)]
    assert len(asked) == 4, "what was in memory may have been rolled back"
    store.close()
