"""Session stores keep, hide and drop the same rows as Kafka Streams' stores."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.topology.context.store_interfaces import StoreBackend, StoreBuilder, StoreKind
from penstock.topology.records import Windowed
from penstock.topology.serdes.serdes import Serdes
from tests.statestore.support import STATEFUL, OpenStore, listen

KEYS = st.sampled_from(["a", "a\0", "ab", "b"])
RETENTION = 100_000
SEGMENT = 60_000
TIMES = st.integers(0, 30).map(lambda tens: tens * 10_000)
SESSIONS = st.tuples(KEYS, TIMES, st.integers(0, 3)).map(lambda s: Windowed(s[0], s[1], s[1] + s[2] * 10_000))
ROCKSDB, IN_MEMORY = StoreBackend.ROCKSDB, StoreBackend.IN_MEMORY
Rows = dict[Windowed, int]


class SessionMachine(RuleBasedStateMachine):
    """Random operations on a session store and on dicts.

    With the small cache, which evicts all the time, nothing expires: an expired row is visible while it is cached.
    """

    @initialize(
        backend=st.sampled_from([ROCKSDB, IN_MEMORY]),
        cache_bytes=st.sampled_from([0, 700, 10_000_000]),
        json=st.booleans(),
    )
    def set_up(self, backend: StoreBackend, cache_bytes: int, json: bool) -> None:
        self.retention = 10**9 if cache_bytes == 700 else RETENTION
        self.segment = max(self.retention // 2, 60_000)
        value_serde = Serdes.json() if json else Serdes.int64()
        builder = session_builder(backend, value_serde=value_serde, retention_ms=self.retention)
        self.directory = Path(tempfile.mkdtemp())
        self.open = OpenStore(builder, self.directory, cache_bytes)
        self.in_memory = backend is IN_MEMORY
        self.cached = cache_bytes > 0
        self.below: Rows = {}
        self.cache: dict[Windowed, int | None] = {}
        self.dirty: dict[Windowed, None] = {}
        self.observed = -1
        self.committed: tuple[Rows, int] = {}, -1

    def model_put(self, session: Windowed, value: int | None) -> None:
        if self.cached:
            self.cache[session] = value
            self.dirty.pop(session, None)
            self.dirty[session] = None
        else:
            self.put_below(session, value)

    def put_below(self, session: Windowed, value: int | None) -> None:
        self.observed = max(self.observed, session.end)
        horizon = self.observed - self.retention
        expired_segment = session.end // self.segment < max(0, horizon) // self.segment
        if (session.end <= horizon) if self.in_memory else expired_segment:
            return
        self.below.pop(session, None)
        if value is not None:
            self.below[session] = value

    def visible(self) -> Rows:
        rows: dict[Windowed, int | None] = {
            s: v for s, v in self.below.items() if s.end > self.observed - self.retention
        }
        rows.update(self.cache)
        return {session: value for session, value in rows.items() if value is not None}

    @rule(session=SESSIONS, value=st.integers(0, 9))
    def put(self, session: Windowed, value: int | None) -> None:
        self.open.store.put(session, value)
        self.model_put(session, value)

    @rule(session=SESSIONS)
    def remove(self, session: Windowed) -> None:
        self.open.store.remove(session)
        self.model_put(session, None)

    @rule(session=SESSIONS)
    def fetch_session(self, session: Windowed) -> None:
        assert self.open.store.fetch_session(*session) == self.visible().get(session)

    @rule(key=KEYS, earliest_end=TIMES, latest_start=TIMES)
    def find_sessions(self, key: str, earliest_end: int, latest_start: int) -> None:
        rows = self.visible()
        found = [s for s in rows if s.key == key and s.end >= earliest_end and s.start <= latest_start]
        wanted = [(s, rows[s]) for s in sorted(found, key=lambda s: (s.end, s.start))]
        assert list(self.open.store.find_sessions(key, earliest_end, latest_start)) == wanted
        assert list(self.open.store.backward_find_sessions(key, earliest_end, latest_start)) == wanted[::-1]

    @rule(key=KEYS)
    def fetch(self, key: str) -> None:
        rows = self.visible()
        wanted = [(s, rows[s]) for s in sorted(rows, key=lambda s: (s.end, s.start)) if s.key == key]
        assert list(self.open.store.fetch(key)) == wanted
        assert list(self.open.store.backward_fetch(key)) == wanted[::-1]

    @rule(low=st.none() | KEYS, high=st.none() | KEYS)
    def fetch_keys(self, low: str | None, high: str | None) -> None:
        rows = self.visible()
        wanted = self.in_order({s: rows[s] for s in rows if (low or "") <= s.key <= (high or "z")})
        assert list(self.open.store.fetch_keys(low, high)) == wanted
        assert list(self.open.store.backward_fetch_keys(low, high)) == wanted[::-1]

    @rule(first=TIMES, last=TIMES)
    def find_sessions_ending(self, first: int, last: int) -> None:
        rows = self.visible()
        wanted = self.in_order({s: rows[s] for s in rows if first <= s.end <= last})
        assert list(self.open.store.find_sessions_ending(first, last)) == wanted

    def in_order(self, rows: Rows) -> list[tuple[Windowed, int]]:
        def order(session: Windowed) -> Any:
            key, start, end = session
            if self.in_memory:
                return end, key.encode(), start
            return end // self.segment, key.encode() + end.to_bytes(8) + start.to_bytes(8)

        return [(session, rows[session]) for session in sorted(rows, key=order)]

    @rule()
    def commit(self) -> None:
        self.open.commit()
        for session in self.dirty:
            self.put_below(session, self.cache[session])
        self.dirty.clear()
        self.cache = {session: value for session, value in self.cache.items() if value is not None}
        self.committed = dict(self.below), self.observed

    @rule(reopen=st.booleans())
    def go_back(self, reopen: bool) -> None:
        if reopen:
            self.open.reopen()
        else:
            self.open.abort()
        self.below, self.observed = dict(self.committed[0]), self.committed[1]
        self.cache, self.dirty = {}, {}

    @invariant()
    def all_rows(self) -> None:
        if hasattr(self, "open"):
            assert list(self.open.store.all()) == self.in_order(self.visible())

    def teardown(self) -> None:
        if hasattr(self, "open"):
            self.open.store.close()
            shutil.rmtree(self.directory)


TestSessionStores = SessionMachine.TestCase
TestSessionStores.settings = STATEFUL


def session_builder(backend: StoreBackend = ROCKSDB, **more: Any) -> StoreBuilder:
    given = {"value_serde": Serdes.int64(), "caching": True, "retention_ms": RETENTION, **more}
    return StoreBuilder("store", StoreKind.SESSION, Serdes.string(), backend=backend, **given)


def test_the_changelog_key_is_key_end_and_start() -> None:
    open_store = OpenStore(session_builder())
    open_store.task.timestamp = 9
    open_store.store.put(Windowed("k", 3, 7), 1)
    open_store.store.remove(Windowed("k", 3, 7))
    key = b"k" + (7).to_bytes(8) + (3).to_bytes(8)
    found = [(r.key(), r.value(), r.timestamp()[1]) for r in open_store.task.changelog]
    assert found == [(key, (1).to_bytes(8), 9), (key, None, 9)]


@pytest.mark.parametrize("cache_bytes", [0, 1_000_000])
def test_a_time_ordered_store_finds_closed_sessions_by_end_even_after_they_expired(
    cache_bytes: int, tmp_path: Path
) -> None:
    open_store = OpenStore(session_builder(time_ordered=True, retention_ms=10), tmp_path, cache_bytes)
    sessions = [Windowed("b", 0, 5), Windowed("a", 2, 5), Windowed("a", 0, 4), Windowed("c", 90, 90)]
    for session in sessions:
        open_store.store.put(session, 1)
    open_store.commit()
    wanted = [(session, 1) for session in (sessions[2], sessions[0], sessions[1])]
    assert list(open_store.store.find_sessions_ending(0, 89)) == wanted
    open_store.store.close()


def test_the_listener_of_a_cached_store_gets_windowed_keys_and_old_values() -> None:
    open_store = OpenStore(session_builder(), None, 1_000_000)
    seen: list[Any] = []
    listen(open_store.store, lambda *change: seen.append(change), send_old_values=True)
    open_store.task.timestamp, open_store.task.headers = 8, [("h", None)]
    open_store.store.put(Windowed("k", 3, 7), 1)
    open_store.commit()
    open_store.store.remove(Windowed("k", 3, 7))
    open_store.store.remove(Windowed("never", 3, 7))
    open_store.commit()
    assert seen == [
        (Windowed("k", 3, 7), 1, None, 8, [("h", None)]),
        (Windowed("k", 3, 7), None, 1, 8, [("h", None)]),
    ]


@pytest.mark.parametrize("cache_bytes", [0, 1_000_000])
def test_in_memory_sessions_are_ordered_by_end_then_key_then_start(cache_bytes: int) -> None:
    open_store = OpenStore(session_builder(IN_MEMORY), None, cache_bytes)
    keys = ["", "\0", "\0\0", "a", "a\0", "a\0b", "a\1", "b"]
    sessions = [Windowed(key, start, end) for end in (300, 500) for key in keys for start in (100, 256)]
    for session in reversed(sessions):
        open_store.store.put(session, 1)
    assert list(open_store.store.all()) == [(session, 1) for session in sessions]
    open_store.commit()
    assert list(open_store.store.all()) == [(session, 1) for session in sessions]
