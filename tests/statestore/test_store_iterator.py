"""Iterators can be closed, also by a with statement; and a closed store cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.statestore.rows.rocksdb_store import RocksDBStore
from penstock.topology.context.store_interfaces import StoreBackend, StoreBuilder, StoreKind
from penstock.topology.errors import InvalidStateStoreError
from penstock.topology.records import ValueAndTimestamp, VersionedRecord, Windowed
from penstock.topology.serdes.serdes import Serdes
from tests.statestore.support import OpenStore

Method = tuple[str, tuple[Any, ...]]
KEY_VALUE: list[Method] = [
    *(("range", ("a", "b")), ("reverse_range", ("a", "b")), ("all", ()), ("reverse_all", ())),
    ("prefix_scan", ("a",)),
]
WINDOW: list[Method] = [
    *(("fetch_range", ("a", 0, 9)), ("backward_fetch_range", ("a", 0, 9))),
    *(("fetch_keys", ("a", "b", 0, 9)), ("backward_fetch_keys", ("a", "b", 0, 9))),
    *(("fetch_all", (0, 9)), ("backward_fetch_all", (0, 9)), ("all", ()), ("backward_all", ())),
]
SESSION: list[Method] = [
    *(("find_sessions", ("a", 0, 9)), ("backward_find_sessions", ("a", 0, 9))),
    *(("fetch", ("a",)), ("backward_fetch", ("a",)), ("find_sessions_ending", (0, 9)), ("all", ())),
    *(("fetch_keys", ("a", "b")), ("backward_fetch_keys", ("a", "b"))),
]
#: By kind: a function that puts one row, the methods that return rows, the row, and the methods that return one value.
KINDS: dict[StoreKind, tuple[tuple[Any, ...], list[Method], Any, list[Method]]] = {
    StoreKind.KEY_VALUE: (("a", 1), KEY_VALUE, ("a", 1), [("get", ("a",))]),
    StoreKind.TIMESTAMPED_KEY_VALUE: (
        ("a", ValueAndTimestamp(1, 5)),
        KEY_VALUE,
        ("a", ValueAndTimestamp(1, 5)),
        [("get", ("a",))],
    ),
    StoreKind.WINDOW: (("a", 1, 5), WINDOW, (Windowed("a", 5, 10), 1), [("fetch", ("a", 5))]),
    StoreKind.SESSION: (
        (Windowed("a", 1, 5), 1),
        SESSION,
        (Windowed("a", 1, 5), 1),
        [("fetch_session", ("a", 1, 5))],
    ),
    StoreKind.VERSIONED_KEY_VALUE: (
        ("a", 1, 5),
        [("get_versions", ("a", 0, 9))],
        VersionedRecord(1, 5),
        [("get", ("a",)), ("get", ("a", 7))],
    ),
    StoreKind.LIST_VALUE: (("a", 1), [("all", ())], ("a", 1), [("get", ("a",))]),
}
#: Location of the rows, and the size of the record cache in front.
PLACES = [(StoreBackend.IN_MEMORY, 0), (StoreBackend.ROCKSDB, 0), (StoreBackend.ROCKSDB, 1_000_000)]

OpenKind = Callable[[StoreKind], OpenStore]


@pytest.fixture(params=PLACES, ids=lambda place: f"{place[0].value}-{place[1]}")
def open_kind(request: pytest.FixtureRequest, tmp_path: Path) -> OpenKind:
    """Return a function that opens a store of a kind with one committed row."""
    backend, cache_bytes = request.param

    def open_store(kind: StoreKind) -> OpenStore:
        times: Any = {"retention_ms": 100, "window_size_ms": 5, "history_retention_ms": 100}
        builder = StoreBuilder("store", kind, Serdes.string(), Serdes.int64(), backend, caching=True, **times)
        opened = OpenStore(builder, tmp_path / kind.value, cache_bytes)
        opened.store.put(*KINDS[kind][0])
        opened.commit()
        return opened

    return open_store


@pytest.mark.parametrize("kind", KINDS)
def test_a_with_statement_closes_an_iterator(open_kind: OpenKind, kind: StoreKind) -> None:
    _, methods, row, _ = KINDS[kind]
    store = open_kind(kind).store
    for method, arguments in methods:
        wanted = (row[0].start, row[1]) if "fetch_range" in method else row
        with getattr(store, method)(*arguments) as rows:
            assert next(iter(rows)) == wanted
        rows.close()
        if isinstance(store.rows, RocksDBStore):
            assert not store.rows._scans, f"{method} leaves RocksDB's iterator open"
        assert list(getattr(store, method)(*arguments)) == [wanted]
    store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_store_cannot_be_read(open_kind: OpenKind, kind: StoreKind) -> None:
    _, methods, _, values = KINDS[kind]
    store = open_kind(kind).store
    store.close()
    store.close()
    for method, arguments in [*methods, *values]:
        with pytest.raises(InvalidStateStoreError, match="The store store is closed"):
            list(getattr(store, method)(*arguments))
    with pytest.raises(InvalidStateStoreError, match="The store store is closed"):
        store.put(*KINDS[kind][0])


def test_a_closed_iterator_has_no_more_rows() -> None:
    opened = OpenStore(StoreBuilder("store", StoreKind.KEY_VALUE, Serdes.string(), Serdes.int64()))
    for key in "abc":
        opened.store.put(key, 1)
    rows = opened.store.all()
    assert next(rows) == ("a", 1)
    rows.close()
    assert list(rows) == []
    with pytest.raises(StopIteration):
        next(rows)
