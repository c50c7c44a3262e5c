"""Cached window and session stores merge the rows of a key on disk with the cached ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.records import RawRecord, Windowed
from penstock.topology.serdes.serdes import Serdes
from tests.statestore.support import OpenStore, listen

RETENTION = 100_000
LARGE = 10_000_000


def windows(tmp_path: Path, cache_bytes: int = LARGE, rows: int = 2, retention_ms: int = RETENTION) -> OpenStore:
    """Return a store with rows of key "a" on disk: values and starts 0, 10, 20 …; its cache is empty."""
    builder = StoreBuilder(
        "store",
        StoreKind.WINDOW,
        Serdes.string(),
        Serdes.int64(),
        caching=True,
        retention_ms=retention_ms,
        window_size_ms=10,
    )
    open_store = OpenStore(builder, tmp_path, cache_bytes)
    for number in range(rows):
        open_store.store.put("a", number * 10, number * 10)
    open_store.commit()
    open_store.reopen()
    return open_store


def test_rows_of_a_key_on_disk_and_in_the_cache_are_one_range(tmp_path: Path) -> None:
    open_store = windows(tmp_path)
    store = open_store.store
    for start in range(20, 100, 10):
        assert list(store.fetch_range("a", 0, 1000)) == [(at, at) for at in range(0, start, 10)]
        store.put("a", start, start)
        if start % 30 == 0:
            open_store.commit()
    store.close()


def test_earlier_rows_are_read_on_demand(tmp_path: Path) -> None:
    store = windows(tmp_path).store
    assert list(store.fetch_range("a", 10, 1000)) == [(10, 10)]
    assert list(store.fetch_range("a", 0, 1000)) == [(0, 0), (10, 10)]
    assert list(store.fetch_range("a", 0, 5)) == [(0, 0)]
    store.close()


def test_evicted_rows_are_read_from_disk(tmp_path: Path) -> None:
    store = windows(tmp_path, 5000).store
    assert list(store.fetch_range("a", 0, 1000)) == [(0, 0), (10, 10)]
    for number in range(200):
        store.put(f"b-{number}", number, 0)
    for _ in range(3):
        assert list(store.fetch_range("a", 0, 1000)) == [(0, 0), (10, 10)]
    store.close()


def test_a_key_with_more_rows_than_the_cache_can_hold(tmp_path: Path) -> None:
    open_store = windows(tmp_path, 700, rows=50)
    store = open_store.store
    for _ in range(2):
        assert list(store.fetch_range("a", 100, 250)) == [(at, at) for at in range(100, 260, 10)]
        store.put("a", -1, 105)
        store.put("a", None, 110)
        wanted = [(100, 100), (105, -1), *((at, at) for at in range(120, 260, 10))]
        assert list(store.fetch_range("a", 100, 250)) == wanted
        store.put("a", None, 105)
        store.put("a", 110, 110)
    store.close()


@pytest.mark.parametrize("cache_bytes", [700, LARGE])
def test_a_listener_does_not_see_rows_that_are_being_deleted(cache_bytes: int, tmp_path: Path) -> None:
    open_store = windows(tmp_path, cache_bytes, rows=20)
    store = open_store.store
    rest = [(at, at) for at in range(20, 200, 10)]
    seen: list[Any] = []

    def flushed(windowed: Windowed, *change: Any) -> None:
        if windowed.key == "b":
            seen.append((list(store.fetch_range("a", 0, 1000)), store.fetch("a", 0)))

    listen(store, flushed, False)
    store.put("b", 1, 0)
    store.put("a", None, 0)
    store.put("a", None, 10)
    store.flush()
    assert seen == [(rest, None)]
    assert list(store.fetch_range("a", 0, 1000)) == rest
    store.close()


def test_an_expired_row_is_hidden_if_it_was_only_read_and_visible_if_it_was_put(tmp_path: Path) -> None:
    open_store = windows(tmp_path)
    store = open_store.store
    assert list(store.fetch_range("a", 0, 1000)) == [(0, 0), (10, 10)]
    store.put("a", 11, 10)
    store.put("b", 1, RETENTION + 10)
    open_store.commit()
    assert store.fetch("a", 0) is None
    assert store.fetch("a", 10) == 11
    assert list(store.fetch_range("a", 0, 1000)) == [(10, 11)]
    assert [(windowed.start, value) for windowed, value in store.all()] == [(10, 11), (RETENTION + 10, 1)]
    assert [windowed.start for windowed, _ in store.fetch_all(0, 1000)] == [10]
    store.close()


def test_an_abort_and_a_restore_drop_cached_reads(tmp_path: Path) -> None:
    open_store = windows(tmp_path)
    store = open_store.store
    assert list(store.fetch_range("a", 0, 1000)) == [(0, 0), (10, 10)]
    store.put("a", 5, 0)
    open_store.abort()
    assert list(store.fetch_range("a", 0, 1000)) == [(0, 0), (10, 10)]
    key = b"a" + (20).to_bytes(8) + bytes(4)
    store.restore([RawRecord("t", 0, 2, 0, key, (20).to_bytes(8))], 3)
    assert list(store.fetch_range("a", 0, 1000)) == [(0, 0), (10, 10), (20, 20)]
    store.close()


def test_an_expired_session_that_was_only_read_is_hidden(tmp_path: Path) -> None:
    builder = StoreBuilder(
        "store", StoreKind.SESSION, Serdes.string(), Serdes.int64(), caching=True, retention_ms=RETENTION
    )
    open_store = OpenStore(builder, tmp_path, LARGE)
    open_store.store.put(Windowed("a", 0, 5), 1)
    open_store.store.put(Windowed("a", 3, 8), 2)
    open_store.commit()
    open_store.reopen()
    store = open_store.store
    assert list(store.fetch("a")) == [(Windowed("a", 0, 5), 1), (Windowed("a", 3, 8), 2)]
    assert list(store.find_sessions("a", 0, 2)) == [(Windowed("a", 0, 5), 1)]
    store.put(Windowed("b", 0, RETENTION + 5), 1)
    open_store.commit()
    assert store.fetch_session("a", 0, 5) is None
    assert store.fetch_session("a", 3, 8) == 2
    assert list(store.fetch("a")) == [(Windowed("a", 3, 8), 2)]
    assert [session.key for session, _ in store.all()] == ["a", "b"]
    store.close()
