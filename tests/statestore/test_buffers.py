"""The buffers of suppress and of joins with grace, and the store of records without a partner."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.kernel.buffered_changes import context_size
from penstock.statestore.buffers.buffer_value import BufferValue, serialize_source, with_source
from penstock.statestore.stores.list_value_store import append, entries
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.errors import ProcessorStateError
from penstock.topology.records import Change, ProcessorRecordContext, RawRecord
from penstock.topology.serdes.serdes import Serdes
from tests.statestore.support import STATEFUL, OpenStore

CONTEXT = ProcessorRecordContext(5, 7, 0, "in", None)
LONG_MAX = 2**63 - 1
HEADERS = st.none() | st.lists(
    st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), min_size=1, max_size=2
)
CONTEXTS = st.builds(
    ProcessorRecordContext,
    st.integers(0, 2**62),
    st.integers(-1, 2**62),
    st.integers(-1, 99),
    st.none() | st.text(min_size=1, max_size=5),
    HEADERS,
    st.none() | st.binary(max_size=4),
    st.none() | st.binary(max_size=4),
)
VALUES = st.none() | st.binary(max_size=4)


def suppress_buffer(**more: Any) -> OpenStore:
    return OpenStore(StoreBuilder("store", StoreKind.SUPPRESS_BUFFER, Serdes.string(), Serdes.int64(), **more))


def join_buffer(grace_ms: int, directory: Path | None = None) -> OpenStore:
    builder = StoreBuilder("store", StoreKind.JOIN_BUFFER, Serdes.string(), Serdes.int64(), grace_ms=grace_ms)
    return OpenStore(builder, directory)


@given(VALUES, VALUES, VALUES, CONTEXTS)
def test_a_buffer_value_survives_a_round_trip(
    prior: bytes | None, old: bytes | None, new: bytes | None, context: ProcessorRecordContext
) -> None:
    data = BufferValue(prior, old, new, context).serialize()
    in_changelog = context._replace(source_raw_key=None, source_raw_value=None)
    assert BufferValue.deserialize(data + b"12345678") == (BufferValue(prior, old, new, in_changelog), len(data))
    assert with_source(in_changelog, data, len(data)) == in_changelog
    assert with_source(in_changelog, data + serialize_source(context), len(data)) == context


@pytest.mark.parametrize(
    ("value_b64", "value"),
    [
        (  # suppress_time_limit: no value before
            "AAAAAAAAAAUAAAAAAAAAAQAAAAV0YWJsZQAAAAAAAAAA//////////8AAAAIAAAAAAAAAAIAAAAAAAAABQ==",
            BufferValue(None, None, b"\0" * 7 + b"\2", ProcessorRecordContext(5, 1, 0, "table", None)),
        ),
        (  # suppress_shut_down_when_full: old value equal to prior
            "AAAAAAAAAAEAAAAAAAAAAAAAAAJpbgAAAAAAAAAAAAAACAAAAAAAAAAA/////gAAAAgAAAAAAAAAAQAAAAAAAAAK",
            BufferValue(b"\0" * 8, b"\0" * 8, b"\0" * 7 + b"\1", ProcessorRecordContext(1, 0, 0, "in", None)),
        ),
        (  # stream_versioned_table_with_grace: a header
            "AAAAAAAAAA8AAAAAAAAAAAAAAAZjbGlja3MAAAAAAAAAAQAAAAFoAAAAATH//////////wAAAAgAAAAAAAAAAQAAAAAAAAAA",
            BufferValue(None, None, b"\0" * 7 + b"\1", ProcessorRecordContext(15, 0, 0, "clicks", [("h", b"1")])),
        ),
    ],
)
def test_buffer_values_have_kafka_streams_bytes(value_b64: str, value: BufferValue) -> None:
    data = b64decode(value_b64)
    assert BufferValue.deserialize(data) == (value, len(data) - 8)
    assert value.serialize() == data[:-8]


def test_sizes_are_counted_as_in_kafka_streams() -> None:
    assert context_size(ProcessorRecordContext(1, 2, 3, "topic", [("ab", b"xyz"), ("c", None)])) == 8 + 8 + 5 + 4 + 6
    assert BufferValue(b"12", b"12", b"345", CONTEXT).size() == 2 + 3 + context_size(CONTEXT)
    assert BufferValue(b"12", b"1", None, CONTEXT).size() == 2 + 1 + context_size(CONTEXT)


class SuppressMachine(RuleBasedStateMachine):
    """Random operations on a suppress buffer, and on a dict of (time, prior, change)."""

    @initialize()
    def set_up(self) -> None:
        self.open = suppress_buffer()
        self.now: dict[str, tuple[int, int | None, Change]] = {}
        self.committed = dict(self.now)

    @rule(
        key=st.sampled_from("abc"),
        time=st.integers(0, 9),
        new=st.none() | st.integers(0, 3),
        old=st.none() | st.integers(0, 3),
    )
    def put(self, key: str, time: int, new: int | None, old: int | None) -> None:
        assert self.open.store.put(time, key, Change(new, old), CONTEXT)
        time, prior, _ = self.now.get(key, (time, old, None))
        self.now[key] = time, prior, Change(new, old)

    @rule(until=st.integers(0, 9))
    def evict(self, until: int) -> None:
        seen: list[Any] = []
        store = self.open.store
        store.evict_while(lambda: store.min_timestamp() <= until, lambda *change: seen.append(change))
        due = sorted((time, key) for key, (time, _, _) in self.now.items() if time <= until)
        assert seen == [(key, self.now[key][2], CONTEXT) for _, key in due]
        for _, key in due:
            del self.now[key]

    @rule()
    def commit(self) -> None:
        self.open.commit()
        self.committed = dict(self.now)

    @rule()
    def abort(self) -> None:
        self.open.abort()
        self.now = dict(self.committed)

    @rule()
    def reopen(self) -> None:
        self.open.reopen()
        self.now = dict(self.committed)

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "open"):
            return
        store = self.open.store
        assert store.num_records() == len(self.now)
        assert store.min_timestamp() == min((time for time, _, _ in self.now.values()), default=LONG_MAX)
        for key in "abc":
            found = store.prior_value_for_buffered(key)
            assert found == ((self.now[key][1],) if key in self.now else None)
        sizes = [8 + 1 + self.size(prior, change) for _, prior, change in self.now.values()]
        assert store.buffer_size() == sum(sizes)

    def size(self, prior: int | None, change: Change) -> int:
        prior_bytes, old, new = (None if n is None else n.to_bytes(8) for n in (prior, change.old, change.new))
        return BufferValue(prior_bytes, old, new, CONTEXT).size()

    def teardown(self) -> None:
        if hasattr(self, "open"):
            self.open.store.close()


TestSuppressBuffers = SuppressMachine.TestCase
TestSuppressBuffers.settings = STATEFUL


def test_the_suppress_changelog_has_the_last_state_of_each_key_and_no_timestamps() -> None:
    open_store = suppress_buffer()
    store, task = open_store.store, open_store.task
    store.put(3, "a", Change(1, None), CONTEXT)
    store.put(9, "a", Change(2, 1), CONTEXT)
    store.put(1, "b", Change(5, None), CONTEXT)
    store.evict_while(lambda: store.num_records() > 1, lambda *change: None)
    assert task.changelog == []
    store.flush()
    store.flush()
    value = BufferValue(None, (1).to_bytes(8), (2).to_bytes(8), CONTEXT).serialize() + (3).to_bytes(8)
    found = {record.key(): (record.value(), record.headers()) for record in task.changelog}
    assert found == {b"a": (value, [("v", b"\3")]), b"b": (None, None)}
    assert task.log_timestamps == [None, None]


def test_a_key_buffered_again_has_its_new_time_after_a_restore_and_its_old_one_after_an_abort() -> None:
    open_store = suppress_buffer()
    store = open_store.store
    store.put(3, "a", Change(1, None), CONTEXT)
    store.put(5, "b", Change(1, None), CONTEXT)
    open_store.commit()
    store.evict_while(lambda: store.num_records() > 1, lambda *change: None)
    assert store.min_timestamp() == 5
    store.put(9, "a", Change(2, 1), CONTEXT)
    store.flush()
    other = suppress_buffer()
    other.store.restore(open_store.task.changelog, len(open_store.task.changelog))
    seen: list[Any] = []
    other.store.evict_while(lambda: True, lambda *change: seen.append(change[0]))
    assert seen == ["b", "a"]
    open_store.abort()
    assert store.min_timestamp() == 3
    store.evict_while(lambda: True, lambda *change: seen.append(change[0]))
    assert seen[2:] == ["a", "b"]


def suppress_buffer_with_headers() -> OpenStore:
    open_store = suppress_buffer()
    open_store.task.config = {"application.id": "app", "dsl.store.format": "HEADERS"}
    open_store.open()
    return open_store


@pytest.mark.parametrize("restored", [False, True])
def test_the_changelog_has_the_headers_of_old_and_prior_values(restored: bool) -> None:
    open_store = suppress_buffer_with_headers()
    contexts = [CONTEXT._replace(timestamp=at, headers=[("h", b"%d" % at)]) for at in range(3)]
    for at, context in enumerate(contexts):
        open_store.store.put(3, "a", Change(at + 1, at), context)
        open_store.store.put(3, "b", Change(None if at == 1 else at, at or None), context)
        open_store.store.flush()
        if restored:
            changelog, open_store = open_store.task.changelog, suppress_buffer_with_headers()
            open_store.task.changelog.extend(changelog)
            open_store.store.restore(changelog, None)
    found = [(record.key(), dict(record.headers() or ())) for record in open_store.task.changelog]
    never = b"\0" + (-1).to_bytes(8, signed=True)
    stamps = [b"\x0a\x02\x02h\x02%d" % at + at.to_bytes(8) for at in range(3)]
    assert found == [
        (b"a", {"v": b"\3", "vh.old": never}),
        (b"b", {"v": b"\3"}),
        (b"a", {"v": b"\3", "vh.prior": never, "vh.old": stamps[0]}),
        (b"b", {"v": b"\3", "vh.old": stamps[0]}),
        (b"a", {"v": b"\3", "vh.prior": never, "vh.old": stamps[1]}),
        (b"b", {"v": b"\3", "vh.old": never}),
    ]
    assert open_store.store.prior_value_for_buffered("a") == (0,)
    seen: list[Any] = []
    open_store.store.evict_while(lambda: True, lambda key, change, context: seen.append((key, change, context.headers)))
    assert seen == [("a", Change(3, 2), [("h", b"2")]), ("b", Change(2, 2), [("h", b"2")])]


def test_a_changelog_of_another_format_is_restored_with_headers() -> None:
    written, restored = suppress_buffer(), suppress_buffer_with_headers()
    written.store.put(3, "a", Change(2, 1), CONTEXT)
    written.store.flush()
    restored.store.restore(written.task.changelog, None)
    restored.store.put(3, "a", Change(3, 2), CONTEXT)
    restored.store.flush()
    stamp = b"\0" + CONTEXT.timestamp.to_bytes(8)
    assert restored.task.changelog[0].headers() == [("v", b"\3"), ("vh.prior", stamp), ("vh.old", stamp)]
    back = suppress_buffer()
    back.store.restore(restored.task.changelog, None)
    assert back.store.prior_value_for_buffered("a") == (1,)


def test_a_suppress_buffer_without_logging_writes_no_changelog() -> None:
    open_store = suppress_buffer(logging=False)
    open_store.store.put(3, "a", Change(1, None), CONTEXT)
    open_store.store.flush()
    assert open_store.task.changelog == []


def test_the_suppress_changelog_of_an_old_kafka_streams_is_refused() -> None:
    record = RawRecord("app-store-changelog", 0, 12, 0, b"a", b"\0" * 24)
    with pytest.raises(ProcessorStateError, match=r"offset 12 in a format older than Kafka Streams 2\.6"):
        suppress_buffer().store.restore([record], 13)


def join_context(timestamp: int) -> ProcessorRecordContext:
    return CONTEXT._replace(timestamp=timestamp)


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("between", ["nothing", "commit", "reopen", "restore"])
def test_a_join_buffer_returns_records_after_their_grace_period(on_disk: bool, between: str, tmp_path: Path) -> None:
    open_store = join_buffer(10, tmp_path if on_disk else None)
    seen: list[Any] = []

    def put(key: str, value: int, timestamp: int) -> None:
        assert open_store.store.put(0, key, value, join_context(timestamp))
        open_store.store.evict_while(lambda: True, lambda *row: seen.append((*row[:2], row[2].timestamp)))

    for key, value, timestamp in (("b", 1, 20), ("a", 2, 20), ("a", 3, 20), ("z", 4, 10), ("b", 5, 25)):
        put(key, value, timestamp)
    assert seen == [("z", 4, 10)]
    assert open_store.store.num_records() == 4
    if between != "nothing":
        open_store.commit()
    if between == "reopen":
        open_store.reopen()
    elif between == "restore":
        changelog = open_store.task.changelog
        open_store.store.close()
        open_store = join_buffer(10, tmp_path / "other" if on_disk else None)
        open_store.store.restore(changelog, len(changelog))
    assert open_store.store.num_records() == 4
    assert not open_store.store.put(0, "late", 6, join_context(14))
    put("a", 6, 31)
    assert seen[1:] == [("a", 2, 20), ("a", 3, 20), ("b", 1, 20)]
    put("a", 7, 35)
    assert seen[4:] == [("b", 5, 25)]
    assert open_store.store.num_records() == 2
    open_store.store.close()


def test_a_join_buffer_checks_nothing_until_stream_time_advances() -> None:
    open_store = join_buffer(10)
    open_store.store.put(0, "a", 1, join_context(20))
    open_store.store.put(0, "a", 2, join_context(30))
    open_store.store.evict_while(lambda: True, lambda *row: None)
    asked = []

    def asked_for_it() -> bool:
        asked.append(1)
        return True

    open_store.store.evict_while(asked_for_it, lambda *row: None)
    assert asked == []
    open_store.store.put(0, "a", 3, join_context(40))
    open_store.store.evict_while(asked_for_it, lambda *row: None)
    assert asked == [1, 1]
    assert open_store.store.num_records() == 1


@pytest.mark.parametrize("restored", [False, True])
def test_duplicates_in_a_join_buffer_replace_nothing_after_a_restart(restored: bool, tmp_path: Path) -> None:
    open_store = join_buffer(5, None if restored else tmp_path)
    open_store.store.put(0, "a", 1, join_context(20))
    open_store.commit()
    open_store.reopen()
    open_store.store.put(0, "a", 2, join_context(20))
    open_store.store.put(0, "a", 3, join_context(25))
    seen: list[Any] = []
    open_store.store.evict_while(lambda: True, lambda *row: seen.append(row[:2]))
    assert seen == [("a", 1), ("a", 2)]
    open_store.store.close()


def test_the_join_buffer_changelog_has_kafka_streams_keys_and_tombstones() -> None:
    open_store = join_buffer(0)
    open_store.store.put(0, "a", 1, join_context(15))
    open_store.store.evict_while(lambda: True, lambda *row: None)
    key = b"\0" + (15).to_bytes(8) + b"a" + (1).to_bytes(4)
    value = BufferValue(None, None, (1).to_bytes(8), join_context(15)).serialize() + bytes(8)
    assert [(r.key(), r.value()) for r in open_store.task.changelog] == [(key, value), (key, None)]
    assert open_store.task.log_timestamps == [None, None]


def test_an_aborted_join_buffer_has_its_records_again() -> None:
    open_store = join_buffer(0)
    open_store.store.put(0, "a", 1, join_context(15))
    open_store.commit()
    open_store.store.evict_while(lambda: True, lambda *row: None)
    open_store.abort()
    seen: list[Any] = []
    open_store.store.evict_while(lambda: True, lambda *row: seen.append(row[:2]))
    assert seen == [("a", 1)]


@pytest.mark.parametrize("restored", [False, True])
def test_a_join_buffer_stores_the_input_record_on_disk_but_not_in_its_changelog(restored: bool, tmp_path: Path) -> None:
    """Kafka Streams' changelog has no field for it, and both read its records."""
    open_store = join_buffer(0, None if restored else tmp_path)
    context = join_context(15)._replace(source_raw_key=b"raw key", source_raw_value=None)
    open_store.store.put(0, "a", 1, context)
    open_store.commit()
    open_store.reopen()
    seen: list[Any] = []
    open_store.store.evict_while(lambda: True, lambda *row: seen.append(row))
    assert seen == [("a", 1, join_context(15) if restored else context)]
    assert b"raw key" not in (open_store.task.changelog[0].value() or b"")
    open_store.store.close()


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=5))
def test_a_list_survives_a_round_trip(values: list[bytes]) -> None:
    data = None
    for value in values:
        data = append(data, value)
    assert data is not None
    assert entries(data) == values


def test_lists_have_kafka_streams_bytes() -> None:
    golden = b64decode("AQAAAAEAAAAJAQAAAAAAAAAB")  # stream_stream_left: one left value, the long 1
    assert entries(golden) == [b"\1" + (1).to_bytes(8)]
    assert append(None, b"\1" + (1).to_bytes(8)) == golden


def test_a_list_store_adds_to_lists_and_logs_the_whole_list(tmp_path: Path) -> None:
    open_store = OpenStore(StoreBuilder("store", StoreKind.LIST_VALUE, Serdes.string(), Serdes.int64()), tmp_path)
    store, task = open_store.store, open_store.task
    task.timestamp = 3
    store.put("b", 1)
    store.put("a", 2)
    open_store.commit()
    store.put("b", 3)
    assert list(store.all()) == [("a", 2), ("b", 1), ("b", 3)]
    assert store.get("b") == [1, 3]
    assert entries(task.changelog[-1].value() or b"") == [(1).to_bytes(8), (3).to_bytes(8)]
    store.put_if_absent("never", None)
    assert len(task.changelog) == 3
    store.put_if_absent("b", None)
    assert (task.changelog[-1].key(), task.changelog[-1].value(), task.log_timestamps[-1]) == (b"b", None, 3)
    open_store.commit()
    open_store.reopen()
    assert list(open_store.store.all()) == [("a", 2)]
    open_store.store.close()
