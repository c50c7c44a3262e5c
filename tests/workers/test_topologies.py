"""Topologies with several inputs, repartition topics, global tables and standby tasks, over an in-memory cluster."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.errors import StreamsError
from penstock.topology.processor_api import Processor, Punctuation
from penstock.topology.records import Record, TaskId, TopicPartition
from penstock.topology.serdes.serdes import Serdes
from penstock.topology.stores.materialized import Materialized
from penstock.topology.stores.stores import Stores
from penstock.topology.stores.windows import JoinWindows
from penstock.workers.control.messages import Status
from penstock.workers.control.stream_thread_state import StreamThreadState
from penstock.workers.restore.listeners import StateRestoreListener
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.counting import IN, OUT, counting, counts, feed
from tests.workers.thread_stage import Application

MakeApplication = Callable[..., Application]
TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
LEFT, RIGHT, TABLE = "left", "right", "table"


def values(cluster: DirectKafka, topic: str = OUT) -> list[str]:
    return [(record.value() or b"").decode() for record in cluster.records(topic)]


def joining() -> Any:
    builder = StreamsBuilder()
    left, right = builder.stream(LEFT, **TEXT), builder.stream(RIGHT, **TEXT)
    left.join(right, lambda a, b: a + b, JoinWindows(timedelta(seconds=10)), **TEXT).to(OUT, **TEXT)
    return builder.build()


def merging() -> Any:
    builder = StreamsBuilder()
    builder.stream(LEFT, **TEXT).merge(builder.stream(RIGHT, **TEXT)).to(OUT, **TEXT)
    return builder.build()


@pytest.fixture
def two_inputs(cluster: DirectKafka) -> DirectKafka:
    for topic in (LEFT, RIGHT, OUT):
        cluster.create_topic(topic, 1)
    return cluster


def test_records_of_two_topics_are_processed_in_time_order(
    two_inputs: DirectKafka, application: MakeApplication
) -> None:
    for at in (10, 30, 50, 60):
        two_inputs.append(LEFT, 0, b"k", b"left%d" % at, at)
    for at in (5, 20, 55):
        two_inputs.append(RIGHT, 0, b"k", b"right%d" % at, at)
    application(merging()).thread().until_idle().step(3).commit()
    assert values(two_inputs) == ["right5", "left10", "right20", "left30", "left50", "right55", "left60"]


def test_a_task_waits_for_a_topic_without_data(
    two_inputs: DirectKafka, application: MakeApplication, clock: ManualClock
) -> None:
    two_inputs.append(LEFT, 0, b"k", b"late", 20)
    thread = application(merging(), max_task_idle_ms=5_000).thread().until_running().step(2)
    thread.commit()
    assert values(two_inputs) == []
    two_inputs.append(RIGHT, 0, b"k", b"early", 10)
    thread.step(2).commit()
    assert values(two_inputs) == ["early"]  # now the left one waits for the next record of the right one
    clock.advance(5_000)
    thread.step(2).commit()
    assert values(two_inputs) == ["early", "late"]


def test_two_streams_are_joined(two_inputs: DirectKafka, application: MakeApplication) -> None:
    two_inputs.append(LEFT, 0, b"k", b"a", 1000)
    two_inputs.append(RIGHT, 0, b"k", b"b", 2000)
    application(joining()).thread().until_idle().commit()
    assert values(two_inputs) == ["ab"]


def test_a_repartition_topic_is_created_read_and_purged(
    cluster: DirectKafka, application: MakeApplication, clock: ManualClock
) -> None:
    cluster.create_topic(IN, 2)
    cluster.create_topic(OUT, 1)
    builder = StreamsBuilder()
    counted = builder.stream(IN, **TEXT).group_by(lambda key, value: value, **TEXT).count(store="counts")
    counted.to_stream().to(OUT, key_serde=Serdes.string(), value_serde=Serdes.int64())
    thread = application(builder.build(), repartition_purge_interval_ms=0).thread().until_running()
    feed(cluster, "abc", partition=0)
    feed(cluster, "d", partition=1)
    for _ in range(4):
        thread.step(3).commit()
    assert counts(cluster) == {"value": 4}
    topic = "app-counts-repartition"
    assert len(cluster.partitions(topic)) == 2
    clock.advance(30_001)
    thread.step(2)
    assert sum(cluster.log(p).start for p in cluster.partitions(topic)) == 4


def test_a_global_table_is_complete_before_the_first_record(cluster: DirectKafka, application: MakeApplication) -> None:
    for topic in (IN, OUT, TABLE):
        cluster.create_topic(topic, 2)
    cluster.append(TABLE, 1, b"a", b"airline", 1)
    feed(cluster, "a")
    builder = StreamsBuilder()
    table = builder.global_table(TABLE, **TEXT)
    stream = builder.stream(IN, **TEXT)
    stream.join(table, lambda value, name: name, key_selector=lambda key, value: key).to(OUT, **TEXT)
    app = application(builder.build())
    thread = app.thread().until_idle()
    thread.commit()
    assert values(cluster) == ["airline"]
    cluster.append(TABLE, 0, b"b", b"new", 2)
    thread.step()
    feed(cluster, "b")
    thread.step(2).commit()
    assert sorted(values(cluster)) == ["airline", "new"]
    thread.close()
    again = app.thread().until_idle()
    reader = again.supplier.made["client-StreamThread-1-global-consumer"]
    assert reader.starts == {TopicPartition(TABLE, 0): 1, TopicPartition(TABLE, 1): 1}  # no record is read again
    feed(cluster, "b")
    again.step(2).commit()
    assert sorted(values(cluster)) == ["airline", "new", "new"]


def test_a_global_table_has_no_gap_after_a_failed_record(cluster: DirectKafka, application: MakeApplication) -> None:
    """The consumer's position is already behind the failed record and the others of its batch."""
    for topic in (IN, OUT, TABLE):
        cluster.create_topic(topic, 1)
    builder = StreamsBuilder()
    table = builder.global_table(TABLE, key_serde=Serdes.string(), value_serde=Serdes.int64())
    stream = builder.stream(IN, **TEXT)
    joined = stream.join(table, lambda value, number: str(number), key_selector=lambda key, value: key)
    joined.to(OUT, **TEXT)
    app = application(builder.build())
    thread = app.thread().until_idle()
    number = Serdes.int64().serialize("", 7)
    cluster.append(TABLE, 0, b"a", b"no number", 1)
    cluster.append(TABLE, 0, b"b", number, 1)
    with pytest.raises(StreamsError, match="in table-0 at offset 0"):
        thread.step()
    thread.close()
    feed(cluster, "b")
    app.thread().until_idle().commit()
    assert values(cluster) == ["7"]


def test_an_in_memory_global_table_is_read_again_at_each_start(
    cluster: DirectKafka, application: MakeApplication
) -> None:
    for topic in (IN, OUT, TABLE):
        cluster.create_topic(topic, 1)
    cluster.append(TABLE, 0, b"a", b"airline", 1)
    feed(cluster, "a")
    builder = StreamsBuilder()
    table = builder.global_table(TABLE, store=Materialized("airlines", store_type="in_memory"), **TEXT)
    stream = builder.stream(IN, **TEXT)
    stream.join(table, lambda value, name: name, key_selector=lambda key, value: key).to(OUT, **TEXT)
    app = application(builder.build())
    first = app.thread().until_idle()
    first.commit()
    first.close()
    feed(cluster, "a")
    app.thread().until_idle().step(2).commit()
    assert values(cluster) == ["airline", "airline"]


def test_a_standby_task_follows_and_takes_over_without_a_restore(
    cluster: DirectKafka, application: MakeApplication, clock: ManualClock
) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    app = application(counting(), num_standby_replicas=1)
    active = app.thread().until_running()
    # Standby tasks go to other instances: another process id, another state directory.
    other = Application(app.stage, app.topology, {**app.config, "state.dir": str(app.stage.state_dir / "other")})
    standby = other.thread(slot=2, process_id="7fffffff-0000-0000-0000-000000000002")
    for _ in range(20):
        active.step()
        standby.step()
    assert set(standby.task_manager.standby.running) == {TaskId(0, 0)}
    feed(cluster, "aab")
    active.step(2).commit()
    standby.step(3)
    clock.advance(1_000)
    standby.step()
    status = [report for report in standby.control.reports if isinstance(report, Status)][-1]
    assert [(task.task_id, task.kind) for task in status.tasks] == [("0_0", "standby")]
    store = standby.task_manager.standby.running[TaskId(0, 0)].state_manager.stores["counts"]
    assert store.get("a").value == 2
    active.close()
    standby.until(lambda: standby.task_manager.active.running)
    feed(cluster, "a")
    standby.step(3).commit()
    assert counts(cluster) == {"a": 3, "b": 1}


class Listener(StateRestoreListener):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_restore_start(self, partition: TopicPartition, store: str, starting_offset: int, ending_offset: int) -> None:
        self.calls.append(("start", str(partition), store, starting_offset, ending_offset))

    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end_offset: int, restored: int) -> None:
        self.calls.append(("batch", batch_end_offset, restored))

    def on_restore_end(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        self.calls.append(("end", total_restored))


def test_the_listener_is_called_for_a_restore(cluster: DirectKafka, application: MakeApplication) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic("app-counts-changelog", 1)
    for number in range(3):
        cluster.append("app-counts-changelog", 0, b"k%d" % number, b"\0\0\0\0\0\0\0\1", 1)
    cluster.create_topic(OUT, 1)
    listener = Listener()
    application(counting()).thread(state_restore_listener=listener).until_running()
    assert listener.calls == [("start", "app-counts-changelog-0", "counts", 0, 3), ("batch", 3, 3), ("end", 3)]


def test_state_ahead_of_its_changelog_is_wiped_and_restored(
    cluster: DirectKafka, application: MakeApplication, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    app = application(counting(), penstock_lost_offsets="accept")
    feed(cluster, "aab")
    app.thread().until_idle().close()
    cluster.delete("app-counts-changelog")  # the topic was recreated
    cluster.create_topic("app-counts-changelog", config={"cleanup.policy": "compact"})
    thread = app.thread().until_idle()
    assert "Detected the states of tasks [0_0] are corrupted" in caplog.text
    feed(cluster, "a")
    thread.step(2).commit()
    assert counts(cluster, "app-counts-changelog") == {"a": 1}


def test_the_error_of_a_function_names_the_record_and_ends_the_thread(
    cluster: DirectKafka, application: MakeApplication
) -> None:
    cluster.create_topic(IN, 1)
    feed(cluster, "ab")
    builder = StreamsBuilder()
    builder.stream(IN, **TEXT).filter(lambda key, value: key != "b" or 1 / 0).to(OUT, **TEXT)
    cluster.create_topic(OUT, 1)
    thread = application(builder.build()).thread()
    with pytest.raises(StreamsError, match=r"taskId=0_0, .*topic=in, partition=0, offset=1.*ZeroDivisionError"):
        thread.until_running().step(4)
    assert thread.state is StreamThreadState.RUNNING  # run() is what ends it


class Ticker:
    """Forwards the time of each punctuation."""

    def init(self, context: Any) -> None:
        for kind in Punctuation:
            context.schedule(timedelta(seconds=1), kind, lambda at, kind=kind: self.tick(context, kind, at))

    def tick(self, context: Any, kind: Punctuation, at: int) -> None:
        from penstock.topology.records import Record

        context.forward(Record(kind.value, str(at), at))

    def process(self, record: Any) -> None:
        pass

    def close(self) -> None:
        pass


def test_punctuations_follow_stream_time_and_wall_clock(
    cluster: DirectKafka, application: MakeApplication, clock: ManualClock
) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    builder = StreamsBuilder()
    ticks: Any = builder.stream(IN, **TEXT).process(Ticker)  # type: ignore[arg-type]  # as duck types go
    ticks.to(OUT, **TEXT)
    thread = application(builder.build()).thread().until_running()
    started = clock.wall_clock_ms()
    feed(cluster, "a", timestamp=5_500)
    thread.step(2)
    clock.advance(2_500)
    thread.step(2).commit()
    fired = [((record.key() or b"").decode(), int(record.value() or b"0")) for record in cluster.records(OUT)]
    assert ("stream_time", 5_500) in fired
    wall = [at for kind, at in fired if kind == "wall_clock_time"]
    assert len(wall) == 1
    assert wall[0] >= started + 1_000


@pytest.mark.parametrize(
    ("settings", "after_ms"),
    [
        ({}, 300_000),
        ({"metadata.max.age.ms": "9000"}, 9_000),
        ({"metadata.max.age.ms": "9000", "consumer.metadata.max.age.ms": "2000"}, 2_000),
        ({"consumer.metadata.max.age.ms": "2000", "main.consumer.metadata.max.age.ms": 1_000}, 1_000),
        ({"restore.consumer.metadata.max.age.ms": "2000"}, 300_000),
    ],
)
def test_a_pattern_includes_topics_that_are_created_later(
    cluster: DirectKafka, application: MakeApplication, clock: ManualClock, settings: dict[str, Any], after_ms: int
) -> None:
    for topic in ("in-1", "other", OUT):
        cluster.create_topic(topic, 1)
    builder = StreamsBuilder()
    builder.stream(re.compile(r"in-\d"), **TEXT).to(OUT, **TEXT)
    thread = application(builder.build(), **settings).thread().until_running()
    cluster.append("in-1", 0, b"k", b"first", 1)
    cluster.append("other", 0, b"k", b"other", 2)
    thread.step(2)
    cluster.create_topic("in-2", 1)
    cluster.append("in-2", 0, b"k", b"second", 3)
    clock.advance(after_ms // 2)
    thread.step(6).commit()
    assert values(cluster) == ["first"]
    clock.advance(after_ms)
    thread.step(6).until_running().step(2).commit()
    assert values(cluster) == ["first", "second"]


def test_new_partitions_of_an_output_are_used_once_the_metadata_has_expired(
    cluster: DirectKafka, application: MakeApplication, clock: ManualClock
) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    builder = StreamsBuilder()
    last = builder.stream(IN, **TEXT)
    last.to(OUT, **TEXT, partitioner=lambda topic, key, value, count: count - 1)
    thread = application(builder.build(), producer_metadata_max_age_ms=5_000).thread().until_running()
    feed(cluster, "a")
    thread.step(2).commit()
    cluster.add_partitions(cluster.topic(OUT), 2)
    clock.advance(5_000)
    thread.step(2).commit()
    feed(cluster, "b")
    thread.step(2).commit()
    assert [record.key() for record in cluster.records(OUT) if record.partition() == 1] == [b"b"]


def source_table() -> Any:
    builder = StreamsBuilder()
    builder.table(IN, store="rows", **TEXT).to_stream().to(OUT, **TEXT)
    return builder.build({"topology.optimization": "all"})


def test_a_source_topic_serves_as_changelog_up_to_the_committed_offset(
    cluster: DirectKafka, application: MakeApplication
) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    app = application(source_table(), topology_optimization="all")
    feed(cluster, "ab")
    app.thread().until_idle().close()
    assert not [topic for topic in cluster.topics if topic.endswith("-changelog")]
    feed(cluster, "c")
    (app.stage.state_dir / "app").rename(app.stage.state_dir / "gone")
    thread = app.thread().until_running()
    assert thread.changelog_reader.total_restored == 2
    thread.step(3).commit()
    assert len(values(cluster)) == 3  # the third record was processed, not restored


def test_a_standby_task_of_a_source_topic_waits_at_the_committed_offset(
    cluster: DirectKafka, application: MakeApplication, clock: ManualClock
) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    app = application(source_table(), topology_optimization="all", num_standby_replicas=1)
    active = app.thread().until_running()
    other = Application(app.stage, app.topology, {**app.config, "state.dir": str(app.stage.state_dir / "other")})
    standby = other.thread(slot=2, process_id="7fffffff-0000-0000-0000-000000000002")
    for _ in range(20):
        active.step()
        standby.step()
    feed(cluster, "ab")
    active.step(2)
    standby.step(3)
    store = standby.task_manager.standby.running[TaskId(0, 0)].state_manager.stores["rows"]
    assert store.get("a") is None
    active.commit()
    clock.advance(30_000)
    standby.step(4)
    assert store.get("a").value == "value"
    assert store.committed_offset() == 2


class Lengths(Processor[str, str, None, None]):
    """Puts each value, as a number, into a global store; fails for a value that is not a number."""

    def process(self, record: Record[str, str]) -> None:
        self.context.get_state_store("numbers").put(record.key, int(record.value))


def with_global_store() -> Any:
    builder = StreamsBuilder()
    store = Stores.key_value_store_builder(
        Stores.persistent_key_value_store("numbers"), Serdes.string(), Serdes.int64()
    )
    builder.add_global_store(store.with_logging_disabled(), TABLE, Lengths, **TEXT)
    builder.stream(IN, **TEXT).to(OUT, **TEXT)
    return builder.build()


@pytest.fixture
def with_table(cluster: DirectKafka) -> DirectKafka:
    for topic in (IN, OUT, TABLE, "dead"):
        cluster.create_topic(topic, 1)
    return cluster


def test_the_processing_handler_decides_about_global_stores(
    with_table: DirectKafka, application: MakeApplication
) -> None:
    """Also during the restore, which passes the records to the processor; and no process writes a dead letter."""
    config = {"processing.exception.handler.global.enabled": True, "processing.exception.handler": "continue"}
    app = application(with_global_store(), **config, errors_dead_letter_queue_topic_name="dead")
    for key, value in ((b"a", b"1"), (b"b", b"two"), (b"c", b"3")):
        with_table.append(TABLE, 0, key, value, 1)
    thread = app.thread().until_running()
    rows = thread.global_state.store("numbers")
    assert dict(rows.all()) == {"a": 1, "c": 3}
    with_table.append(TABLE, 0, b"a", b"none", 2)
    with_table.append(TABLE, 0, b"d", b"4", 2)
    thread.step()
    assert dict(rows.all()) == {"a": 1, "c": 3, "d": 4}
    thread.close()
    again = app.thread().until_running()
    reader = again.supplier.made["client-StreamThread-1-global-consumer"]
    assert reader.starts == {TopicPartition(TABLE, 0): 5}  # a dropped record leaves no gap
    assert dict(again.global_state.store("numbers").all()) == {"a": 1, "c": 3, "d": 4}
    assert with_table.records("dead") == []


@pytest.mark.parametrize("restoring", [True, False])
def test_without_the_setting_a_failure_in_a_global_store_ends_the_thread(
    with_table: DirectKafka, application: MakeApplication, restoring: bool
) -> None:
    app = application(with_global_store(), **{"processing.exception.handler": "continue"})
    if not restoring:
        thread = app.thread().until_running()
    with_table.append(TABLE, 0, b"b", b"two", 1)
    with pytest.raises(StreamsError, match="processor=KTABLE-SOURCE-0000000001, topic=table, partition=0, offset=0"):
        app.thread().until_running() if restoring else thread.step()


def test_a_record_of_a_global_store_that_cannot_be_read_gets_no_dead_letter(
    with_table: DirectKafka, application: MakeApplication
) -> None:
    builder = StreamsBuilder()
    builder.global_table(TABLE, key_serde=Serdes.string(), value_serde=Serdes.int64(), store="numbers")
    builder.stream(IN, **TEXT).to(OUT, **TEXT)
    config = {"deserialization.exception.handler": "continue", "errors.dead.letter.queue.topic.name": "dead"}
    thread = application(builder.build(), **config).thread().until_running()
    with_table.append(TABLE, 0, b"a", b"no number", 1)
    with_table.append(TABLE, 0, b"b", Serdes.int64().serialize("", 2), 1)
    thread.step()
    assert {key: row[0] for key, row in thread.global_state.store("numbers").all()} == {"b": 2}
    assert with_table.records("dead") == []
