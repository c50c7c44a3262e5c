"""Stores that users write, in their tasks: what they are given, when they are committed, and their errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from penstock import (
    FixedKeyProcessor,
    Processor,
    ProcessorStateError,
    Serdes,
    StateStore,
    StateStoreContext,
    StoreBuilder,
    Stores,
    StreamsBuilder,
    TopicPartition,
    TopologyError,
)
from penstock.statestore.store_factory import build_store
from penstock.statestore.stores.custom_store import RESTORED_RECORDS
from penstock.testing import MockProcessorContext, TopologyTestDriver
from penstock.topology.records import RawRecord, Record, SentRecord
from tests.custom_stores import Count, LastingTally, Tally, tally_builder, tallying
from tests.statestore.support import StoreTask

CHANGELOG = TopicPartition("app-tally-changelog", 0)


def opened(directory: Path | None, kind: type[Tally] = Tally, task: StoreTask | None = None) -> Any:
    return build_store(tally_builder(kind), task or StoreTask(), directory, None)


def changes(*rows: tuple[str, bytes | None]) -> list[RawRecord]:
    return [RawRecord(CHANGELOG.topic, 0, at, 5, key.encode(), value) for at, (key, value) in enumerate(rows)]


def test_a_store_logs_with_time_and_headers_and_is_restored_from_that(tmp_path: Path) -> None:
    task = StoreTask()
    task.timestamp = 77
    store = opened(tmp_path, task=task)
    tally = store.exposed
    assert isinstance(tally, Tally)
    assert tally.is_open
    for word in ("a", "b", "a"):
        tally.add(word)
    tally.forget("b")
    assert [(r.key(), r.value(), r.timestamp()[1], r.headers()) for r in task.changelog] == [
        (b"a", b"1", 77, [("by", b"tally")]),
        (b"b", b"1", 77, [("by", b"tally")]),
        (b"a", b"2", 77, [("by", b"tally")]),
        (b"b", None, 77, None),
    ]
    store.close()
    assert not tally.is_open
    again = opened(tmp_path)
    again.restore(task.changelog, 4)
    assert again.exposed.counts == {"a": 2}
    (batch,) = again.exposed.restored
    assert batch[0] == (b"a", b"1", 77, [("by", b"tally")])
    assert again.committed_offset() is None, "one in memory is restored from the beginning"


def test_a_store_on_disk_has_its_offset_of_the_last_commit(tmp_path: Path) -> None:
    store = opened(tmp_path, LastingTally)
    store.exposed.add("a")
    store.commit(None)
    assert not (tmp_path / "custom/tally/tally.json").exists(), "its changelog offset is not known yet"
    store.commit(1)
    store.exposed.add("a")
    assert store.exposed.commits == 2, "the commit callback is called each time"
    store.close()
    again = opened(tmp_path, LastingTally)
    assert again.committed_offset() == 1
    assert again.exposed.counts == {"a": 1}, "what was not committed is dropped"


def test_a_restore_is_committed_from_time_to_time_and_when_the_task_closes(tmp_path: Path) -> None:
    store = opened(tmp_path, LastingTally)
    store.restore(changes(("a", b"1")), 1)
    assert store.committed_offset() is None
    store.persist(beside_writes=True)
    assert store.committed_offset() is None, "that is another thread"
    store.restore(changes(*[("b", b"2")] * RESTORED_RECORDS), 1 + RESTORED_RECORDS)
    assert store.committed_offset() == 1 + RESTORED_RECORDS
    store.restore(changes(("c", b"3")), 2 + RESTORED_RECORDS)
    store.persist()
    assert store.committed_offset() == 2 + RESTORED_RECORDS


class Eager(Tally):
    """Writes its file at each change, and does not know the offset of that."""

    persistent = True

    @override
    def init(self, context: StateStoreContext, root: StateStore) -> None:
        super().init(context, root)
        self.file = context.state_dir / "words"
        if self.file.exists():
            self.counts.update(self.file.read_text().split())

    @override
    def add(self, word: str) -> int:
        with self.file.open("a") as file:
            file.write(f"{word}\n")
        return super().add(word)


def test_files_without_an_offset_are_deleted_since_they_may_hold_what_was_aborted(tmp_path: Path) -> None:
    store = opened(tmp_path, Eager)
    store.exposed.add("aborted")
    store.close()
    again = opened(tmp_path, Eager)
    assert again.exposed.counts == {}
    again.restore(changes(("a", b"1")), 1)
    assert again.exposed.counts == {"a": 1}


def test_files_of_a_store_without_a_changelog_are_kept(tmp_path: Path) -> None:
    builder = tally_builder(Eager).with_logging_disabled()
    task = StoreTask()
    store = build_store(builder, task, tmp_path, None)
    store.exposed.add("a")
    store.commit(None)
    assert not task.changelog
    store.close()
    assert build_store(builder, task, tmp_path, None).exposed.counts == {"a": 1}


def test_a_store_without_a_changelog_is_committed_without_offsets(tmp_path: Path) -> None:
    builder = tally_builder(LastingTally).with_logging_disabled()
    store = build_store(builder, StoreTask(), tmp_path, None)
    store.exposed.add("a")
    store.commit(None)
    store.close()
    again = build_store(builder, StoreTask(), tmp_path, None)
    assert again.exposed.counts == {"a": 1}
    assert again.committed_offset() is None


def test_the_offset_of_a_store_in_memory_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LastingTally, "persistent", False)
    store = opened(tmp_path, LastingTally)
    store.commit(3)
    assert store.exposed.offset == 3
    assert store.committed_offset() is None


class Faulty(LastingTally):
    """Fails in one of its methods."""

    where = ""

    def fail(self, method: str) -> None:
        if self.where == method:
            raise OSError("no space")

    @override
    def init(self, context: StateStoreContext, root: StateStore) -> None:
        self.fail("init")
        super().init(context, root)

    @override
    def flush(self) -> None:
        self.fail("flush")

    @override
    def commit(self, changelog_offsets: Mapping[TopicPartition, int]) -> None:
        self.fail("commit")

    @override
    def close(self) -> None:
        self.fail("close")


@pytest.mark.parametrize("method", ["init", "flush", "commit", "close"])
def test_an_error_names_the_store_and_its_task(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Faulty, "where", method)

    def use() -> None:
        store = opened(tmp_path, Faulty)
        store.flush()
        store.commit(1)
        store.close()

    with pytest.raises(ProcessorStateError) as raised:
        use()
    assert str(raised.value) == f"The store tally of task 0_0: {method}() failed with OSError: no space"


class Silent(StateStore):
    @override
    def init(self, context: StateStoreContext, root: StateStore) -> None:
        pass


def test_a_logged_store_must_register() -> None:
    builder = Stores.custom_store_builder("silent", Silent)
    message = r"The store silent of task 0_0: init\(\) did not call context.register\(\)"
    with pytest.raises(ProcessorStateError, match=message):
        build_store(builder, StoreTask(), None, None)
    build_store(builder.with_logging_disabled(), StoreTask(), None, None)


def test_only_custom_stores_can_be_built_outside_of_a_task() -> None:
    assert tally_builder().build().name == "tally"
    plain = Stores.key_value_store_builder(Stores.persistent_key_value_store("plain"))
    with pytest.raises(TopologyError, match="The store plain is made by its task: only custom stores can be built"):
        plain.build()
    with pytest.raises(TopologyError, match=r"The supplier of custom_store_builder\(\) must be a function, got 'x'"):
        Stores.custom_store_builder("tally", "x")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Tally, LastingTally])
def test_the_test_driver_runs_it(kind: type[Tally]) -> None:
    store: StoreBuilder[Tally] = tally_builder(kind)
    with TopologyTestDriver(tallying("in", "out", store)) as driver:
        driver.create_input_topic("in").pipe_value_list(["a", "b", "a", "-b"])
        assert driver.create_output_topic("out").read_values_to_list() == ["1", "1", "2"]
        tally = driver.get_state_store(store)
        assert tally.counts == {"a": 2}
        assert tally.commits == 4
        assert driver.get_key_value_store("tally") is None
        logged = driver.create_output_topic("topology-test-driver-tally-changelog").read_values_to_list()
        assert logged == [b"1", b"1", b"2", None]
    assert not tally.is_open


def test_a_mock_context_opens_it_and_collects_its_changes() -> None:
    context, store = MockProcessorContext({"application.id": "mine"}), tally_builder().build()
    store.init(context.get_state_store_context(), store)
    context.set_current_stream_time_ms(5)
    processor = Count(tally_builder())
    processor.init(context)
    processor.process(Record("k", "word", 7))
    assert [forwarded.record.value for forwarded in context.forwarded()] == ["1"]
    assert context.record_collector() == [
        SentRecord("mine-tally-changelog", b"word", b"1", 5, [("by", b"tally")], 0),
    ]


class Note(Processor[str, str, None, None]):
    @override
    def process(self, record: Record[str, str]) -> None:
        self.context.get_state_store("tally").add(record.value)


def test_a_global_store_may_be_custom() -> None:
    text: Any = Serdes.string()
    builder = StreamsBuilder().add_global_store(tally_builder(LastingTally), "words", Note, value_serde=text)

    class Look(FixedKeyProcessor[str, str, str]):
        @override
        def process(self, record: Record[str, str]) -> None:
            self.context.forward(record.with_value(str(self.context.get_state_store("tally").count(record.value))))

    builder.stream("in", key_serde=text, value_serde=text).process_values(Look).to("out", value_serde=text)
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("words").pipe_value_list(["a", "b", "a"])
        driver.create_input_topic("in").pipe_input("k", "a")
        assert driver.create_output_topic("out").read_value() == "2"
        assert driver.get_state_store("tally").counts == {"a": 2, "b": 1}
