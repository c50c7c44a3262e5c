"""LRU stores: evictions, their changelog records, and the rows after a restore."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.topology.context.store_interfaces import StoreBackend, StoreBuilder, StoreKind
from penstock.topology.records import ValueAndTimestamp
from penstock.topology.serdes.serdes import Serdes
from tests.statestore.support import OpenStore

pytestmark = pytest.mark.medium

KEYS = st.sampled_from(["a", "b", "c", "d"])
STEP = st.sampled_from(["put", "put", "put", "get", "get", "delete", "commit", "abort"])
STEPS = st.lists(st.tuples(STEP, KEYS), min_size=10, max_size=60)


def lru(kind: StoreKind = StoreKind.KEY_VALUE, max_entries: int = 2, **more: Any) -> StoreBuilder:
    return StoreBuilder(
        "store", kind, Serdes.string(), Serdes.int64(), StoreBackend.LRU, max_entries=max_entries, **more
    )


def logged(open_store: OpenStore) -> list[tuple[bytes | None, bytes | None, int]]:
    return [(each.key(), each.value(), each.timestamp()[1]) for each in open_store.task.changelog]


def test_a_put_evicts_the_least_recently_used_row_and_logs_its_tombstone_first() -> None:
    open_store = OpenStore(lru())
    store, number = open_store.store, Serdes.int64()
    store.put("a", 1)
    store.put("b", 2)
    open_store.commit()
    assert store.get("a") == 1
    open_store.task.timestamp, open_store.task.headers = 7, [("h", b"1")]
    store.put("c", 3)
    assert list(store.all()) == [("a", 1), ("c", 3)]
    assert logged(open_store)[2:] == [(b"b", None, 7), (b"c", number.serialize("", 3), 7)]
    assert open_store.task.changelog[2].headers() is None
    open_store.abort()
    assert list(store.all()) == [("a", 1), ("b", 2)]
    store.put("a", 5)
    open_store.commit()
    open_store.reopen()
    assert list(open_store.store.all()) == [("a", 5), ("b", 2)]


def test_a_timestamped_store_logs_no_tombstone_as_in_kafka_streams() -> None:
    open_store = OpenStore(lru(StoreKind.TIMESTAMPED_KEY_VALUE, max_entries=1))
    for key in ("a", "b"):
        open_store.store.put(key, ValueAndTimestamp(1, 5))
    assert [key for key, *_ in logged(open_store)] == [b"a", b"b"]


def test_a_value_that_cannot_be_written_evicts_nothing() -> None:
    open_store = OpenStore(lru(max_entries=1))
    open_store.store.put("a", 1)
    with pytest.raises(Exception, match="int"):
        open_store.store.put("b", "not a number")
    assert list(open_store.store.all()) == [("a", 1)]
    assert [key for key, *_ in logged(open_store)] == [b"a"]


@pytest.mark.parametrize("cache_bytes", [0, 200, 1_000_000])
@given(steps=STEPS, max_entries=st.integers(0, 3))
def test_a_restore_returns_the_kept_rows(cache_bytes: int, steps: list[tuple[str, str]], max_entries: int) -> None:
    open_store = OpenStore(lru(max_entries=max_entries, caching=True), cache_bytes=cache_bytes)
    for number, (step, key) in enumerate(steps):
        store = open_store.store
        if step == "put":
            store.put(key, number)
        elif step == "get":
            store.get(key)
        elif step == "delete":
            store.delete(key)
        elif step == "commit":
            open_store.commit()
        else:
            open_store.abort()
    open_store.commit()
    kept = open_store.store.rows.rows(None, None)  # the record cache in front may have more
    assert len(kept) <= max_entries
    open_store.reopen()
    assert open_store.store.rows.rows(None, None) == kept
