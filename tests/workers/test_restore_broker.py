"""Restores, standby tasks and hand-overs of real processes on a real broker: replayed records and times.

The times are printed (``pytest -s``). The bounds are wide, because the machine may have other work.
"""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock import (
    ApplicationState,
    KafkaStreams,
    Serdes,
    StandbyUpdateListener,
    StateRestoreListener,
    StreamsBuilder,
    SuspendReason,
    TaskId,
)
from penstock import TopicPartition as Partition
from penstock.dev.dev_broker import DevBroker
from tests.read_to_end import ends_of
from tests.topics import create_topics
from tests.waiting import PATIENCE_SECONDS, delete_records, eventually

pytestmark = pytest.mark.broker

PARTITIONS = 4
KEYS = 400
STORE = "counts"


class Restores(StateRestoreListener):
    """Sums the restored records by partition."""

    def __init__(self) -> None:
        self.restored: dict[int, int] = {}
        self.starts: dict[int, list[int]] = {}
        self.ended: list[int] = []

    @property
    def total(self) -> int:
        return sum(self.restored.values())

    def on_restore_start(self, partition: Partition, store: str, starting_offset: int, ending_offset: int) -> None:
        self.starts.setdefault(partition.partition, []).append(starting_offset)

    def on_batch_restored(self, partition: Partition, store: str, batch_end_offset: int, restored: int) -> None:
        self.restored[partition.partition] = self.restored.get(partition.partition, 0) + restored

    def on_restore_end(self, partition: Partition, store: str, total_restored: int) -> None:
        self.ended.append(partition.partition)


class Standbys(StandbyUpdateListener):
    """Records the position of the standby task of each partition, and why it ended."""

    def __init__(self) -> None:
        self.offsets: dict[int, int] = {}
        self.reasons: list[SuspendReason] = []

    def on_batch_loaded(
        self,
        partition: Partition,
        store: str,
        task_id: TaskId,
        batch_end_offset: int,
        batch_size: int,
        end_offset: int | None,
    ) -> None:
        self.offsets[partition.partition] = batch_end_offset

    def on_update_suspended(
        self, partition: Partition, store: str, store_offset: int, end_offset: int | None, reason: SuspendReason
    ) -> None:
        self.reasons.append(reason)


class Watched(KafkaStreams):
    """An application with listeners."""

    def __init__(self, topology: Any, config: dict[str, Any]) -> None:
        super().__init__(topology, config)
        self.restores, self.standbys = Restores(), Standbys()
        self.set_global_state_restore_listener(self.restores)
        self.set_standby_update_listener(self.standbys)


class Application:
    """A count by key without a cache, with operations for tests."""

    def __init__(self, bootstrap_servers: str, application_id: str, source: str, sink: str, state: Path) -> None:
        self.source, self.sink, self.state = source, sink, state
        self.expected: dict[str, int] = {}
        self.producer = Producer({"bootstrap.servers": bootstrap_servers, "partitioner": "murmur2_random"})
        self.admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        self.changelog = f"{application_id}-{STORE}-changelog"
        self.config: dict[str, Any] = {
            "application.id": application_id,
            "bootstrap.servers": bootstrap_servers,
            "commit.interval.ms": 100,
            "statestore.cache.max.bytes": 0,
            "penstock.worker.beat.interval.ms": 50,
        }

    def streams(self, threads: int = 1, state: str = "state", **config: Any) -> Watched:
        builder = StreamsBuilder()
        stream = builder.stream(self.source, key_serde=Serdes.string(), value_serde=Serdes.string())
        counts = stream.group_by_key().count(store=STORE)
        counts.to_stream().to(self.sink, key_serde=Serdes.string(), value_serde=Serdes.int64())
        given = {name.replace("_", "."): value for name, value in config.items()}
        settings = {**self.config, "state.dir": str(self.state / state), "num.stream.threads": threads, **given}
        return Watched(builder.build(), settings)

    def feed(self, rounds: int) -> None:
        for _ in range(rounds):
            for number in range(KEYS):
                self.producer.produce(self.source, b"v", f"k{number}".encode())
                self.expected[f"k{number}"] = self.expected.get(f"k{number}", 0) + 1
            self.producer.poll(0)
        assert self.producer.flush(PATIENCE_SECONDS) == 0

    def make_changelog(self, policy: str = "compact") -> None:
        config = {"cleanup.policy": policy, "retention.ms": "-1"}
        create_topics(self.admin, NewTopic(self.changelog, PARTITIONS, 1, config=config))

    def fill_changelog(self, records: int) -> None:
        """Write the records that counts of many keys would have left in the changelog."""
        self.make_changelog()
        for number in range(records):
            self.producer.produce(self.changelog, struct.pack(">q", 1), f"old{number}".encode())
            while len(self.producer) > 50_000:  # its queue holds twice as many
                self.producer.poll(0.01)
        assert self.producer.flush(PATIENCE_SECONDS) == 0

    def counted(self, consumer: Consumer, found: dict[str, int]) -> dict[str, int]:
        for message in consumer.consume(10_000, 0.05):
            if message.error() is None:
                found[(message.key() or b"").decode()] = struct.unpack(">q", message.value() or b"")[0]
        return found

    def wait_for_counts(self) -> None:
        settings = {"bootstrap.servers": self.config["bootstrap.servers"], "group.id": "reader"}
        consumer = Consumer({**settings, "enable.auto.commit": False})
        consumer.assign([TopicPartition(self.sink, number, 0) for number in range(PARTITIONS)])
        found: dict[str, int] = {}
        try:
            eventually(lambda: self.counted(consumer, found) == self.expected, "each record is counted once")
        finally:
            consumer.close()

    def wait_for_commit(self) -> None:
        """Wait until the offsets of all records are committed, so that none is processed again."""
        ends = ends_of(self.config["bootstrap.servers"], [self.source])
        group = self.config["application.id"]

        def committed() -> dict[tuple[str, int], int]:
            asked = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
            return {(at.topic, at.partition): at.offset for at in asked.result(PATIENCE_SECONDS).topic_partitions}

        eventually(lambda: committed() == ends, lambda: f"{committed()} are committed of {ends}")


def active_tasks(streams: KafkaStreams, state: str = "RUNNING") -> dict[int, set[str]]:
    """Return the tasks of each stream thread by its number."""
    return {
        thread.slot: {task.task_id for task in thread.tasks if task.kind == "active" and task.state == state}
        for thread in streams.status()
    }


def all_running(streams: KafkaStreams, *shares: int) -> bool:
    return sorted(len(tasks) for tasks in active_tasks(streams).values()) == sorted(shares)


@pytest.fixture
def app(bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path) -> Application:
    source, sink = make_topic("in", PARTITIONS), make_topic("out", PARTITIONS)
    return Application(bootstrap_servers, application_id, source, sink, tmp_path)


def test_a_restart_right_after_a_stop_runs_at_once_and_replays_nothing(app: Application) -> None:
    app.feed(5)
    # Kafka Streams waits for the session of its closed member here: that of this one outlasts the test.
    with app.streams(threads=2, session_timeout_ms=1_800_000) as first:
        first.start()
        app.wait_for_counts()
    app.feed(1)
    with app.streams(threads=2) as second:
        second.start()
        seconds = eventually(lambda: all_running(second, 2, 2), "all tasks run")
        eventually(lambda: second.state is ApplicationState.RUNNING, "the application runs")
        print(f"\nrestart right after a stop: all tasks run after {seconds:.2f} s, load {os.getloadavg()[0]:.1f}")
        app.wait_for_counts()
        assert second.restores.total == 0


def test_a_task_that_moves_to_another_process_is_opened_there_from_disk(app: Application) -> None:
    app.feed(5)
    with app.streams(threads=1) as streams:
        streams.start()
        app.wait_for_counts()
        streams.add_stream_thread()
        eventually(lambda: len(streams.status()) == 2 and streams.status()[1].state == "RUNNING", "it has joined")
        gone = eventually(lambda: sum(map(len, active_tasks(streams).values())) < PARTITIONS, "two tasks are closed")
        moved = eventually(lambda: all_running(streams, 2, 2), "they run in the other process")
        print(
            f"\nhand-over: {moved * 1000:.0f} ms from given up to running, load {os.getloadavg()[0]:.1f} ({gone:.1f})"
        )
        app.feed(2)
        app.wait_for_counts()
        assert streams.restores.total == 0
        assert streams.remove_stream_thread() is not None
        eventually(lambda: all_running(streams, PARTITIONS), "all tasks are back")
        app.feed(1)
        app.wait_for_counts()
        assert streams.restores.total == 0


@pytest.mark.slow
def test_a_process_killed_during_a_restore_resumes_where_it_was(app: Application) -> None:
    records = 2_000_000  # most of the restore takes several times PERSIST_CHECK_MS
    app.fill_changelog(records)
    app.feed(1)
    with app.streams() as streams:
        restores = streams.restores
        streams.start()
        eventually(lambda: restores.total > records * 3 / 4, "most of it is restored")
        before = streams.status()[0].pid
        os.kill(before, signal.SIGKILL)
        eventually(lambda: bool(streams.status()) and streams.status()[0].pid != before, "it is replaced")
        restored_before = dict(restores.restored)
        eventually(lambda: all_running(streams, PARTITIONS), "all tasks run")
        app.wait_for_counts()
        again = restores.total - records
        second = {partition: starts[-1] for partition, starts in restores.starts.items() if len(starts) > 1}
        print(f"\nkilled after {sum(restored_before.values())} of {records}: continued from {second}, {again} twice")
        assert sum(second.values()) > 0, "nothing of the first restore was kept"
        assert 0 <= again < sum(restored_before.values()), "everything was restored again"


def test_standbys_on_another_host_take_over_from_a_dead_host(app: Application) -> None:
    app.feed(20)
    config = {"num_standby_replicas": 1}
    with app.streams(state="a", **config) as one, app.streams(state="b", session_timeout_ms=6_000, **config) as two:
        one.start()
        two.start()
        eventually(lambda: all_running(one, 2) and all_running(two, 2), "both have two tasks")
        app.wait_for_counts()
        app.feed(5)
        app.wait_for_counts()
        theirs = {int(task.split("_")[1]) for task in active_tasks(two)[1]}
        ends = {p: changelog_end(app, p) for p in theirs}
        standbys = one.standbys
        eventually(lambda: all(standbys.offsets.get(p, 0) >= end for p, end in ends.items()), "they are followed")
        restored = one.restores.total
        two._supervisor.pause()  # so that the records are committed, and the kill repeats nothing
        app.wait_for_commit()
        begin = time.monotonic()
        for thread in two.status():
            os.kill(
                thread.pid, signal.SIGSTOP
            )  # its supervisor would replace a killed process: this simulates a host that hangs
        eventually(lambda: all_running(one, PARTITIONS), "the other one has taken over")
        print(f"\ntaken over after {time.monotonic() - begin:.2f} s, of which 6 s are the session")
        assert one.restores.total == restored, "a standby's store was restored"
        assert standbys.reasons == [SuspendReason.PROMOTED] * 2
        app.feed(1)
        app.wait_for_counts()
        for thread in two.status():
            os.kill(thread.pid, signal.SIGKILL)


def changelog_end(app: Application, partition: int) -> int:
    consumer = Consumer({"bootstrap.servers": app.config["bootstrap.servers"], "group.id": "reader"})
    try:
        return int(
            consumer.get_watermark_offsets(TopicPartition(app.changelog, partition), timeout=PATIENCE_SECONDS)[1]
        )
    finally:
        consumer.close()


def test_a_changelog_with_deleted_records_is_restored_from_the_remaining_ones(
    app: Application, caplog: pytest.LogCaptureFixture
) -> None:
    app.make_changelog("compact,delete")  # the broker deletes no records of a topic that is only compacted
    app.feed(3)
    with app.streams() as first:
        first.start()
        app.wait_for_counts()
    for number in range(200):
        app.producer.produce(app.changelog, struct.pack(">q", 7), f"late{number}".encode(), number % PARTITIONS)
    assert app.producer.flush(PATIENCE_SECONDS) == 0
    ends = {number: changelog_end(app, number) for number in range(PARTITIONS)}
    delete_records(app.admin, app.changelog, {number: end - 10 for number, end in ends.items()})
    with app.streams() as second:
        second.start()
        eventually(lambda: all_running(second, PARTITIONS), "all tasks run again")
        eventually(lambda: len(second.restores.ended) >= PARTITIONS, "all are restored")
        assert second.restores.total == 10 * PARTITIONS
        assert second.store(STORE).get("late199") == 7
        assert second.store(STORE).get("k0") is None
    assert "but the changelog holds offsets" in caplog.text


@pytest.mark.slow
def test_a_restore_continues_after_the_broker_was_down(
    stoppable_broker: DevBroker, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    records = 400_000
    source, sink = unique_name("in"), unique_name("out")
    app = Application(stoppable_broker.bootstrap_servers, unique_name("app"), source, sink, tmp_path)
    create_topics(app.admin, *(NewTopic(name, PARTITIONS, 1) for name in (source, sink)))
    app.fill_changelog(records)
    app.feed(1)
    with app.streams() as streams:
        restores = streams.restores
        streams.start()
        eventually(lambda: restores.total > records / 10, "the restore has begun")
        pid = streams.status()[0].pid
        stoppable_broker.stop()
        at_stop = restores.total
        stoppable_broker.start()
        eventually(lambda: all_running(streams, PARTITIONS), "all tasks run")
        app.wait_for_counts()
        print(f"\nbroker restarted after {at_stop} of {records} records; {restores.total} restored in the end")
        assert streams.status()[0].pid == pid, "the process had to be replaced"
        assert restores.total == records
