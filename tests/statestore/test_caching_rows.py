"""Stores whose record cache keeps rows: whose they are, and what readers get of them. Random uses: KeyValueMachine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.statestore.caching_rows import CachingRowStore
from penstock.topology.records import ValueAndTimestamp
from penstock.topology.serdes import Serdes
from penstock.topology.store_interfaces import VALUE, StoreBackend, StoreBuilder, StoreKind

from .support import OpenStore

BUILDER = StoreBuilder(
    "store", StoreKind.TIMESTAMPED_KEY_VALUE, Serdes.string(), Serdes.json(), caching=True, cached_as_rows=True
)


def row(value: Any, timestamp: int) -> ValueAndTimestamp:
    return ValueAndTimestamp(value, timestamp)


def test_a_store_that_caches_rows_gives_each_reader_a_value_of_its_own() -> None:
    open_store = OpenStore(BUILDER, cache_bytes=1_000_000)
    store, task = open_store.store, open_store.task
    assert type(store) is CachingRowStore
    value: dict[str, Any] = {"n": [1]}
    store.put("a", row(value, 7))
    value["n"].append(2)
    for read in (store.get, store.get_for_update):
        read("a").value["n"].append(3)
    assert store.get("a") == row({"n": [1]}, 7)
    store.put("b", row("x", 8))
    open_store.commit()
    store.delete("b")
    open_store.commit()
    logged = [(record.key(), record.value(), record.timestamp()[1]) for record in task.changelog]
    assert logged == [(b"a", b'{"n":[1]}', 7), (b"b", b'"x"', 8), (b"b", None, 0)]
    cells = store.cells()
    assert cells is not None
    own, cell = cells.own_value, cells.get("a")
    assert cell is not None
    expression = own.template.format("row", **{name: name for name in own.names})
    assert eval(expression, {**own.names, "row": cell[VALUE]}) == {"n": [1]}


@pytest.mark.parametrize(
    ("rows", "changed"),
    [
        (True, {}),
        (False, {"value_serde": Serdes.int64()}),  # nobody can change it in place
        (False, {"plain_values": True}),
        (False, {"headers_format": True}),
        (False, {"backend": StoreBackend.LRU, "max_entries": 3}),
        (False, {"cached_as_rows": False}),
    ],
)
def test_only_values_that_readers_may_change_are_cached_as_rows(rows: bool, changed: dict[str, Any]) -> None:
    store = OpenStore(replace(BUILDER, **changed), cache_bytes=1_000).store
    assert (type(store) is CachingRowStore) is rows
