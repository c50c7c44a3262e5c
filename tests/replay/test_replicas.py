"""Replays of a task: the state at any record is that of an independent replay, from whatever checkpoint."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import Materialized, Serdes, Stores, StreamsBuilder
from penstock.replay.application import copy_state
from penstock.replay.replayed_task import check_stores, replayed_tasks
from penstock.replay.stops import ReplayProgress, earlier_stop, run_until
from penstock.sinks import SqliteSink
from penstock.testing import TopologyTestDriver
from penstock.topology.errors import ConfigError, MissingSourceTopicError, StreamsError, TaskCorruptedError
from penstock.topology.records import RawRecord, SentRecord, TopicPartition
from tests.manual_clock import ManualClock
from tests.own_stores import OwnRows
from tests.replay.replayed import CONFIG, TASK, TEXT, TOPOLOGIES, Input, Replays, counting, rows

IN = TopicPartition("in", 0)
QUIET = ReplayProgress(lambda _: None)


def driver_rows(replays: Replays, order: list[RawRecord]) -> dict[str, list[tuple[bytes, bytes]]]:
    """Return the rows of a driver that has got these records, each one by itself."""
    with TopologyTestDriver(replays.topology, CONFIG) as driver:
        for record in order:
            timestamp = record.timestamp()[1]
            driver._pipe(SentRecord(record.topic(), record.key(), record.value(), timestamp, None))
        return rows(driver.task)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_ten_random_records_have_the_state_of_an_independent_replay(name: str, tmp_path: Path) -> None:
    """Byte for byte: whether the replay begins at the first record or at a checkpoint, its rows equal a driver's."""
    build, topics = TOPOLOGIES[name]
    replays, rng = Replays(build(), Input(*topics).fill(300), tmp_path), random.Random(3)
    order: list[RawRecord] = []
    starts = []
    taken = set(rng.sample(range(20, 250), 4))
    with replays.replica() as replica:
        processed = dict.fromkeys(replays.task.inputs, 0)
        while (head := replica.head()) is not None:
            if len(order) in taken:
                starts.append((len(order), *replays.checkpoint(replica, processed)))
            replica.process_next()
            assert isinstance(replica.message, RawRecord)
            order.append(replica.message)
            processed[head[0]] = head[1] + 1
    assert len(order) == 300
    for at in rng.sample(range(20, 300), 10):
        stop = (TopicPartition(order[at].topic(), 0), order[at].offset())
        expected = driver_rows(replays, order[:at])
        assert any(expected.values())
        for count, start, directory in [(0, replays.beginning, None), *starts]:
            if count <= at:
                scratch = replays.directory()
                if directory is not None:
                    copy_state(directory, scratch)
                with replays.replica(start, scratch) as replica:
                    run_until(replica, stop, QUIET)
                    assert rows(replica.task) == expected, (at, count)


def test_a_replay_says_what_each_record_sends(tmp_path: Path) -> None:
    records = Input("in")
    for number, key in enumerate("aba"):
        records.add("in", key, "x", number)
    with Replays(counting(), records, tmp_path).replica() as replica:
        sent = []
        while replica.head() is not None:
            sent.append([each for each in replica.process_next() if each.topic == "out"])
    assert [[(each.key, int.from_bytes(each.value or b"")) for each in one] for one in sent] == [
        [(b"a", 1)],
        [(b"b", 1)],
        [(b"a", 2)],
    ]


def test_a_step_back_stops_at_the_record_that_is_processed_before(tmp_path: Path) -> None:
    """With several inputs that is a record of another topic."""
    build, topics = TOPOLOGIES["joining"]
    records = Input(*topics)
    records.add("names", "a", "Ann", 0)
    records.add("in", "a", "1", 10)
    records.add("other", "a", "2", 20)
    records.add("in", "a", "3", 30)
    replays = Replays(build(), records, tmp_path)

    def earlier(back: int) -> object:
        with replays.replica(processes=False) as replica:
            found = earlier_stop(replica, (IN, 1), back)
            assert not any(rows(replica.task).values())
        return found

    assert earlier(1) == (TopicPartition("other", 0), 0)
    assert earlier(2) == (IN, 0)
    assert earlier(3) == (TopicPartition("names", 0), 0)
    assert earlier(4) is None


def test_an_offset_without_a_record_is_an_error(tmp_path: Path) -> None:
    records = Input("in").fill(5)
    del records.records["in"][2]
    with (
        Replays(counting(), records, tmp_path).replica() as replica,
        pytest.raises(StreamsError, match="processes no record at offset 2 of in-0: it is the marker of a transaction"),
    ):
        run_until(replica, (IN, 2), QUIET)


def test_stores_of_another_offset_than_the_manifest_has_are_refused(tmp_path: Path) -> None:
    replays = Replays(counting(), Input("in").fill(20), tmp_path)
    with replays.replica() as replica:
        run_until(replica, (IN, 5), QUIET)
        start, _ = replays.checkpoint(replica, {IN: 5})
        run_until(replica, (IN, 9), QUIET)
        _, later = replays.checkpoint(replica, {IN: 9})
    with pytest.raises(
        TaskCorruptedError, match=r"The store \w+ of checkpoint .* is at the changelog offset \d+, its m"
    ):
        replays.replica(start, later)


def test_a_copy_of_a_state_does_not_change_the_original(tmp_path: Path) -> None:
    replays = Replays(counting(), Input("in").fill(40), tmp_path)
    with replays.replica() as replica:
        run_until(replica, (IN, 20), QUIET)
        start, directory = replays.checkpoint(replica, {IN: 20})
        expected = rows(replica.task)
    files = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    for _ in range(2):
        copy = replays.directory()
        copy_state(directory, copy)
        with replays.replica(start, copy) as replica:
            assert rows(replica.task) == expected
            run_until(replica, (IN, 39), QUIET)
            assert rows(replica.task) != expected
        shutil.rmtree(copy)
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == files


def test_a_start_has_the_times_of_its_checkpoint(tmp_path: Path) -> None:
    """A record without a time gets that of its partition, and changelogs continue at their offsets."""
    config = CONFIG.with_overrides({"default.timestamp.extractor": "UsePartitionTimeOnInvalidTimestamp"})
    records = Input("in")
    for timestamp in (1_000, 90_000, 89_000, -1, 91_000):
        records.add("in", "a", "x", timestamp)
    replays = Replays(counting(), records, tmp_path, config)
    with replays.replica() as replica:
        run_until(replica, (IN, 2), QUIET)
        start, directory = replays.checkpoint(replica, {IN: 2})
        before = replica.task.stream_time_ms
        run_until(replica, (IN, 4), QUIET)
        expected = rows(replica.task)
        offsets = {name: store.committed_offset() for name, store in replica.task.stores.items()}
    assert start.manifest is not None
    start = replace(start, manifest=replace(start.manifest, processor_metadata={"window": 5}))
    with replays.replica(start, directory) as replica:
        assert replica.task.stream_time_ms == before == 90_000
        assert replica.task.processor_metadata == {"window": 5}
        run_until(replica, (IN, 4), QUIET)
        assert rows(replica.task) == expected
        assert {name: store.committed_offset() for name, store in replica.task.stores.items()} == offsets


def test_the_wall_clock_begins_at_the_checkpoint_and_follows_the_records(tmp_path: Path) -> None:
    records = Input("in")
    for timestamp in (5_000, 9_000, 7_000):
        records.add("in", "a", "x", timestamp)
    with Replays(counting(), records, tmp_path).replica() as replica:
        seen = [replica.task.wall_clock_ms()]
        while replica.head() is not None:
            replica.process_next()
            seen.append(replica.task.wall_clock_ms())
    assert seen == [5_000, 5_000, 9_000, 9_000]


def test_global_tables_have_all_rows(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    countries = builder.global_table("countries", key_serde=TEXT, value_serde=TEXT)
    visits = builder.stream("in", key_serde=TEXT, value_serde=TEXT)
    joined = visits.join(countries, lambda visit, country: f"{visit} {country}", key_selector=lambda key, value: key)
    joined.to("out", key_serde=TEXT, value_serde=TEXT)
    records = Input("in", "countries")
    for number, name in enumerate(["Norway", "Norge"]):
        records.add("countries", "no", name, number)
    records.add("in", "no", "Oslo", 0)
    with Replays(builder.build(), records, tmp_path).replica() as replica:
        assert replica.head() == (IN, 0)
        assert [record.value for record in replica.process_next()] == [b"Oslo Norge"]


def test_sinks_outside_of_kafka_get_no_rows(tmp_path: Path) -> None:
    """The sub-topology of a sink runs, and writes nothing."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=TEXT, value_serde=Serdes.json())
    stream.to_sink(SqliteSink(str(tmp_path / "rows.db"), "rows", columns={"name": str}))
    records = Input("in")
    records.add("in", "a", '{"name": "Ann"}', 0)
    with Replays(builder.build(), records, tmp_path).replica() as replica:
        replica.head()
        replica.process_next()
        assert not replica.task.batched_records
    assert not list(tmp_path.glob("rows.db*"))


def test_progress_is_reported_every_two_seconds() -> None:
    clock, said = ManualClock(), list[str]()
    progress = ReplayProgress(said.append, lambda: clock.monotonic_ms() / 1000)
    for _ in range(5_000):
        clock.advance(1)
        progress.count()
    assert said == ["Replayed 2,000 records in 2.0 s", "Replayed 4,000 records in 4.0 s"]


def test_a_store_of_the_users_class_is_refused() -> None:
    builder = StreamsBuilder()
    own = Materialized(Stores.custom_store_builder("own", OwnRows))
    builder.table("in", key_serde=TEXT, value_serde=TEXT, store=own)
    task = replayed_tasks(builder.build(), CONFIG, {"in": 1})[TASK]
    with pytest.raises(ConfigError, match="Task 0_0 has the store own of your own class, which may write outside"):
        check_stores("Task 0_0", task.topology)


def test_a_missing_topic_is_named() -> None:
    with pytest.raises(MissingSourceTopicError, match="There is no topic in on nowhere:1"):
        replayed_tasks(counting(), CONFIG, {})
    builder = StreamsBuilder()
    builder.global_table("countries", key_serde=TEXT, value_serde=TEXT)
    with pytest.raises(MissingSourceTopicError, match="There is no topic countries on nowhere:1"):
        replayed_tasks(builder.build(), CONFIG, {})
