"""Rebalances of real processes on a real broker, measured from outside: tasks that stay continue to process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.supervisor.kafka_streams import KafkaStreams
from penstock.topology.context.partitioners import partition_for_key
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.errors import InvalidStateStoreError
from penstock.topology.processor_api import FixedKeyProcessor, FixedKeyProcessorContext
from penstock.topology.records import Record
from penstock.topology.serdes.serdes import Serdes
from tests.clients.group_settings import configure_streams_group
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.broker

MakeTopic = Callable[..., str]
PARTITIONS = 4
#: The minimum start time of a task.
INIT_SECONDS = 1.0
#: Seconds between two records of one partition.
PERIOD_SECONDS = 0.01


class Signature(FixedKeyProcessor[str, int, str]):
    """Adds the id of the process to each count. Its task starts slowly, as one that loads a model."""

    def init(self, context: FixedKeyProcessorContext) -> None:
        super().init(context)
        time.sleep(INIT_SECONDS)

    def process(self, record: Record[str, int]) -> None:
        self.context.forward(record.with_value(f"{record.value} {os.getpid()}"))


def signed_counts(source: str, sink: str) -> Any:
    """Return a topology that counts the records of one topic by key; each count names the process that made it."""
    builder = StreamsBuilder()
    stream = builder.stream(source, key_serde=Serdes.string(), value_serde=Serdes.string())
    signed = stream.group_by_key().count(store="counts").to_stream().process_values(Signature)
    signed.to(sink, key_serde=Serdes.string(), value_serde=Serdes.string())
    return builder.build()


class Feeder:
    """Writes records to each partition continuously; the key names the partition."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.sent: list[float] = []
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 1})
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_SECONDS):
            for partition in range(PARTITIONS):
                self._producer.produce(self._topic, b"v", str(partition).encode(), partition)
            self.sent.append(time.monotonic())
            self._producer.poll(0)

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE_SECONDS) == 0


class Watcher:
    """Records when each output record of a partition arrives, and from which process."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.arrivals: dict[int, list[float]] = {partition: [] for partition in range(PARTITIONS)}
        self.processes: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        self.counts = dict.fromkeys(range(PARTITIONS), 0)
        self._consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "w", "fetch.wait.max.ms": 5})
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def look(self, seconds: float = 0.05) -> None:
        for message in self._consumer.consume(500, seconds):
            assert message.error() is None
            partition = int(message.key() or b"")
            self.arrivals[partition].append(time.monotonic())
            self.counts[partition], process = map(int, (message.value() or b"").split())
            self.processes[partition].append(process)

    def until(self, condition: Callable[[], Any], what: str) -> float:
        """Watch until the condition holds; return the time."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, what
            self.look()
        return time.monotonic()

    def until_later(self, seconds: float) -> float:
        end = time.monotonic() + seconds
        return self.until(lambda: time.monotonic() >= end, "time passes")

    def longest_gap(self, partition: int, start: float, end: float) -> float:
        """Return the longest time without an output record."""
        times = [start, *(at for at in self.arrivals[partition] if start <= at <= end), end]
        return max(later - earlier for earlier, later in pairwise(times))

    def handover(self, partition: int) -> tuple[float, float]:
        """Return the times of the first process's last output and of the second process's first output."""
        first, *_, last = self.processes[partition]
        assert first != last, f"partition {partition} did not move"
        at = self.processes[partition].index(last)
        return self.arrivals[partition][at - 1], self.arrivals[partition][at]

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture(params=["classic", "streams"])
def streams(
    request: pytest.FixtureRequest, bootstrap_servers: str, application_id: str, make_topic: MakeTopic, tmp_path: Path
) -> Iterator[tuple[KafkaStreams, str, str]]:
    if request.param == "streams":
        configure_streams_group(bootstrap_servers, application_id)
    source, sink = make_topic("in", partitions=PARTITIONS), make_topic("out")
    config: dict[str, Any] = {
        "application.id": application_id,
        "bootstrap.servers": bootstrap_servers,
        "state.dir": str(tmp_path),
        "group.protocol": request.param,
        "num.stream.threads": 1,
        "application.server": "here:80",
        "commit.interval.ms": 100,
        "statestore.cache.max.bytes": 0,  # each record gives an output record at once
        "consumer.fetch.wait.max.ms": 10,
        "producer.linger.ms": 1,
        "penstock.worker.beat.interval.ms": 50,
    }
    if request.param == "classic":
        config["heartbeat.interval.ms"] = 200
    made = KafkaStreams(signed_counts(source, sink), config)
    yield made, source, sink
    made.close()


def running(streams: KafkaStreams) -> list[set[int]]:
    """Return the partitions that each stream thread processes."""
    return [
        {int(task.task_id.split("_")[1]) for task in thread.tasks if task.kind == "active" and task.state == "RUNNING"}
        for thread in streams.status()
    ]


def test_tasks_that_stay_are_processed_while_others_move_to_a_second_process(
    streams: tuple[KafkaStreams, str, str], bootstrap_servers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    application, source, sink = streams
    watcher = Watcher(bootstrap_servers, sink)
    application.start()
    watcher.until(lambda: [len(tasks) for tasks in running(application)] == [PARTITIONS], "one process has all tasks")
    with Feeder(bootstrap_servers, source) as feeder:
        watcher.until(lambda: all(watcher.arrivals.values()), "all are answered")
        begin = watcher.until_later(2.0)
        application.add_stream_thread()
        watcher.until(lambda: [len(tasks) for tasks in running(application)] == [2, 2], "two processes share the tasks")
        watcher.until_later(1.0)
    kept, moved = running(application)
    handover = max((watcher.handover(p) for p in moved), key=lambda between: between[1] - between[0])
    stood_still, paused = handover[1] - handover[0], max(watcher.longest_gap(p, *handover) for p in kept)
    with capsys.disabled():
        print(
            f"\n{application.config['group.protocol']}: longest time without an answer, in ms: "
            f"{stood_still * 1000:.0f} for tasks that moved; meanwhile {paused * 1000:.0f} for tasks that stayed "
            f"({max(watcher.longest_gap(p, begin - 2.0, begin) for p in kept) * 1000:.0f} before the rebalance)"
        )
    # The tasks that stay may wait until those that move are closed, but not until they run elsewhere.
    assert paused < stood_still / 2
    sent = len(feeder.sent)
    watcher.until(lambda: set(watcher.counts.values()) == {sent}, f"all {sent} are counted: {watcher.counts}")
    watcher.close()


def test_the_application_knows_which_host_has_a_key(
    streams: tuple[KafkaStreams, str, str], bootstrap_servers: str
) -> None:
    application, source, sink = streams
    watcher = Watcher(bootstrap_servers, sink)
    with pytest.raises(InvalidStateStoreError, match=r"the application is CREATED"):
        application.metadata_for_all_streams_clients()
    application.start()
    watcher.until(lambda: [len(tasks) for tasks in running(application)] == [PARTITIONS], "one process has all tasks")
    watcher.until(
        lambda: [len(host.topic_partitions) for host in application.metadata_for_all_streams_clients()] == [PARTITIONS],
        "this host has all partitions",
    )
    (host,) = application.streams_metadata_for_store("counts")
    assert host.host_info == ("here", 80)
    assert {partition.topic for partition in host.topic_partitions} == {source}
    found = application.query_metadata_for_key("counts", "a key", key_serde="string")
    assert found is not None
    assert found.active_host == ("here", 80)
    assert found.partition == partition_for_key(b"a key", PARTITIONS)
    watcher.close()
