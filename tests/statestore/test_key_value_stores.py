"""Key-value stores behave like a dict, through caches, commits, aborted transactions, restarts and restores."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.kernel.rows import after
from penstock.topology.context.store_interfaces import StoreBackend, StoreBuilder, StoreKind
from penstock.topology.errors import ProcessorStateError, StreamsError
from penstock.topology.records import RawRecord, ValueAndTimestamp
from penstock.topology.serdes.serdes import Serdes
from tests.statestore.support import STATEFUL, OpenStore, listen

# Keys that are prefixes of each other, and bytes that are special in ranges.
KEYS = st.sampled_from(["", "a", "aa", "a\0", "ab", "b", "\x7f", "c", "d"])
TIMESTAMPED = StoreKind.TIMESTAMPED_KEY_VALUE


def encoded(key: str) -> bytes:
    return key.encode()


class KeyValueMachine(RuleBasedStateMachine):
    """Random operations on a timestamped store, and the same on dicts."""

    @initialize(
        backend=st.sampled_from([StoreBackend.ROCKSDB, StoreBackend.IN_MEMORY]),
        cache_bytes=st.sampled_from([0, 300, 1_000_000]),
        values=st.sampled_from([Serdes.int64(), Serdes.json()]),
        cacheable=st.booleans(),
    )
    def set_up(self, backend: StoreBackend, cache_bytes: int, values: Any, cacheable: bool) -> None:
        keys = Serdes.string() if cacheable else Serdes.of(UncacheableString())
        builder = StoreBuilder("store", TIMESTAMPED, keys, values, backend, caching=True)
        self.directory = Path(tempfile.mkdtemp())
        self.open = OpenStore(builder, self.directory, cache_bytes)
        self.now: dict[str, ValueAndTimestamp] = {}
        self.committed: dict[str, ValueAndTimestamp] = {}
        self.downstream: dict[str, ValueAndTimestamp] = {}
        self.listen()

    def listen(self) -> None:
        caching = listen(self.open.store, self.flushed, send_old_values=True)
        assert caching is (self.open.cache_bytes > 0)

    def flushed(self, key: str, new: Any, old: Any, timestamp: int, headers: Any) -> None:
        before = self.downstream.get(key)
        assert old == (None if before is None else before.value)
        if new is None:
            del self.downstream[key]
        else:
            self.downstream[key] = new

    @rule(key=KEYS, value=st.none() | st.integers(0, 9), timestamp=st.integers(0, 99))
    def put(self, key: str, value: int | None, timestamp: int) -> None:
        row = None if value is None else ValueAndTimestamp(value, timestamp)
        self.open.task.timestamp = timestamp
        self.open.store.put(key, row)
        self.now.pop(key, None)
        if row is not None:
            self.now[key] = row

    @rule(key=KEYS, value=st.integers(0, 9))
    def put_if_absent(self, key: str, value: int) -> None:
        row = ValueAndTimestamp(value, 5)
        assert self.open.store.put_if_absent(key, row) == self.now.get(key)
        self.now.setdefault(key, row)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        assert self.open.store.delete(key) == self.now.pop(key, None)

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        assert self.open.store.get(key) == self.now.get(key)

    @rule(low=st.none() | KEYS, high=st.none() | KEYS)
    def ranges(self, low: str | None, high: str | None) -> None:
        wanted = [
            (k, self.now[k]) for k in sorted(self.now, key=encoded) if (low or "") <= k and (high is None or k <= high)
        ]
        assert list(self.open.store.range(low, high)) == wanted
        assert list(self.open.store.reverse_range(low, high)) == wanted[::-1]

    @rule(prefix=KEYS)
    def prefixes(self, prefix: str) -> None:
        wanted = [(k, self.now[k]) for k in sorted(self.now, key=encoded) if k.startswith(prefix)]
        assert list(self.open.store.prefix_scan(prefix)) == wanted

    @rule()
    def commit(self) -> None:
        self.open.commit()
        self.committed = dict(self.now)
        if self.open.cache_bytes:
            assert self.downstream == self.now

    @rule()
    def abort(self) -> None:
        self.open.abort()
        self.now = dict(self.committed)
        self.downstream = dict(self.committed)

    @rule()
    def reopen(self) -> None:
        self.open.reopen()
        self.listen()
        self.now = dict(self.committed)
        self.downstream = dict(self.committed)

    @rule(key=KEYS, value=st.none() | st.integers(0, 9))
    def restore(self, key: str, value: int | None) -> None:
        """Another process has owned the task: its changes arrive through the changelog."""
        self.commit()
        data = None if value is None else Serdes.of(self.open.builder.value_serde).serialize("", value)
        at = len(self.open.task.changelog)
        self.open.task.changelog.append(RawRecord("t", 0, at, 7, encoded(key), data))
        self.open.store.restore(self.open.task.changelog[at:], at + 1)
        self.open.committed = at + 1
        for table in (self.now, self.committed, self.downstream):
            table.pop(key, None)
            if value is not None:
                table[key] = ValueAndTimestamp(value, 7)

    @invariant()
    def all_rows(self) -> None:
        if not hasattr(self, "open"):
            return
        wanted = [(k, self.now[k]) for k in sorted(self.now, key=encoded)]
        assert list(self.open.store.all()) == wanted
        assert list(self.open.store.reverse_all()) == wanted[::-1]

    def teardown(self) -> None:
        if hasattr(self, "open"):
            self.open.store.close()
            shutil.rmtree(self.directory)


class UncacheableString:
    """A string serde whose class is unknown: the cache must compare bytes."""

    def serialize(self, topic: str, value: str | None) -> bytes | None:
        assert topic == "app-store-changelog"
        return None if value is None else value.encode()

    def deserialize(self, topic: str, data: bytes | None) -> str | None:
        return None if data is None else data.decode()


TestKeyValueStores = KeyValueMachine.TestCase
TestKeyValueStores.settings = STATEFUL


def cached(value_serde: Any = None, cache_bytes: int = 1_000_000) -> OpenStore:
    builder = StoreBuilder("store", TIMESTAMPED, Serdes.string(), value_serde or Serdes.int64(), caching=True)
    return OpenStore(builder, cache_bytes=cache_bytes)


def test_a_restore_keeps_rows_that_were_not_written_yet() -> None:
    open_store = cached()
    open_store.store.put("a", row(1))
    with pytest.raises(ProcessorStateError, match="1 of its entries have changed"):
        open_store.store.restore([], 5)
    assert open_store.store.get("a") == row(1)


def row(value: Any, timestamp: int = 0) -> ValueAndTimestamp:
    return ValueAndTimestamp(value, timestamp)


def test_a_flush_sends_keys_in_the_order_of_their_last_puts_with_their_contexts() -> None:
    open_store = cached()
    task, store = open_store.task, open_store.store
    seen: list[Any] = []

    def flushed(key: str, new: Any, old: Any, timestamp: int, headers: Any) -> None:
        seen.append((key, new, old, timestamp, headers, task.timestamp, task.headers, task.message))

    listen(store, flushed, send_old_values=False)
    messages = [RawRecord("in", 0, offset, 0, None, None) for offset in range(3)]
    for key, timestamp, message in (("a", 1, messages[0]), ("b", 2, messages[1]), ("a", 3, messages[2])):
        task.timestamp, task.headers, task.message = timestamp, [("h", b"%d" % timestamp)], message
        store.put(key, row(timestamp, timestamp * 10))
    task.timestamp, task.headers, task.message = 99, None, None
    store.flush()
    b_headers, a_headers = [("h", b"2")], [("h", b"3")]
    assert seen == [
        ("b", row(2, 20), None, 2, b_headers, 2, b_headers, messages[1]),
        ("a", row(3, 30), None, 3, a_headers, 3, a_headers, messages[2]),
    ]
    assert (task.timestamp, task.headers, task.message) == (99, None, None)
    assert [(r.key(), r.value(), r.timestamp()[1]) for r in task.changelog] == [
        (b"b", (2).to_bytes(8), 20),
        (b"a", (3).to_bytes(8), 30),
    ]


def test_a_key_created_and_deleted_between_flushes_leaves_no_trace_for_a_listener() -> None:
    open_store = cached()
    seen: list[Any] = []
    listen(open_store.store, lambda *change: seen.append(change), send_old_values=False)
    open_store.store.put("a", row(1))
    open_store.store.put("a", None)
    open_store.store.flush()
    assert seen == []
    assert open_store.task.changelog == []


def test_without_a_listener_each_tombstone_is_logged() -> None:
    open_store = cached()
    open_store.task.timestamp = 4
    open_store.store.put("a", None)
    open_store.store.flush()
    assert [(r.key(), r.value(), r.timestamp()[1]) for r in open_store.task.changelog] == [(b"a", None, 4)]


def test_a_listener_reads_the_new_state_even_of_keys_that_are_sent_later() -> None:
    open_store = cached()
    store = open_store.store
    store.put("a", row(1))
    store.put("b", row(1))
    open_store.commit()
    seen: list[Any] = []
    listen(store, lambda key, *change: seen.append((key, store.get("a"), store.get("b"), list(store.all()))), False)
    store.put("a", row(2))
    store.put("b", None)
    store.flush()
    wanted = (row(2), None, [("a", row(2))])
    assert seen == [("a", *wanted), ("b", *wanted)]


def test_a_listener_may_put_a_row_again_that_is_being_deleted() -> None:
    open_store = cached()
    store = open_store.store
    store.put("a", row(1))
    store.put("b", row(1))
    open_store.commit()
    seen: list[Any] = []

    def flushed(key: str, *change: Any) -> None:
        if key == "a":
            store.put("b", row(2))
        seen.append(list(store.all()))

    listen(store, flushed, False)
    store.put("a", None)
    store.put("b", None)
    store.flush()
    assert seen == [[("b", row(2))], [("b", row(2))]]
    store.flush()
    assert store.get("b") == row(2)


def test_rows_that_a_listener_puts_into_the_flushed_store_are_sent_by_the_next_flush() -> None:
    store = cached().store
    seen: list[Any] = []

    def flushed(key: str, new: Any, *rest: Any) -> None:
        seen.append((key, new))
        if key == "a":
            store.put("again", row(9))

    listen(store, flushed, False)
    store.put("a", row(1))
    store.flush()
    assert seen == [("a", row(1))]
    store.flush()
    assert seen == [("a", row(1)), ("again", row(9))]


def test_a_cached_value_cannot_be_changed_from_outside() -> None:
    store = cached(Serdes.json()).store
    forwarded: list[Any] = []
    listen(store, lambda key, new, old, *rest: forwarded.append(new.value), False)
    mine = {"n": [1]}
    store.put("a", row(mine))
    mine["n"].append(2)
    store.get("a").value["n"].append(3)
    assert store.get("a") == row({"n": [1]})
    store.flush()
    forwarded[0]["n"].append(4)
    assert store.get("a") == row({"n": [1]})


def test_the_cache_keeps_its_size_and_forwards_evicted_entries() -> None:
    open_store = cached(cache_bytes=20_000)
    sent: dict[str, Any] = {}
    listen(open_store.store, lambda key, new, *rest: sent.update({key: new}), False)
    for number in range(2000):
        open_store.store.put(f"key-{number}", row(number))
        assert open_store.cache.size_bytes() <= 2 * 20_000
    assert 0 < len(sent) < 2000
    assert open_store.cache.size_bytes() <= 20_000 * 1.2
    assert all(open_store.store.get(f"key-{number}") == row(number) for number in range(2000))


def test_flushed_entries_count_without_their_record_context() -> None:
    """A table that is only read fits with a fifth more rows than one that changes: Kafka counts 25 bytes of context."""
    changed, entries = cached(cache_bytes=1_000_000), 100
    for number in range(entries):
        changed.store.put(f"k{number:03}", row(number))  # 4 bytes and a row of 16
    before = changed.cache.size_bytes()
    changed.store.flush()
    assert before - changed.cache.size_bytes() == 25 * entries


def test_a_table_that_fits_stays_in_the_cache_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = 1000
    open_store = cached(cache_bytes=int(entries * (45 + 4 + 16) * 1.1))  # too few bytes if all were changed records
    store = open_store.store
    for number in range(entries):
        store.put(f"{number:04}", row(number))
    open_store.commit()
    for _ in range(3):  # eventually all are in the cache
        assert all(store.get(f"{number:04}") == row(number) for number in range(entries))
    monkeypatch.setattr(store.rows, "get", None)
    assert all(store.get(f"{number:04}") == row(number) for number in range(entries))


def test_large_values_count_by_their_serialized_size() -> None:
    open_store = cached(Serdes.string(), cache_bytes=1_000_000)
    for number in range(100):
        open_store.store.put(f"key-{number}", row("x" * 100_000))
    assert open_store.cache.size_bytes() <= 1_200_000
    assert len(open_store.task.changelog) >= 80


def test_recently_read_rows_stay_in_a_full_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    open_store = cached(cache_bytes=10_000)
    store = open_store.store
    store.put("hot", row(1))
    open_store.commit()
    reads: list[bytes] = []
    get_row = store.rows.get

    def get(key: bytes) -> bytes | None:
        reads.append(key)
        found: bytes | None = get_row(key)
        return found

    monkeypatch.setattr(store.rows, "get", get)
    for number in range(500):
        store.put(f"key-{number}", row(number))
        store.flush()
        assert store.get("hot") == row(1)
    assert reads.count(b"hot") == 0


def test_two_stores_share_the_bytes_of_a_cache() -> None:
    first = cached(cache_bytes=20_000)
    builder = StoreBuilder("other", TIMESTAMPED, Serdes.string(), Serdes.int64(), caching=True)
    other = OpenStore(builder, cache_bytes=20_000)
    other.cache = first.cache
    other.store = type(other.store)(builder, other.task, other.store.rows, first.cache)
    for number in range(1000):
        first.store.put(f"key-{number}", row(number))
        other.store.put(f"key-{number}", row(number))
    assert first.cache.size_bytes() <= 2 * 20_000
    first.store.close()
    assert first.cache.size_bytes() <= 20_000
    assert other.store.get("key-1") == row(1)


@pytest.mark.parametrize("cache_bytes", [0, 1000])
@pytest.mark.parametrize("use", [lambda store: store.get(None), lambda store: store.put(None, row(1))])
def test_an_invalid_key_is_refused(cache_bytes: int, use: Any) -> None:
    with pytest.raises(StreamsError, match="The store store got None as a key"):
        use(cached(cache_bytes=cache_bytes).store)


def test_a_range_that_ends_before_it_begins_is_empty_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    store = cached().store
    store.put("a", row(1))
    assert list(store.range("b", "a")) == []
    assert "its end lies before its start" in caplog.text


def test_plain_values_are_stored_without_timestamp_and_logged_with_it() -> None:
    builder = StoreBuilder("store", TIMESTAMPED, Serdes.string(), Serdes.int64(), plain_values=True)
    open_store = OpenStore(builder)
    open_store.store.put("a", row(1, 55))
    assert open_store.store.get("a") == row(1, -1)
    assert open_store.store.rows.get(b"a") == (1).to_bytes(8)
    assert open_store.task.changelog[0].timestamp() == (1, 55)
    open_store.commit()
    open_store.reopen()
    assert open_store.store.get("a") == row(1, -1)


def test_a_plain_store_logs_with_the_timestamp_of_the_record() -> None:
    open_store = OpenStore(StoreBuilder("store", StoreKind.KEY_VALUE, Serdes.string(), Serdes.int64()))
    open_store.task.timestamp = 12
    open_store.store.put("a", 1)
    open_store.store.delete("a")
    open_store.store.put_all([("b", 2), ("c", 3)])
    assert [(r.key(), r.value(), r.timestamp()[1]) for r in open_store.task.changelog] == [
        (b"a", (1).to_bytes(8), 12),
        (b"a", None, 12),
        (b"b", (2).to_bytes(8), 12),
        (b"c", (3).to_bytes(8), 12),
    ]


@pytest.mark.parametrize("cache_bytes", [0, 1000])
def test_a_store_without_logging_writes_no_changelog(cache_bytes: int) -> None:
    builder = StoreBuilder("store", TIMESTAMPED, Serdes.string(), Serdes.int64(), logging=False, caching=True)
    open_store = OpenStore(builder, cache_bytes=cache_bytes)
    open_store.store.put("a", row(1))
    open_store.store.flush()
    assert open_store.task.changelog == []
    assert open_store.store.get("a") == row(1)


def test_tombstones_have_headers_only_in_the_headers_format() -> None:
    for headers_format in (False, True):
        builder = StoreBuilder("store", TIMESTAMPED, Serdes.string(), Serdes.int64(), headers_format=headers_format)
        open_store = OpenStore(builder)
        open_store.task.headers = [("h", b"1")]
        open_store.store.put("a", row(1))
        open_store.store.put("a", None)
        wanted = [None, [("h", b"1")] if headers_format else None]
        assert [record.headers() for record in open_store.task.changelog] == wanted


def test_a_scan_shows_the_rows_from_its_start(tmp_path: Path) -> None:
    builder = StoreBuilder("store", StoreKind.KEY_VALUE, Serdes.string(), Serdes.int64())
    for directory in (None, tmp_path):
        open_store = OpenStore(builder, directory)
        store = open_store.store
        store.put("a", 1)
        open_store.commit()
        store.put("b", 2)
        seen = []
        for key, value in store.all():
            seen.append((key, value))
            store.delete(key)
            store.put("z", 9)
            open_store.commit()
        assert seen == [("a", 1), ("b", 2)]
        assert list(store.all()) == [("z", 9)]
        store.close()


def test_the_key_after_a_prefix() -> None:
    assert after(b"a") == b"b"
    assert after(b"a\xff\xff") == b"b"
    assert after(b"\xff") is None
    assert after(b"") is None
