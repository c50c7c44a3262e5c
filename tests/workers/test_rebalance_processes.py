"""Rebalances of real processes on a real broker, seen from outside: tasks that stay continue to process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
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
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker

MakeTopic = Callable[..., str]
PARTITIONS = 4
#: Seconds between two records of one partition.
PERIOD_SECONDS = 0.01
#: How many records of each task that stays are counted while the others are being opened.
MEANWHILE = 100


class SlowStart(FixedKeyProcessor[str, int, int]):
    """Starts slowly, as one that loads a model: when the gate is open. Its process leaves its id in the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def init(self, context: FixedKeyProcessorContext) -> None:
        super().init(context)
        (self._folder / f"pid-{os.getpid()}").touch()
        eventually((self._folder / "open").exists, "the gate is open")

    def process(self, record: Record[str, int]) -> None:
        self.context.forward(record)


class Gate:
    """Lets tasks start while it is open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def open(self) -> None:
        (self.folder / "open").touch()

    def close(self) -> None:
        (self.folder / "open").unlink()

    def processes(self) -> int:
        """Return how many processes have begun to start tasks."""
        return len(list(self.folder.glob("pid-*")))


def counts(source: str, sink: str, folder: Path) -> Any:
    """Return a topology that counts the records of one topic by key."""
    builder = StreamsBuilder()
    stream = builder.stream(source, key_serde=Serdes.string(), value_serde=Serdes.string())
    counted = stream.group_by_key().count(store="counts").to_stream().process_values(partial(SlowStart, folder))
    counted.to(sink, key_serde=Serdes.string(), value_serde=Serdes.int64())
    return builder.build()


class Feeder:
    """Writes records to each partition continuously; the key names the partition. sent: how many to each."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.sent = 0
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 1})
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_SECONDS):
            for partition in range(PARTITIONS):
                self._producer.produce(self._topic, b"v", str(partition).encode(), partition)
            self.sent += 1
            self._producer.poll(0)

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE_SECONDS) == 0


class Watcher:
    """Reads the newest count of each partition."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.counts = dict.fromkeys(range(PARTITIONS), 0)
        self._consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "w", "fetch.wait.max.ms": 5})
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def look(self) -> None:
        for message in self._consumer.consume(500, 0.05):
            assert message.error() is None
            self.counts[int(message.key() or b"")] = int.from_bytes(message.value() or b"")

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Watch until the condition holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, (what, self.counts)
            self.look()

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture(params=["classic", "streams"])
def streams(
    request: pytest.FixtureRequest, bootstrap_servers: str, application_id: str, make_topic: MakeTopic, tmp_path: Path
) -> Iterator[tuple[KafkaStreams, str, str, Gate]]:
    if request.param == "streams":
        configure_streams_group(bootstrap_servers, application_id)
    source, sink = make_topic("in", partitions=PARTITIONS), make_topic("out")
    gate = Gate(tmp_path / "gate")
    gate.open()
    config: dict[str, Any] = {
        "application.id": application_id,
        "bootstrap.servers": bootstrap_servers,
        "state.dir": str(tmp_path / "state"),
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
    made = KafkaStreams(counts(source, sink, gate.folder), config)
    yield made, source, sink, gate
    gate.open()
    made.close()


def running(streams: KafkaStreams) -> list[set[int]]:
    """Return the partitions that each stream thread processes."""
    return [
        {int(task.task_id.split("_")[1]) for task in thread.tasks if task.kind == "active" and task.state == "RUNNING"}
        for thread in streams.status()
    ]


def test_tasks_that_stay_are_processed_while_others_are_opened_in_a_second_process(
    streams: tuple[KafkaStreams, str, str, Gate], bootstrap_servers: str
) -> None:
    application, source, sink, gate = streams
    watcher = Watcher(bootstrap_servers, sink)
    application.start()
    watcher.until(lambda: [len(tasks) for tasks in running(application)] == [PARTITIONS], "one process has all tasks")
    gate.close()
    with Feeder(bootstrap_servers, source) as feeder:
        watcher.until(lambda: all(watcher.counts.values()), "all are counted")
        application.add_stream_thread()
        watcher.until(lambda: gate.processes() == 2, "the second process opens its tasks")
        watcher.until(lambda: len(running(application)[0]) == 2, "the first process has the others")
        enough = {partition: watcher.counts[partition] + MEANWHILE for partition in running(application)[0]}
        watcher.until(lambda: all(watcher.counts[each] >= count for each, count in enough.items()), "they are counted")
        assert len(running(application)[1]) < 2
        gate.open()
        watcher.until(lambda: [len(tasks) for tasks in running(application)] == [2, 2], "two processes share the tasks")
    watcher.until(lambda: set(watcher.counts.values()) == {feeder.sent}, f"all {feeder.sent} are counted")
    watcher.close()


def test_the_application_knows_which_host_has_a_key(
    streams: tuple[KafkaStreams, str, str, Gate], bootstrap_servers: str
) -> None:
    application, source, sink, _ = streams
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
