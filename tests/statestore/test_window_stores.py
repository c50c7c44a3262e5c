"""Window stores keep, hide and drop the same rows as Kafka Streams' stores."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from operator import add
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.kernel.nodes import RecordContext
from penstock.kernel.table_nodes import CachedRows
from penstock.kernel.window_nodes import TimeWindows, WindowAggregate
from penstock.statestore.rows.rocksdb_store import RocksDBStore
from penstock.topology.context.store_interfaces import StoreBackend, StoreBuilder, StoreKind
from penstock.topology.records import ValueAndTimestamp, Windowed
from penstock.topology.serdes.serdes import Serdes
from tests.statestore.support import STATEFUL, OpenStore

KEYS = st.sampled_from(["a", "a\0", "ab", "b"])
SIZE = 10_000
RETENTION = 100_000
SEGMENT = 60_000  # max(retention / 2, 60 s)
FOREVER = 10**9
TIMES = st.integers(0, 40).map(lambda tens: tens * 10_000)
ROCKSDB, IN_MEMORY = StoreBackend.ROCKSDB, StoreBackend.IN_MEMORY
Rows = dict[tuple[str, int], int]


def windowed(key: str, start: int) -> Windowed:
    return Windowed(key, start, start + SIZE)


class WindowModel:
    """The rules, in dicts: rows by key and start, the contents of the store below a cache, and of the cache."""

    def __init__(self, backend: StoreBackend, cached: bool, retention: int) -> None:
        self.in_memory = backend is IN_MEMORY
        self.retention = retention
        self.segment = max(retention // 2, 60_000)
        self.cached = cached
        self.below: Rows = {}
        self.cache: dict[tuple[str, int], int | None] = {}
        self.dirty: dict[tuple[str, int], None] = {}
        self.observed = -1
        self.dropped = 0

    def put(self, key: str, value: int | None, start: int) -> None:
        if self.cached:
            self.cache[key, start] = value
            self.dirty.pop((key, start), None)
            self.dirty[key, start] = None
        else:
            self.put_below(key, value, start)

    def put_below(self, key: str, value: int | None, start: int) -> None:
        self.observed = max(self.observed, start)
        horizon = self.observed - self.retention
        if (start <= horizon) if self.in_memory else (start // self.segment < max(0, horizon) // self.segment):
            self.dropped += 1
        elif value is None:
            self.below.pop((key, start), None)
        else:
            self.below[key, start] = value

    def flush(self) -> None:
        for key, start in self.dirty:
            self.put_below(key, self.cache[key, start], start)
        self.dirty.clear()
        self.cache = {at: value for at, value in self.cache.items() if value is not None}

    def visible(self) -> Rows:
        rows = {at: value for at, value in self.below.items() if at[1] > self.observed - self.retention}
        rows.update(self.cache)  # type: ignore[arg-type]
        return {at: value for at, value in rows.items() if value is not None}

    def in_order(self, rows: Rows) -> list[tuple[Windowed, int]]:
        def order(at: tuple[str, int]) -> Any:
            key, start = at
            if self.in_memory:
                return start, key.encode()
            return start // self.segment, key.encode() + start.to_bytes(8)

        return [(windowed(*at), rows[at]) for at in sorted(rows, key=order)]


class WindowMachine(RuleBasedStateMachine):
    """Random operations on a window store and on the model.

    With the small cache, which evicts all the time, nothing expires: an expired row is visible while it is cached.
    """

    @initialize(
        backend=st.sampled_from([ROCKSDB, IN_MEMORY]),
        cache_bytes=st.sampled_from([0, 700, 10_000_000]),
        json=st.booleans(),
        objects=st.booleans(),
    )
    def set_up(self, backend: StoreBackend, cache_bytes: int, json: bool, objects: bool) -> None:
        retention = FOREVER if cache_bytes == 700 else RETENTION
        key_serde = Serdes.string() if objects else Serdes.of(UnknownString())
        value_serde = Serdes.json() if json else Serdes.int64()
        builder = StoreBuilder(
            "store",
            StoreKind.WINDOW,
            key_serde,
            value_serde,
            backend,
            caching=True,
            retention_ms=retention,
            window_size_ms=SIZE,
        )
        self.directory = Path(tempfile.mkdtemp())
        self.open = OpenStore(builder, self.directory, cache_bytes)
        self.model = WindowModel(backend, cache_bytes > 0, retention)
        self.committed: tuple[Rows, int] = {}, -1

    @rule(key=KEYS, value=st.none() | st.integers(0, 9), start=TIMES)
    def put(self, key: str, value: int | None, start: int) -> None:
        self.open.store.put(key, value, start)
        self.model.put(key, value, start)

    @rule(key=KEYS, start=TIMES)
    def fetch(self, key: str, start: int) -> None:
        assert self.open.store.fetch(key, start) == self.model.visible().get((key, start))

    @rule(key=KEYS, first=TIMES, last=TIMES)
    def fetch_range(self, key: str, first: int, last: int) -> None:
        rows = self.model.visible()
        wanted = [(start, rows[k, start]) for k, start in sorted(rows) if k == key and first <= start <= last]
        assert list(self.open.store.fetch_range(key, first, last)) == wanted
        assert list(self.open.store.backward_fetch_range(key, first, last)) == wanted[::-1]

    @rule(low=st.none() | KEYS, high=st.none() | KEYS, first=TIMES, last=TIMES)
    def fetch_keys(self, low: str | None, high: str | None, first: int, last: int) -> None:
        rows = self.model.visible()
        found = {at: rows[at] for at in rows if (low or "") <= at[0] <= (high or "z") and first <= at[1] <= last}
        wanted = self.model.in_order(found)
        assert list(self.open.store.fetch_keys(low, high, first, last)) == wanted
        assert list(self.open.store.backward_fetch_keys(low, high, first, last)) == wanted[::-1]

    @rule(first=TIMES, last=TIMES)
    def fetch_all(self, first: int, last: int) -> None:
        rows = self.model.visible()
        wanted = self.model.in_order({at: rows[at] for at in rows if first <= at[1] <= last})
        assert list(self.open.store.fetch_all(first, last)) == wanted
        assert list(self.open.store.backward_fetch_all(first, last)) == wanted[::-1]

    @rule()
    def commit(self) -> None:
        self.open.commit()
        self.model.flush()
        self.committed = dict(self.model.below), self.model.observed
        assert len(self.open.task.dropped) == self.model.dropped

    @rule()
    def abort(self) -> None:
        self.open.abort()
        self.go_back()

    @rule()
    def reopen(self) -> None:
        self.open.reopen()
        self.go_back()

    def go_back(self) -> None:
        self.model.below, self.model.observed = dict(self.committed[0]), self.committed[1]
        self.model.cache, self.model.dirty = {}, {}
        self.model.dropped = len(self.open.task.dropped)

    @invariant()
    def all_rows(self) -> None:
        if not hasattr(self, "open"):
            return
        wanted = self.model.in_order(self.model.visible())
        assert list(self.open.store.all()) == wanted
        assert list(self.open.store.backward_all()) == wanted[::-1]

    def teardown(self) -> None:
        if hasattr(self, "open"):
            self.open.store.close()
            shutil.rmtree(self.directory)


class UnknownString:
    """A string serde whose class is unknown."""

    def serialize(self, topic: str, value: str | None) -> bytes | None:
        return None if value is None else value.encode()

    def deserialize(self, topic: str, data: bytes | None) -> str | None:
        return None if data is None else data.decode()


TestWindowStores = WindowMachine.TestCase
TestWindowStores.settings = STATEFUL


def window_builder(kind: StoreKind = StoreKind.WINDOW, **more: Any) -> StoreBuilder:
    return StoreBuilder(
        "store", kind, Serdes.string(), Serdes.int64(), **{"retention_ms": RETENTION, "window_size_ms": SIZE, **more}
    )


def test_the_changelog_key_is_key_start_and_sequence_number() -> None:
    open_store = OpenStore(window_builder(StoreKind.TIMESTAMPED_WINDOW))
    open_store.store.put("k", ValueAndTimestamp(1, 33), 20)
    open_store.task.timestamp = 44
    open_store.store.put("k", None, 20)
    found = [(r.key(), r.value(), r.timestamp()[1]) for r in open_store.task.changelog]
    key = b"k" + (20).to_bytes(8) + (0).to_bytes(4)
    assert found == [(key, (1).to_bytes(8), 33), (key, None, 44)]


@pytest.mark.parametrize("backend", [ROCKSDB, IN_MEMORY])
def test_a_join_store_keeps_duplicates_and_only_logs_null_values(backend: StoreBackend) -> None:
    open_store = OpenStore(
        window_builder(retain_duplicates=True, log_headers=True, backend=backend, caching=True), None, 1000
    )
    store, task = open_store.store, open_store.task
    assert not store.caching
    for value, headers in ((1, None), (None, [("h", b"1")]), (1, [("h", b"2")]), (2, None)):
        task.headers = headers
        store.put("a", value, 5)
    assert list(store.fetch_range("a", 0, 9)) == [(5, 1), (5, 1), (5, 2)]
    prefix = b"a" + (5).to_bytes(8) + b"\0\0\0"
    assert [(record.key(), record.value(), record.headers()) for record in task.changelog] == [
        (prefix + b"\1", (1).to_bytes(8), None),
        (prefix + b"\2", None, [("h", b"1")]),
        (prefix + b"\3", (1).to_bytes(8), [("h", b"2")]),
        (prefix + b"\4", (2).to_bytes(8), None),
    ]


def test_duplicates_after_a_restart_replace_nothing(tmp_path: Path) -> None:
    for directory in (None, tmp_path):
        open_store = OpenStore(window_builder(retain_duplicates=True), directory)
        open_store.store.put("a", 1, 5)
        open_store.commit()
        open_store.store.put("a", 2, 5)
        open_store.reopen()
        open_store.store.put("a", 3, 5)
        open_store.commit()
        open_store.store.put("a", 4, 5)
        open_store.abort()
        open_store.store.put("a", 5, 5)
        assert list(open_store.store.fetch_range("a", 0, 9)) == [(5, 1), (5, 3), (5, 5)]
        open_store.store.close()


def test_a_time_ordered_store_scans_by_start_and_shows_a_window_that_is_just_expiring(tmp_path: Path) -> None:
    for caching in (False, True):
        builder = window_builder(time_ordered=True, retention_ms=30_000, caching=caching)
        open_store = OpenStore(builder, tmp_path / str(caching), 1_000_000)
        for key in ("b", "a"):
            for start in (30_000, 0, 10_000):
                open_store.store.put(key, start, start)
        wanted = [(windowed(key, start), start) for start in (0, 10_000, 30_000) for key in ("a", "b")]
        for _ in range(2):
            assert list(open_store.store.all()) == wanted
            assert list(open_store.store.fetch_all(0, 10_000)) == wanted[:4]
            assert list(open_store.store.backward_all()) == wanted[::-1]
            open_store.commit()
        open_store.store.put("c", 1, 30_001)
        open_store.store.put("a", None, 10_000)
        open_store.commit()
        if not caching:  # cached rows are not hidden
            assert list(open_store.store.fetch_all(0, 10_000)) == [(windowed("b", 10_000), 10_000)]
        open_store.store.put("c", 1, 300_000)
        open_store.commit()
        assert {key[:1] for key, _ in open_store.store.rows.scan(None, None)} == {b"\0", b"\xff"}
        assert len(list(open_store.store.rows.scan(None, None))) == 2
        open_store.store.close()


def test_expired_segments_are_deleted_from_the_disk(tmp_path: Path) -> None:
    open_store = OpenStore(window_builder(), tmp_path)
    for start in range(0, 1_000_000, 10_000):
        open_store.store.put("a", start, start)
        open_store.commit()
    starts = [int.from_bytes(key[-12:-4]) for key, _ in open_store.store.rows.scan(None, None)]
    live_from = (990_000 - RETENTION) // SEGMENT * SEGMENT
    assert starts == list(range(live_from, 1_000_000, 10_000))
    open_store.store.close()


def test_stream_time_is_restored_after_a_restart(tmp_path: Path) -> None:
    open_store = OpenStore(window_builder(), tmp_path)
    open_store.store.put("a", 1, 0)
    open_store.store.put("a", 2, RETENTION)
    open_store.commit()
    open_store.reopen()
    assert list(open_store.store.all()) == [(windowed("a", RETENTION), 2)]
    open_store.store.close()


def test_a_restore_drops_rows_expired_at_its_end(tmp_path: Path) -> None:
    open_store = OpenStore(window_builder(), tmp_path)
    for start in range(0, 600_000, 10_000):
        open_store.store.put("a", start, start)
    open_store.commit()
    rows = list(open_store.store.all())
    other = OpenStore(window_builder(), tmp_path / "other")
    other.store.restore(open_store.task.changelog, len(open_store.task.changelog))
    assert list(other.store.all()) == rows
    assert other.store.committed_offset() == 60
    starts = [int.from_bytes(key[-12:-4]) for key, _ in other.store.rows.scan(None, None)]
    assert min(starts) == (590_000 - RETENTION) // SEGMENT * SEGMENT
    open_store.store.close()
    other.store.close()


def test_a_small_cache_loses_no_window() -> None:
    open_store = OpenStore(window_builder(caching=True, retention_ms=10**9), None, 2000)
    now: dict[tuple[str, int], int] = {}
    for number in range(3000):
        key, start = f"key-{number % 37}", number % 11 * SIZE
        value = (open_store.store.fetch(key, start) or 0) + 1
        now[key, start] = now.get((key, start), 0) + 1
        assert value == now[key, start]
        open_store.store.put(key, value, start)
        if number % 100 == 0:
            wanted = [(start, now[key, start]) for k, start in sorted(now) if k == key]
            assert list(open_store.store.fetch_range(key, 0, 10**9)) == wanted
    assert {(w.key, w.start): value for w, value in open_store.store.all()} == now
    assert open_store.cache.size_bytes() < 4000


def test_windows_that_would_end_after_the_maximum_time_end_there() -> None:
    open_store = OpenStore(window_builder(retention_ms=2**63 - 1, window_size_ms=2**63 - 1))
    open_store.store.put("a", 1, 10)
    assert list(open_store.store.all()) == [(Windowed("a", 10, 2**63 - 1), 1)]
    assert list(open_store.store.fetch_range("a", 0, 2**63 - 1)) == [(10, 1)]


@pytest.mark.parametrize("cache_bytes", [0, 1_000_000])
def test_a_key_with_another_key_as_prefix_is_separate(cache_bytes: int, tmp_path: Path) -> None:
    open_store = OpenStore(window_builder(caching=True), tmp_path, cache_bytes)
    for key in ("a", "a\0", "a\0\0", ""):
        for start in (0, 10_000):
            open_store.store.put(key, start, start)
    for _ in range(2):
        for key in ("a", "a\0", "a\0\0", ""):
            assert list(open_store.store.fetch_range(key, 0, RETENTION)) == [(0, 0), (10_000, 10_000)]
        open_store.commit()
    open_store.store.close()


@pytest.mark.parametrize("backend", [ROCKSDB, IN_MEMORY])
def test_exactly_when_rows_are_hidden_and_puts_dropped(backend: StoreBackend) -> None:
    open_store = OpenStore(window_builder(backend=backend))
    store, task = open_store.store, open_store.task
    store.put("a", 1, 0)
    store.put("a", 2, RETENTION - 1)
    assert store.fetch("a", 0) == 1
    store.put("a", 3, RETENTION)
    assert store.fetch("a", 0) is None
    assert list(store.fetch_range("a", 0, 10)) == []
    store.put("b", 4, 0)
    store.put("b", 5, 1)
    assert store.fetch("b", 1) == 5
    assert len(task.dropped) == (1 if backend is IN_MEMORY else 0)  # RocksDB drops whole segments only
    task.dropped.clear()
    store.put("a", 6, SEGMENT + RETENTION - 1)
    store.put("a", 7, SEGMENT - 1)
    assert len(task.dropped) == (1 if backend is IN_MEMORY else 0)
    store.put("a", 8, SEGMENT + RETENTION)
    store.put("a", 9, SEGMENT - 1)
    assert len(task.dropped) == (2 if backend is IN_MEMORY else 1)
    assert len(task.changelog) == 9  # a dropped put is logged, as in Kafka Streams


@pytest.fixture
def sought(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the start times of windows that are looked up on disk: a list that grows."""
    starts: list[int] = []
    reader = RocksDBStore._reader

    def noting(store: RocksDBStore) -> Callable[[bytes], bytes | None]:
        read = reader(store)

        def read_and_note(key: bytes) -> bytes | None:
            starts.append(int.from_bytes(key[-12:-4]))
            return read(key)

        return read_and_note

    monkeypatch.setattr(RocksDBStore, "_reader", noting)
    return starts


def test_windows_later_than_all_written_ones_are_not_looked_up(tmp_path: Path, sought: list[int]) -> None:
    builder = window_builder(StoreKind.TIMESTAMPED_WINDOW, caching=True)
    open_store = OpenStore(builder, tmp_path, 1_000_000)

    def seek(*starts: int) -> list[int]:
        """Load the cells of some windows, and return the store's lookups."""
        sought.clear()
        for start in starts:
            assert open_store.store.cells().load((b"k", start)).value is None
        return sought

    assert seek(10_000) == [10_000], "nothing is known of a store to which nothing was written"
    open_store.store.put("a", ValueAndTimestamp(1, 1), 20_000)
    open_store.commit()
    open_store.store.close()
    open_store.open()
    assert seek(0, 20_000, 30_000) == [0, 20_000]
    open_store.store.put("a", ValueAndTimestamp(1, 1), 40_000)
    open_store.store.flush()
    assert seek(30_001, 40_000, 50_000) == [], "all since the first read"
    open_store.abort()
    assert seek(19_999, 40_000) == [19_999], "what was read once (20_000) is remembered"
    open_store.store.close()
    open_store.open()
    assert seek(20_000, 20_001) == [20_000], "it is known from what was committed"
    open_store.store.close()


def test_compiled_cells_of_later_windows_are_not_looked_up_either(tmp_path: Path, sought: list[int]) -> None:
    open_store = OpenStore(window_builder(StoreKind.TIMESTAMPED_WINDOW, caching=True), tmp_path, 1_000_000)
    store = open_store.store
    store.put("a", ValueAndTimestamp(1, 1), 20_000)
    open_store.commit()
    cells, context = store.cells(), RecordContext()
    updates = cells.table.updates(cells.load, cells.hold, None, cells.native)
    rows = CachedRows(context, updates, cells.key_serde, cells.encode_key, cells.grown, keeps_messages=False)
    windows = TimeWindows(1, 1, 100_000)  # each record begins a window
    sums = WindowAggregate(context, "add", None, rows, pytest.fail, None, add, False, None, windows)

    def put(*starts: int) -> None:
        for start in starts:
            sums.receive("k", start, start, None)

    put(0, 20_000, 30_000)
    assert sought == [0, 20_000]
    assert [start for start, _ in store.fetch_range("k", 0, 50_000)] == [0, 20_000, 30_000]
    put(40_000, 40_000)
    assert list(store.fetch_range("k", 35_000, 50_000)) == [(40_000, (80_000, 40_000))], "what is listed is noted"
    assert sought == [0, 20_000]
    store.close()


def test_unlimited_retention_drops_nothing(tmp_path: Path) -> None:
    builder = window_builder(StoreKind.TIMESTAMPED_WINDOW, caching=True, retention_ms=2**63 - 1)
    open_store = OpenStore(builder, tmp_path, 1_000_000)
    for start in (0, 400_000, 10_000):
        open_store.store.put("a", ValueAndTimestamp(1, start), start)
    open_store.commit()
    assert [start for start, _ in open_store.store.fetch_range("a", 0, 500_000)] == [0, 10_000, 400_000]
    assert open_store.task.dropped == []
    open_store.store.close()


@pytest.mark.parametrize("last", [None, ValueAndTimestamp(1, 400_000)])
def test_rows_expired_by_a_change_in_the_same_flush_are_dropped(tmp_path: Path, last: Any) -> None:
    open_store = OpenStore(window_builder(StoreKind.TIMESTAMPED_WINDOW, caching=True), tmp_path, 1_000_000)
    store = open_store.store
    for key, start in (("a", 0), ("b", 400_000), ("c", 0)):
        store.put(key, last if key == "b" else ValueAndTimestamp(1, start), start)
    open_store.commit()
    assert len(list(store.rows.scan(None, None))) == (last is not None)
    assert open_store.task.dropped == ["store"]
    store.close()
