"""Reads of a store as of its last commit equal those of a copy that was stopped there, whatever was put since."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock import InvalidStateStoreError, StateStoreTypeError, StreamsError, Ttl
from penstock.topology.context.store_interfaces import StoreBackend, StoreBuilder, StoreKind
from penstock.topology.query.isolation_level import DEFAULT_ISOLATION, IsolationLevel
from tests.examples import examples
from tests.statestore.kinds import (
    TIMES_MS,
    builder,
    put_plain,
    put_session,
    put_timestamped,
    put_timestamped_window,
    put_window,
)
from tests.statestore.support import OpenStore

KEYS = ("", "a", "ab", "b")


def key_values(store: Any) -> list[Any]:
    found = [list(store.all()), list(store.reverse_all()), list(store.range("a", "ab")), list(store.prefix_scan(b"a"))]
    return [*found, [store.get(key) for key in KEYS]]


def windows(store: Any) -> list[Any]:
    found = [list(store.all()), list(store.backward_all()), list(store.fetch_keys("a", "ab", 1_000, 150_000))]
    found += [list(store.fetch_all(1_000, 260_000))]
    found += [store.fetch_range(key, 0, 600_000) for key in KEYS]
    return [*found, [store.fetch(key, time) for key in KEYS for time in TIMES_MS]]


def sessions(store: Any) -> list[Any]:
    found = [list(store.all()), list(store.find_sessions_ending(1_000, 260_000))]
    return [*found, *(store.find_sessions(key, 0, 600_000) for key in KEYS), *(store.fetch(key) for key in KEYS)]


def versions(store: Any) -> list[Any]:
    found = [store.get_versions(key, 0, 600_000) for key in KEYS]
    return [*found, [store.get(key, time) for key in KEYS for time in (None, *TIMES_MS)]]


Put = Callable[[Any, str, int, int | None], None]
Read = Callable[[Any], list[Any]]
STORES: dict[str, tuple[StoreBuilder[Any], Put, Read]] = {
    "plain": (builder(StoreKind.KEY_VALUE), put_plain, key_values),
    "timestamped": (builder(StoreKind.TIMESTAMPED_KEY_VALUE), put_timestamped, key_values),
    "lru": (builder(StoreKind.KEY_VALUE, backend=StoreBackend.LRU, max_entries=2), put_plain, key_values),
    "ttl": (builder(StoreKind.TIMESTAMPED_KEY_VALUE, ttl=Ttl(timedelta(days=1))), put_timestamped, key_values),
    "windows": (builder(StoreKind.WINDOW), put_window, windows),
    "timestamped windows": (builder(StoreKind.TIMESTAMPED_WINDOW), put_timestamped_window, windows),
    "windows by time": (builder(StoreKind.TIMESTAMPED_WINDOW, time_ordered=True), put_timestamped_window, windows),
    "sessions": (builder(StoreKind.SESSION), put_session, sessions),
    "sessions by time": (builder(StoreKind.SESSION, time_ordered=True), put_session, sessions),
    "versioned": (builder(StoreKind.VERSIONED_KEY_VALUE, caching=False), put_window, versions),
}
STEPS = st.lists(
    st.one_of(
        st.sampled_from(["flush", "commit", "commit", "rollback", "read"]),
        st.tuples(st.sampled_from(KEYS), st.sampled_from(TIMES_MS), st.none() | st.integers(0, 9)),
    ),
    min_size=1,
    max_size=25,
)


def stopped_copy(opened: OpenStore, of: StoreBuilder[Any]) -> OpenStore:
    """Return the store that a restore makes of the changelog up to the last commit."""
    copy = OpenStore(of, None, 0)
    copy.task.changelog += opened.task.changelog[: opened.committed]
    copy.restore_missing()
    return copy


@pytest.mark.parametrize("in_memory", [False, True], ids=["on disk", "in memory"])
@pytest.mark.parametrize("cache_bytes", [0, 1_000_000], ids=["", "cached"])
@pytest.mark.parametrize("kind", STORES)
@settings(
    max_examples=examples(40),
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes minutes
    suppress_health_check=list(HealthCheck),
)
@given(steps=STEPS)
def test_committed_reads_equal_a_stopped_copy(kind: str, cache_bytes: int, in_memory: bool, steps: list[Any]) -> None:
    of, put, read = STORES[kind]
    if in_memory and of.backend is StoreBackend.ROCKSDB:
        of = builder(of.kind, **{**vars_of(of), "backend": StoreBackend.IN_MEMORY})
    with tempfile.TemporaryDirectory() as directory:
        opened = OpenStore(of, None if in_memory else Path(directory), cache_bytes)
        for step in steps:
            if step == "flush":
                opened.store.flush()
            elif step == "commit":
                opened.commit()
            elif step == "rollback":
                opened.abort()
            elif step == "read":
                read(opened.store)  # fills caches, and rows that are kept for reads
            else:
                opened.task.timestamp = step[1]
                put(opened.store, *step)
            committed = opened.store.read_only(IsolationLevel.READ_COMMITTED)
            assert read(committed) == read(stopped_copy(opened, of).store), f"after {step}"
        opened.store.close()


def vars_of(of: StoreBuilder[Any]) -> dict[str, Any]:
    kept = ("caching", "time_ordered", "ttl", "retention_ms", "window_size_ms", "history_retention_ms")
    return {name: getattr(of, name) for name in kept}


@pytest.mark.parametrize("directory", [True, False], ids=["on disk", "in memory"])
def test_a_scan_of_the_last_commit_keeps_its_rows(tmp_path: Path, directory: bool) -> None:
    opened = OpenStore(builder(StoreKind.KEY_VALUE), tmp_path if directory else None)
    store = opened.store
    for number in range(1_000):  # more than one read from disk
        store.put(f"{number:04}", 1)
    opened.commit()
    with store.as_committed().all() as rows:
        first = next(rows)
        for number in range(0, 1_000, 2):
            store.put(f"{number:04}", None)
        opened.commit()
        assert [first, *rows] == [(f"{number:04}", 1) for number in range(1_000)]
    assert len(list(store.as_committed().all())) == 500
    store.close()


def test_the_view_of_a_commit_is_read_only_and_ends_with_the_store(tmp_path: Path) -> None:
    opened = OpenStore(builder(StoreKind.KEY_VALUE), tmp_path)
    opened.store.put("a", 1)
    committed = opened.store.read_only(IsolationLevel.READ_COMMITTED)
    assert committed.get("a") is None
    assert committed.approximate_num_entries() == 0
    assert opened.store.read_only(IsolationLevel.READ_UNCOMMITTED).get("a") == 1
    with pytest.raises(StreamsError, match="can only be read"):
        committed.put("a", 2)
    opened.store.close()
    for closed in (committed.get, opened.store.read_only(IsolationLevel.READ_COMMITTED).get):
        with pytest.raises(InvalidStateStoreError, match="closed"):
            closed("a")


def test_in_memory_rows_are_counted_as_of_the_commit() -> None:
    opened = OpenStore(builder(StoreKind.KEY_VALUE, backend=StoreBackend.IN_MEMORY))
    for key in "abc":
        opened.store.put(key, 1)
    opened.commit()
    opened.store.put("a", None)
    opened.store.put("b", 2)
    opened.store.put("c", None)
    opened.store.put("d", 1)
    opened.store.put("e", 1)
    opened.store.put("e", None)
    assert opened.store.as_committed().approximate_num_entries() == 3


def test_updates_do_not_wait_for_a_later_commit_if_commits_are_read(tmp_path: Path) -> None:
    """Between two commits without the ends of changelogs, few updates stay in memory: see StateStore.can_wait."""
    opened = OpenStore(builder(StoreKind.KEY_VALUE), tmp_path / "default")
    opened.store.put("a", 1)
    assert opened.store.can_wait()
    opened.store.as_committed()
    assert not opened.store.can_wait()
    opened.store.close()
    opened.task.config = {**opened.task.config, DEFAULT_ISOLATION: "read_committed"}
    opened.open()
    opened.store.put("a", 1)
    assert not opened.store.can_wait()
    opened.store.close()


def test_operators_own_stores_have_no_committed_reads() -> None:
    store = OpenStore(builder(StoreKind.LIST_VALUE, caching=False)).store
    with pytest.raises(StateStoreTypeError, match=r"store is a .* store, which cannot be read as"):
        store.read_only(IsolationLevel.READ_COMMITTED)
