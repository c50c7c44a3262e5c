"""Versioned stores return the same as a list of all versions, for every time within the history retention."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from penstock.statestore.stores.versioned_store import NOT_PUT, VALID_TO_UNDEFINED, default_segment_interval_ms
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.records import VersionedRecord
from penstock.topology.serdes.serdes import Serdes
from tests.statestore.support import STATEFUL, OpenStore

KEYS = st.sampled_from(["", "a", "a\0", "ab"])
TIMES = st.integers(0, 60)
RETENTION = 20


def builder(segment_interval_ms: int | None = 7, retention_ms: int = RETENTION) -> StoreBuilder:
    return StoreBuilder(
        "store",
        StoreKind.VERSIONED_KEY_VALUE,
        Serdes.string(),
        Serdes.int64(),
        history_retention_ms=retention_ms,
        segment_interval_ms=segment_interval_ms,
    )


class Versions(dict[int, int | None]):
    """The versions of a key by start, None for a deletion. ends: where old versions end."""

    def __init__(self, versions: Versions | None = None) -> None:
        super().__init__(versions or {})
        self.ends: set[int] = set() if versions is None else set(versions.ends)


def put_version(versions: Versions, value: int | None, timestamp: int) -> int:
    """Put into a dict of versions by time; return until when the new one is valid.

    As in Kafka Streams, deleting the newest version at its own time leaves a mark only if an older one ends there.
    """
    later = min((time for time in versions if time > timestamp), default=None)
    before = max((time for time in versions if time < timestamp), default=None)
    if later is not None:
        versions.ends.add(later)
    elif before is not None and versions[before] is not None:
        versions.ends.add(timestamp)
    if value is None and later is None and versions.get(timestamp) is not None and timestamp not in versions.ends:
        del versions[timestamp]
    else:
        versions[timestamp] = value
    return VALID_TO_UNDEFINED if later is None else later


class VersionedMachine(RuleBasedStateMachine):
    """Random puts in and out of order on a versioned store, and on dicts."""

    @initialize(in_memory=st.booleans(), segment_interval_ms=st.sampled_from([1, 7, 1000, None]))
    def set_up(self, in_memory: bool, segment_interval_ms: int | None) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.open = OpenStore(builder(segment_interval_ms), None if in_memory else self.directory)
        self.now: dict[str, Versions] = {}
        self.observed = -1
        self.committed: tuple[dict[str, Versions], int] = {}, -1

    @rule(key=KEYS, value=st.none() | st.integers(0, 9), timestamp=TIMES)
    def put(self, key: str, value: int | None, timestamp: int) -> None:
        valid_to = NOT_PUT
        if timestamp >= self.observed - RETENTION:
            self.observed = max(self.observed, timestamp)
            valid_to = put_version(self.now.setdefault(key, Versions()), value, timestamp)
        assert self.open.store.put(key, value, timestamp) == valid_to
        last = self.open.task.changelog[-1]
        data = None if value is None else value.to_bytes(8)
        assert (last.key(), last.value(), last.timestamp()[1]) == (key.encode(), data, timestamp)

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        versions = self.now.get(key, Versions())
        newest = max(versions, default=None)
        wanted = None if newest is None or versions[newest] is None else VersionedRecord(versions[newest], newest)
        assert self.open.store.get(key) == wanted

    @rule(key=KEYS, as_of=TIMES)
    def get_as_of(self, key: str, as_of: int) -> None:
        assert self.open.store.get(key, as_of) == self.find(key, as_of)

    def find(self, key: str, as_of: int) -> VersionedRecord | None:
        versions = self.now.get(key, Versions())
        start = max((time for time in versions if time <= as_of), default=None)
        if start is None or versions[start] is None:
            return None
        if as_of < self.observed - RETENTION and start != max(versions):
            return None
        return VersionedRecord(versions[start], start)

    @rule(key=KEYS, timestamp=TIMES)
    def delete(self, key: str, timestamp: int) -> None:
        wanted = None
        if timestamp >= self.observed - RETENTION:
            wanted = self.find(key, timestamp)
            self.observed = max(self.observed, timestamp)
            put_version(self.now.setdefault(key, Versions()), None, timestamp)
        assert self.open.store.delete(key, timestamp) == wanted

    @rule()
    def commit(self) -> None:
        self.open.commit()
        self.committed = {key: Versions(versions) for key, versions in self.now.items()}, self.observed

    @rule(reopen=st.booleans())
    def go_back(self, reopen: bool) -> None:
        if reopen:
            self.open.reopen()
        else:
            self.open.abort()
        self.now = {key: Versions(versions) for key, versions in self.committed[0].items()}
        self.observed = self.committed[1]

    def teardown(self) -> None:
        if hasattr(self, "open"):
            self.open.store.close()
            shutil.rmtree(self.directory)


TestVersionedStores = VersionedMachine.TestCase
TestVersionedStores.settings = STATEFUL


def test_versions_valid_at_any_time_of_a_range() -> None:
    store = OpenStore(builder(retention_ms=100)).store
    for value, timestamp in ((1, 10), (2, 20), (None, 30), (4, 40)):
        store.put("k", value, timestamp)
    assert store.get_versions("k", 15, 35) == [VersionedRecord(2, 20, 30), VersionedRecord(1, 10, 20)]
    assert store.get_versions("k", 30, 100) == [VersionedRecord(4, 40)]
    assert store.get_versions("other", 0, 100) == []


def test_the_history_of_a_deleted_key_is_read_until_its_deletion(tmp_path: Path) -> None:
    opened = OpenStore(builder(), tmp_path)
    opened.store.put("k", 1, 10)
    opened.store.put("k", None, 15)
    assert opened.store.get("k", 12) == VersionedRecord(1, 10)
    opened.commit()
    opened.reopen()
    assert opened.store.get("k", 14) == VersionedRecord(1, 10)
    assert opened.store.put("k", 2, 13) == 15
    assert [opened.store.get("k", time) for time in (9, 12, 14, 15)] == [
        None, VersionedRecord(1, 10), VersionedRecord(2, 13), None
    ]  # fmt: skip
    opened.store.close()


def test_a_late_put_is_logged_and_counted() -> None:
    open_store = OpenStore(builder())
    open_store.store.put("k", 1, 100)
    assert open_store.store.put("k", 2, 79) == NOT_PUT
    assert open_store.store.delete("k", 79) is None
    assert open_store.task.dropped == ["store", "store"]
    assert len(open_store.task.changelog) == 3


def test_old_versions_are_deleted_from_disk(tmp_path: Path) -> None:
    open_store = OpenStore(builder(segment_interval_ms=10), tmp_path)
    for timestamp in range(0, 1000, 5):
        open_store.store.put("k", timestamp, timestamp)
        open_store.commit()
    assert len(list(open_store.store.rows.scan(None, None))) <= RETENTION // 5 + 10 // 5 + 2
    open_store.store.close()


def test_segments_have_kafka_streams_length() -> None:
    minutes = 60_000
    assert [default_segment_interval_ms(m) for m in (1, minutes, 4 * minutes, 60 * minutes, 24 * 60 * minutes)] == [
        2_000,
        20_000,
        48_000,
        5 * minutes,
        60 * minutes,
    ]
